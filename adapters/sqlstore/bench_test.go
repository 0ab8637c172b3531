package sqlstore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
)

// BenchmarkUpdate is one durable update of one task, with nobody to share the
// sync, beside the least that durability costs: an append of a page to a file,
// and a sync of its data. They take turns, so that both meet the same disk.
// "ratio" is that of the medians. The store has been in use for a while: its log
// has been brought into the file and begun again.
func BenchmarkUpdate(b *testing.B) {
	s := fresh(b)
	fill(b, s, min(crowd(), 20_000))
	task := newTask()
	task.Status = subagent.StatusRunning
	require.NoError(b, s.Create(b.Context(), task))
	file, err := os.Create(filepath.Join(b.TempDir(), "log"))
	require.NoError(b, err)
	defer file.Close()
	page := make([]byte, 4096)
	var updates, appends []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		_, err := s.Update(b.Context(), task.ID, func(t *subagent.Task) error { t.Progress.ToolUses++; return nil })
		updates = append(updates, time.Since(start))
		require.NoError(b, err)
		start = time.Now()
		_, err = file.Write(page)
		require.NoError(b, err)
		require.NoError(b, fdatasync(file))
		appends = append(appends, time.Since(start))
	}
	update, sync := median(updates), median(appends)
	b.ReportMetric(float64(update.Microseconds()), "update-µs")
	b.ReportMetric(float64(sync.Microseconds()), "fdatasync-µs")
	b.ReportMetric(float64(update)/float64(sync), "ratio")
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkInFlight is the whole life of a task, from Spawn to its durable end,
// with 64 of them under way: five writes each.
func BenchmarkInFlight(b *testing.B) {
	inFlight(b, fresh(b), max(b.N, 64))
}

