package subagent_test

import (
	"context"
	"fmt"
	"sync"
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

// Of many who wait at once exactly one sees the end first, and nobody else is
// told; with a store that fails, too.
func TestNotices_OneOfManyWaitersIsTheFirst(t *testing.T) {
	faults := map[string]subagenttest.Fault{
		"no fault": {}, "fails": {Err: errBroken}, "commits and fails": {Err: errBroken, Committed: true},
		"slow": {Delay: time.Second}, "blocks": {Delay: time.Hour}, "commits and blocks": {Delay: time.Hour, Committed: true},
	}
	for name, fault := range faults {
		for _, when := range []string{"before the end", "after the end"} {
			t.Run(name+", "+when, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					p := newTape()
					if when == "after the end" {
						p.onNotice = func(context.Context, subagent.Task) error { return errBroken }
					}
					newRig(t, subagent.Config{}, p).run(func(t *testing.T, r *rig) { manyWaiters(r, fault, when == "after the end") })
				})
			})
		}
	}
}

func manyWaiters(r *rig, fault subagenttest.Fault, after bool) {
	t := r.t
	id, _ := r.runs("x")
	r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
		if stepOf(r.inner, c) == stepDelivery {
			return fault
		}
		return subagenttest.Fault{}
	})
	if after {
		r.gate.Release(id, subagent.Result{Text: "done"}, nil)
		synctest.Wait()
	}
	handed := make([]subagent.Task, 20)
	var all sync.WaitGroup
	for i := range handed {
		all.Go(func() {
			if i%2 == 0 {
				handed[i] = r.awaited(id)
				return
			}
			tasks, err := r.Await(r.ctx, subagent.AwaitAny, id)
			require.NoError(t, err)
			handed[i] = tasks[0]
		})
	}
	synctest.Wait()
	r.gate.Release(id, subagent.Result{Text: "done"}, nil)
	all.Wait()
	r.heal()
	time.Sleep(10 * time.Minute)
	row := r.settled(id)
	require.False(t, row.NotifiedAt.IsZero())
	firsts := 0
	for _, task := range handed {
		require.Equal(t, essence(row), essence(task))
		if task.NotifiedAt.IsZero() {
			firsts++
		}
	}
	require.Equal(t, 1, firsts)
	_, _, notices := r.heard(id)
	require.Empty(t, notices)
}

// Who is handed the end sees NotifiedAt as it was before, and the Version as
// it is stored after.
func TestNotices_WhatAWaiterIsHanded(t *testing.T) {
	for name, short := range map[string]bool{"any store": false, "memory": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				inner := subagent.NewMemoryStore()
				cfg := subagent.Config{}
				if short {
					cfg.Store = inner
				}
				rigOn(t, cfg, newTape(), inner, subagenttest.NewFaultyStore(inner)).run(whatAWaiterIsHanded)
			})
		})
	}
}

func whatAWaiterIsHanded(t *testing.T, r *rig) {
	id, _ := r.runs("x")
	for _, read := range []func() (subagent.Task, error){
		func() (subagent.Task, error) { return r.Get(r.ctx, id) },
		func() (subagent.Task, error) {
			list, err := r.List(r.ctx, subagent.Filter{})
			return list[0], err
		},
	} {
		task, err := read()
		require.NoError(t, err)
		require.Equal(t, subagent.StatusRunning, task.Status)
	}
	go func() {
		time.Sleep(time.Second)
		r.gate.Release(id, subagent.Result{Text: "done"}, nil)
	}()
	first := r.awaited(id)
	row := r.row(id)
	require.Zero(t, first.NotifiedAt)
	require.Equal(t, row.Version, first.Version)
	require.False(t, row.NotifiedAt.IsZero())
	second := r.awaited(id)
	require.Equal(t, row, second)
	ended, err := r.Run(r.ctx, rigAsk("foreground", func(q *subagent.Request) { q.Func = gives("now", nil) }))
	require.NoError(t, err)
	row = r.row(ended.ID)
	require.Zero(t, ended.NotifiedAt)
	require.Equal(t, row.CompletedAt, row.NotifiedAt, "it was stored with the end")
	require.Equal(t, row.Version, ended.Version)
	require.EqualValues(t, 4, row.Version, "pending, queued, running and the end: no write for the delivery")
	require.Empty(t, r.delivered())
}

