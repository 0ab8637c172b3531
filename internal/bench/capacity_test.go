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

// BenchmarkAcquire takes a slot that is free and gives it back. The least that
// this can cost is two pairs of Lock and Unlock, and one allocation for a
// release func that is good for one call only.
func BenchmarkAcquire(b *testing.B) {
	b.Run("of=capacity", acquireCapacity)
	b.Run("of=mutex", func(b *testing.B) { acquireMutex(b, false) })
	b.Run("of=mutex-func", func(b *testing.B) { acquireMutex(b, true) })
	b.Run("of=semaphore", acquireSemaphore)
	b.Run("of=channel", acquireChannel)
}

func acquireCapacity(b *testing.B) {
	c, ctx := subagent.NewCapacity(slots, 0), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		release, err := c.Acquire(ctx)
		must(b, err)
		release()
	}
}

// acquireMutex counts up and down under a lock, the latter by a func that is
// always the same or a new one each time.
func acquireMutex(b *testing.B, allocate bool) {
	var mu sync.Mutex
	counter := 0
	down := func(by int) func() { return func() { counter -= by } }
	release := down(1)
	b.ReportAllocs()
	for b.Loop() {
		mu.Lock()
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

func acquireSemaphore(b *testing.B) {
	s, ctx := semaphore.NewWeighted(slots), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		must(b, s.Acquire(ctx, 1))
		s.Release(1)
	}
}

func acquireChannel(b *testing.B) {
	s := make(chan struct{}, slots)
	b.ReportAllocs()
	for b.Loop() {
		s <- struct{}{}
		<-s
	}
}

// BenchmarkHandOff passes slots on among many goroutines. Each yields while it
// holds one, so that the line is never empty and each release is a hand-off;
// the yield is part of what is measured, for the peers as well. A channel can
// be waited for bare, or in a select with the end of a ctx as Acquire does.
func BenchmarkHandOff(b *testing.B) {
	b.Run("of=capacity", func(b *testing.B) { handOffCapacity(b, context.Background()) })
	b.Run("of=channel", handOffChannel)
	b.Run("of=capacity-ctx", func(b *testing.B) { handOffCapacity(b, b.Context()) })
	b.Run("of=channel-ctx", func(b *testing.B) { handOffSelect(b, b.Context()) })
	b.Run("of=semaphore-ctx", func(b *testing.B) { handOffSemaphore(b, b.Context()) })
}

// BenchmarkHandOffGrowth is HandOff with other numbers of slots and goroutines.
func BenchmarkHandOffGrowth(b *testing.B) {
	for _, limit := range []int{1, 4, 64} {
		for _, waiters := range []int{10, 100, 1000, 10_000} {
			if waiters <= limit {
				continue // nobody would wait
			}
			name := fmt.Sprintf("limit=%d/waiters=%d", limit, waiters)
			b.Run(name+"/of=capacity", func(b *testing.B) {
				c, ctx := subagent.NewCapacity(limit, -1), context.Background()
				share(b, waiters, func() {
					release, err := c.Acquire(ctx)
					if err == nil {
						runtime.Gosched()
						release()
					}
				})
			})
			b.Run(name+"/of=channel", func(b *testing.B) {
				s := make(chan struct{}, limit)
				share(b, waiters, func() {
					s <- struct{}{}
					runtime.Gosched()
					<-s
				})
			})
		}
	}
}

func handOffCapacity(b *testing.B, ctx context.Context) {
	c := subagent.NewCapacity(slots, -1)
	compete(b, func() {
		release, err := c.Acquire(ctx)
		if err == nil {
			runtime.Gosched()
			release()
		}
	})
}

func handOffChannel(b *testing.B) {
	s := make(chan struct{}, slots)
	compete(b, func() {
		s <- struct{}{}
		runtime.Gosched()
		<-s
	})
}

func handOffSelect(b *testing.B, ctx context.Context) {
	s := make(chan struct{}, slots)
	compete(b, func() {
		select {
		case s <- struct{}{}:
			runtime.Gosched()
			<-s
		case <-ctx.Done():
		}
	})
}

func handOffSemaphore(b *testing.B, ctx context.Context) {
	s := semaphore.NewWeighted(slots)
	compete(b, func() {
		if s.Acquire(ctx, 1) == nil {
			runtime.Gosched()
			s.Release(1)
		}
	})
}
