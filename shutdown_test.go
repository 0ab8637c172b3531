package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// shutdownCrew are the tasks that a shutdown may find.
type shutdownCrew struct {
	obedient, lingering, deaf, finishing, queued uuid.UUID
}

// crew spawns one of each. Workers must be 4. finishing needs that long yet.
func (r *rig) crew(finishing time.Duration) (c shutdownCrew) {
	c.obedient, _ = r.runs("obedient")
	c.lingering, _ = r.runs("lingering", func(q *subagent.Request) {
		q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			res, err := r.gate.Func()(ctx, run)
			time.Sleep(500 * time.Millisecond)
			return res, err
		}
	})
	c.deaf, _ = r.runs("deaf", r.deaf)
	c.finishing = r.spawn("finishing", func(q *subagent.Request) {
		q.Func = func(context.Context, *subagent.Run) (subagent.Result, error) {
			time.Sleep(finishing)
			return subagent.Result{Text: "finished"}, nil
		}
	}).ID
	c.queued = r.spawn("queued").ID
	synctest.Wait()
	return c
}

// Shutdown waits as long as it says, to the instant, and what it leaves behind
// is in its error.
func TestG12_HowLongAShutdownTakes(t *testing.T) {
	const grace = 5 * time.Second
	for _, c := range []struct {
		name   string
		limit  time.Duration // of Shutdown's ctx; 0: none
		crew   bool
		spares bool // only those who obey
		takes  time.Duration
	}{
		{name: "nothing runs", takes: 0},
		{name: "one is deaf", crew: true, takes: 2 * grace},
		{name: "all obey", crew: true, spares: true, takes: grace + 500*time.Millisecond},
		{name: "the ctx ends during the first grace", limit: 2 * time.Second, crew: true, takes: 3 * time.Second},
		{name: "the ctx ends during the second grace", limit: 8 * time.Second, crew: true, takes: 8 * time.Second},
		{name: "the ctx ends early in the second grace", limit: grace + time.Millisecond, crew: true, takes: grace + time.Second},
		{name: "the ctx has ended", limit: -1, crew: true, takes: time.Second},
		{name: "the ctx has ended and nothing runs", limit: -1, takes: 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inRig(t, subagent.Config{Workers: 4, ShutdownGrace: grace}, func(t *testing.T, r *rig) {
				var crew shutdownCrew
				if c.crew {
					crew = r.crew(500 * time.Millisecond)
				}
				if c.spares {
					r.gate.Release(crew.deaf, subagent.Result{}, nil)
				}
				ctx, cancel := r.ctx, context.CancelFunc(func() {})
				if c.limit != 0 {
					ctx, cancel = context.WithTimeout(ctx, c.limit)
				}
				defer cancel()
				start := time.Now()
				r.left = true
				err := r.Shutdown(ctx)
				require.Equal(t, c.takes, time.Since(start))
				if !c.crew || c.spares {
					require.NoError(t, err)
					return
				}
				var left *subagent.ShutdownError
				require.ErrorAs(t, err, &left)
				require.Equal(t, []uuid.UUID{crew.deaf}, left.Detached)
				require.Empty(t, left.Unsaved)
				require.ErrorIs(t, err, subagent.ErrShutdown)
				r.crewHasEnded(crew)
			})
		})
	}
}

// crewHasEnded checks how each ended, and that readers are served.
func (r *rig) crewHasEnded(c shutdownCrew) {
	t := r.t
	undrained := subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonShutdown, Error: "worker pool shutdown"}
	stuck := undrained
	stuck.Detached = true
	for id, want := range map[uuid.UUID]subagent.Task{
		c.obedient: undrained, c.lingering: undrained, c.deaf: stuck,
		c.queued: {Status: subagent.StatusCancelled, Reason: subagent.ReasonShutdown},
	} {
		end := r.settled(id)
		require.Equal(t, want.Status, end.Status, end.Description)
		require.Equal(t, want.Reason, end.Reason, end.Description)
		require.Equal(t, want.Error, end.Error, end.Description)
		require.Equal(t, want.Detached, end.Detached, end.Description)
		require.ErrorIs(t, end.Err(), subagent.ErrShutdown)
		require.Equal(t, end, r.awaited(id))
		_, _, notices := r.heard(id)
		require.Len(t, notices, 1, end.Description)
	}
	require.Contains(t, []subagent.Status{subagent.StatusCompleted, subagent.StatusErrored}, r.settled(c.finishing).Status)
	require.NoError(t, r.Forget(r.ctx, c.obedient))
	_, err := r.Get(r.ctx, c.obedient)
	require.ErrorIs(t, err, subagent.ErrNotFound)
}

