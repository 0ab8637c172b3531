package agenttool_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// touched is a ctx that does something when it is looked at for the n-th time,
// in the middle of a call that has it, if that is still in the instant in which
// the call began.
type touched struct {
	context.Context
	began time.Time
	left  atomic.Int64
	do    func()
}

func (c *touched) touch() {
	if c.left.Add(-1) == 0 && time.Now().Equal(c.began) {
		c.do()
	}
}

func (c *touched) Value(key any) any {
	c.touch()
	return c.Context.Value(key)
}

func (c *touched) Done() <-chan struct{} {
	c.touch()
	return c.Context.Done()
}

func (c *touched) Deadline() (time.Time, bool) {
	c.touch()
	return c.Context.Deadline()
}

func (c *touched) Err() error {
	c.touch()
	return c.Context.Err()
}

// The task ends at each moment of a call that waits for it, also between the
// look at its status and the start of the wait: the answer is its end, at once.
func TestB147_AnEndWhileTheWaitBegins(t *testing.T) {
	for _, mode := range waitModes {
		inHost(t, func(t *testing.T, h *host) {
			during, never := 0, 0
			for round := range bubble.Often(10_000, 600) {
				id, _ := h.runs("work")
				look, ended := round%12+1, false
				ctx := &touched{Context: t.Context(), began: time.Now(), do: func() {
					h.finish(id, "whole")
					ended = true
				}}
				ctx.left.Store(int64(look))
				a := h.waitFor(ctx, id, mode, 1000)
				if !ended { // the call looks less often
					require.Contains(t, a.Text, "Waited 1s")
					h.finish(id, "")
					never++
					continue
				}
				require.Contains(t, a.Text, "whole", "%s, look %d", mode, look)
				require.Equal(t, ctx.began, time.Now(), "%s: it ended at look %d, and the wait went on", mode, look)
				during++
			}
			require.Greater(t, during, bubble.Often(10_000, 600)/3)
			require.Positive(t, never, "every look was tried")
		})
	}
}

// waitModes are the ways to wait for one task: task_output, and await_tasks in
// its two modes.
var waitModes = []string{"", "all", "any"}

// waitFor waits for one task in one of waitModes.
func (h *host) waitFor(ctx context.Context, id uuid.UUID, mode string, timeout int) agenttool.Answer {
	h.t.Helper()
	if mode == "" {
		return h.callAs(ctx, agenttool.Call{Name: "task_output", SessionID: session}, args{"task_id": id, "timeout": timeout})
	}
	a := args{"task_ids": []uuid.UUID{id}, "mode": mode, "timeout": timeout}
	return h.callAs(ctx, agenttool.Call{Name: "await_tasks", SessionID: session}, a)
}

// Text, progress and usage of a task that runs are no end: who blocks is
// answered at the end, with the final text.
func TestB148_AWaitIsNotAnsweredWithAPart(t *testing.T) {
	for _, mode := range waitModes {
		inFuncHost(t, func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			for i := range 30 {
				time.Sleep(10 * time.Millisecond)
				_, _ = run.Write([]byte("part "))
				run.Progress(fmt.Sprint(i))
				run.ToolUse("search")
				run.ReportUsage("m", subagent.Usage{TotalTokens: int64(i)})
			}
			return subagent.Result{Text: "the final text"}, nil
		}, func(t *testing.T, h *host) {
			for range 6 {
				id := h.start("work")
				began := time.Now()
				a := h.waitFor(t.Context(), id, mode, 5000)
				require.Equal(t, 300*time.Millisecond, time.Since(began), mode)
				require.Contains(t, a.Text, "the final text")
				require.NotContains(t, a.Text, "part ")
				require.Contains(t, a.Text, "status=completed")
			}
		})
	}
}

