package agenttool_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/subagenttest"
)

type funcOf = func(ctx context.Context, run *subagent.Run) (subagent.Result, error)

func inFuncHost(t *testing.T, fn funcOf, f func(t *testing.T, h *host)) {
	t.Helper()
	inHostOf(t, subagent.Config{Func: fn}, agenttool.Options{}, f)
}

func TestAgentMakesTheRequestThatWasAskedFor(t *testing.T) {
	inHostOf(t, subagent.Config{}, agenttool.Options{Agents: profiles}, func(t *testing.T, h *host) {
		c := agenttool.Call{ID: "toolu_1", Name: "agent", SessionID: "chat-9", MessageID: "msg-9"}
		a := h.callAs(t.Context(), c, args{
			"prompt": "all of it\nat length", "description": "short", "agent_id": "reviewer", "context": "inherit", "run_in_background": true,
		})
		require.False(t, a.IsError, a.Text)
		require.Nil(t, a.Usage)
		got := h.get(a.TaskID)
		require.Equal(t, "all of it\nat length", got.Description)
		require.Equal(t, "short", got.Subject)
		require.Equal(t, "reviewer", got.AgentID)
		require.Equal(t, subagent.ContextInherit, got.ContextMode)
		require.Equal(t, "toolu_1", got.ExternalTaskID)
		require.Equal(t, "chat-9", got.ParentSessionID)
		require.Equal(t, "msg-9", got.ParentMsgID)
		require.True(t, got.Background)
		require.Equal(t, subagent.StatusQueued, data[taskData](t, a).Status)
		require.Contains(t, a.Text, "started in the background: task_id="+got.ID.String()+" status=queued\n")
		require.Contains(t, a.Text, "task_output")
	})
}

func TestForegroundAgentAnswersWithTheResult(t *testing.T) {
	inFuncHost(t, func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
		run.ReportUsage("a", subagent.Usage{InputTokens: 10, OutputTokens: 5, TotalTokens: 15})
		return subagent.Result{Text: "the answer to " + run.Task().Description, StopReason: "turn_capped"}, nil
	}, func(t *testing.T, h *host) {
		a := h.call("agent", args{"prompt": "life", "description": "d"})
		require.False(t, a.IsError)
		require.Equal(t, fmt.Sprintf("the answer to life\n\ntask_id=%s status=completed stop_reason=turn_capped", a.TaskID), a.Text)
		require.Equal(t, &subagent.Usage{InputTokens: 10, OutputTokens: 5, TotalTokens: 15, Calls: 1}, a.Usage)
		require.False(t, h.get(a.TaskID).Background)
		require.NotZero(t, h.get(a.TaskID).NotifiedAt, "the answer is its delivery")
	})
}

// The same work has the same end in the foreground, in the background, and when
// it is read again.
func TestForegroundBackgroundAndReadingAgainSayTheSame(t *testing.T) {
	for name, fn := range map[string]funcOf{
		"completed": func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			run.ReportUsage("a", subagent.Usage{TotalTokens: 3})
			return subagent.Result{Text: "fine"}, nil
		},
		"errored": func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			fmt.Fprint(run, "half")
			run.ReportUsage("a", subagent.Usage{TotalTokens: 3})
			return subagent.Result{}, errors.New("no model")
		},
	} {
		inFuncHost(t, fn, func(t *testing.T, h *host) {
			work := args{"prompt": "p", "description": "d"}
			front := h.call("agent", work)
			same := func(a agenttool.Answer) string { return strings.ReplaceAll(a.Text, a.TaskID.String(), "ID") }
			again := h.call("task_output", args{"task_id": front.TaskID})
			require.Equal(t, front.Text, again.Text, name)
			require.Equal(t, front.IsError, again.IsError)
			require.Nil(t, again.Usage)
			started := h.call("agent", with(work, "run_in_background", true))
			back := h.call("task_output", args{"task_id": started.TaskID})
			require.Equal(t, same(front), same(back), name)
			require.Equal(t, front.Usage, back.Usage)
			require.NotNil(t, back.Usage)
			require.Equal(t, name, string(data[taskData](t, front).Status))
		})
	}
}

