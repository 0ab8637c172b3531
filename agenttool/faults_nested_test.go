package agenttool_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

// Foreground agents, one in the other, deeper than there are slots.
func TestB065_ForegroundAgentsInEachOther(t *testing.T) {
	for _, slots := range []int{1, 2} {
		var h *host
		work := func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			if len(run.Task().Description) == 4 {
				return subagent.Result{Text: "ground"}, nil
			}
			a := h.callAs(ctx, agenttool.Call{ID: "call_0", Name: "agent"}, args{"prompt": run.Task().Description + "x", "description": "d"})
			if a.IsError {
				return subagent.Result{}, errors.New(a.Text)
			}
			text, _, _ := strings.Cut(a.Text, "\n")
			return subagent.Result{Text: text + "+"}, nil
		}
		inHostOf(t, subagent.Config{Func: work, Workers: slots}, agenttool.Options{}, func(t *testing.T, hh *host) {
			h = hh
			began := time.Now()
			a := h.call("agent", args{"prompt": "x", "description": "d"})
			require.True(t, strings.HasPrefix(a.Text, "ground+++\n"), a.Text)
			require.Zero(t, time.Since(began))
			require.Equal(t, subagent.CapacityStats{Limit: slots}, h.Stats().Capacity)
		})
	}
}

// A sub-agent asks for the end of its sibling, its parent, its grandparent or
// itself. It sees none of them, so no ring of waits can come about; it is told
// at once and goes on.
func TestB066_B067_NoToolWaitsSidewaysOrUpwards(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 4}, agenttool.Options{}, func(t *testing.T, h *host) {
		top, topCtx := h.runsInside(t.Context())
		parent, parentCtx := h.runsInside(topCtx)
		me, ctx := h.runsInside(parentCtx)
		sibling, siblingCtx := h.runsInside(parentCtx)
		began := time.Now()
		for from, ids := range map[context.Context][]uuid.UUID{ctx: {top, parent, me, sibling}, siblingCtx: {me}, parentCtx: {top, parent}} {
			for _, id := range ids {
				for _, ask := range asks {
					refused(t, h.callAs(from, agenttool.Call{Name: ask.tool}, ask.args(id.String())), "there is no task "+id.String())
				}
			}
			require.NoError(t, from.Err())
		}
		require.Zero(t, time.Since(began))
	})
}

// A parent waits for its child, which a host has told to wait for the parent:
// the one who closes the ring is refused in words, and both end.
func TestB067_AWaitThatClosesARing(t *testing.T) {
	var h *host
	var child uuid.UUID
	parentWaits := make(chan string, 1)
	work := func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		if run.Task().Description == "child" {
			time.Sleep(time.Second)
			_, err := h.Wait(ctx, run.Task().ParentTaskID)
			require.ErrorIs(h.t, err, subagent.ErrWaitCycle)
			return subagent.Result{Text: "went on"}, nil
		}
		child = h.callAs(ctx, agenttool.Call{Name: "agent"}, args{"prompt": "child", "description": "d", "run_in_background": true}).TaskID
		parentWaits <- h.callAs(ctx, agenttool.Call{Name: "await_tasks"}, args{"task_ids": []uuid.UUID{child}}).Text
		return subagent.Result{}, nil
	}
	inHostOf(t, subagent.Config{Func: work, Workers: 1}, agenttool.Options{}, func(t *testing.T, hh *host) {
		h = hh
		began := time.Now()
		a := h.call("agent", args{"prompt": "parent", "description": "d"})
		require.False(t, a.IsError, a.Text)
		require.Contains(t, <-parentWaits, "went on")
		require.Equal(t, time.Second, time.Since(began))
	})
}

// An agent whose only act is to call agent() on itself, waiting and not.
func TestB069_AnAgentThatOnlyCallsItself(t *testing.T) {
	for _, background := range []bool{false, true} {
		var h *host
		last := make(chan agenttool.Answer, 1)
		work := func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			a := h.callAs(ctx, agenttool.Call{Name: "agent"}, args{"prompt": run.Task().Description + "x", "description": "d", "run_in_background": background})
			if a.TaskID == uuid.Nil {
				last <- a
			}
			return subagent.Result{Text: "as deep as it goes"}, nil
		}
		inHostOf(t, subagent.Config{Func: work, MaxDepth: 5}, agenttool.Options{}, func(t *testing.T, hh *host) {
			h = hh
			h.call("agent", args{"prompt": "x", "description": "d"})
			refused(t, <-last, "[task error] No task was started: too many layers of sub-agents: layer 6 of at most 5; do the work yourself")
			synctest.Wait()
			list := data[tasksData](t, h.call("list_tasks", args{})).Tasks
			require.Len(t, list, 5)
			for _, task := range list {
				require.Equal(t, subagent.StatusCompleted, task.Status)
			}
			require.False(t, h.call("list_tasks", args{}).IsError, "the chat goes on")
		})
	}
}
