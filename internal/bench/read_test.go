package bench_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

const page = 50 // tasks of a List

// BenchmarkList lists the newest 50 of 100 000 live tasks: of all, of a session
// that has them all, and of those that run, which are only the oldest four.
// of=copy copies 50 tasks out of a slice behind a mutex, which is the least that
// it can cost.
func BenchmarkList(b *testing.B) {
	r, ids := newCrowdedRunner(b, crowd)
	list := func(f subagent.Filter, want int) func(*testing.B) {
		f.Limit, f.NewestFirst = page, true
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
	b.Run("of=all", list(subagent.Filter{}, page))
	b.Run("of=session", list(subagent.Filter{SessionID: session}, page))
	b.Run("of=copy", func(b *testing.B) { copyPage(b, load(b, r, ids[len(ids)-page:])) })
	b.Run("of=running", list(subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}}, slots))
}

// listed keeps the copies from being optimized away.
var listed []subagent.Task

func copyPage(b *testing.B, tasks []*subagent.Task) {
	var mu sync.Mutex
	b.ReportAllocs()
	for b.Loop() {
		listed = make([]subagent.Task, page)
		mu.Lock()
		for i := range listed {
			listed[i] = *tasks[len(tasks)-1-i] // newest first
		}
		mu.Unlock()
	}
}

// load returns the tasks of ids, each on its own as in a store.
func load(b *testing.B, r *subagent.Runner, ids []uuid.UUID) []*subagent.Task {
	tasks := make([]*subagent.Task, len(ids))
	for i, id := range ids {
		t, err := r.Get(context.Background(), id)
		must(b, err)
		tasks[i] = &t
	}
	return tasks
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
	for i, t := range load(b, r, ids) {
		tasks[ids[i]] = t
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
