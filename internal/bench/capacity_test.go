package bench_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sync/semaphore"

	"github.com/go-subagent/subagent"
)

// limits are how many slots there are where it may matter.
var limits = []int{1, slots, 64}

// BenchmarkAcquire takes a slot that is free and gives it back. The least that
// this can cost is two pairs of Lock and Unlock, and one allocation for a
// release func that is good for one call only.
func BenchmarkAcquire(b *testing.B) {
	for _, limit := range limits {
		of := fmt.Sprintf("limit=%d/of=", limit)
		b.Run(of+"capacity", func(b *testing.B) { acquireCapacity(b, limit) })
		b.Run(of+"mutex", func(b *testing.B) { acquireMutex(b, limit, false) })
		b.Run(of+"mutex-func", func(b *testing.B) { acquireMutex(b, limit, true) })
		b.Run(of+"semaphore", func(b *testing.B) { acquireSemaphore(b, limit) })
		b.Run(of+"channel", func(b *testing.B) { acquireChannel(b, limit) })
	}
}

func acquireCapacity(b *testing.B, limit int) {
	c, ctx := subagent.NewCapacity(limit, 0), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		release, err := c.Acquire(ctx)
		must(b, err)
		release()
	}
}

// acquireMutex counts up to limit and down under a lock, the latter by a func
// that is always the same or a new one each time.
func acquireMutex(b *testing.B, limit int, allocate bool) {
	var mu sync.Mutex
	counter := 0
	down := func(by int) func() { return func() { counter -= by } }
	release := down(1)
	b.ReportAllocs()
	for b.Loop() {
		mu.Lock()
		if counter == limit {
			b.Fatal("no slot is free")
		}
		counter++
		mu.Unlock()
		if allocate {
			release = down(counter)
		}
		mu.Lock()
		release()
		mu.Unlock()
	}
}

func acquireSemaphore(b *testing.B, limit int) {
	s, ctx := semaphore.NewWeighted(int64(limit)), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		must(b, s.Acquire(ctx, 1))
		s.Release(1)
	}
}

func acquireChannel(b *testing.B, limit int) {
	s := make(chan struct{}, limit)
	b.ReportAllocs()
	for b.Loop() {
		s <- struct{}{}
		<-s
	}
}

// BenchmarkHandOff passes slots on among many goroutines. Each yields while it
// holds one, so that the line is never empty and each release is a hand-off;
// the yield is part of what is measured, for the peers as well. A channel can
// be waited for bare, or in a select with the end of a ctx as Acquire does: a
// row that is called -ctx has such a one for its floor.
func BenchmarkHandOff(b *testing.B) {
	background, ctx := context.Background(), b.Context()
	b.Run("of=capacity", func(b *testing.B) { handOffCapacity(b, background, slots, workers) })
	b.Run("of=channel", func(b *testing.B) { handOffChannel(b, slots, workers) })
	b.Run("of=capacity-ctx", func(b *testing.B) { handOffCapacity(b, ctx, slots, workers) })
	b.Run("of=channel-ctx", func(b *testing.B) { handOffSelect(b, ctx) })
	b.Run("of=semaphore-ctx", func(b *testing.B) { handOffSemaphore(b, ctx, slots, workers) })
}

// BenchmarkHandOffGrowth is HandOff with other numbers of slots and goroutines.
func BenchmarkHandOffGrowth(b *testing.B) {
	background := context.Background()
	for _, limit := range limits {
		for _, waiters := range []int{10, 100, 1000, 10_000} {
			if waiters <= limit {
				continue // nobody would wait
			}
			of := fmt.Sprintf("limit=%d/waiters=%d/of=", limit, waiters)
			b.Run(of+"capacity", func(b *testing.B) { handOffCapacity(b, background, limit, waiters) })
			b.Run(of+"channel", func(b *testing.B) { handOffChannel(b, limit, waiters) })
			b.Run(of+"semaphore", func(b *testing.B) { handOffSemaphore(b, background, limit, waiters) })
		}
	}
}

func handOffCapacity(b *testing.B, ctx context.Context, limit, waiters int) {
	c := subagent.NewCapacity(limit, -1)
	share(b, waiters, func() {
		release, err := c.Acquire(ctx)
		if err == nil {
			runtime.Gosched()
			release()
		}
	})
}

func handOffChannel(b *testing.B, limit, waiters int) {
	s := make(chan struct{}, limit)
	share(b, waiters, func() {
		s <- struct{}{}
		runtime.Gosched()
		<-s
	})
}

func handOffSelect(b *testing.B, ctx context.Context) {
	s := make(chan struct{}, slots)
	share(b, workers, func() {
		select {
		case s <- struct{}{}:
			runtime.Gosched()
			<-s
		case <-ctx.Done():
		}
	})
}

func handOffSemaphore(b *testing.B, ctx context.Context, limit, waiters int) {
	s := semaphore.NewWeighted(int64(limit))
	share(b, waiters, func() {
		if s.Acquire(ctx, 1) == nil {
			runtime.Gosched()
			s.Release(1)
		}
	})
}
