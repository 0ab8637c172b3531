package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// change loads a history, changes it and saves it again.
func change(t *testing.T, file string, edit func(*history)) {
	t.Helper()
	h, err := loadHistory(file)
	require.NoError(t, err)
	edit(h)
	require.NoError(t, h.save(file))
}

// unattribute makes a history what it is when it is saved before the pass.
func unattribute(h *history) {
	for _, t := range h.Talks {
		for i := range t.Entries {
			t.Entries[i].Usage = t.Entries[i].ModelUsage
			t.Entries[i].UsageAttributed = false
		}
	}
}

func read1(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(data)
}

func TestReplayTwice(t *testing.T) {
	file := saved(t)
	before := read1(t, file)
	code, first, stderr := call(t, nil, "-replay", file)
	require.Equal(t, exitDone, code, stderr)
	assert.Contains(t, first, "attributed        0 messages changed\n")
	assert.Contains(t, first, "attributed again  0 messages changed\nevery token is counted once\n")
	_, second, _ := call(t, nil, "-replay", file)
	assert.Equal(t, first, second)
	assert.Equal(t, before, read1(t, file), "and the file is as it was")
}

func TestReplayOfAHistorySavedBeforeAttribution(t *testing.T) {
	file := saved(t)
	whole := read1(t, file)
	_, want, _ := call(t, nil, "-replay", file)
	change(t, file, unattribute)
	assert.NotEqual(t, whole, read1(t, file))

	code, first, stderr := call(t, nil, "-replay", file)
	require.Equal(t, exitDone, code, stderr)
	// Six sub-agents: a marker each, and the messages that started them, of which two started two.
	assert.Contains(t, first, "attributed        10 messages changed\n")
	assert.Equal(t, strings.Replace(want, " 0 messages", " 10 messages", 1), first, "the table is the same")
	assert.JSONEq(t, whole, read1(t, file), "what was added is saved with its marker")
	_, second, _ := call(t, nil, "-replay", file)
	assert.Equal(t, want, second)
}

// Each agent and each turn had the same call ids, and background results came
// long after; still each sub-agent is charged to the message that started it.
func TestUsageGoesToTheMessageThatStartedTheSubAgent(t *testing.T) {
	h, err := loadHistory(saved(t))
	require.NoError(t, err)
	sum := func(talks ...*talk) (u subagent.Usage) {
		for _, t := range talks {
			u = u.Add(t.costs().own)
		}
		return u
	}
	require.Len(t, h.Talks, 7)
	var lead, searcher []subagent.Usage
	for _, e := range h.Talks[0].Entries {
		if e.Role == roleAssistant {
			lead = append(lead, added(e))
		}
	}
	for _, e := range h.Talks[3].Entries {
		if e.Role == roleAssistant {
			searcher = append(searcher, added(e))
		}
	}
	none := subagent.Usage{}
	assert.Equal(t, []subagent.Usage{
		sum(h.Talks[1], h.Talks[2]), none, none, none, none, sum(h.Talks[3]), none,
		sum(h.Talks[5], h.Talks[6]), none, none,
	}, lead)
	assert.Equal(t, []subagent.Usage{none, sum(h.Talks[4]), none}, searcher)
	assert.Equal(t, "reader", h.Talks[2].Agent)
	assert.Equal(t, int64(1), h.Talks[2].costs().own.Calls, "the one that was stopped: what it had spent")
}

// added is what attribution added to a message.
func added(e entry) subagent.Usage {
	u, v := e.Usage, e.ModelUsage
	return subagent.Usage{
		InputTokens: u.InputTokens - v.InputTokens, OutputTokens: u.OutputTokens - v.OutputTokens, TotalTokens: u.TotalTokens - v.TotalTokens,
		CacheReadTokens: u.CacheReadTokens - v.CacheReadTokens, ReasoningTokens: u.ReasoningTokens - v.ReasoningTokens, Calls: u.Calls - v.Calls,
	}
}

// An inherited conversation comes without its counts: they are the parent's.
func TestInheritedMessagesCostOnce(t *testing.T) {
	h, err := loadHistory(saved(t))
	require.NoError(t, err)
	critic := h.Talks[6]
	require.Equal(t, "critic", critic.Agent)
	assert.Equal(t, "Who writes about whales?", critic.Before[0].Content)
	assert.Equal(t, planning, critic.Before[len(critic.Before)-1].Content)
	for _, m := range critic.Before {
		assert.NotEqual(t, roleCard, m.Role)
	}
	assert.Len(t, critic.Entries, 3)
	assert.Equal(t, int64(1), critic.costs().all.Calls)
}

func TestReplaySeesWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*history)
		code int
		want string
	}{
		"counted twice": {func(h *history) {
			e := &h.Talks[0].Entries[2]
			e.Usage = e.Usage.Add(subagent.Usage{TotalTokens: 5})
		}, exitFailed, "lead lead: its messages carry "},
		"a wrong count": {func(h *history) {
			unattribute(h)
			h.result(*h.Talks[1].From).SubagentUsage = json.RawMessage(`{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}`)
		}, exitFailed, "2 tokens were stored for it; its model calls cost "},
		"a count that is none": {func(h *history) {
			unattribute(h)
			h.result(*h.Talks[1].From).SubagentUsage = json.RawMessage(`{"input_tokens": -1, "output_tokens": 1, "total_tokens": 2}`)
		}, exitFailed, "input_tokens is -1; it must be a non-negative integer"},
		"one call, two sub-agents": {func(h *history) { h.Talks[2].From = h.Talks[1].From }, exitFailed, "started another sub-agent too"},
		"a count on no sub-agent's result": {func(h *history) {
			h.Talks[1].From.CallID = "call_1"
			h.result(dispatch{"lead", "lead/3", "call_0"}).SubagentUsage = json.RawMessage(`"lots"`)
		}, exitFailed, "subagent: usage: not a JSON object"},
		"a negative count": {func(h *history) {
			e := &h.Talks[0].Entries[2]
			less := subagent.Usage{InputTokens: -1 << 40}
			e.ModelUsage, e.Usage = e.ModelUsage.Add(less), e.Usage.Add(less)
		}, exitFailed, `lead lead: message "lead/3" has a negative count`},
		"no message": {func(h *history) { h.Talks[1].From.MessageID = "lead/99" }, exitFailed, `no message "lead/99" of "lead" made the tool call "call_0" that it was started by`},
		"no call":    {func(h *history) { h.Talks[1].From.CallID = "call_9" }, exitFailed, `no message "lead/3" of "lead" made the tool call "call_9"`},
		"marks taken off": {func(h *history) {
			for i := range h.Talks[0].Entries {
				h.Talks[0].Entries[i].UsageAttributed = false
			}
		}, exitFailed, "lead lead: its messages carry "},
		"no conversations": {func(h *history) { h.Talks = nil }, exitUsage, "it has no conversations"},
		"a loop":           {func(h *history) { h.Talks[1].From.Session = h.Talks[1].Session }, exitUsage, "conversation 2 comes before the one that started it"},
		"the same twice":   {func(h *history) { h.Talks[2].Session = "lead" }, exitUsage, "conversation 3 has no session of its own"},
		"no session":       {func(h *history) { h.Talks[0].Session = "" }, exitUsage, "conversation 1 has no session of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			file := saved(t)
			change(t, file, c.edit)
			before := read1(t, file)
			code, _, stderr := call(t, nil, "-replay", file)
			assert.Equal(t, c.code, code)
			assert.Contains(t, stderr, c.want)
			assert.Equal(t, before, read1(t, file), "what is wrong is not saved")
		})
	}
}

func TestReplayReadsToTheEnd(t *testing.T) {
	file := saved(t)
	require.NoError(t, os.WriteFile(file, append(once.history, "{}"...), 0o600))
	code, _, stderr := call(t, nil, "-replay", file)
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, stderr, "there is more behind it")
}

// A result whose counts cannot be read stays unmarked, and the others are
// attributed all the same.
func TestUnreadableCountsWaitForALaterPass(t *testing.T) {
	h, err := loadHistory(saved(t))
	require.NoError(t, err)
	unattribute(h)
	e := h.result(*h.Talks[1].From)
	good := e.SubagentUsage
	e.SubagentUsage = json.RawMessage(`"lots"`)
	assert.Equal(t, 9, h.attribute(), "one marker is missing")
	assert.False(t, e.UsageAttributed)
	e.SubagentUsage = good
	assert.Equal(t, 2, h.attribute())
	assert.NoError(t, h.audit())
}

func TestSaveIsWholeOrNot(t *testing.T) {
	file := saved(t)
	entries, err := os.ReadDir(strings.TrimSuffix(file, "/history.json"))
	require.NoError(t, err)
	assert.Len(t, entries, 1, "nothing is left beside it")
	assert.ErrorContains(t, new(history).save(t.TempDir()), "is not a regular file")
}

// The place is tried before the conversation; what stands there stays till its end.
func TestAnEarlierHistoryStaysUntilThereIsANewOne(t *testing.T) {
	file := saved(t)
	before := read1(t, file)
	env := serve(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, before, read1(t, file))
		entries, err := os.ReadDir(filepath.Dir(file))
		assert.NoError(t, err)
		assert.Len(t, entries, 1, "nothing is left of the try")
		http.Error(w, "no", http.StatusTeapot)
	})
	call(t, env, "-save", file, "Who?", library)
	assert.NotEqual(t, before, read1(t, file))
}

func TestChargeKeepsWhatIsStored(t *testing.T) {
	h, err := loadHistory(saved(t))
	require.NoError(t, err)
	from := *h.Talks[1].From
	before := string(h.result(from).SubagentUsage)
	assert.ErrorContains(t, h.charge(delivery{from.Session, from.MessageID, from.CallID, json.RawMessage(`{}`)}), "has a sub-agent's cost already")
	assert.Equal(t, before, string(h.result(from).SubagentUsage))
}