// Whoever calls Shutdown, and how often, waits for the same end.
func TestG12_ShutdownIsSafeToRepeat(t *testing.T) {
	inRig(t, subagent.Config{Workers: 4}, func(t *testing.T, r *rig) {
		r.crew(time.Second)
		r.left = true
		errs := make([]error, 20)
		start := time.Now()
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 400 * time.Millisecond)
				errs[i] = r.Shutdown(r.ctx)
			})
		}
		all.Wait()
		require.Equal(t, 10*time.Second, time.Since(start))
		for _, err := range errs {
			require.Same(t, errs[0], err)
		}
		require.Same(t, errs[0], r.Shutdown(r.ctx))
		ended, cancel := context.WithCancel(r.ctx)
		cancel()
		require.Same(t, errs[0], r.Shutdown(ended))
	})
}

// One of several callers whose ctx ends hurries the others' shutdown.
func TestG12_AnyCallerMayHurry(t *testing.T) {
	inRig(t, subagent.Config{Workers: 4}, func(t *testing.T, r *rig) {
		r.crew(time.Second)
		r.left = true
		start := time.Now()
		go func() {
			ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
			defer cancel()
			_ = r.Shutdown(ctx)
		}()
		require.Error(t, r.Shutdown(r.ctx))
		require.Equal(t, 3*time.Second, time.Since(start))
	})
}

// From inside a Func, a card, a notice or a store call Shutdown returns when all
// else has ended, and the shutdown goes on.
func TestG12_ShutdownFromEachPlaceInside(t *testing.T) {
	for _, place := range []string{"Func", "pending card", "running card", "last card", "notice", "create", "update"} {
		for _, others := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, others %v", place, others), func(t *testing.T) { fromInside(t, place, others) })
		}
	}
}

type insideCall struct {
	place   string
	called  atomic.Bool
	done    chan struct{} // closed once what follows is set
	took    time.Duration
	err     error
	running int // of others, when it returned
}

func fromInside(t *testing.T, place string, others bool) {
	bubble.Test(t, func(t *testing.T) {
		c := &insideCall{place: place, done: make(chan struct{})}
		var r *rig
		call := func(ctx context.Context, here string) {
			if here != place || !c.called.CompareAndSwap(false, true) {
				return
			}
			defer close(c.done)
			start := time.Now()
			c.err = r.Shutdown(ctx)
			c.took, c.running = time.Since(start), r.gate.Inside()
		}
		p := newTape()
		p.onCard = func(ctx context.Context, card subagent.Card) error {
			switch {
			case card.Attach.Label != "caller":
			case card.Attach.Status == "pending", card.Attach.Status == "running":
				call(ctx, card.Attach.Status+" card")
			case subagent.Status(card.Attach.Status).Terminal():
				call(ctx, "last card")
			}
			return nil
		}
		p.onNotice = func(ctx context.Context, task subagent.Task) error {
			if task.Description == "caller" {
				call(ctx, "notice")
			}
			return nil
		}
		inner := subagent.NewMemoryStore()
		store := &ctxStore{inner, func(ctx context.Context, op string) {
			if ctx.Value(ctxStoreKey{}) == "caller" {
				call(ctx, op)
			}
		}}
		r = rigOn(t, subagent.Config{Store: store, Workers: 2}, p, inner, subagenttest.NewFaultyStore(inner))
		r.run(func(t *testing.T, r *rig) {
			if others { // done in 3 s: within the grace
				id, _ := r.runs("other")
				time.AfterFunc(3*time.Second, func() { r.gate.Release(id, subagent.Result{}, nil) })
			}
			_, err := r.Spawn(context.WithValue(r.ctx, ctxStoreKey{}, "caller"), rigAsk("caller", func(q *subagent.Request) {
				q.Func = func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
					call(ctx, "Func")
					return subagent.Result{Text: "done"}, nil
				}
			}))
			require.NoError(t, err)
			time.Sleep(time.Minute)
			require.True(t, c.called.Load())
			<-c.done
			require.NoError(t, c.err, "it returned when all else had ended")
			require.Zero(t, c.running)
			if others {
				require.Equal(t, 3*time.Second, c.took)
			} else {
				require.Zero(t, c.took)
			}
			start := time.Now()
			require.NoError(t, r.Shutdown(r.ctx))
			require.Zero(t, time.Since(start), "it is over long ago")
		})
	})
}

