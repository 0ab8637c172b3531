package bench_test

import (
	"context"
	"testing"

	"github.com/alitto/pond/v2"
	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// BenchmarkSpawnToDone is the whole life of a task whose Func does nothing, one
// after the other, in a store that is full. The floor of its ratios is pond,
// the peer that comes nearest: it queues without bound and gives a handle. A
// bare goroutine is what lies under all of them.
func BenchmarkSpawnToDone(b *testing.B) {
	b.Run("of=run", func(b *testing.B) { runOneByOne(b, newSteadyRunner(b, subagent.Config{Func: nothing})) })
	b.Run("of=spawn-wait", spawnOneByOne)
	b.Run("of=pond", submitOneByOne)
	b.Run("of=go", goOneByOne)
	peers(b, doneOneByOne)
	b.Run("of=run-store", func(b *testing.B) {
		runOneByOne(b, newSteadyRunner(b, subagent.Config{Func: nothing, Store: foreign{subagent.NewMemoryStore()}}))
	})
	inCompany(b, "run", runOneByOne)
}

// foreign hides that a store is a MemoryStore: the Runner guards every call.
type foreign struct{ subagent.Store }

func runOneByOne(b *testing.B, r *subagent.Runner) {
	b.ReportAllocs()
	for b.Loop() {
		_, err := r.Run(context.Background(), request())
		must(b, err)
	}
}

func spawnOneByOne(b *testing.B) {
	r := newSteadyRunner(b, subagent.Config{Func: nothing})
	b.ReportAllocs()
	for b.Loop() {
		t, err := r.Spawn(context.Background(), request())
		must(b, err)
		_, err = r.Wait(context.Background(), t.ID)
		must(b, err)
	}
}

func submitOneByOne(b *testing.B) {
	pool := pond.NewPool(slots)
	defer pool.StopAndWait()
	b.ReportAllocs()
	for b.Loop() {
		must(b, pool.Submit(func() {}).Wait())
	}
}

// goOneByOne is a goroutine, and word of its end.
func goOneByOne(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		done := make(chan struct{})
		go close(done) // its end is waited for
		<-done
	}
}

// BenchmarkBurst spawns all its tasks at once, at most burst of them, and then
// waits for all. What it counts is per task. Its floor is pond, as above.
func BenchmarkBurst(b *testing.B) {
	b.Run("of=runner", func(b *testing.B) { burstRunner(b, newSteadyRunner(b, subagent.Config{Func: nothing})) })
	b.Run("of=pond", burstPond)
	b.Run("of=pond-group", burstPondGroup)
	b.Run("of=go", func(b *testing.B) {
		burstOf(b, func(f func()) { go f() }) // ends with f, which the row waits for
	})
	peers(b, burstOf)
	inCompany(b, "runner", burstRunner)
}

const burst = 10_000

// inBursts calls do with how many tasks to spawn, b.N in all.
func inBursts(b *testing.B, do func(n int)) {
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; left -= burst {
		do(min(left, burst))
	}
	b.StopTimer()
}

func burstRunner(b *testing.B, r *subagent.Runner) {
	ids := make([]uuid.UUID, 0, burst)
	inBursts(b, func(n int) {
		ids = ids[:0]
		for range n {
			t, err := r.Spawn(context.Background(), request())
			must(b, err)
			ids = append(ids, t.ID)
		}
		_, err := r.Await(context.Background(), subagent.AwaitAll, ids...)
		must(b, err)
	})
}

func burstPond(b *testing.B) {
	pool := pond.NewPool(slots)
	defer pool.StopAndWait()
	tasks := make([]pond.Task, 0, burst)
	inBursts(b, func(n int) {
		tasks = tasks[:0]
		for range n {
			tasks = append(tasks, pool.Submit(func() {}))
		}
		for _, t := range tasks {
			must(b, t.Wait())
		}
	})
}

func burstPondGroup(b *testing.B) {
	pool := pond.NewPool(slots)
	defer pool.StopAndWait()
	inBursts(b, func(n int) {
		group := pool.NewGroup()
		for range n {
			group.Submit(func() {})
		}
		must(b, group.Wait())
	})
}
