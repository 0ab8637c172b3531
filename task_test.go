package subagent_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

var statuses = []subagent.Status{
	subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning,
	subagent.StatusCompleted, subagent.StatusCancelled, subagent.StatusErrored,
}

// noStatus are words that are no state: near misses, other systems' words.
var noStatus = []subagent.Status{"", "Pending", "canceled", "failed", "done", "stopping", "running "}

var reasons = []subagent.Reason{
	"", subagent.ReasonUser, subagent.ReasonAgent, subagent.ReasonParent, subagent.ReasonSession,
	subagent.ReasonCaller, subagent.ReasonShutdown, subagent.ReasonError, subagent.ReasonPanic,
	subagent.ReasonTimeout, subagent.ReasonQueueTimeout, subagent.ReasonLost, subagent.ReasonStore,
	"budget",
}

func TestTransitions(t *testing.T) {
	var table bytes.Buffer
	legal := 0
	for _, from := range statuses {
		for _, to := range statuses {
			word := "refused"
			if subagent.CanTransition(from, to) {
				word = "legal"
				legal++
			}
			fmt.Fprintf(&table, "%-9s -> %-9s  %s\n", from, to, word)
		}
	}
	require.Equal(t, 9, legal)
	golden(t, "transitions.txt", table.Bytes())

	for _, odd := range noStatus {
		for _, s := range append(statuses, noStatus...) {
			require.False(t, subagent.CanTransition(odd, s), "%q to %q", odd, s)
			require.False(t, subagent.CanTransition(s, odd), "%q to %q", s, odd)
		}
	}
}

func TestG3_NothingLeadsOutOfATerminalStatus(t *testing.T) {
	for _, from := range statuses[3:] {
		for _, to := range append(statuses, noStatus...) {
			require.False(t, subagent.CanTransition(from, to), "%s to %s", from, to)
		}
	}
}

func TestStatusPredicates(t *testing.T) {
	for i, s := range statuses {
		require.True(t, s.Valid(), s)
		require.Equal(t, i >= 3, s.Terminal(), s)
	}
	for _, s := range noStatus {
		require.False(t, s.Valid(), "%q", s)
		require.False(t, s.Terminal(), "%q", s)
	}
}

// fullTask has every field set to a value of its own.
func fullTask() subagent.Task {
	at := func(n int) time.Time { return time.Date(2026, 3, 4, 5, 6, n, n*1000, time.UTC) }
	return subagent.Task{
		ID:                uuid.MustParse("0195a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"),
		ExternalTaskID:    "call_0",
		Subject:           "Find the <needle> & report",
		Description:       "Find the needle\nin the haystack “今天” 👩‍🔬.",
		AgentID:           "researcher",
		Status:            subagent.StatusCancelled,
		Reason:            subagent.ReasonAgent,
		StopReason:        "turn_capped",
		CreatedAt:         at(1),
		QueuedAt:          at(2),
		StartedAt:         at(3),
		CancelRequestedAt: at(4),
		CompletedAt:       at(5),
		NotifiedAt:        at(6),
		ParentSessionID:   "chat-1",
		ParentTaskID:      uuid.MustParse("0195a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5c"),
		ParentMsgID:       "msg-1",
		ContextMode:       subagent.ContextInherit,
		Background:        true,
		HeadID:            "head-1",
		SourceCommitID:    "commit-1",
		ResultText:        "half of it",
		ResultTruncated:   true,
		Error:             "cancel timed out, worker may be stuck",
		CancelMessage:     "enough",
		Detached:          true,
		Attempt:           1,
		Usage: subagent.Usage{
			InputTokens: 10, OutputTokens: 20, TotalTokens: 30,
			CacheReadTokens: 4, CacheWriteTokens: 5, ReasoningTokens: 6, Calls: 7,
		},
		Progress: subagent.Progress{Message: "reading", ToolUses: 3, LastActivityAt: at(4)},
		Metadata: map[string]string{"b": "2", "a": "1"},
		Owner:    "runner-1",
		Version:  9,
	}
}

func minimalTask() subagent.Task {
	return subagent.Task{
		ID:              uuid.MustParse("0195a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"),
		Subject:         "Find the needle",
		Description:     "Find the needle",
		Status:          subagent.StatusPending,
		CreatedAt:       time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
		ParentSessionID: "chat-1",
		Version:         1,
	}
}

func TestTaskJSON(t *testing.T) {
	full := reflect.ValueOf(fullTask())
	for i := range full.NumField() {
		require.False(t, full.Field(i).IsZero(), "%s is not covered", full.Type().Field(i).Name)
	}
	goldenJSON(t, "task_full.json", fullTask())
	goldenJSON(t, "task_minimal.json", minimalTask())

	for _, want := range []subagent.Task{fullTask(), minimalTask(), {}} {
		data, err := json.Marshal(want)
		require.NoError(t, err)
		var got subagent.Task
		require.NoError(t, json.Unmarshal(data, &got))
		require.Equal(t, want, got)
	}
}

func TestEventJSON(t *testing.T) {
	want := subagent.Event{
		Seq: 42, Type: subagent.EventStatus, Task: minimalTask(),
		Time: time.Date(2026, 3, 4, 5, 6, 8, 9000, time.UTC),
	}
	goldenJSON(t, "event.json", want)
	data, err := json.Marshal(want)
	require.NoError(t, err)
	var got subagent.Event
	require.NoError(t, json.Unmarshal(data, &got))
	require.Equal(t, want, got)
}