func TestFailuresAndCancellationsSayWhatTheyAre(t *testing.T) {
	for _, c := range []struct {
		name string
		fn   funcOf
		text string // without the line with the id
	}{
		{"error", func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			return subagent.Result{}, errors.New("no model")
		}, "[task error] no model"},
		{"error with partial text", func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			fmt.Fprint(run, "one, two")
			return subagent.Result{}, errors.New("no model")
		}, "[task error] no model\n\none, two"},
		{"panic", func(context.Context, *subagent.Run) (subagent.Result, error) { panic("nil map") }, "[task error] panic: nil map"},
		{"time limit", func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			fmt.Fprint(run, "one, two")
			<-ctx.Done()
			return subagent.Result{}, ctx.Err()
		}, "[task error] timed out after 5m0s\n\none, two"},
		{"no text", func(context.Context, *subagent.Run) (subagent.Result, error) { return subagent.Result{}, nil }, "(no text)"},
	} {
		inHostOf(t, subagent.Config{Func: c.fn, Timeout: 5 * time.Minute}, agenttool.Options{}, func(t *testing.T, h *host) {
			a := h.call("agent", args{"prompt": "p", "description": "d"})
			require.Contains(t, a.Text, a.TaskID.String(), c.name)
			text, last, _ := cutLast(a.Text)
			require.Equal(t, c.text, text, c.name)
			require.Regexp(t, `^task_id=\S+ status=(errored reason=\w+|completed)$`, last)
			require.Equal(t, strings.HasPrefix(c.text, "[task error]"), a.IsError, c.name)
			require.NotNil(t, a.Usage, "zero usage is delivered too")
			require.True(t, a.Usage.IsZero())
		})
	}
}

// cutLast parts an answer from its last line.
func cutLast(text string) (before, last string, ok bool) {
	i := strings.LastIndex(text, "\n\n")
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+2:], true
}

// A foreground agent whose caller goes away is stopped, and answers with what it
// has.
func TestForegroundAgentIsStoppedWithItsCaller(t *testing.T) {
	inFuncHost(t, func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		fmt.Fprint(run, "half a thought")
		<-ctx.Done()
		return subagent.Result{}, ctx.Err()
	}, func(t *testing.T, h *host) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a := h.callAs(ctx, agenttool.Call{Name: "agent", SessionID: session}, args{"prompt": "p", "description": "d"})
		require.Equal(t, fmt.Sprintf("[cancelled]\n\nhalf a thought\n\ntask_id=%s status=cancelled reason=caller", a.TaskID), a.Text)
		require.False(t, a.IsError)
		require.NotNil(t, a.Usage)
		require.Equal(t, subagent.ReasonCaller, h.get(a.TaskID).Reason)

		a = h.callAs(ctx, agenttool.Call{Name: "agent", SessionID: session}, args{"prompt": "p", "description": "d"})
		refused(t, a, "[cancelled] No task was started: context deadline exceeded.")
		a = h.callAs(ctx, agenttool.Call{Name: "agent", SessionID: session}, args{"prompt": "p", "description": "d", "run_in_background": true})
		refused(t, a, "[cancelled] No task was started: ")
	})
}

// A background task does not care about the ctx of the call that started it.
func TestBackgroundAgentOutlivesItsCaller(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		ctx, cancel := context.WithCancel(t.Context())
		a := h.callAs(ctx, agenttool.Call{Name: "agent", SessionID: session}, args{"prompt": "p", "description": "d", "run_in_background": true})
		cancel()
		synctest.Wait()
		require.Equal(t, subagent.StatusRunning, h.get(a.TaskID).Status)
	})
}

// A caller that is itself being stopped does not stay for a deaf child: the
// answer says that it was asked to stop, and is no delivery.
func TestForegroundAgentOfAStoppedParent(t *testing.T) {
	answers := make(chan agenttool.Answer, 1)
	var h *host
	release := make(chan struct{})
	deaf := func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
		fmt.Fprint(run, "half")
		<-release
		return subagent.Result{Text: "whole"}, nil
	}
	lead := func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		if run.Task().Description == "child" {
			return deaf(ctx, run)
		}
		answers <- h.callAs(ctx, agenttool.Call{Name: "agent"}, args{"prompt": "child", "description": "d"})
		return subagent.Result{}, ctx.Err()
	}
	inHostOf(t, subagent.Config{Func: lead, Workers: 2}, agenttool.Options{}, func(t *testing.T, hh *host) {
		h, release = hh, make(chan struct{})
		answers = make(chan agenttool.Answer, 1)
		parent := h.start("lead")
		synctest.Wait()
		h.call("task_stop", args{"task_id": parent})
		a := <-answers
		require.Equal(t, fmt.Sprintf("[cancelled] The task was asked to stop.\n\nhalf\n\ntask_id=%s status=running reason=parent", a.TaskID), a.Text)
		require.Nil(t, a.Usage)
		close(release)
		synctest.Wait()
		last := h.call("task_output", args{"task_id": a.TaskID})
		require.Contains(t, last.Text, "[cancelled]\n\nwhole")
		require.NotNil(t, last.Usage)
	})
}

