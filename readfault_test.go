package subagent_test

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// desk is a rig with a task of each sort that a call may be about.
type desk struct {
	*rig
	old     subagent.Task // ended, and no longer in memory
	live    uuid.UUID     // it runs here
	foreign subagent.Task // it runs elsewhere
}

func newDesk(r *rig) *desk {
	d := &desk{rig: r}
	r.gate.Release(r.spawn("another old one", r.usesOne).ID, subagent.Result{}, nil)
	d.old = r.spawn("old", r.usesOne)
	r.gate.Release(d.old.ID, subagent.Result{Text: "done"}, nil)
	r.awaited(d.old.ID)
	d.live, _ = r.runs("live")
	d.foreign = orphan(subagent.StatusRunning, func(row *subagent.Task) { row.Owner, row.ParentSessionID = "elsewhere", "other" })
	require.NoError(r.t, r.inner.Renew(r.ctx, "elsewhere", 24*time.Hour))
	require.NoError(r.t, r.inner.Create(r.ctx, d.foreign))
	synctest.Wait()
	d.old = r.row(d.old.ID)
	return d
}

func (r *rig) usesOne(q *subagent.Request) {
	q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		run.ReportUsage("m", subagent.Usage{TotalTokens: 1})
		return r.gate.Func()(ctx, run)
	}
}

// readCall is a call that needs an answer of the store.
type readCall struct {
	name  string
	op    subagenttest.Op // the method that gives the answer
	do    func(d *desk, ctx context.Context) (any, error)
	none  any               // what is given with an error
	want  func(d *desk) any // what is given without one
	stops bool              // it stops what runs here, whatever the store says
	then  func(d *desk)     // after it has succeeded
}

func callsOfOne() []readCall {
	old := func(d *desk) any { return d.old }
	return []readCall{
		{name: "Get", op: subagenttest.OpGet, none: subagent.Task{}, want: old,
			do: func(d *desk, ctx context.Context) (any, error) { return d.Get(ctx, d.old.ID) }},
		{name: "Wait", op: subagenttest.OpGet, none: subagent.Task{}, want: old,
			do: func(d *desk, ctx context.Context) (any, error) { return d.Wait(ctx, d.old.ID) }},
		{name: "Await", op: subagenttest.OpGet, none: []subagent.Task(nil),
			do: func(d *desk, ctx context.Context) (any, error) {
				return d.Await(ctx, subagent.AwaitAny, d.live, d.old.ID)
			},
			want: func(d *desk) any { return []subagent.Task{d.now(d.live), d.old} }},
		{name: "Cancel", op: subagenttest.OpGet, none: subagent.Task{}, want: old,
			do: func(d *desk, ctx context.Context) (any, error) {
				return d.Cancel(ctx, d.old.ID, subagent.CancelOptions{})
			}},
		{name: "Cancel of another's", op: subagenttest.OpLive,
			do: func(d *desk, ctx context.Context) (any, error) {
				task, err := d.Cancel(ctx, d.foreign.ID, subagent.CancelOptions{})
				return task.CancelRequestedAt.IsZero(), err
			},
			none: true, want: func(*desk) any { return false }},
		{name: "Spawn of a known ID", op: subagenttest.OpGet, none: subagent.Task{}, want: old,
			do:   func(d *desk, ctx context.Context) (any, error) { return d.Spawn(ctx, rigAsk("old", withID(d.old.ID))) },
			then: func(d *desk) { require.Equal(d.t, d.old, d.row(d.old.ID)) }},
		{name: "Forget", op: subagenttest.OpDelete, then: (*desk).oldIsGone,
			do:   func(d *desk, ctx context.Context) (any, error) { return nil, d.Forget(ctx, d.old.ID) },
			want: func(*desk) any { return nil }},
	}
}

