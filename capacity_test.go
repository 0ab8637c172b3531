package subagent_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
)

// waiter is one call of Acquire on a goroutine of its own. Its fields are
// settled after a synctest.Wait.
type waiter struct {
	cancel  context.CancelFunc
	done    bool
	release func()
	err     error
}

func (w *waiter) granted() bool { return w.done && w.err == nil }

// wait puts a waiter in line and returns once it stands there or is through.
// It ends with the test at the latest.
func wait(t *testing.T, c *subagent.Capacity) *waiter {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &waiter{cancel: cancel}
	t.Cleanup(cancel)
	go func() {
		w.release, w.err = c.Acquire(ctx)
		w.done = true
	}()
	synctest.Wait()
	return w
}

func waitAll(t *testing.T, c *subagent.Capacity, n int) []*waiter {
	t.Helper()
	line := make([]*waiter, n)
	for i := range line {
		line[i] = wait(t, c)
	}
	return line
}

func requireStats(t *testing.T, c *subagent.Capacity, limit, running, queued int) {
	t.Helper()
	require.Equal(t, subagent.CapacityStats{Limit: limit, Running: running, Queued: queued}, c.Stats())
}

func requireGranted(t *testing.T, line []*waiter, n int) {
	t.Helper()
	synctest.Wait()
	for i, w := range line {
		require.Equal(t, i < n, w.granted(), "waiter %d", i)
	}
}

func hold(t *testing.T, c *subagent.Capacity) (release func()) {
	t.Helper()
	release, ok := c.TryAcquire()
	require.True(t, ok)
	return release
}

func TestCapacityNeedsALimit(t *testing.T) {
	for _, limit := range []int{0, -1} {
		require.Panics(t, func() { subagent.NewCapacity(limit, 1) })
	}
	c := subagent.NewCapacity(2, 1)
	require.Panics(t, func() { c.Resize(0) })
	requireStats(t, c, 2, 0, 0)
}

func TestAcquireAndRelease(t *testing.T) {
	c := subagent.NewCapacity(2, 0)
	first, err := c.Acquire(t.Context())
	require.NoError(t, err)
	second, ok := c.TryAcquire()
	require.True(t, ok)
	requireStats(t, c, 2, 2, 0)
	none, ok := c.TryAcquire()
	require.False(t, ok)
	require.Nil(t, none)
	first()
	requireStats(t, c, 2, 1, 0)
	second()
	requireStats(t, c, 2, 0, 0)
}

func TestAcquireWithDoneCtxTakesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := subagent.NewCapacity(1, 1)
	release, err := c.Acquire(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, release)
	requireStats(t, c, 1, 0, 0)
}

func TestQueueFull(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := subagent.NewCapacity(1, 2)
		release := hold(t, c)
		line := waitAll(t, c, 3)
		var refused *subagent.CapacityError
		require.ErrorAs(t, line[2].err, &refused)
		require.Equal(t, subagent.CapacityError{
			Limit: 1, Running: 1, Queued: 2, MaxQueued: 2, Err: subagent.ErrQueueFull,
		}, *refused)
		require.ErrorIs(t, refused, subagent.ErrQueueFull)
		require.NotErrorIs(t, refused, subagent.ErrNoCapacity)
		require.EqualError(t, refused, "subagent: queue full: 1 of 1 slots held, 2 queued (at most 2)")
		release()
		requireGranted(t, line[:2], 1)
		require.False(t, wait(t, c).done, "a place in line is free again")
	})
}

func TestNoQueueAtAll(t *testing.T) {
	c := subagent.NewCapacity(1, 0)
	release := hold(t, c)
	_, err := c.Acquire(t.Context())
	require.ErrorIs(t, err, subagent.ErrQueueFull)
	release()
	release, err = c.Acquire(t.Context())
	require.NoError(t, err)
	release()
}

func TestReleaseCountsOnce(t *testing.T) {
	c := subagent.NewCapacity(2, 0)
	first, second := hold(t, c), hold(t, c)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(first)
	}
	callers.Wait()
	requireStats(t, c, 2, 1, 0)

	// Whatever is recycled is in other hands now: the old func is of no use.
	third := hold(t, c)
	first()
	requireStats(t, c, 2, 2, 0)
	second()
	third()
	third()
	requireStats(t, c, 2, 0, 0)
}

func TestG4_StrictOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := subagent.NewCapacity(1, -1)
		release := hold(t, c)
		line := waitAll(t, c, 100)
		for i, w := range line {
			release()
			requireGranted(t, line, i+1)
			requireStats(t, c, 1, 1, 99-i)
			release = w.release
		}
		release()
		requireStats(t, c, 1, 0, 0)
	})
}

func TestG4_OrderSurvivesThoseWhoLeave(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := subagent.NewCapacity(1, -1)
		release := hold(t, c)
		line := waitAll(t, c, 60)
		var stay []*waiter
		for i, w := range line {
			if i%3 == 1 {
				stay = append(stay, w)
				continue
			}
			w.cancel()
		}
		for i, w := range stay {
			release()
			requireGranted(t, stay, i+1)
			release = w.release
		}
		release()
		requireStats(t, c, 1, 0, 0)
	})
}