func TestAgentThatIsNotStarted(t *testing.T) {
	work := args{"prompt": "p", "description": "d", "run_in_background": true}
	inHostOf(t, subagent.Config{Capacity: subagent.NewCapacity(1, 0)}, agenttool.Options{}, func(t *testing.T, h *host) {
		h.start("takes the slot")
		refused(t, h.call("agent", work), "[task error] No task was started: ", "queue full", "do the work yourself")
		require.NoError(t, h.Shutdown(t.Context()))
		refused(t, h.call("agent", work), "[task error] No task was started: runner closed.")
	})
	inHostOf(t, subagent.Config{MaxDepth: 1, Workers: 2}, agenttool.Options{}, func(t *testing.T, h *host) {
		_, ctx := h.runsInside(t.Context())
		for _, background := range []bool{false, true} {
			a := h.callAs(ctx, agenttool.Call{Name: "agent"}, with(work, "run_in_background", background))
			refused(t, a, "[task error] No task was started: too many layers of sub-agents", "do the work yourself")
		}
		require.False(t, h.call("list_tasks", args{}).IsError, "the chat goes on")
	})
	inHostOf(t, subagent.Config{}, agenttool.Options{}, func(t *testing.T, h *host) {
		refused(t, h.call("agent", with(work, "agent_id", strings.Repeat("a", 257))), "agent_id is ", "at most 256 bytes")
		refused(t, h.callAs(t.Context(), agenttool.Call{ID: strings.Repeat("a", 257), Name: "agent", SessionID: session}, work), "No task was started: ", "ExternalTaskID")
		require.False(t, h.call("agent", with(work, "agent_id", strings.Repeat("a", 256))).IsError)
		require.False(t, h.call("agent", with(work, "description", strings.Repeat("a", 1<<20))).IsError, "a long subject is cut")
	})
	inHostOf(t, subagent.Config{}, agenttool.Options{}, func(t *testing.T, h *host) {
		parent, ctx := h.runsInside(t.Context())
		h.call("task_stop", args{"task_id": parent})
		refused(t, h.callAs(context.WithoutCancel(ctx), agenttool.Call{Name: "agent"}, work), "[cancelled] No task was started: parent is cancelled")
	})
}

// A task that the store would not queue has a record: its answer has the id.
func TestAgentThatTheStoreWouldNotQueue(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		h.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			if c.Ends() {
				return subagenttest.Fault{}
			}
			return subagenttest.Fault{Err: errors.New("read-only")}
		})
		for _, background := range []bool{true, false} {
			a := h.call("agent", args{"prompt": "p", "description": "d", "run_in_background": background})
			require.True(t, a.IsError)
			require.Equal(t, fmt.Sprintf("[task error] store: read-only\n\ntask_id=%s status=errored reason=store", a.TaskID), a.Text)
			require.NotEqual(t, uuid.Nil, a.TaskID)
		}
	})
}

// Sub-agents that start sub-agents with these tools finish with one slot.
func TestNestedAgentsLendTheirSlot(t *testing.T) {
	var h *host
	inFuncHost(t, func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		depth := run.Task().Description
		if len(depth) == 4 {
			return subagent.Result{Text: "ground"}, nil
		}
		call := func(name string, a args) agenttool.Answer { return h.callAs(ctx, agenttool.Call{Name: name}, a) }
		front := call("agent", args{"prompt": depth + "x", "description": "d"})
		back := call("agent", args{"prompt": depth + "x", "description": "d", "run_in_background": true})
		read := call("task_output", args{"task_id": back.TaskID})
		all := call("await_tasks", args{"task_ids": []uuid.UUID{front.TaskID, back.TaskID}})
		if front.IsError || read.IsError || all.IsError || !data[tasksData](t, all).Done {
			return subagent.Result{}, errors.New(front.Text + read.Text + all.Text)
		}
		text, _, _ := cutLast(read.Text)
		return subagent.Result{Text: text + "+" + depth}, nil
	}, func(t *testing.T, hh *host) {
		h = hh
		a := h.call("agent", args{"prompt": "x", "description": "d"})
		require.True(t, strings.HasPrefix(a.Text, "ground+xxx+xx+x\n"), a.Text)
	})
}