// A wait for a task in the queue goes on through queued and running.
func TestB149_AWaitForAQueuedTask(t *testing.T) {
	for _, mode := range waitModes {
		inHost(t, func(t *testing.T, h *host) {
			first, _ := h.runs("first")
			second := h.start("second")
			time.AfterFunc(400*time.Millisecond, func() { h.gate.Release(first, subagent.Result{}, nil) })
			time.AfterFunc(500*time.Millisecond, func() { h.gate.Release(second, subagent.Result{Text: "of the second"}, nil) })
			began := time.Now()
			a := h.waitFor(t.Context(), second, mode, 5000)
			require.Equal(t, 500*time.Millisecond, time.Since(began))
			require.Contains(t, a.Text, "of the second")
		})
	}
}

// A wait that runs out, or whose turn is cancelled, leaves the tasks alone.
func TestB150_AWaitThatRunsOutStopsNothing(t *testing.T) {
	for _, mode := range waitModes {
		for _, cut := range []bool{false, true} {
			inHostOf(t, subagent.Config{}, agenttool.Options{}, func(t *testing.T, h *host) {
				entered := make(chan context.Context, 1)
				id := h.spawn(t.Context(), func(q *subagent.Request) {
					q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
						entered <- ctx
						return h.gate.Func()(ctx, run)
					}
				})
				in := <-entered
				queued := h.start("in line")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				timeout := 200
				if cut {
					timeout = 30000
					time.AfterFunc(200*time.Millisecond, cancel)
				}
				for _, target := range []uuid.UUID{id, queued} {
					began := time.Now()
					a := h.waitFor(ctx, target, mode, timeout)
					if !cut || target == id {
						require.Equal(t, 200*time.Millisecond, time.Since(began))
					}
					require.False(t, a.IsError)
					require.Contains(t, a.Text, map[bool]string{true: "status=running", false: "status=queued"}[target == id])
					require.NoError(t, in.Err())
					require.Zero(t, h.get(target).CancelRequestedAt)
				}
				h.finish(id, "unhurt")
				h.finish(queued, "unhurt too")
				require.Equal(t, "unhurt", h.get(id).ResultText)
				require.Equal(t, "unhurt too", h.get(queued).ResultText)
			})
		}
	}
}

// However long a wait is asked for, it ends at the documented maximum, and when
// the turn that made the call is cancelled.
func TestB151_AHugeTimeoutIsCappedAndHearsTheTurn(t *testing.T) {
	for _, mode := range waitModes {
		inHost(t, func(t *testing.T, h *host) {
			id, _ := h.runs("endless")
			began := time.Now()
			a := h.waitFor(t.Context(), id, mode, 99999999)
			require.Equal(t, 10*time.Minute, time.Since(began))
			require.Contains(t, a.Text, "600000 ms")
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(3*time.Second, cancel)
			began = time.Now()
			a = h.waitFor(ctx, id, mode, 99999999)
			require.Equal(t, 3*time.Second, time.Since(began))
			require.Contains(t, a.Text, "status=running")
			require.Contains(t, a.Text, "Waited 3s")
		})
	}
}

// The unit is milliseconds: both schemas say so, the wait is that long, and the
// answer says how long it was.
func TestB152_TheUnitOfATimeout(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		for _, tool := range h.tools.Tools() {
			if tool.Name != "task_output" && tool.Name != "await_tasks" {
				continue
			}
			for _, schema := range [][]byte{tool.Schema, tool.StrictSchema} {
				require.Contains(t, string(schema), `"timeout":{`)
				require.Contains(t, string(schema), "How long to wait, in milliseconds, 0 to 600000.")
			}
		}
		id, _ := h.runs("work")
		for ms, said := range map[int]string{1: "Waited 1ms", 1000: "Waited 1s", 1500: "Waited 1.5s", 90_000: "Waited 1m30s"} {
			for _, mode := range waitModes {
				began := time.Now()
				a := h.waitFor(t.Context(), id, mode, ms)
				require.Equal(t, time.Duration(ms)*time.Millisecond, time.Since(began))
				require.Contains(t, a.Text, said)
			}
		}
	})
}