// A ctx that ends inside a Func lets that caller go; the shutdown goes on, in a
// hurry.
func TestG12_ShutdownFromInsideWithAnEndingCtx(t *testing.T) {
	inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
		deaf, _ := r.runs("deaf", r.deaf)
		r.left = true
		inside := make(chan error, 1)
		start := time.Now()
		caller := r.spawn("caller", func(q *subagent.Request) {
			q.Func = func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
				short, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				inside <- r.Shutdown(short)
				return subagent.Result{Text: "done"}, nil
			}
		})
		time.Sleep(time.Minute)
		require.ErrorIs(t, <-inside, context.DeadlineExceeded)
		require.Equal(t, "done", r.settled(caller.ID).ResultText)
		require.WithinDuration(t, start.Add(2*time.Second), r.settled(caller.ID).CompletedAt, 0)
		require.WithinDuration(t, start.Add(3*time.Second), r.settled(deaf).CompletedAt, 0, "a second later")
		require.ErrorIs(t, r.Shutdown(r.ctx), subagent.ErrShutdown)
	})
}

// Whoever spawns while the Runner shuts down is refused, or his task has ended
// when Shutdown returns; whatever the store takes its time for.
func TestG12_SpawnStorm(t *testing.T) {
	for _, delay := range []time.Duration{0, 20 * time.Millisecond} {
		t.Run(fmt.Sprintf("store takes %v", delay), func(t *testing.T) {
			inRig(t, subagent.Config{Workers: 10, MaxQueued: -1}, func(t *testing.T, r *rig) { spawnStorm(r, delay) })
		})
	}
}

func spawnStorm(r *rig, delay time.Duration) {
	t, rng := r.t, seeded(r.t)
	for _, op := range []subagenttest.Op{subagenttest.OpCreate, subagenttest.OpUpdate} {
		r.store.On(op, func(subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Delay: delay} })
	}
	var mu sync.Mutex
	var spawned []uuid.UUID
	refused := 0
	var all sync.WaitGroup
	for range 50 {
		pause := time.Duration(1+rng.IntN(30)) * time.Millisecond
		all.Go(func() {
			for range 1000 { // ends when it is refused
				task, err := r.Spawn(r.ctx, rigAsk("x"))
				mu.Lock()
				if err == nil {
					spawned = append(spawned, task.ID)
				} else if errors.Is(err, subagent.ErrClosed) {
					refused++
					mu.Unlock()
					return
				} else {
					t.Errorf("Spawn: %v", err)
				}
				mu.Unlock()
				time.Sleep(pause)
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, r.Shutdown(r.ctx))
	all.Wait()
	require.Equal(t, 50, refused)
	require.Greater(t, len(spawned), 100)
	for _, id := range spawned {
		row := r.row(id)
		require.Equal(t, subagent.ReasonShutdown, row.Reason)
	}
}

// A store that is broken, or deaf, adds one StoreTimeout, and the ends that it
// did not take are named; memory goes on serving them.
func TestG12_ShutdownWithABadStore(t *testing.T) {
	for name, fault := range map[string]subagenttest.Fault{
		"broken": {Err: errBroken}, "blocked": {Delay: time.Hour}, "deaf": {Delay: time.Minute, Deaf: true},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, subagent.Config{Workers: 4}, func(t *testing.T, r *rig) {
				crew := r.crew(time.Second)
				more := make([]uuid.UUID, 200)
				for i := range more {
					more[i] = r.spawn("queued").ID
				}
				for _, op := range []subagenttest.Op{subagenttest.OpUpdate, subagenttest.OpList, subagenttest.OpGet, subagenttest.OpRenew, subagenttest.OpRelease} {
					r.store.On(op, func(subagenttest.Call) subagenttest.Fault { return fault })
				}
				r.left = true
				start := time.Now()
				err := r.Shutdown(r.ctx)
				require.LessOrEqual(t, time.Since(start), 2*5*time.Second+10*time.Second)
				var left *subagent.ShutdownError
				require.ErrorAs(t, err, &left)
				require.Equal(t, []uuid.UUID{crew.deaf}, left.Detached)
				require.Len(t, left.Unsaved, 5+len(more))
				for _, id := range left.Unsaved {
					got, err := r.Get(r.ctx, id)
					require.NoError(t, err)
					require.True(t, got.Status.Terminal())
				}
				r.recoverTheRest(len(left.Unsaved))
			})
		})
	}
}