// The waiter has the slot when release returns, before it even runs: neither
// a newcomer that tries nor one that queues gets in between.
func TestG4_NewcomerNeverOvertakes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := subagent.NewCapacity(1, -1)
		for range 200 {
			release := hold(t, c)
			first := wait(t, c)
			release()
			_, ok := c.TryAcquire()
			require.False(t, ok)
			second := wait(t, c)
			require.True(t, first.granted())
			require.False(t, second.done)
			first.release()
			synctest.Wait()
			second.release()
		}
		requireStats(t, c, 1, 0, 0)
	})
}

func TestG5_PeakNeverAboveLimit(t *testing.T) {
	const limit, workers, rounds = 7, 200, 50
	c := subagent.NewCapacity(limit, -1)
	var inside, peak atomic.Int64
	var done sync.WaitGroup
	for range workers {
		done.Go(func() {
			for range rounds {
				release, err := c.Acquire(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				n := inside.Add(1)
				for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
				}
				runtime.Gosched()
				inside.Add(-1)
				release()
			}
		})
	}
	done.Wait()
	require.LessOrEqual(t, peak.Load(), int64(limit))
	requireStats(t, c, limit, 0, 0)
}

func TestG5_ResizeDownInterruptsNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := subagent.NewCapacity(4, -1)
		running, line := waitAll(t, c, 4), waitAll(t, c, 2)
		c.Resize(1)
		requireStats(t, c, 1, 4, 2)
		for i := range 3 {
			running[i].release()
			requireGranted(t, line, 0)
			requireStats(t, c, 1, 3-i, 2)
			_, ok := c.TryAcquire()
			require.False(t, ok)
		}
		running[3].release()
		requireGranted(t, line, 1)
		requireStats(t, c, 1, 1, 1)
		line[0].release()
		requireGranted(t, line, 2)
		line[1].release()
		requireStats(t, c, 1, 0, 0)
	})
}

func TestG4_ResizeUpStartsWaitersInOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := subagent.NewCapacity(1, -1)
		release := hold(t, c)
		line := waitAll(t, c, 5)
		c.Resize(3)
		requireStats(t, c, 3, 3, 3)
		requireGranted(t, line, 2)
		release()
		requireGranted(t, line, 3)
		c.Resize(100)
		requireGranted(t, line, 5)
		requireStats(t, c, 100, 5, 0)
		for _, w := range line[1:] {
			w.release()
		}
		line[0].release()
		requireStats(t, c, 100, 0, 0)
	})
}

// When Acquire returns because its ctx ended, its place is free already.
func TestG8_CancelWhileQueued(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := subagent.NewCapacity(1, 200)
		release := hold(t, c)
		line := waitAll(t, c, 200)
		for i, w := range line[:100] {
			w.cancel()
			synctest.Wait()
			require.ErrorIs(t, w.err, context.Canceled)
			require.Nil(t, w.release)
			requireStats(t, c, 1, 1, 199-i)
		}
		for _, w := range line[100:] {
			w.cancel() // all at once
		}
		synctest.Wait()
		for _, w := range line {
			require.ErrorIs(t, w.err, context.Canceled)
		}
		requireStats(t, c, 1, 1, 0)
		release()
		requireStats(t, c, 1, 0, 0)
	})
}

// A cancel that races with the grant ends in one of two ways, and both are
// settled by the time that Acquire returns.
func TestG8_CancelRacesGrant(t *testing.T) {
	c := subagent.NewCapacity(1, -1)
	var granted, refused int
	for range 5000 {
		held := hold(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		var both sync.WaitGroup
		both.Go(held)
		both.Go(cancel)
		release, err := c.Acquire(ctx)
		if err == nil {
			granted++
			require.Equal(t, 1, c.Stats().Running)
			release()
		} else {
			refused++
			require.ErrorIs(t, err, context.Canceled)
			require.Zero(t, c.Stats().Queued)
		}
		both.Wait()
		requireStats(t, c, 1, 0, 0)
	}
	t.Logf("%d granted, %d cancelled", granted, refused)
}

// Everything at once, on real threads: nothing is lost, and Stats is never
// seen torn.
func TestCapacityUnderFire(t *testing.T) {
	const limit, workers, rounds = 3, 32, 300
	seeds := seeded(t)
	c := subagent.NewCapacity(limit, 20)
	stop, watched := make(chan struct{}), make(chan error, 1)
	go func() { watched <- watchStats(c, limit, 20, stop) }() // ends with stop; waited for below
	var done sync.WaitGroup
	for range workers {
		chance := seeds.Uint64()
		done.Go(func() {
			for i := range rounds {
				fire(t, c, chance>>(i%60)&3)
			}
		})
	}
	done.Wait()
	close(stop)
	require.NoError(t, <-watched)
	requireStats(t, c, limit, 0, 0)
}

func fire(t *testing.T, c *subagent.Capacity, how uint64) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if how == 0 {
		go cancel() // ends at once
	}
	release, err := c.Acquire(ctx)
	if how == 1 && err == nil {
		release()
		release, _ = c.TryAcquire()
	}
	if err != nil && !errors.Is(err, subagent.ErrQueueFull) && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if release != nil {
		runtime.Gosched()
		release()
		release()
	}
}

func watchStats(c *subagent.Capacity, limit, maxQueued int, stop <-chan struct{}) error {
	for {
		s := c.Stats()
		if s.Running < 0 || s.Running > limit || s.Queued > maxQueued || (s.Queued > 0 && s.Running < limit) {
			return errors.New("stats do not add up")
		}
		select {
		case <-stop:
			return nil
		default:
			runtime.Gosched()
		}
	}
}
