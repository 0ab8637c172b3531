package bench_test

import (
	"context"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(costVariable); order != "" {
		costChild(order)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent()) // ants has a pool of its own from its init on
}

const (
	slots   = 4   // of every Runner, pool and semaphore here
	workers = 100 // goroutines that compete for them where there is a competition
	session = "session"
)

// request is what every row spawns. Its strings are constants: they cost a
// task nothing but their headers.
func request() subagent.Request {
	return subagent.Request{Description: "description", ParentSessionID: session}
}

// nothing is the work of every row that measures the way to it and back.
func nothing(context.Context, *subagent.Run) (subagent.Result, error) {
	return subagent.Result{}, nil
}

// untilStopped holds its slot until the task is told to stop.
func untilStopped(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
	<-ctx.Done()
	return subagent.Result{}, ctx.Err()
}

// newRunner returns a Runner with an unlimited line. It is shut down, outside
// the measured time, at the end of the benchmark.
func newRunner(b *testing.B, cfg subagent.Config) *subagent.Runner {
	b.Helper()
	cfg.Workers, cfg.MaxQueued, cfg.ShutdownGrace = slots, -1, time.Millisecond
	r, err := subagent.New(context.Background(), cfg)
	must(b, err)
	b.Cleanup(func() { shutdown(b, r) })
	return r
}

func shutdown(b *testing.B, r *subagent.Runner) {
	must(b, r.Shutdown(context.Background()))
}

// newSteadyRunner is newRunner after so many tasks that its store is full: from
// here on each new end pushes an old one out, as it does in a long life.
func newSteadyRunner(b *testing.B, cfg subagent.Config) *subagent.Runner {
	b.Helper()
	r := newRunner(b, cfg)
	for range 10_100 {
		_, err := r.Run(context.Background(), request())
		must(b, err)
	}
	return r
}

// newCrowdedRunner is newRunner with all slots held and n tasks in line, whose
// ids it returns in the order of the line.
func newCrowdedRunner(b *testing.B, n int) (*subagent.Runner, []uuid.UUID) {
	b.Helper()
	r := newRunner(b, subagent.Config{Func: untilStopped})
	spawn(b, r, slots)
	return r, spawn(b, r, n)
}

// spawn spawns n tasks.
func spawn(b *testing.B, r *subagent.Runner, n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		t, err := r.Spawn(context.Background(), request())
		must(b, err)
		ids[i] = t.ID
	}
	return ids
}

// share shares b.N operations out among as many goroutines, and waits for them.
func share(b *testing.B, goroutines int, op func()) {
	b.ReportAllocs()
	var done sync.WaitGroup
	for w := range goroutines {
		done.Go(func() { // ends after its share
			for range (b.N + w) / goroutines {
				op()
			}
		})
	}
	done.Wait()
}

// samples are single durations, for what cannot be repeated without a step in
// between that is not to be measured. It reports their median as ns/op: a mean
// would be that of the few that the scheduler or the collector interrupted.
type samples []time.Duration

func (s *samples) add(d time.Duration) { *s = append(*s, d) }

func (s samples) report(b *testing.B) {
	slices.Sort(s)
	b.ReportMetric(float64(s[len(s)/2]), "ns/op")
	b.ReportMetric(float64(s[len(s)*9/10]), "p90-ns")
}

// memory is what is in use after a full collection.
type memory struct {
	live  int64 // objects, and the stacks of goroutines
	spans int64 // what the allocator holds for them, holes included
}

func settled() memory {
	runtime.GC()
	runtime.GC() // the first may have left what has a finalizer
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	stacks := int64(m.StackInuse)
	return memory{int64(m.HeapAlloc) + stacks, int64(m.HeapInuse) + stacks}
}

func skipIfShort(b *testing.B) {
	if testing.Short() {
		b.Skip("a million tasks")
	}
}

func must(b testing.TB, err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}