// recoverTheRest has a new Runner end what the store does not know to have ended.
func (r *rig) recoverTheRest(want int) {
	r.gate.ReleaseAll()
	time.Sleep(5 * time.Minute) // deaf calls have returned
	next, err := subagent.New(r.ctx, subagent.Config{Store: r.inner})
	require.NoError(r.t, err)
	lost := 0
	for row, err := range r.inner.List(r.ctx, subagent.Filter{}) {
		require.NoError(r.t, err)
		require.True(r.t, row.Status.Terminal())
		if row.Reason == subagent.ReasonLost {
			lost++
		}
	}
	require.LessOrEqual(r.t, lost, want)
	require.NoError(r.t, next.Shutdown(r.ctx))
}

// Ends and notices that are owed are tried once more, and a store that is well
// again takes them.
func TestG12_LastWritesAreTriedOnceMore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newTape()
		notices, cards := new(attempts), new(attempts)
		p.onNotice = func(context.Context, subagent.Task) error { return notices.try() }
		p.onCard = func(_ context.Context, c subagent.Card) error {
			if c.Attach.Status == "completed" {
				return cards.try()
			}
			return nil
		}
		newRig(t, subagent.Config{Workers: 3}, p).run(func(t *testing.T, r *rig) {
			refusing(subagent.StatusCompleted)(r)
			for range 3 {
				r.spawn("x", func(q *subagent.Request) { q.Func = gives("done", nil) })
			}
			time.Sleep(10*time.Minute + 3*time.Second)
			require.Equal(t, 3, r.Stats().Unsaved)
			r.heal()
			notices.mend()
			cards.mend()
			before, start := len(notices.times()), time.Now()
			require.NoError(t, r.Shutdown(r.ctx))
			require.Zero(t, time.Since(start))
			require.Len(t, notices.times(), before+3)
			require.Len(t, r.delivered(), 3)
			require.Zero(t, r.Stats().Unsaved)
			for row := range r.inner.List(r.ctx, subagent.Filter{}) {
				r.settled(row.ID)
				require.False(t, row.NotifiedAt.IsZero())
			}
		})
	})
}

// Subscriptions end after the last event, also those that come too late.
func TestG12_SubscriptionsEndAfterTheLastEvent(t *testing.T) {
	inRig(t, subagent.Config{Workers: 4}, func(t *testing.T, r *rig) {
		crew := r.crew(time.Second)
		s := r.Subscribe(subagent.Filter{})
		r.left = true
		_ = r.Shutdown(r.ctx)
		ended := map[uuid.UUID]bool{}
		for range 5 {
			ev, err := s.Next(r.ctx)
			require.NoError(t, err)
			require.True(t, ev.Task.Status.Terminal())
			ended[ev.Task.ID] = true
		}
		require.Len(t, ended, 5)
		require.True(t, ended[crew.deaf])
		_, err := s.Next(r.ctx)
		require.ErrorIs(t, err, subagent.ErrClosed)
		_, err = r.Subscribe(subagent.Filter{}).Next(r.ctx)
		require.ErrorIs(t, err, subagent.ErrClosed)
		require.Zero(t, r.Stats().Subscribers)
	})
}
