package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// settled checks what must hold when nobody does anything any more.
func (s *stress) settled() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.calm.Store(true)
	s.capacity.Resize(stressSlots)
	for i := range 8 { // what waits for its ctx
		for _, r := range s.runners {
			_, err := r.CancelSession(ctx, fmt.Sprint("s", i), subagent.CancelOptions{})
			require.NoError(s.t, err)
		}
	}
	memory := map[uuid.UUID]subagent.Task{}
	for i := 0; ; i++ { // what still runs may spawn until it has ended
		id, r, ok := s.nth(i)
		if !ok {
			break
		}
		task, err := r.Wait(ctx, id)
		if errors.Is(err, subagent.ErrNotFound) && s.isDoomed(id) {
			continue
		}
		require.NoError(s.t, err, "%+v", task)
		require.True(s.t, task.Status.Terminal())
		memory[id] = task
	}
	s.barrier(ctx)
	for _, r := range s.runners {
		require.NoError(s.t, r.Shutdown(ctx))
	}
	s.reading.Wait()
	for _, r := range s.runners {
		n := r.Stats()
		require.Zero(s.t, n.Pending+n.Queued+n.Running+n.Detached+n.Lent+n.Unsaved+n.Subscribers, "%+v", n)
		require.Zero(s.t, n.Capacity.Running+n.Capacity.Queued, "%+v", n)
	}
	s.agree(ctx, memory)
}

// nth is the task that was asked for as number i, from 0, and its Runner.
func (s *stress) nth(i int) (uuid.UUID, *subagent.Runner, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i >= len(s.ids) {
		return uuid.Nil, nil, false
	}
	return s.ids[i], s.runners[s.owners[s.ids[i]]], true
}

func (s *stress) isDoomed(id uuid.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doomed[id]
}

// barrier sees that all slots and all places are there again: as many tasks as
// there are slots meet, and as many as there are places wait for them.
func (s *stress) barrier(ctx context.Context) {
	var inside sync.WaitGroup
	inside.Add(stressSlots)
	q := subagent.Request{Description: "barrier", ParentSessionID: "barrier", Func: func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
		inside.Done()
		inside.Wait()
		return subagent.Result{}, nil
	}}
	after := q
	after.Func = func(context.Context, *subagent.Run) (subagent.Result, error) { return subagent.Result{}, nil }
	var release []func()
	for range stressSlots { // detached workers are on their way out
		free, err := s.capacity.Acquire(ctx)
		require.NoError(s.t, err)
		release = append(release, free)
	}
	var ids []uuid.UUID
	for i := range stressLine {
		task, err := s.runners[i%2].Spawn(ctx, []subagent.Request{q, after}[min(1, i/stressSlots)])
		require.NoError(s.t, err, "place %d", i)
		ids = append(ids, task.ID)
	}
	_, err := s.runners[0].Spawn(ctx, after)
	require.ErrorIs(s.t, err, subagent.ErrQueueFull)
	for _, free := range release {
		free()
	}
	for i, id := range ids {
		task, err := s.runners[i%2].Wait(ctx, id)
		require.NoError(s.t, err)
		require.Equal(s.t, subagent.StatusCompleted, task.Status)
	}
}

// agree compares what is stored with what was seen in memory, on the last
// card and in the last event.
func (s *stress) agree(ctx context.Context, memory map[uuid.UUID]subagent.Task) {
	rows, told := map[uuid.UUID]subagent.Task{}, 0
	for row, err := range s.store.List(ctx, subagent.Filter{}) {
		require.NoError(s.t, err)
		rows[row.ID] = row
		require.True(s.t, row.Status.Terminal(), "%+v", row)
		require.Equal(s.t, row.Card(), s.cards[row.ID], "%+v", row)
		require.False(s.t, row.Background && row.NotifiedAt.IsZero(), "a notice is owed: %+v", row)
		i := slices.IndexFunc(s.runners[:], func(r *subagent.Runner) bool { return r.ID() == row.Owner })
		e, ok := s.readers[i].last[row.ID]
		require.True(s.t, ok, "no event of %+v", row)
		told++
		s.same(row, e.Task, "event")
		if s.entered[row.ID] == 0 && row.ParentSessionID != "barrier" {
			require.NotEqual(s.t, subagent.StatusCompleted, row.Status)
		}
	}
	for id, task := range memory {
		row, ok := rows[id]
		require.True(s.t, ok || s.doomed[id], "not stored: %+v", task)
		if ok {
			s.same(row, task, "memory")
		}
	}
	for id := range s.entered {
		e := append([]subagent.Event{}, s.readers[0].last[id], s.readers[1].last[id])
		require.True(s.t, e[0].Task.Status.Terminal() != e[1].Task.Status.Terminal(), "%+v", e)
	}
	s.t.Logf("%d tasks stored, %d Funcs entered, %d events read last, %d asked for twice", len(rows), len(s.entered), told, s.fixed)
}

func (s *stress) same(row, other subagent.Task, where string) {
	row.NotifiedAt, row.Version = other.NotifiedAt, other.Version
	// Memory serves an end whose write has failed as it knows it. What the
	// store knows better is a transition that was committed and reported as
	// failed, or a request that the other Runner has stored meanwhile.
	if !row.CancelRequestedAt.Equal(other.CancelRequestedAt) {
		row.CancelRequestedAt, row.CompletedAt = other.CancelRequestedAt, other.CompletedAt
	}
	if other.QueuedAt.IsZero() {
		row.QueuedAt = other.QueuedAt
	}
	if other.StartedAt.IsZero() {
		row.StartedAt = other.StartedAt
	}
	require.Equal(s.t, row, other, where)
}