// Any is over at the first end, whatever it is, in any state; the rest is
// listed and left alone.
func TestB156_AnyIsOverAtTheFirstEnd(t *testing.T) {
	deaf := func(h *host) subagent.Func { return h.gate.DeafFunc() }
	for name, c := range map[string]struct {
		fn     func(h *host) subagent.Func
		change func(*subagent.Request)
		end    func(h *host, id uuid.UUID)
		after  time.Duration
		want   string
	}{
		"an error": {end: func(h *host, id uuid.UUID) { h.gate.Release(id, subagent.Result{}, errors.New("no")) }, want: "errored"},
		"a cancel": {end: func(h *host, id uuid.UUID) { h.call("task_stop", args{"task_id": id}) }, want: "cancelled"},
		"a forced end": {fn: deaf, end: func(h *host, id uuid.UUID) { h.call("task_stop", args{"task_id": id}) },
			after: 30 * time.Second, want: "cancelled"},
		"a run time": {change: func(q *subagent.Request) { q.Timeout = time.Minute }, end: func(*host, uuid.UUID) {},
			after: time.Minute, want: "errored"},
		"a panic": {fn: func(*host) subagent.Func {
			return func(context.Context, *subagent.Run) (subagent.Result, error) { time.Sleep(time.Second); panic("no") }
		}, end: func(*host, uuid.UUID) {}, after: time.Second, want: "errored"},
		"an end before the call": {end: func(h *host, id uuid.UUID) { h.finish(id, "before") }, want: "completed"},
	} {
		t.Run(name, func(t *testing.T) {
			inHostOf(t, subagent.Config{Workers: 2}, agenttool.Options{}, func(t *testing.T, h *host) {
				running, _ := h.runs("runs")
				ends := h.spawn(t.Context(), func(q *subagent.Request) {
					if c.fn != nil {
						q.Func = c.fn(h)
					}
					if c.change != nil {
						c.change(q)
					}
				})
				queued := h.start("waits in line")
				synctest.Wait()
				began := time.Now()
				c.end(h, ends)
				a := h.call("await_tasks", args{"task_ids": []uuid.UUID{running, ends, queued}, "mode": "any", "timeout": 300_000})
				require.Equal(t, c.after, time.Since(began))
				require.True(t, strings.HasPrefix(a.Text, "1 of 3 tasks have ended."), a.Text)
				tasks := data[tasksData](t, a).Tasks
				require.Equal(t, c.want, string(tasks[1].Status))
				for _, i := range []int{0, 2} {
					require.False(t, tasks[i].Status.Terminal())
					require.Contains(t, a.Text, fmt.Sprintf("task_id=%s status=%s\nstill ", tasks[i].ID, tasks[i].Status))
					require.Zero(t, h.get(tasks[i].ID).CancelRequestedAt)
				}
			})
		})
	}
}

// The same id several times, in whatever spelling, is one task.
func TestB157_TheSameIDSeveralTimes(t *testing.T) {
	for _, mode := range []string{"all", "any"} {
		inHost(t, func(t *testing.T, h *host) {
			id, _ := h.runs("work")
			same := []string{id.String(), id.String(), strings.ToUpper(id.String()), " " + id.String() + "\n"}
			a := h.call("await_tasks", args{"task_ids": same, "mode": mode, "timeout": 1})
			require.Equal(t, "run", statuses(t, a))
			time.AfterFunc(time.Second, func() { h.gate.Release(id, subagent.Result{Text: "once"}, nil) })
			for _, after := range []time.Duration{time.Second, 0} { // while it runs, and when it has ended
				began := time.Now()
				a = h.call("await_tasks", args{"task_ids": same, "mode": mode})
				require.Equal(t, after, time.Since(began))
				require.Equal(t, "com", statuses(t, a))
				require.Equal(t, 1, strings.Count(a.Text, "once"))
				require.Contains(t, a.Text, "1 of 1 tasks have ended.")
			}
		})
	}
}

