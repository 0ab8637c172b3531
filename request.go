package subagent

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/go-subagent/subagent/internal/runes"
)

// ErrInvalidRequest is a request, or another argument, that no retry will
// make right. The error that wraps it names the field, what is wrong with it
// and what is allowed.
var ErrInvalidRequest = errors.New("subagent: invalid request")

// Limits of a Request, in bytes unless the name says otherwise.
const (
	maxID             = 256
	maxDescription    = 1 << 20
	maxMetadataKeys   = 64
	maxMetadata       = 64 << 10
	maxSubjectRunes   = 200
	maxFirstLineRunes = 80
)

// validate reports what is wrong with q. Text is measured as it would be
// stored, because cleaning may make it longer. Whether there is a Func is for
// the Runner to say.
func (q *Request) validate() error {
	if err := q.validateIDs(); err != nil {
		return err
	}
	if err := q.validateDescription(); err != nil {
		return err
	}
	switch q.ContextMode {
	case "", ContextClean, ContextInherit:
	default:
		return invalid("ContextMode", "is %q; allowed are %q and %q", runes.Cut(string(q.ContextMode), maxID), ContextClean, ContextInherit)
	}
	return q.validateMetadata()
}

func (q *Request) validateIDs() error {
	if strings.TrimSpace(q.ParentSessionID) == "" {
		return invalid("ParentSessionID", "is empty; a task belongs to a session")
	}
	for _, id := range [...]struct{ field, value string }{
		{"ExternalTaskID", q.ExternalTaskID},
		{"AgentID", q.AgentID},
		{"ParentSessionID", q.ParentSessionID},
		{"ParentMsgID", q.ParentMsgID},
	} {
		if err := checkID(id.field, id.value); err != nil {
			return err
		}
	}
	return nil
}

// checkID refuses an id that could not be stored as it is. It repairs none: an
// id that was repaired would be another id.
func checkID(field, id string) error {
	if len(id) > maxID {
		return invalid(field, "has %d bytes; at most %d are allowed", len(id), maxID)
	}
	if !runes.IsClean(id) {
		return invalid(field, "is %q; it must be valid UTF-8 without NUL", id)
	}
	return nil
}

func (q *Request) validateDescription() error {
	if strings.TrimSpace(q.Description) == "" {
		return invalid("Description", "is empty; the prompt is required")
	}
	n := len(q.Description)
	if n <= maxDescription { // cleaning never shrinks a text: don't clean what is too long
		n = len(runes.Clean(q.Description))
	}
	if n > maxDescription {
		return invalid("Description", "has %d bytes; at most %d are allowed", n, maxDescription)
	}
	return nil
}

func (q *Request) validateMetadata() error {
	if n := len(q.Metadata); n > maxMetadataKeys {
		return invalid("Metadata", "has %d keys; at most %d are allowed", n, maxMetadataKeys)
	}
	size := 0
	for k, v := range q.Metadata {
		size += len(k) + len(v)
	}
	if size <= maxMetadata {
		kept := cleanMap(q.Metadata)
		if len(kept) < len(q.Metadata) {
			return invalid("Metadata", "has keys that become equal when their text is made valid; keys must differ")
		}
		size = 0
		for k, v := range kept {
			size += len(k) + len(v)
		}
	}
	if size > maxMetadata {
		return invalid("Metadata", "has %d bytes of keys and values; at most %d are allowed", size, maxMetadata)
	}
	return nil
}

func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrInvalidRequest, field, fmt.Sprintf(format, args...))
}

// task is the record that the valid q asks for, as far as q says: who it is,
// where it hangs and who runs it is for the Runner to add. It shares nothing
// with q that a caller could write to.
func (q *Request) task() *Task {
	t := &Task{
		ExternalTaskID:  q.ExternalTaskID,
		Description:     runes.Clean(q.Description),
		AgentID:         q.AgentID,
		ParentSessionID: q.ParentSessionID,
		ParentMsgID:     q.ParentMsgID,
		ContextMode:     q.ContextMode,
		Metadata:        cleanMap(q.Metadata),
	}
	t.Subject = cutRunes(runes.Clean(q.Subject), maxSubjectRunes)
	if strings.TrimSpace(t.Subject) == "" {
		t.Subject = cutRunes(firstLine(t.Description), maxFirstLineRunes)
	}
	if t.ContextMode == "" {
		t.ContextMode = ContextClean
	}
	return t
}

// firstLine is the first line of s that is not blank, without the space
// around it.
func firstLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.IndexAny(s, "\r\n"); i >= 0 {
		s = strings.TrimSpace(s[:i])
	}
	return s
}

// cleanMap is a clean copy of m, nil if m is empty. Keys that become equal
// are one in it.
func cleanMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	kept := make(map[string]string, len(m))
	for k, v := range m {
		kept[runes.Clean(k)] = runes.Clean(v)
	}
	return kept
}

// sameContent reports whether two records ask for the same: a spawn with the
// ID of the one is then a repetition of the other.
func sameContent(a, b *Task) bool {
	return a.ParentTaskID == b.ParentTaskID &&
		a.ParentSessionID == b.ParentSessionID &&
		a.ExternalTaskID == b.ExternalTaskID &&
		a.Subject == b.Subject &&
		a.Description == b.Description &&
		a.AgentID == b.AgentID &&
		a.ParentMsgID == b.ParentMsgID &&
		a.ContextMode == b.ContextMode &&
		maps.Equal(a.Metadata, b.Metadata)
}
