package bench_test

import (
	"sync"
	"testing"
	"time"

	"github.com/gammazero/workerpool"
	"github.com/panjf2000/ants/v2"
	"github.com/sourcegraph/conc/pool"
	"golang.org/x/sync/errgroup"
)

// The peers of this file run funcs, at most slots at a time. None of them has
// an id, a state or a record of what it runs. Where the name of a row says
// "blocks", the submitter waits until a slot is free, so that there is no queue.

// doneOneByOne measures a submit that tells of its end only through the func
// itself, as these peers do.
func doneOneByOne(b *testing.B, submit func(func())) {
	done := make(chan struct{})
	b.ReportAllocs()
	for b.Loop() {
		submit(func() { done <- struct{}{} })
		<-done
	}
}

// burstOf measures as many submits in a row, and a wait for all of them.
func burstOf(b *testing.B, submit func(func())) {
	inBursts(b, func(n int) {
		var all sync.WaitGroup
		all.Add(n)
		for range n {
			submit(all.Done)
		}
		all.Wait()
	})
}

func newAnts(b *testing.B) func(func()) {
	p, err := ants.NewPool(slots)
	must(b, err)
	b.Cleanup(func() { must(b, p.ReleaseTimeout(time.Minute)) })
	return func(f func()) { must(b, p.Submit(f)) }
}

func newWorkerpool(b *testing.B) func(func()) {
	p := workerpool.New(slots)
	b.Cleanup(p.StopWait)
	return p.Submit
}

func newConc(b *testing.B) func(func()) {
	p := pool.New().WithMaxGoroutines(slots)
	b.Cleanup(p.Wait)
	return p.Go
}

func newErrgroup(b *testing.B) func(func()) {
	var g errgroup.Group
	g.SetLimit(slots)
	b.Cleanup(func() { must(b, g.Wait()) })
	return func(f func()) { g.Go(func() error { f(); return nil }) }
}

// newChannel is goroutines behind a buffered channel.
func newChannel(*testing.B) func(func()) {
	s := make(chan struct{}, slots)
	return func(f func()) {
		s <- struct{}{}
		go func() { // ends with f, which the row waits for
			f()
			<-s
		}()
	}
}

// peers are run by BenchmarkSpawnToDone and BenchmarkBurst.
func peers(b *testing.B, measure func(*testing.B, func(func()))) {
	for _, p := range []struct {
		name string
		open func(*testing.B) func(func())
	}{
		{"workerpool", newWorkerpool},
		{"ants-blocks", newAnts},
		{"conc-blocks", newConc},
		{"errgroup-blocks", newErrgroup},
		{"channel-blocks", newChannel},
	} {
		b.Run("of="+p.name, func(b *testing.B) { measure(b, p.open(b)) })
	}
}