func callsOfMany() []readCall {
	prune := func(d *desk, ctx context.Context) (any, error) {
		return d.Prune(ctx, subagent.Filter{}, time.Now().Add(time.Second))
	}
	tree := func(d *desk, ctx context.Context) (any, error) { return d.UsageTree(ctx, d.old.ID) }
	once := func(*desk) any { return subagent.Usage{TotalTokens: 1, Calls: 1} }
	return []readCall{
		{name: "UsageTree", op: subagenttest.OpGet, do: tree, none: subagent.Usage{}, want: once},
		{name: "UsageTree's kids", op: subagenttest.OpList, do: tree, none: subagent.Usage{}, want: once},
		{name: "List", op: subagenttest.OpList, none: []subagent.Task(nil),
			do: func(d *desk, ctx context.Context) (any, error) {
				return d.List(ctx, subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}, SessionID: "s"})
			},
			want: func(d *desk) any { return []subagent.Task{d.now(d.live)} }},
		{name: "CancelSession", op: subagenttest.OpList, stops: true,
			do: func(d *desk, ctx context.Context) (any, error) {
				_, err := d.CancelSession(ctx, "s", subagent.CancelOptions{})
				return nil, err
			},
			want: func(*desk) any { return nil }},
		{name: "Prune's look", op: subagenttest.OpList, do: prune, none: 0, then: (*desk).oldIsGone},
		{name: "Prune", op: subagenttest.OpDelete, do: prune, none: 0, then: (*desk).oldIsGone},
	}
}

func (d *desk) now(id uuid.UUID) subagent.Task {
	d.t.Helper()
	task, err := d.Get(d.ctx, id)
	require.NoError(d.t, err)
	return task
}

func (d *desk) oldIsGone() {
	d.t.Helper()
	_, err := d.Get(d.ctx, d.old.ID)
	require.ErrorIs(d.t, err, subagent.ErrNotFound)
	_, err = d.inner.Get(d.ctx, d.old.ID)
	require.ErrorIs(d.t, err, subagent.ErrNotFound)
}

// Each call that needs an answer, with each fault of the store, once and again
// and again: it returns the store's error at once, or after one StoreTimeout
// that of a deadline, and nothing that it does not know; it may be repeated;
// and what runs meanwhile is not touched.
func TestG9_EveryReadDisturbed(t *testing.T) {
	for _, call := range append(callsOfOne(), callsOfMany()...) {
		for _, fault := range storeFaults {
			for _, times := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s: %s %d times", call.name, fault.name, times), func(t *testing.T) {
					inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
						d := newDesk(r)
						r.store.On(call.op, func(subagenttest.Call) subagenttest.Fault { return fault.do() })
						for range times {
							d.make(call, fault.name)
							if _, err := r.inner.Get(r.ctx, d.old.ID); err != nil {
								break // it was deleted all the same: the next Prune finds nothing to delete
							}
						}
						r.store.On(call.op, nil)
						time.Sleep(3 * time.Minute) // even a deaf call has returned
						d.make(call, "")
						if call.then != nil {
							call.then(d)
						}
						r.gate.ReleaseAll()
						r.awaited(d.live)
					})
				})
			}
		}
	}
}

// make makes a call and checks what it gives and how long it takes.
func (d *desk) make(call readCall, fault string) {
	d.t.Helper()
	start := time.Now()
	got, err := call.do(d, d.ctx)
	took, longest := time.Since(start), time.Duration(0)
	switch fault {
	case "":
		require.NoError(d.t, err)
	case "is slow":
		require.NoError(d.t, err)
		longest = 9 * time.Second
	case "fails", "commits and fails":
		require.ErrorIs(d.t, err, errBroken)
	case "panics", "calls Goexit":
		require.Error(d.t, err)
	default:
		require.ErrorIs(d.t, err, context.DeadlineExceeded)
		longest = 10 * time.Second
	}
	require.Equal(d.t, longest, took)
	if err != nil {
		require.Equal(d.t, call.none, got)
	} else if call.want != nil {
		require.Equal(d.t, call.want(d), got)
	}
	require.Equal(d.t, call.stops, !d.now(d.live).CancelRequestedAt.IsZero())
}

// A call that takes its caller's ctx with it returns when that ends.
func TestG9_EveryReadEndsWithItsCtx(t *testing.T) {
	for _, call := range append(callsOfOne(), callsOfMany()...) {
		t.Run(call.name, func(t *testing.T) {
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				d := newDesk(r)
				r.store.On(call.op, func(subagenttest.Call) subagenttest.Fault {
					return subagenttest.Fault{Delay: 2 * time.Minute, Deaf: true}
				})
				ctx, cancel := context.WithTimeout(r.ctx, time.Second)
				defer cancel()
				start := time.Now()
				_, err := call.do(d, ctx)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				longest := time.Second
				if call.name == "Wait" || call.name == "Await" { // a snapshot is owed: it is asked for once more
					longest += 10 * time.Second
				}
				require.LessOrEqual(t, time.Since(start), longest)
			})
		})
	}
}