// A Run that has left is no first sight, and no notice is owed: the next waiter
// is the first.
func TestNotices_ARunThatLeft(t *testing.T) {
	inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
		var kid subagent.Task
		parent, _ := r.runs("parent", func(q *subagent.Request) {
			q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
				go func() { _, _ = r.gate.Func()(context.WithoutCancel(ctx), run) }()
				var err error
				kid, err = r.Run(ctx, subagent.Request{Description: "kid", Func: r.gate.DeafFunc()})
				return subagent.Result{}, err
			}
		})
		synctest.Wait()
		r.stop(parent)
		require.Equal(t, subagent.StatusCancelled, r.awaited(parent).Status)
		require.Equal(t, subagent.StatusRunning, kid.Status, "Run did not wait for a deaf child")
		time.Sleep(time.Minute)
		row := r.row(kid.ID)
		require.Equal(t, subagent.ReasonParent, row.Reason)
		require.False(t, row.Background)
		require.Zero(t, row.NotifiedAt)
		_, _, notices := r.heard(kid.ID)
		require.Empty(t, notices)
		require.Zero(t, r.awaited(kid.ID).NotifiedAt)
		require.False(t, r.awaited(kid.ID).NotifiedAt.IsZero())
	})
}

// Notices of a session come one at a time, in the order in which its tasks
// ended; sessions do not wait for each other.
func TestNotices_SerialInASessionParallelAcross(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rng := seeded(t)
		p := newTape()
		var mu sync.Mutex
		inside, together := map[string]int{}, 0
		p.onNotice = func(_ context.Context, task subagent.Task) error {
			mu.Lock()
			inside[task.ParentSessionID]++
			if inside[task.ParentSessionID] > 1 {
				t.Errorf("two notices of one session at once")
			}
			together = max(together, len(inside))
			fails := rng.IntN(4) == 0
			mu.Unlock()
			time.Sleep(3 * time.Second)
			mu.Lock()
			delete(inside, task.ParentSessionID)
			mu.Unlock()
			if fails {
				return errBroken
			}
			return nil
		}
		newRig(t, subagent.Config{Workers: 40}, p).run(func(t *testing.T, r *rig) {
			var ended []uuid.UUID
			for i := range 40 {
				id, _ := r.runs("x", func(q *subagent.Request) { q.ParentSessionID = fmt.Sprint(i % 4) })
				ended = append(ended, id)
			}
			rng.Shuffle(len(ended), func(i, j int) { ended[i], ended[j] = ended[j], ended[i] })
			for _, id := range ended {
				r.gate.Release(id, subagent.Result{}, nil)
				synctest.Wait()
			}
			time.Sleep(time.Hour)
			synctest.Wait() // unlike a sleep, it orders what others did before what follows
			require.Equal(t, 4, together)
			require.Equal(t, perSession(r, ended), perSession(r, r.delivered()))
		})
	})
}

func perSession(r *rig, ids []uuid.UUID) map[string][]uuid.UUID {
	r.t.Helper()
	bySession := map[string][]uuid.UUID{}
	for _, id := range ids {
		row := r.row(id)
		bySession[row.ParentSessionID] = append(bySession[row.ParentSessionID], id)
	}
	return bySession
}

// A notice that is not taken is repeated with growing pauses until it is; a
// waiter's reading ends that.
func TestNotices_AreRepeatedUntilTakenOrRead(t *testing.T) {
	for _, how := range []string{"taken", "read", "forgotten"} {
		t.Run(how, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := newTape()
				tries := new(attempts)
				p.onNotice = func(context.Context, subagent.Task) error { return tries.try() }
				newRig(t, subagent.Config{}, p).run(func(t *testing.T, r *rig) {
					task := r.spawn("x", func(q *subagent.Request) { q.Func = gives("done", nil) })
					time.Sleep(10 * time.Minute)
					n := len(tries.times())
					r.growing(tries.times())
					switch how {
					case "taken":
						tries.mend()
					case "read":
						require.Zero(t, r.awaited(task.ID).NotifiedAt)
					case "forgotten":
						require.NoError(t, r.Forget(r.ctx, task.ID))
					}
					time.Sleep(10 * time.Minute)
					if how == "taken" {
						require.Len(t, tries.times(), n+1)
						require.Len(t, r.delivered(), 1)
						require.False(t, r.row(task.ID).NotifiedAt.IsZero())
					} else {
						require.Len(t, tries.times(), n)
						require.Empty(t, r.delivered())
					}
				})
			})
		})
	}
}

// What waits in another process was told there: the repetitions end.
func TestNotices_AReadingElsewhereEndsTheRepetitions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newTape()
		tries := new(attempts)
		p.onNotice = func(context.Context, subagent.Task) error { return tries.try() }
		one := newRig(t, subagent.Config{}, p)
		one.run(func(t *testing.T, one *rig) {
			task := one.spawn("x", func(q *subagent.Request) { q.Func = gives("done", nil) })
			time.Sleep(time.Minute)
			two, err := subagent.New(t.Context(), subagent.Config{Store: one.inner})
			require.NoError(t, err)
			read, err := two.Wait(t.Context(), task.ID)
			require.NoError(t, err)
			require.Zero(t, read.NotifiedAt)
			n := len(tries.times())
			time.Sleep(10 * time.Minute)
			require.Len(t, tries.times(), n)
			require.NoError(t, two.Shutdown(t.Context()))
		})
	})
}

