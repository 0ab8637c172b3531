package subagent

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// requestWith is a valid request with one thing changed.
func requestWith(change func(*Request)) *Request {
	q := &Request{Description: "do it", ParentSessionID: "s"}
	if change != nil {
		change(q)
	}
	return q
}

func metadataKeys(n int) map[string]string {
	m := make(map[string]string, n)
	for i := range n {
		m[fmt.Sprintf("k%03d", i)] = ""
	}
	return m
}

// idFields sets each of the id strings.
var idFields = map[string]func(*Request, string){
	"ExternalTaskID":  func(q *Request, s string) { q.ExternalTaskID = s },
	"AgentID":         func(q *Request, s string) { q.AgentID = s },
	"ParentSessionID": func(q *Request, s string) { q.ParentSessionID = s },
	"ParentMsgID":     func(q *Request, s string) { q.ParentMsgID = s },
}

func TestRequestAccepted(t *testing.T) {
	for name, change := range map[string]func(*Request){
		"minimal":               nil,
		"clean context":         func(q *Request) { q.ContextMode = ContextClean },
		"inherited context":     func(q *Request) { q.ContextMode = ContextInherit },
		"own id":                func(q *Request) { q.ID = uuid.New() },
		"longest description":   func(q *Request) { q.Description = strings.Repeat("x", maxDescription) },
		"longest once clean":    func(q *Request) { q.Description = strings.Repeat("x", maxDescription-3) + "\x00" },
		"broken description":    func(q *Request) { q.Description = "\xff" },
		"any subject":           func(q *Request) { q.Subject = strings.Repeat("\xff", 1<<20) },
		"empty metadata":        func(q *Request) { q.Metadata = map[string]string{} },
		"most keys":             func(q *Request) { q.Metadata = metadataKeys(maxMetadataKeys) },
		"largest metadata":      func(q *Request) { q.Metadata = map[string]string{"k": strings.Repeat("x", maxMetadata-1)} },
		"largest once clean":    func(q *Request) { q.Metadata = map[string]string{"k": strings.Repeat("x", maxMetadata-4) + "\x00"} },
		"broken metadata":       func(q *Request) { q.Metadata = map[string]string{"\xff": "\x00", "\xff\xff": ""} },
		"empty key":             func(q *Request) { q.Metadata = map[string]string{"": "x"} },
		"negative times":        func(q *Request) { q.Timeout, q.QueueTimeout = -1, -1 },
		"replacement character": func(q *Request) { q.AgentID = "\ufffd" },
	} {
		require.NoError(t, requestWith(change).validate(), name)
	}
	for field, set := range idFields {
		require.NoError(t, requestWith(func(q *Request) { set(q, strings.Repeat("今", 85)+"x") }).validate(), "%s of 256 bytes", field)
	}
}

func TestRequestRefused(t *testing.T) {
	for _, c := range []struct {
		field, says string
		change      func(*Request)
	}{
		{"ParentSessionID", "empty", func(q *Request) { q.ParentSessionID = "" }},
		{"ParentSessionID", "empty", func(q *Request) { q.ParentSessionID = " \t\n" }},
		{"Description", "empty", func(q *Request) { q.Description = "" }},
		{"Description", "empty", func(q *Request) { q.Description = " \r\n\t\u00a0\u3000" }},
		{"Description", "1048577 bytes; at most 1048576", func(q *Request) { q.Description = strings.Repeat("x", maxDescription+1) }},
		{"Description", "1048577 bytes; at most 1048576", func(q *Request) { q.Description = strings.Repeat("x", maxDescription-2) + "\x00" }},
		{"ContextMode", `"Clean"`, func(q *Request) { q.ContextMode = "Clean" }},
		{"ContextMode", `"clean"`, func(q *Request) { q.ContextMode = "fork" }},
		{"Metadata", "65 keys; at most 64", func(q *Request) { q.Metadata = metadataKeys(maxMetadataKeys + 1) }},
		{"Metadata", "65537 bytes", func(q *Request) { q.Metadata = map[string]string{"k": strings.Repeat("x", maxMetadata)} }},
		{"Metadata", "65537 bytes", func(q *Request) { q.Metadata = map[string]string{strings.Repeat("x", maxMetadata+1): ""} }},
		{"Metadata", "65537 bytes", func(q *Request) { q.Metadata = map[string]string{"k": strings.Repeat("x", maxMetadata-3) + "\xff"} }},
		{"Metadata", "equal", func(q *Request) { q.Metadata = map[string]string{"a\x00": "1", "a\xff": "2"} }},
		{"Metadata", "equal", func(q *Request) { q.Metadata = map[string]string{"a\x00": "1", "a\ufffd": "1"} }},
	} {
		requireRefused(t, c.field, c.says, c.change)
	}
	for field, set := range idFields {
		for value, says := range map[string]string{
			strings.Repeat("x", maxID+1): "257 bytes; at most 256",
			"a\x00b":                     "NUL",
			"a\xff":                      "UTF-8",
			"a\xe4\xbb":                  "UTF-8",
		} {
			requireRefused(t, field, says, func(q *Request) { set(q, value) })
		}
	}
}

// requireRefused checks that the request is refused with an error that names the
// field, says what is wrong, and is not as long as what it refuses.
func requireRefused(t *testing.T, field, says string, change func(*Request)) {
	t.Helper()
	err := requestWith(change).validate()
	require.ErrorIs(t, err, ErrInvalidRequest, field)
	require.ErrorContains(t, err, "subagent: invalid request: "+field)
	require.ErrorContains(t, err, says)
	require.Less(t, len(err.Error()), 2048)
	require.True(t, utf8.ValidString(err.Error()))
}

