package subagent

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent/internal/bubble"
)

// These tests look at what a Runner uses of MemoryStore and nobody else sees.

func memoryRow(status Status) *Task {
	return &Task{
		ID: uuid.Must(uuid.NewV7()), Status: status, ParentSessionID: "s", Background: true,
		CreatedAt: time.Now().UTC(), Owner: "me", Version: 1, Metadata: map[string]string{"k": "v"},
	}
}

func TestMemoryStoreFastPath(t *testing.T) {
	m, queued := NewMemoryStore(), memoryRow(StatusQueued)
	require.NoError(t, m.create(queued))
	require.ErrorIs(t, m.create(queued), ErrTaskExists)

	got, err := m.get(queued.ID)
	require.NoError(t, err)
	require.Same(t, queued, got)

	running, changed, err := m.change(queued.ID, &edit{to: StatusRunning, at: time.Now().UTC()})
	require.NoError(t, err)
	require.True(t, changed)
	require.NotSame(t, queued, running)
	require.Equal(t, StatusQueued, queued.Status, "what was handed out never changes")
	require.Equal(t, StatusRunning, running.Status)
	require.EqualValues(t, 2, running.Version)

	again, changed, err := m.change(queued.ID, &edit{owner: &handover{"me", "me"}})
	require.NoError(t, err)
	require.False(t, changed)
	require.Same(t, running, again, "nothing changed, nothing written")

	_, _, err = m.change(uuid.New(), &edit{to: StatusRunning})
	require.ErrorIs(t, err, ErrNotFound)
	_, err = m.get(uuid.New())
	require.ErrorIs(t, err, ErrNotFound)
}

func TestMemoryStoreFastPathChecksTransitions(t *testing.T) {
	m, pending := NewMemoryStore(), memoryRow(StatusPending)
	require.NoError(t, m.create(pending))
	_, _, err := m.change(pending.ID, &edit{to: StatusRunning, at: time.Now().UTC()})
	var refused *TransitionError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, TransitionError{pending.ID, StatusPending, StatusRunning}, *refused)
	got, err := m.get(pending.ID)
	require.NoError(t, err)
	require.Same(t, pending, got)
}

func TestMemoryStoreFastPathEvicts(t *testing.T) {
	m, running := NewMemoryStore(), memoryRow(StatusRunning)
	m.SetRetention(0)
	require.NoError(t, m.create(running))
	end := &ending{status: StatusCompleted}
	_, _, err := m.change(running.ID, &edit{to: StatusCompleted, at: time.Now().UTC(), end: end})
	require.NoError(t, err)
	_, err = m.get(running.ID)
	require.NoError(t, err, "its notice is owed")
	told, changed, err := m.change(running.ID, &edit{notified: time.Now().UTC()})
	require.NoError(t, err)
	require.True(t, changed)
	require.False(t, told.NotifiedAt.IsZero())
	_, err = m.get(running.ID)
	require.ErrorIs(t, err, ErrNotFound)
	require.Zero(t, m.all.Len()+m.sessions.Len()+m.children.Len()+m.evictable.Len()+m.ended+len(m.rows))
}

// TestMemoryStoreChangeCost: a transition costs one allocation, the new Task.
func TestMemoryStoreChangeCost(t *testing.T) {
	const runs = 100
	m := NewMemoryStore()
	rows := make([]*Task, 0, runs+1) // AllocsPerRun warms up with one more
	for range cap(rows) {
		row := memoryRow(StatusQueued)
		require.NoError(t, m.create(row))
		rows = append(rows, row)
	}
	next, at := 0, time.Now().UTC()
	require.LessOrEqual(t, testing.AllocsPerRun(runs, func() {
		if _, _, err := m.change(rows[next].ID, &edit{to: StatusRunning, at: at}); err != nil {
			panic(err)
		}
		next++
	}), 1.0)
}

func TestMemoryStoreForgetsLeases(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := NewMemoryStore()
		for i := range 10_000 {
			require.NoError(t, m.Renew(t.Context(), fmt.Sprint(i), time.Second))
			time.Sleep(100 * time.Millisecond)
			require.LessOrEqual(t, len(m.leases), 2*minLeaseSweep)
		}
	})
}

// BenchmarkMemoryStoreLife is all that a task asks of its store.
func BenchmarkMemoryStoreLife(b *testing.B) {
	m := NewMemoryStore()
	b.ReportAllocs()
	for range b.N {
		t, at := memoryRow(StatusPending), time.Now().UTC()
		steps := [...]edit{
			{to: StatusQueued, at: at}, {to: StatusRunning, at: at},
			{to: StatusCompleted, at: at, end: &ending{status: StatusCompleted}}, {notified: at},
		}
		if err := m.create(t); err != nil {
			b.Fatal(err)
		}
		for i := range steps {
			if _, _, err := m.change(t.ID, &steps[i]); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkMemoryStoreNewest lists the newest 50 of 100 000 tasks.
func BenchmarkMemoryStoreNewest(b *testing.B) {
	m := NewMemoryStore()
	for range 100_000 {
		if err := m.create(memoryRow(StatusQueued)); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		n := 0
		for range m.List(b.Context(), Filter{NewestFirst: true, Limit: 50}) {
			n++
		}
		if n != 50 {
			b.Fatal(n)
		}
	}
}
