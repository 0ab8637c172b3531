package subagent

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent/internal/bubble"
)

// A slot that is handed over is never free in between. Only a look under the
// lock can see that. The watchers are several so that the lock is contended:
// it is then passed on in turn, and one of them gets it in any gap there is.
func TestG4_RunningStaysFlatDuringHandOff(t *testing.T) {
	c := NewCapacity(4, -1)
	stop := make(chan struct{})
	var watchers, workers sync.WaitGroup
	for range 4 {
		watchers.Go(func() { watch(t, c, stop) })
	}
	for i := range 200 {
		workers.Go(func() { handOffs(t, c, i) })
	}
	workers.Wait()
	close(stop)
	watchers.Wait()
	require.Equal(t, CapacityStats{Limit: 4}, c.Stats())
}

func watch(t *testing.T, c *Capacity, stop <-chan struct{}) {
	for !t.Failed() {
		c.mustAddUp(t)
		select {
		case <-stop:
			return
		default:
		}
	}
}

func handOffs(t *testing.T, c *Capacity, i int) {
	for n := range 50 {
		if (i+n)%5 == 0 {
			if release, ok := c.TryAcquire(); ok {
				release()
			}
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		if (i+n)%7 == 0 {
			go cancel() // ends at once
		}
		if release, err := c.Acquire(ctx); err == nil {
			c.mustAddUp(t)
			release()
		}
		cancel()
	}
}

// The waiter's ctx ends between the pop and the call of granted. Acquire does
// not wait for that call, which comes when the holder could be in other hands.
func TestG8_LateGrantReachesNobodyElse(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := NewCapacity(1, -1)
		require.NoError(t, c.take())
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := acquireAside(ctx, c)
		next := acquireAside(t.Context(), c)

		late := c.release()
		cancel()
		synctest.Wait()
		require.ErrorIs(t, gaveUp.err, context.Canceled)
		require.True(t, next.done, "the slot was handed on")
		require.Equal(t, CapacityStats{Limit: 1, Running: 1}, c.Stats())

		crowd := []*actor{acquireAside(t.Context(), c), acquireAside(t.Context(), c)}
		handOn(late)
		synctest.Wait()
		require.False(t, crowd[0].done)
		require.False(t, crowd[1].done)

		next.release()
		synctest.Wait()
		crowd[0].release()
		synctest.Wait()
		crowd[1].release()
		require.Equal(t, CapacityStats{Limit: 1}, c.Stats())
	})
}

// A grant does not win against a ctx that ended before it by the select's luck.
func TestG8_EndedCtxBeatsGrant(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		c := NewCapacity(1, -1)
		require.NoError(t, c.take())
		c.mu.Lock()
		h := c.holderLocked()
		place := c.line.Push(h.waiterLocked())
		c.mu.Unlock()
		handOn(c.release())
		require.ErrorIs(t, h.await(ctx, place, h.generation), context.Canceled)
		require.Equal(t, CapacityStats{Limit: 1}, c.Stats())
	}
}

func TestG15_LendersGoFirst(t *testing.T) {
	c := NewCapacity(1, -1)
	m := &model{t: t, c: c}
	require.NoError(t, c.take())
	queued, first, second := &actor{m: m}, &actor{m: m}, &actor{m: m}
	require.NoError(t, c.reserve())
	_, granted := c.enter(queued)
	require.False(t, granted)
	for _, lender := range []*actor{first, second} {
		_, granted = c.enterReturning(lender)
		require.False(t, granted)
	}
	for _, want := range []*actor{first, second, queued} {
		require.ErrorIs(t, c.take(), ErrNoCapacity)
		require.Same(t, want, c.release())
	}
	require.Nil(t, c.release())
}

func TestG5_ForceStartsNothingNew(t *testing.T) {
	c := NewCapacity(1, -1)
	waiting := &actor{m: &model{t: t, c: c}}
	require.NoError(t, c.take())
	require.NoError(t, c.reserve())
	c.enter(waiting)
	c.force()
	require.Equal(t, CapacityStats{Limit: 1, Running: 2, Queued: 1}, c.Stats())
	require.Nil(t, c.release(), "the slot above the limit ceases to exist")
	require.Same(t, waiting, c.release())
	require.Equal(t, CapacityStats{Limit: 1, Running: 1}, c.Stats())
}

// A place that was reserved is there, however full the line is by then.
func TestReservedPlaceIsKept(t *testing.T) {
	c := NewCapacity(1, 1)
	require.NoError(t, c.reserve())
	require.NoError(t, c.reserve())
	require.ErrorIs(t, c.reserve(), ErrQueueFull)
	_, err := c.Acquire(t.Context())
	var refused *CapacityError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, CapacityError{Limit: 1, Queued: 2, MaxQueued: 1, Err: ErrQueueFull}, *refused)
	_, granted := c.enter(&actor{})
	require.True(t, granted)
	place, granted := c.enter(&actor{})
	require.False(t, granted)
	at, ok := c.position(place)
	require.True(t, ok)
	require.Equal(t, 1, at)
}

// A burst of waiters is not remembered for ever.
func TestIdleHoldersAreBounded(t *testing.T) {
	c := NewCapacity(4*maxIdle, 0)
	var held []func()
	for range 4 * maxIdle {
		release, ok := c.TryAcquire()
		require.True(t, ok)
		held = append(held, release)
	}
	for _, release := range held {
		release()
	}
	idle := 0
	for h := c.idle; h != nil && idle <= maxIdle; h = h.next {
		idle++
	}
	require.Equal(t, maxIdle, idle)
	require.Equal(t, maxIdle, c.idleCount)
}

func acquireAside(ctx context.Context, c *Capacity) *actor {
	a := &actor{}
	go func() { // ends when granted or with ctx
		a.release, a.err = c.Acquire(ctx)
		a.done = true
	}()
	synctest.Wait()
	return a
}

// brokenDone is a ctx whose Done panics.
type brokenDone struct{ context.Context }

func (brokenDone) Done() <-chan struct{} { panic("Done") }

// brokenErr is a ctx that ends and does not say so.
type brokenErr struct{ context.Context }

func (brokenErr) Err() error { return nil }

// A ctx that is broken costs neither a place in line nor a slot, and never gives
// one away that is another's.
func TestG8_ABrokenCtxLeavesTheLine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := NewCapacity(1, -1)
		release, ok := c.TryAcquire()
		require.True(t, ok)
		require.Panics(t, func() { _, _ = c.Acquire(brokenDone{t.Context()}) })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.Acquire(brokenErr{ctx})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, CapacityStats{Limit: 1, Running: 1}, c.Stats())
		release()
		require.Equal(t, CapacityStats{Limit: 1}, c.Stats())
	})
}