// Whoever waits for a task that another Runner executes goes on waiting while
// the store does not answer, sees the end when it does, and can leave any time.
func TestG9_AWaitForAnothersTaskOutlivesTheStore(t *testing.T) {
	for _, fault := range storeFaults {
		t.Run(fault.name, func(t *testing.T) {
			pair(t, subagent.Config{}, subagent.Config{}, func(t *testing.T, one, two *rig) {
				id, _ := one.runs("x")
				start := time.Now()
				ends, left := make(chan subagent.Task, 1), make(chan time.Duration, 1)
				go func() {
					end, _ := two.Wait(two.ctx, id)
					ends <- end
				}()
				go func() {
					short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					_, _ = two.Wait(short, id)
					left <- time.Since(start)
				}()
				synctest.Wait()
				two.store.On(subagenttest.OpGet, func(subagenttest.Call) (f subagenttest.Fault) {
					if time.Since(start) < time.Minute {
						f = fault.do()
					}
					return f
				})
				require.Equal(t, 3*time.Second, <-left)
				one.gate.Release(id, subagent.Result{Text: "done"}, nil)
				require.Equal(t, "done", (<-ends).ResultText)
				require.LessOrEqual(t, time.Since(start), time.Minute+20*time.Second)
				time.Sleep(3 * time.Minute) // a deaf call has returned
			})
		})
	}
}

// A record whose deletion was done and reported as failed is gone: nothing of
// it is stored, put or delivered any more, and forgetting it again is no error.
func TestG9_ADeletionThatWasReportedAsFailed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newTape()
		p.onNotice = func(context.Context, subagent.Task) error { return errBroken }
		newRig(t, subagent.Config{}, p).run(func(t *testing.T, r *rig) {
			id := r.spawn("x", func(q *subagent.Request) { q.Func = gives("done", nil) }).ID
			time.Sleep(time.Second)
			r.store.On(subagenttest.OpDelete, func(subagenttest.Call) subagenttest.Fault {
				return subagenttest.Fault{Err: errBroken, Committed: true}
			})
			require.ErrorIs(t, r.Forget(r.ctx, id), errBroken)
			r.heal()
			time.Sleep(time.Minute)
			_, err := r.Get(r.ctx, id)
			require.ErrorIs(t, err, subagent.ErrNotFound)
			require.NoError(t, r.Forget(r.ctx, id))
			list, err := r.List(r.ctx, subagent.Filter{})
			require.NoError(t, err)
			require.Empty(t, list)
		})
	})
}

// witness counts the calls that come with a ctx which has not ended.
type witness struct {
	subagent.Store
	live atomic.Int64
}

func (w *witness) saw(ctx context.Context) {
	if ctx.Err() == nil {
		w.live.Add(1)
	}
}

func (w *witness) List(ctx context.Context, f subagent.Filter) iter.Seq2[subagent.Task, error] {
	w.saw(ctx)
	return w.Store.List(ctx, f)
}

func (w *witness) Delete(ctx context.Context, ids ...uuid.UUID) error {
	w.saw(ctx)
	return w.Store.Delete(ctx, ids...)
}

// What is asked with a ctx that has ended is nothing that a store may do, also
// when its call comes before ours looks at the ctx.
func TestACtxThatHasEndedReachesNoStoreAlive(t *testing.T) {
	store := &witness{Store: subagent.NewMemoryStore()}
	r, err := subagent.New(t.Context(), subagent.Config{Store: store})
	require.NoError(t, err)
	store.live.Store(0)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	row := storeTask(subagent.StatusCompleted)
	require.NoError(t, store.Create(t.Context(), row))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				assert.ErrorIs(t, r.Forget(over, row.ID), context.Canceled)
				_, err := r.List(over, subagent.Filter{})
				assert.ErrorIs(t, err, context.Canceled)
			}
		})
	}
	all.Wait()
	require.NoError(t, r.Shutdown(t.Context()))
	require.Zero(t, store.live.Load())
	_, err = store.Get(t.Context(), row.ID)
	require.NoError(t, err)
}
