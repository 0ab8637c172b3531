package subagent_test

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/go-subagent/subagent"
)

// BenchmarkCapacity compares a Capacity with what it is made of: uncontended
// with two pairs of Lock and Unlock, without and with the func that has to be
// allocated; hand-off among 100 goroutines on 4 slots with a buffered channel
// as the semaphore, bare and in a select with a ctx. Those yield while they
// hold a slot, so that the line is never empty and every release is a hand-off.
//
//	go test -run '^$' -bench BenchmarkCapacity -count 10 .
func BenchmarkCapacity(b *testing.B) {
	b.Run("uncontended", benchUncontended)
	b.Run("two-mutex-pairs", func(b *testing.B) { benchMutexPairs(b, false) })
	b.Run("two-mutex-pairs-and-func", func(b *testing.B) { benchMutexPairs(b, true) })
	b.Run("handoff", func(b *testing.B) { benchHandoff(b, context.Background()) })
	b.Run("channel", func(b *testing.B) {
		slots := make(chan struct{}, 4)
		benchWorkers(b, func() {
			slots <- struct{}{}
			runtime.Gosched()
			<-slots
		})
	})
	b.Run("handoff-ctx", func(b *testing.B) { benchHandoff(b, b.Context()) })
	b.Run("channel-ctx", func(b *testing.B) {
		slots, ctx := make(chan struct{}, 4), b.Context()
		benchWorkers(b, func() {
			select {
			case slots <- struct{}{}:
				runtime.Gosched()
				<-slots
			case <-ctx.Done():
			}
		})
	})
}

func benchUncontended(b *testing.B) {
	c, ctx := subagent.NewCapacity(4, 0), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		release, err := c.Acquire(ctx)
		if err != nil {
			b.Fatal(err)
		}
		release()
	}
}

// benchMutexPairs is the least that an Acquire and its release can cost; with
// its func allocated, as theirs must be.
func benchMutexPairs(b *testing.B, allocate bool) {
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

func benchHandoff(b *testing.B, ctx context.Context) {
	c := subagent.NewCapacity(4, -1)
	benchWorkers(b, func() {
		release, err := c.Acquire(ctx)
		if err == nil {
			runtime.Gosched()
			release()
		}
	})
}

// benchWorkers shares b.N operations out among 100 goroutines, which it waits for.
func benchWorkers(b *testing.B, op func()) {
	const workers = 100
	b.ReportAllocs()
	var done sync.WaitGroup
	for w := range workers {
		done.Go(func() {
			for range (b.N + w) / workers {
				op()
			}
		})
	}
	done.Wait()
}
