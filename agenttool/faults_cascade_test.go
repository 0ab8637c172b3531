package agenttool_test

import (
	"context"
	"errors"
	"runtime"
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

// A stop takes all below with it, what runs and what is queued, and names it,
// descendants first.
func TestB114_AStopTakesTheChildrenAndNamesThem(t *testing.T) {
	inDesk(t, subagent.Config{Workers: 2}, func(t *testing.T, d *desk) {
		top, ctx := d.runsInside(t.Context())
		child, childCtx := d.runsInside(ctx)
		queued := d.spawn(ctx)
		below := d.spawn(childCtx)
		a := d.call("task_stop", args{"task_id": top, "reason": "enough"})
		require.False(t, a.IsError)
		stopped := data[stopData](t, a).Stopped
		require.ElementsMatch(t, []uuid.UUID{child, queued, below}, stopped)
		require.Less(t, strings.Index(a.Text, below.String()), strings.Index(a.Text, child.String()), "descendants first")
		synctest.Wait()
		for _, id := range stopped {
			require.Contains(t, a.Text, id.String())
			row := d.shows(id, shown{Status: subagent.StatusCancelled, Reason: subagent.ReasonParent})
			require.Equal(t, "enough", row.CancelMessage)
			require.Equal(t, id != child, row.StartedAt.IsZero(), "what was queued has never started")
		}
		d.shows(top, shown{Status: subagent.StatusCancelled, Reason: subagent.ReasonAgent})
	})
}

type requestKey struct{}

// A task in the background belongs to no turn and to no request: it goes on
// when theirs ends, in the queue and while it runs, and sees their values.
func TestB116_B118_TheTurnEndsTheTaskGoesOn(t *testing.T) {
	for _, occupied := range []bool{false, true} {
		for how, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
			"cancelled": context.WithCancel,
			"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, time.Second)
			},
		} {
			t.Run(map[bool]string{false: "running, ", true: "queued, "}[occupied]+how, func(t *testing.T) {
				work := func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					select {
					case <-ctx.Done():
						return subagent.Result{}, ctx.Err()
					case <-time.After(2 * time.Minute):
						return subagent.Result{Text: ctx.Value(requestKey{}).(string)}, nil
					}
				}
				inDesk(t, subagent.Config{Func: work}, func(t *testing.T, d *desk) {
					if occupied {
						d.spawn(t.Context(), func(q *subagent.Request) { q.Func = d.gate.Func() })
					}
					ctx, cancel := end(context.WithValue(t.Context(), requestKey{}, "request 7"))
					a := d.callAs(ctx, agenttool.Call{ID: "call", Name: "agent", SessionID: session}, args{"prompt": "p", "description": "d", "run_in_background": true})
					require.False(t, a.IsError)
					if how == "cancelled" {
						cancel() // the reply was written
					}
					defer cancel()
					time.Sleep(time.Minute)
					d.gate.ReleaseAll()
					time.Sleep(5 * time.Minute)
					d.shows(a.TaskID, shown{Status: subagent.StatusCompleted, Text: "request 7"})
				})
			})
		}
	}
}

// callerFault is how the caller of a foreground agent fails.
type callerFault struct {
	name string
	ctx  func(d *desk) context.Context
	cfg  subagent.Config
	want shown // of the child, whose work would take a minute
}

func callerFaults() []callerFault {
	left := shown{Status: subagent.StatusCancelled, Reason: subagent.ReasonCaller, Text: "partial"}
	done := shown{Status: subagent.StatusCompleted, Text: "done"}
	wrapper := func(fail func()) func(d *desk) context.Context {
		return func(d *desk) context.Context {
			ctx, cancel := context.WithCancel(d.t.Context())
			go func() { // ends after a second
				defer func() { _ = recover() }()
				defer cancel() // as a wrapper that waits for the call in another goroutine does
				time.Sleep(time.Second)
				fail()
			}()
			return ctx
		}
	}
	sink := func(do func() error) func(d *desk) context.Context {
		return func(d *desk) context.Context {
			d.setCardFault(do)
			return d.t.Context()
		}
	}
	return []callerFault{
		{name: "the call has a deadline", want: left, ctx: func(d *desk) context.Context {
			ctx, cancel := context.WithTimeout(d.t.Context(), time.Second)
			context.AfterFunc(ctx, cancel)
			return ctx
		}},
		{name: "its wrapper panics", want: left, ctx: wrapper(func() { panic("wrapper") })},
		{name: "its wrapper exits", want: left, ctx: wrapper(runtime.Goexit)},
		{name: "the card sink fails", want: done, ctx: sink(func() error { return errors.New("no chat") })},
		{name: "the card sink panics", want: done, ctx: sink(func() error { panic("no chat") })},
		{name: "the card sink exits", want: done, ctx: sink(func() error { runtime.Goexit(); return nil })},
		{name: "the store panics", want: done, ctx: func(d *desk) context.Context {
			d.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
				if c.Ends() && c.N < 5 {
					panic("no disk")
				}
				return subagenttest.Fault{}
			})
			return d.t.Context()
		}},
	}
}

// A foreground agent whose caller fails is stopped, or it stays where everybody
// finds it and comes to its end.
func TestB121_AForegroundChildIsNeverAnOrphan(t *testing.T) {
	for _, f := range callerFaults() {
		t.Run(f.name, func(t *testing.T) {
			f.cfg.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
				_, _ = run.Write([]byte("partial"))
				select {
				case <-ctx.Done():
					return subagent.Result{}, ctx.Err()
				case <-time.After(time.Minute):
					return subagent.Result{Text: "done"}, nil
				}
			}
			inDesk(t, f.cfg, func(t *testing.T, d *desk) {
				a := d.callAs(f.ctx(d), agenttool.Call{ID: "call", Name: "agent", SessionID: session}, args{"prompt": "p", "description": "d"})
				d.setCardFault(nil)
				time.Sleep(10 * time.Minute)
				list := data[tasksData](t, d.call("list_tasks", args{})).Tasks
				require.Len(t, list, 1, "it is tracked")
				d.saysEnd(a, list[0].ID, f.want)
				d.shows(list[0].ID, f.want)
				_, _, notices := d.told(list[0].ID)
				require.Empty(t, notices, "its caller was told")
			})
		})
	}
}