// Owed notices are taken over by the next Runner: after a shutdown, or when the
// lease of a dead owner is over; by one of two, and nothing is told twice.
func TestNotices_AreResumedByTheNextRunner(t *testing.T) {
	for _, how := range []string{"shut down", "lease over, New", "lease over, renewal"} {
		t.Run(how, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				inner := subagent.NewMemoryStore()
				told := owedBy(t, inner, how == "shut down")
				shared := newTape()
				if how != "lease over, renewal" {
					time.Sleep(31 * time.Second)
				}
				var rigs []*rig
				for range 2 {
					rigs = append(rigs, rigOn(t, subagent.Config{}, shared, inner, subagenttest.NewFaultyStore(inner)))
				}
				rigs[0].run(func(t *testing.T, one *rig) {
					rigs[1].run(func(t *testing.T, two *rig) {
						time.Sleep(time.Minute)
						require.Len(t, told, 5)
						require.ElementsMatch(t, told, shared.delivered(), "each once")
						if how != "lease over, renewal" { // then the two may share them
							require.Equal(t, told, shared.delivered(), "in the order of the ends")
						}
						for _, id := range told {
							row := one.row(id)
							require.False(t, row.NotifiedAt.IsZero())
							require.Contains(t, []string{one.ID(), two.ID()}, row.Owner)
							cards, _, _ := shared.heard(id)
							require.NotEmpty(t, cards, "its card is put again")
						}
					})
				})
				last := rigOn(t, subagent.Config{}, shared, inner, subagenttest.NewFaultyStore(inner))
				last.run(func(t *testing.T, _ *rig) { time.Sleep(time.Minute) })
				require.Len(t, shared.delivered(), 5, "nothing is delivered twice")
			})
		})
	}
}

// owedBy leaves five notices that a Runner, dead or shut down, has not
// delivered, and one that it has; it returns the five in the order of their ends.
func owedBy(t *testing.T, inner *subagent.MemoryStore, shutDown bool) (ids []uuid.UUID) {
	t.Helper()
	p := newTape()
	p.onNotice = func(_ context.Context, task subagent.Task) error {
		if task.Description == "delivered" {
			return nil
		}
		return errBroken
	}
	store := subagenttest.NewFaultyStore(inner)
	r := rigOn(t, subagent.Config{Workers: 6}, p, inner, store)
	first, _ := r.runs("delivered")
	for range 5 {
		id, _ := r.runs("owed")
		ids = append([]uuid.UUID{id}, ids...)
	}
	for _, id := range append([]uuid.UUID{first}, ids...) {
		r.gate.Release(id, subagent.Result{}, nil)
		time.Sleep(time.Second)
	}
	if shutDown {
		require.NoError(t, r.Shutdown(t.Context()))
		return ids
	}
	dies := func(subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Err: errBroken} }
	for _, op := range []subagenttest.Op{subagenttest.OpCreate, subagenttest.OpGet, subagenttest.OpUpdate, subagenttest.OpList, subagenttest.OpRenew, subagenttest.OpRelease} {
		store.On(op, dies) // for the others it is as if it had died
	}
	t.Cleanup(func() { _ = r.Shutdown(context.Background()) })
	return ids
}

// A takeover whose write fails is no notice lost.
func TestNotices_ATakeoverThatFailsIsRepeated(t *testing.T) {
	for name, fault := range map[string]subagenttest.Fault{"fails": {Err: errBroken}, "commits and fails": {Err: errBroken, Committed: true}, "blocks": {Delay: time.Hour}} {
		for _, leases := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, leases %v", name, leases), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					inner := subagent.NewMemoryStore()
					ended := time.Now().UTC()
					owed := subagent.Task{ID: uuid.Must(uuid.NewV7()), Description: "x", ParentSessionID: "s", Status: subagent.StatusCompleted,
						Background: true, Owner: "dead", CreatedAt: ended, CompletedAt: ended}
					require.NoError(t, inner.Create(t.Context(), owed))
					store := subagenttest.NewFaultyStore(inner)
					store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
						if c.N == 1 {
							return fault
						}
						return subagenttest.Fault{}
					})
					cfg := subagent.Config{Store: store}
					if leases {
						cfg.Store = store.Store()
					}
					rigOn(t, cfg, newTape(), inner, store).run(func(t *testing.T, r *rig) {
						time.Sleep(10 * time.Minute)
						require.Len(t, r.delivered(), 1)
						require.False(t, r.row(owed.ID).NotifiedAt.IsZero())
					})
				})
			})
		}
	}
}