func inFlight(b *testing.B, s subagent.Store, n int) {
	const flight = 64
	r, err := subagent.New(b.Context(), subagent.Config{
		Store: s, Workers: flight, MaxQueued: -1,
		Func: func(context.Context, *subagent.Run) (subagent.Result, error) { return subagent.Result{}, nil },
	})
	require.NoError(b, err)
	defer func() { require.NoError(b, r.Shutdown(context.Background())) }()
	b.ResetTimer()
	start := time.Now()
	var all sync.WaitGroup
	for i := range flight {
		all.Go(func() {
			for range (n + i) / flight {
				t, err := r.Run(context.Background(), subagent.Request{Description: "description", ParentSessionID: "session"})
				if err != nil || t.Status != subagent.StatusCompleted {
					b.Error(t.Status, err)
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(n)/time.Since(start).Seconds(), "tasks/s")
}

// BenchmarkStart is New on a file with 100 000 tasks that ended and 100 that a
// dead Runner left.
func BenchmarkStart(b *testing.B) {
	path := filepath.Join(b.TempDir(), "tasks.db")
	fill(b, open(b, path), crowd())
	for b.Loop() {
		b.StopTimer()
		leaveOpen(b, path, 100)
		b.StartTimer()
		s, err := sqlstore.OpenSQLite(path, sqlstore.Options{})
		require.NoError(b, err)
		r, err := subagent.New(b.Context(), subagent.Config{Store: s, Func: nil, Notifier: nobody{}})
		require.NoError(b, err)
		b.StopTimer()
		live, err := r.List(b.Context(), subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}})
		require.NoError(b, err)
		require.Empty(b, live)
		require.NoError(b, r.Shutdown(context.Background()))
		require.NoError(b, s.Close())
		b.StartTimer()
	}
}

type nobody struct{}

func (nobody) Notify(context.Context, subagent.Task) error { return nil }

func leaveOpen(b *testing.B, path string, n int) {
	s, err := sqlstore.OpenSQLite(path, sqlstore.Options{})
	require.NoError(b, err)
	tasks := make([]subagent.Task, n)
	for i := range tasks {
		tasks[i] = newTask()
		tasks[i].Status, tasks[i].Owner = subagent.StatusRunning, "dead"
	}
	require.NoError(b, s.Create(b.Context(), tasks...))
	require.NoError(b, s.Close())
}

// crowd is how many tasks a file has: 100 000, or few when tests are short.
func crowd() int {
	if testing.Short() {
		return 1000
	}
	return 100_000
}

// fill stores n ended tasks: of 100 sessions, 10 agents and two statuses.
func fill(b testing.TB, s *sqlstore.Store, n int) []subagent.Task {
	tasks := make([]subagent.Task, n)
	for i := range tasks {
		t := newTask()
		t.Status, t.CompletedAt = subagent.StatusCompleted, t.CreatedAt
		if i%1000 == 500 {
			t.Status, t.Reason = subagent.StatusErrored, subagent.ReasonError
		}
		t.ParentSessionID, t.AgentID = fmt.Sprint("session ", i%100), fmt.Sprint("agent ", i%10)
		t.ExternalTaskID, t.ParentMsgID = fmt.Sprint("call ", i), fmt.Sprint("message ", i/2)
		t.ResultText = "a result of some length, as a model would write it"
		tasks[i] = t
	}
	for chunk := range slices.Chunk(tasks, 5000) {
		require.NoError(b, s.Create(context.Background(), chunk...))
	}
	return tasks
}

// BenchmarkList reads 50 tasks out of 100 000.
func BenchmarkList(b *testing.B) {
	s := fresh(b)
	tasks := fill(b, s, crowd())
	middle := tasks[len(tasks)/2].ID
	for _, f := range []struct {
		name   string
		filter subagent.Filter
	}{
		{"newest", subagent.Filter{NewestFirst: true}},
		{"session", subagent.Filter{SessionID: "session 7", NewestFirst: true}},
		{"session-after", subagent.Filter{SessionID: "session 7", After: middle}},
		{"completed", subagent.Filter{Statuses: []subagent.Status{subagent.StatusCompleted}, NewestFirst: true}},
		{"errored", subagent.Filter{Statuses: []subagent.Status{subagent.StatusErrored}}},
		{"terminal", subagent.Filter{Statuses: []subagent.Status{subagent.StatusErrored, subagent.StatusCompleted, subagent.StatusCancelled}, NewestFirst: true}},
		{"running", subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}}},
		{"running-in-session", subagent.Filter{SessionID: "session 7", Statuses: []subagent.Status{subagent.StatusRunning, subagent.StatusQueued}}},
		{"errored-in-session", subagent.Filter{SessionID: "session 1", Statuses: []subagent.Status{subagent.StatusErrored}}},
		{"none-in-session", subagent.Filter{SessionID: "session 7", Statuses: []subagent.Status{subagent.StatusCancelled}}},
		{"rare-of-agent", subagent.Filter{AgentID: "agent 3", Statuses: []subagent.Status{subagent.StatusErrored, subagent.StatusCancelled}}},
		{"agent-in-session", subagent.Filter{SessionID: "session 0", AgentID: "agent 3"}},
		{"agent", subagent.Filter{AgentID: "agent 3", After: middle}},
		{"call", subagent.Filter{ExternalTaskID: "call 70000"}},
		{"undelivered", subagent.Filter{Undelivered: true}},
	} {
		f.filter.Limit = 50
		b.Run("of="+f.name, func(b *testing.B) {
			for b.Loop() {
				for _, err := range s.List(b.Context(), f.filter) {
					require.NoError(b, err)
				}
			}
		})
	}
}

// BenchmarkMemory reports how the heap grows with finished tasks: it does not.
func BenchmarkMemory(b *testing.B) {
	s := fresh(b)
	inFlight(b, s, 4000) // as many as the caches hold
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, n := heap(), 0
	for b.Loop() {
		inFlight(b, s, crowd()/10)
		n += crowd() / 10
	}
	b.ReportMetric(float64(heap()-before)/float64(n), "B/task")
}

func newTask() subagent.Task {
	id := uuid.Must(uuid.NewV7())
	return subagent.Task{
		ID: id, Subject: "subject", Description: "do " + id.String(), Status: subagent.StatusPending, Background: true,
		NotifiedAt: time.Now().UTC(), CreatedAt: time.Now().UTC().Truncate(time.Microsecond), ParentSessionID: "session",
	}
}