func TestTaskErr(t *testing.T) {
	sentinels := []error{subagent.ErrCancelled, subagent.ErrTimeout, subagent.ErrLost, subagent.ErrShutdown}
	for _, status := range statuses {
		for _, reason := range reasons {
			task := subagent.Task{ID: uuid.New(), Status: status, Reason: reason}
			var want []error
			switch {
			case status == subagent.StatusCancelled:
				want = append(want, subagent.ErrCancelled)
			case status != subagent.StatusErrored:
				require.NoError(t, task.Err(), "%s/%s", status, reason)
				continue
			case reason == subagent.ReasonTimeout || reason == subagent.ReasonQueueTimeout:
				want = append(want, subagent.ErrTimeout)
			case reason == subagent.ReasonLost:
				want = append(want, subagent.ErrLost)
			}
			if reason == subagent.ReasonShutdown {
				want = append(want, subagent.ErrShutdown)
			}
			err := fmt.Errorf("wrapped: %w", task.Err())
			for _, s := range sentinels {
				require.Equal(t, contains(want, s), errors.Is(err, s), "%s/%s is %v", status, reason, s)
			}
			require.ErrorContains(t, err, "subagent: ")
			require.ErrorContains(t, err, task.ID.String())
		}
	}
}

func contains(set []error, err error) bool {
	for _, e := range set {
		if e == err {
			return true
		}
	}
	return false
}

func TestTaskErrText(t *testing.T) {
	task := subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonError, Error: "boom"}
	require.ErrorContains(t, task.Err(), "errored (error): boom")
	task = subagent.Task{Status: subagent.StatusCancelled, Reason: subagent.ReasonUser, CancelMessage: "enough"}
	require.ErrorContains(t, task.Err(), "cancelled (user): enough")
}

func TestTransitionError(t *testing.T) {
	id := uuid.New()
	var err error = &subagent.TransitionError{ID: id, From: subagent.StatusCompleted, To: subagent.StatusRunning}
	require.ErrorIs(t, err, subagent.ErrInvalidTransition)
	for _, part := range []string{"subagent: ", id.String(), "completed", "running"} {
		require.ErrorContains(t, err, part)
	}
}

func TestG2_CorrelationID(t *testing.T) {
	id := uuid.New()
	require.Equal(t, id.String(), subagent.Task{ID: id}.CorrelationID())
	require.Equal(t, "call_0", subagent.Task{ID: id, ExternalTaskID: "call_0"}.CorrelationID())
}

func TestFilterMatch(t *testing.T) {
	parent := uuid.New()
	task := subagent.Task{
		ID: uuid.New(), ParentSessionID: "s", ExternalTaskID: "x", AgentID: "a", ParentMsgID: "m",
		ParentTaskID: parent, Status: subagent.StatusErrored, Background: true,
	}
	with := func(change func(*subagent.Task)) subagent.Task {
		c := task
		change(&c)
		return c
	}
	notified := with(func(c *subagent.Task) { c.NotifiedAt = time.Now() })
	live := with(func(c *subagent.Task) { c.Status = subagent.StatusRunning })
	foreground := with(func(c *subagent.Task) { c.Background = false })
	for _, c := range []struct {
		name   string
		filter subagent.Filter
		task   subagent.Task
		want   bool
	}{
		{"zero", subagent.Filter{}, task, true},
		{"zero, zero task", subagent.Filter{}, subagent.Task{}, true},
		{"session", subagent.Filter{SessionID: "s"}, task, true},
		{"other session", subagent.Filter{SessionID: "S"}, task, false},
		{"external id", subagent.Filter{ExternalTaskID: "x"}, task, true},
		{"other external id", subagent.Filter{ExternalTaskID: "y"}, task, false},
		{"agent", subagent.Filter{AgentID: "a"}, task, true},
		{"other agent", subagent.Filter{AgentID: "b"}, task, false},
		{"message", subagent.Filter{ParentMsgID: "m"}, task, true},
		{"other message", subagent.Filter{ParentMsgID: "n"}, task, false},
		{"parent", subagent.Filter{ParentTaskID: parent}, task, true},
		{"other parent", subagent.Filter{ParentTaskID: task.ID}, task, false},
		{"status", subagent.Filter{Statuses: []subagent.Status{"errored"}}, task, true},
		{"one of statuses", subagent.Filter{Statuses: []subagent.Status{"running", "errored"}}, task, true},
		{"other status", subagent.Filter{Statuses: []subagent.Status{"running"}}, task, false},
		{"empty statuses", subagent.Filter{Statuses: []subagent.Status{}}, task, true},
		{"undelivered", subagent.Filter{Undelivered: true}, task, true},
		{"undelivered, notified", subagent.Filter{Undelivered: true}, notified, false},
		{"undelivered, live", subagent.Filter{Undelivered: true}, live, false},
		{"undelivered, foreground", subagent.Filter{Undelivered: true}, foreground, false},
		{"all", subagent.Filter{"s", "x", "a", "m", parent, []subagent.Status{"errored"}, true, uuid.Max, 1, true}, task, true},
		{"one of all", subagent.Filter{"s", "x", "a", "-", parent, []subagent.Status{"errored"}, true, uuid.Nil, 0, false}, task, false},
		{"after is a cursor", subagent.Filter{After: uuid.Max}, task, true},
		{"limit is no condition", subagent.Filter{Limit: -1}, task, true},
	} {
		require.Equal(t, c.want, c.filter.Match(c.task), c.name)
	}
}

func TestB084_EveryTerminalStatusIsTreatedAlike(t *testing.T) {
	for _, s := range statuses {
		task := subagent.Task{Status: s, Background: true}
		require.Equal(t, s.Terminal(), subagent.Filter{Undelivered: true}.Match(task), s)
	}
}