// rerun is a store that runs an edit again after it was committed, as one does
// that did not learn of its commit.
type rerun struct{ subagent.Store }

func (s rerun) Update(ctx context.Context, id uuid.UUID, edit func(*subagent.Task) error) (subagent.Task, error) {
	if _, err := s.Store.Update(ctx, id, edit); err != nil {
		return subagent.Task{}, err
	}
	return s.Store.Update(ctx, id, edit)
}

func TestG14_AnEditThatRunsTwiceDeliversOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, err := subagent.New(t.Context(), subagent.Config{Store: rerun{subagent.NewMemoryStore()}, Func: gives("done", nil)})
		require.NoError(t, err)
		defer r.Shutdown(context.Background())
		for _, ended := range []bool{false, true} {
			task, err := r.Spawn(t.Context(), subagent.Request{ParentSessionID: "s", Description: "x"})
			require.NoError(t, err)
			if ended {
				synctest.Wait()
			}
			first, err := r.Wait(t.Context(), task.ID)
			require.NoError(t, err)
			require.True(t, first.NotifiedAt.IsZero(), "ended %v: it is the first", ended)
			second, err := r.Wait(t.Context(), task.ID)
			require.NoError(t, err)
			require.False(t, second.NotifiedAt.IsZero())
		}
	})
}

// An end that is stored, and not told yet, is handed to a wait that reads it
// in the store: an Await of any, which another end has let go. Then no notice
// is owed, even if the store takes its time over both writes.
func TestG14_AnEndHandedOutBeforeItWasToldOwesNoNotice(t *testing.T) {
	inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
		over, _ := r.runs("over")
		r.gate.Release(over, subagent.Result{}, nil)
		r.awaited(over)
		id, _ := r.runs("work")
		ended, delivered := make(chan struct{}), make(chan struct{})
		r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			switch {
			case len(c.Tasks) == 0 || !c.Ends():
				return subagenttest.Fault{}
			case !c.Tasks[0].NotifiedAt.IsZero():
				return subagenttest.Fault{Committed: true, Block: delivered}
			}
			return subagenttest.Fault{Committed: true, Block: ended}
		})
		r.gate.Release(id, subagent.Result{Text: "done"}, nil)
		synctest.Wait() // its end is stored, and the store has not said so yet
		handed := make(chan []subagent.Task, 1)
		go func() { // ends with the wait, which delivered lets go
			tasks, err := r.Await(r.ctx, subagent.AwaitAny, over, id)
			assert.NoError(t, err)
			handed <- tasks
		}()
		synctest.Wait()
		close(ended)
		synctest.Wait() // it is told, and the delivery is still being stored
		close(delivered)
		first := (<-handed)[1]
		require.Equal(t, subagent.StatusCompleted, first.Status)
		require.True(t, first.NotifiedAt.IsZero(), "the wait was the first to see the end")
		synctest.Wait()
		_, _, notices := r.heard(id)
		require.Empty(t, notices, "its usage was handed out twice")
	})
}

// While a Runner shuts down, two callers stop a task that a dead one has left:
// both find it open, and its notice goes out once, here or by the next Runner.
func TestG14_ALostTaskStoppedTwiceDuringShutdownIsDeliveredOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		inner, shared := subagent.NewMemoryStore(), newTape()
		store := subagenttest.NewFaultyStore(inner)
		r := rigOn(t, subagent.Config{ShutdownGrace: time.Minute}, shared, inner, store)
		r.left = true
		row := subagent.Task{
			ID: uuid.Must(uuid.NewV7()), ParentSessionID: "s", Description: "x", Status: subagent.StatusRunning,
			Background: true, CreatedAt: time.Now().UTC(), Owner: "dead",
		}
		require.NoError(t, inner.Create(r.ctx, row))
		r.runs("keeps the shutdown waiting")
		both := make(chan struct{})
		store.On(subagenttest.OpUpdate, func(subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Block: both} })
		var calls sync.WaitGroup
		calls.Go(func() { _ = r.Shutdown(context.Background()) }) // ends when ReleaseAll lets the Func go
		synctest.Wait()
		for range 2 {
			calls.Go(func() { // ends with the store's answer, which both lets go
				_, err := r.Cancel(r.ctx, row.ID, subagent.CancelOptions{})
				assert.NoError(t, err)
			})
		}
		synctest.Wait()
		close(both)
		synctest.Wait()
		r.gate.ReleaseAll()
		calls.Wait()
		last := rigOn(t, subagent.Config{}, shared, inner, store)
		defer last.Shutdown(context.Background())
		synctest.Wait()
		_, _, notices := shared.heard(row.ID)
		require.Len(t, notices, 1)
	})
}
