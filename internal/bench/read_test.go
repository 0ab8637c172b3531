package bench_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// BenchmarkList lists the newest 50 of 100 000 live tasks: of all, of a session
// that has them all, and of those that run, of which there are few and all old,
// so that the whole store is looked through.
func BenchmarkList(b *testing.B) {
	r, _ := newCrowdedRunner(b, crowd)
	list := func(f subagent.Filter, want int) func(*testing.B) {
		f.Limit, f.NewestFirst = 50, true
		return func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				tasks, err := r.List(context.Background(), f)
				must(b, err)
				if len(tasks) != want {
					b.Fatalf("%d tasks", len(tasks))
				}
			}
		}
	}
	b.Run("of=all", list(subagent.Filter{}, 50))
	b.Run("of=session", list(subagent.Filter{SessionID: session}, 50))
	b.Run("of=running", list(subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}}, slots))
}

// BenchmarkGet reads one of 100 000 live tasks; of=map copies it out of a map
// behind a mutex, which is the least that it can cost.
func BenchmarkGet(b *testing.B) {
	r, ids := newCrowdedRunner(b, crowd)
	next := roundAbout(ids)
	b.Run("of=runner", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := r.Get(context.Background(), next())
			must(b, err)
		}
	})
	b.Run("of=map", func(b *testing.B) { getFromMap(b, r, ids) })
}

// copied keeps the copies from being optimized away.
var copied *subagent.Task

func getFromMap(b *testing.B, r *subagent.Runner, ids []uuid.UUID) {
	var mu sync.Mutex
	tasks := make(map[uuid.UUID]*subagent.Task, len(ids))
	for _, id := range ids {
		t, err := r.Get(context.Background(), id)
		must(b, err)
		tasks[id] = &t
	}
	next := roundAbout(ids)
	b.ReportAllocs()
	for b.Loop() {
		t := new(subagent.Task)
		mu.Lock()
		*t = *tasks[next()]
		mu.Unlock()
		copied = t
	}
}