func TestRequestErrorIsBounded(t *testing.T) {
	requireRefused(t, "ContextMode", "allowed", func(q *Request) { q.ContextMode = ContextMode(strings.Repeat("\xff", 1<<20)) })
	requireRefused(t, "AgentID", "UTF-8", func(q *Request) { q.AgentID = strings.Repeat("\xff", maxID) })
}

func TestRequestTask(t *testing.T) {
	q := &Request{
		ID: uuid.New(), ExternalTaskID: "call_0", Subject: "look\x00up", Description: "find \xff it",
		AgentID: "a", ParentSessionID: "s", ParentMsgID: "m", ContextMode: ContextInherit,
		Metadata: map[string]string{"k\x00": "v\xff"}, NoWait: true, Timeout: 1,
	}
	require.Equal(t, &Task{
		ExternalTaskID: "call_0", Subject: "look\ufffdup", Description: "find \ufffd it",
		AgentID: "a", ParentSessionID: "s", ParentMsgID: "m", ContextMode: ContextInherit,
		Metadata: map[string]string{"k\ufffd": "v\ufffd"},
	}, q.task(), "the rest is for the Runner")

	require.Equal(t, &Task{Subject: "do it", Description: "do it", ParentSessionID: "s", ContextMode: ContextClean}, requestWith(nil).task())
	require.Nil(t, requestWith(func(q *Request) { q.Metadata = map[string]string{} }).task().Metadata)
}

func TestRequestTaskOwnsItsMetadata(t *testing.T) {
	q := requestWith(func(q *Request) { q.Metadata = map[string]string{"k": "v"} })
	task := q.task()
	q.Metadata["k"] = "changed"
	q.Metadata["new"] = ""
	require.Equal(t, map[string]string{"k": "v"}, task.Metadata)
}

func TestRequestSubject(t *testing.T) {
	wide := strings.Repeat("👩‍🔬", 100)
	for _, c := range []struct{ name, subject, description, want string }{
		{"given", "a subject", "d", "a subject"},
		{"given with space", " a\nb ", "d", " a\nb "},
		{"200 runes", strings.Repeat("今", 200), "d", strings.Repeat("今", 200)},
		{"201 runes", strings.Repeat("今", 201), "d", strings.Repeat("今", 200)},
		{"broken bytes count as runes", strings.Repeat("\xff", 201), "d", strings.Repeat("\ufffd", 200)},
		{"blank", " \t", "d", "d"},
		{"first line", "", "first\nsecond", "first"},
		{"first line, CRLF", "", "first\r\nsecond", "first"},
		{"first line, CR", "", "first\rsecond", "first"},
		{"first line that is not blank", "", "\n \r\n\t first line \nsecond", "first line"},
		{"80 runes", "", strings.Repeat("今", 80) + "\nx", strings.Repeat("今", 80)},
		{"81 runes", "", strings.Repeat("今", 81), strings.Repeat("今", 80)},
		{"between runes", "", wide, string([]rune(wide)[:80])},
		{"of the clean description", "", "\x00x", "\ufffdx"},
	} {
		got := (&Request{Subject: c.subject, Description: c.description}).task().Subject
		require.Equal(t, c.want, got, c.name)
	}
}

func TestG2_SameContent(t *testing.T) {
	base := func() *Task {
		return &Task{
			ParentTaskID: uuid.Max, ParentSessionID: "s", ExternalTaskID: "x", Subject: "u", Description: "d",
			AgentID: "a", ParentMsgID: "m", ContextMode: ContextClean, Metadata: map[string]string{"k": "v"},
		}
	}
	for name, change := range map[string]func(*Task){
		"parent":         func(t *Task) { t.ParentTaskID = uuid.Nil },
		"session":        func(t *Task) { t.ParentSessionID = "" },
		"external id":    func(t *Task) { t.ExternalTaskID = "" },
		"subject":        func(t *Task) { t.Subject = "" },
		"description":    func(t *Task) { t.Description = "" },
		"agent":          func(t *Task) { t.AgentID = "" },
		"message":        func(t *Task) { t.ParentMsgID = "" },
		"context mode":   func(t *Task) { t.ContextMode = ContextInherit },
		"metadata":       func(t *Task) { t.Metadata = nil },
		"metadata value": func(t *Task) { t.Metadata = map[string]string{"k": "w"} },
		"metadata key":   func(t *Task) { t.Metadata = map[string]string{"l": "v"} },
	} {
		other := base()
		change(other)
		require.False(t, sameContent(base(), other), name)
		require.False(t, sameContent(other, base()), name)
	}
	other := base()
	other.ID, other.Status, other.Version, other.Background, other.Owner = uuid.New(), StatusErrored, 7, true, "o"
	require.True(t, sameContent(base(), other), "what is not asked for does not count")
	require.True(t, sameContent(&Task{}, &Task{Metadata: map[string]string{}}))
}

func TestG2_EqualAfterDefaultsAndCleaning(t *testing.T) {
	a := requestWith(func(q *Request) {
		q.Subject, q.Description, q.Metadata = "", "do\x00it", map[string]string{"k": "\xff"}
	})
	b := requestWith(func(q *Request) {
		q.Subject, q.Description, q.ContextMode = "do\ufffdit", "do\ufffdit", ContextClean
		q.Metadata = map[string]string{"k": "\ufffd"}
	})
	require.True(t, sameContent(a.task(), b.task()))
}