// One bad id among good ones: nothing is dropped in silence, nothing is waited
// for, and the good ones are as they were.
func TestB158_BadIDsAreRefusedTogether(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		good, _ := h.runs("work")
		before, unknown := h.get(good), uuid.New()
		for _, mode := range []string{"all", "any"} {
			for _, ids := range [][]any{{good, "nope", unknown}, {"nope", unknown}, {unknown, good, "nope", good}} {
				began := time.Now()
				a := h.call("await_tasks", args{"task_ids": ids, "mode": mode, "timeout": 1000})
				require.Zero(t, time.Since(began))
				refused(t, a, `"nope"`, unknown.String())
				require.Equal(t, before, h.get(good))
			}
		}
		for _, none := range []string{uuid.Nil.String(), "", " ", "{" + good.String() + "}", "urn:uuid:" + good.String(), good.String()[:35]} {
			refused(t, h.call("await_tasks", args{"task_ids": []any{good, none}}), "await_tasks: ")
			require.True(t, h.call("task_output", args{"task_id": none}).IsError)
		}
	})
}

// Waiting again for what was awaited says the same, at once, as often as asked.
func TestB160_WaitingAgain(t *testing.T) {
	inPlan(t, 3, func(t *testing.T, h *host, ids []uuid.UUID) {
		h.gate.Release(ids[0], subagent.Result{Text: "fine"}, nil)
		h.gate.Release(ids[1], subagent.Result{}, errors.New("no"))
		h.call("task_stop", args{"task_id": ids[2]})
		var first []string
		for round := range 4 {
			began := time.Now()
			said := []string{
				h.call("await_tasks", args{"task_ids": ids}).Text,
				h.call("await_tasks", args{"task_ids": ids, "mode": "any"}).Text,
			}
			for _, id := range ids {
				for _, block := range []bool{true, false} {
					said = append(said, h.call("task_output", args{"task_id": id, "block": block}).Text)
				}
			}
			if round == 0 {
				first = said
			}
			require.Equal(t, first, said)
			require.Zero(t, time.Since(began))
		}
	})
}

// A call in the background waits for no slot, and for a slow store no longer
// than its caller does; then nothing runs that nobody was told of.
func TestB163_ASpawnDoesNotOutlastItsCaller(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		inHost(t, func(t *testing.T, h *host) {
			blocker, _ := h.runs("blocker")
			began := time.Now()
			h.start("in line")
			require.Zero(t, time.Since(began), "the cap is full, and nobody waits for a slot")
			h.store.On(subagenttest.OpCreate, func(subagenttest.Call) subagenttest.Fault {
				return subagenttest.Fault{Delay: 3 * time.Second, Deaf: deaf}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			a := h.callAs(ctx, agenttool.Call{Name: "agent", SessionID: session}, args{"prompt": "slow", "description": "d", "run_in_background": true})
			require.Equal(t, time.Second, time.Since(began))
			require.True(t, a.IsError)
			require.True(t, strings.HasPrefix(a.Text, "[cancelled] No task was started: "), a.Text)
			h.store.On(subagenttest.OpCreate, nil)
			time.Sleep(time.Minute) // a store that does not hear its ctx has stored it
			h.finish(blocker, "")
			h.gate.ReleaseAll()
			synctest.Wait()
			list, err := h.List(t.Context(), subagent.Filter{})
			require.NoError(t, err)
			for _, task := range list {
				if task.Description == "slow" {
					require.True(t, deaf)
					require.Equal(t, subagent.StatusErrored, task.Status)
					require.Zero(t, task.StartedAt)
				}
			}
			require.Zero(t, h.Stats().Capacity.Queued+h.Stats().Running)
		})
	}
}
