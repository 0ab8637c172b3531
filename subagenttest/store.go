// Package subagenttest helps to test what is built with and around package
// subagent: a conformance suite for stores, a Gate that stands in for the work
// of tasks, and a FaultyStore that misbehaves on demand. Only tests import it.
package subagenttest

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// opener makes a fresh, empty store.
type opener func(t *testing.T) subagent.Store

// TestStore checks that a store keeps every promise of subagent.Store and,
// where it implements it, of subagent.Leaser. open returns a fresh and empty
// store at each call, and registers what is to be closed with t.Cleanup. Run
// it with -race. For stores that several processes share see TestSharedStore.
func TestStore(t *testing.T, open func(t *testing.T) subagent.Store) {
	for _, group := range []struct {
		name string
		test func(*testing.T, opener)
	}{
		{"create", testCreate},
		{"get", testGet},
		{"update", testUpdate},
		{"transitions", testTransitions},
		{"terminal", testTerminal},
		{"list", testList},
		{"delete", testDelete},
		{"values", testValues},
		{"isolation", testIsolation},
		{"ctx", testCtx},
		{"concurrent", testConcurrent},
		{"lease", testLease},
	} {
		t.Run(group.name, func(t *testing.T) { group.test(t, open) })
	}
}

func testCreate(t *testing.T, open opener) {
	ctx := t.Context()
	t.Run("any status, with Version 1", func(t *testing.T) {
		s := open(t)
		for _, status := range statuses {
			task := inStatus(status)
			task.Version = 7
			require.NoError(t, s.Create(ctx, task), status)
			task.Version = 1
			requireStored(t, s, task)
		}
	})
	t.Run("all together", func(t *testing.T) {
		s := open(t)
		tasks := []subagent.Task{newTask(), newTask(), newTask()}
		require.NoError(t, s.Create(ctx, tasks...))
		requireListed(t, s, subagent.Filter{}, tasks)
	})
	t.Run("none", func(t *testing.T) {
		s := open(t)
		require.NoError(t, s.Create(ctx))
		requireListed(t, s, subagent.Filter{}, nil)
	})
	t.Run("an ID that is stored", func(t *testing.T) {
		s, stored, again := open(t), newTask(), newTask()
		put(t, s, stored)
		again.ID = stored.ID
		require.ErrorIs(t, s.Create(ctx, again), subagent.ErrTaskExists)
		require.ErrorIs(t, s.Create(ctx, newTask(), again, newTask()), subagent.ErrTaskExists)
		requireListed(t, s, subagent.Filter{}, []subagent.Task{stored})
	})
	t.Run("an ID given twice", func(t *testing.T) {
		s, once, twice := open(t), newTask(), newTask()
		require.ErrorIs(t, s.Create(ctx, once, twice, twice), subagent.ErrTaskExists)
		requireListed(t, s, subagent.Filter{}, nil)
		requireUnknown(t, s, once.ID)
	})
	t.Run("an ID that was deleted", func(t *testing.T) {
		s, task := open(t), inStatus(subagent.StatusCompleted)
		put(t, s, task)
		require.NoError(t, s.Delete(ctx, task.ID))
		put(t, s, task)
		requireStored(t, s, task)
	})
}

func testGet(t *testing.T, open opener) {
	s := open(t)
	requireUnknown(t, s, newID())
	tasks := []subagent.Task{newTask(), inStatus(subagent.StatusRunning), inStatus(subagent.StatusErrored)}
	put(t, s, tasks...)
	requireUnknown(t, s, newID())
	for _, task := range tasks {
		requireStored(t, s, task)
	}
}

func testDelete(t *testing.T, open opener) {
	ctx := t.Context()
	t.Run("ended tasks", func(t *testing.T) {
		s := open(t)
		kept, keptToo := inStatus(subagent.StatusCompleted), newTask()
		put(t, s, kept, keptToo)
		var ids []uuid.UUID
		for _, status := range statuses[3:] {
			task := inStatus(status)
			task.Background = true // an owed notice does not protect it
			put(t, s, task)
			ids = append(ids, task.ID)
		}
		require.NoError(t, s.Delete(ctx, append(ids, ids[0])...))
		for _, id := range ids {
			requireUnknown(t, s, id)
		}
		requireListed(t, s, subagent.Filter{}, []subagent.Task{kept, keptToo})
	})
	t.Run("all or nothing", func(t *testing.T) {
		for _, status := range statuses[:3] {
			s := open(t)
			ended, live, last := inStatus(subagent.StatusErrored), inStatus(status), inStatus(subagent.StatusCancelled)
			put(t, s, ended, live, last)
			require.ErrorIs(t, s.Delete(ctx, ended.ID, live.ID, last.ID), subagent.ErrNotTerminal, status)
			require.ErrorIs(t, s.Delete(ctx, live.ID), subagent.ErrNotTerminal, status)
			requireListed(t, s, subagent.Filter{}, []subagent.Task{ended, live, last})
		}
	})
	t.Run("unknown ids are ignored", func(t *testing.T) {
		s, ended := open(t), inStatus(subagent.StatusCompleted)
		require.NoError(t, s.Delete(ctx, newID()))
		put(t, s, ended)
		require.NoError(t, s.Delete(ctx, newID(), ended.ID, newID()))
		require.NoError(t, s.Delete(ctx, ended.ID))
		requireListed(t, s, subagent.Filter{}, nil)
	})
	t.Run("no ids", func(t *testing.T) {
		s, ended := open(t), inStatus(subagent.StatusCompleted)
		put(t, s, ended)
		require.NoError(t, s.Delete(ctx))
		requireStored(t, s, ended)
	})
}

// statuses are the six, the live ones first.
var statuses = []subagent.Status{
	subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning,
	subagent.StatusCompleted, subagent.StatusCancelled, subagent.StatusErrored,
}

var epoch = time.Date(2024, 2, 29, 23, 59, 58, 123_456_000, time.UTC)

// newID returns an ID that follows those made before. It is even: the next
// number is an ID that is not in use, and still before the next one made.
func newID() uuid.UUID {
	id := uuid.Must(uuid.NewV7())
	id[15] &^= 1
	return id
}

// newTask returns a pending task whose ID follows those made before.
func newTask() subagent.Task {
	id := newID()
	return subagent.Task{
		ID: id, Subject: "subject", Description: "do " + id.String(), ContextMode: subagent.ContextClean,
		Status: subagent.StatusPending, CreatedAt: epoch, ParentSessionID: "session", Version: 1,
	}
}

func inStatus(status subagent.Status) subagent.Task {
	task := newTask()
	if status != subagent.StatusPending {
		task.QueuedAt = epoch.Add(time.Second)
	}
	if status == subagent.StatusRunning || status == subagent.StatusCompleted {
		task.StartedAt = epoch.Add(2 * time.Second)
	}
	moveTo(&task, status)
	return task
}

// moveTo is the edit of a transition.
func moveTo(task *subagent.Task, status subagent.Status) {
	task.Status = status
	if status.Terminal() {
		task.CompletedAt = epoch.Add(3 * time.Second)
	}
	if status == subagent.StatusErrored {
		task.Reason, task.Error = subagent.ReasonError, "failed"
	}
}

func put(t *testing.T, s subagent.Store, tasks ...subagent.Task) {
	t.Helper()
	require.NoError(t, s.Create(t.Context(), tasks...))
}

func get(t *testing.T, s subagent.Store, id uuid.UUID) subagent.Task {
	t.Helper()
	task, err := s.Get(t.Context(), id)
	require.NoError(t, err)
	return task
}

func requireStored(t *testing.T, s subagent.Store, want subagent.Task) {
	t.Helper()
	requireSame(t, want, get(t, s, want.ID))
}

func requireUnknown(t *testing.T, s subagent.Store, id uuid.UUID) {
	t.Helper()
	_, err := s.Get(t.Context(), id)
	require.ErrorIs(t, err, subagent.ErrNotFound)
}

// requireListed checks that f lists exactly these tasks, in this order.
func requireListed(t *testing.T, s subagent.Store, f subagent.Filter, want []subagent.Task) {
	t.Helper()
	var got []subagent.Task
	for task, err := range s.List(t.Context(), f) {
		require.NoError(t, err)
		got = append(got, task)
		require.LessOrEqual(t, len(got), len(want)+100, "a listing without end")
	}
	require.Equal(t, ids(want), ids(got), "IDs listed by %+v", f)
	for i := range want {
		requireSame(t, want[i], got[i])
	}
}

// requireSame compares tasks in every field: strings byte for byte, times as
// instants in UTC.
func requireSame(t *testing.T, want, got subagent.Task) {
	t.Helper()
	if reflect.DeepEqual(want, got) {
		return
	}
	for _, leaf := range leaves {
		a, b := leaf.of(&want).Interface(), leaf.of(&got).Interface()
		switch a := a.(type) {
		case time.Time:
			b := b.(time.Time)
			require.True(t, a.Equal(b), "%s: want %v, got %v", leaf.name, a, b)
			require.Equal(t, time.UTC, b.Location(), leaf.name)
		case string:
			if a != b { // not require.Equal, which would print a megabyte
				require.Fail(t, "text differs", "%s: want %.80q, got %.80q", leaf.name, a, b)
			}
		case map[string]string:
			if len(a) > 0 || len(b.(map[string]string)) > 0 { // nil or empty
				require.Equal(t, a, b, leaf.name)
			}
		default:
			require.Equal(t, a, b, leaf.name)
		}
	}
}

func ids(tasks []subagent.Task) []uuid.UUID {
	ids := make([]uuid.UUID, len(tasks))
	for i := range tasks {
		ids[i] = tasks[i].ID
	}
	return ids
}

// patience bounds what must not hang. No healthy store comes near it.
const patience = 30 * time.Second

// within fails the test if fn does not return: a store that calls back under
// its lock would hang for ever. fn must not call t.FailNow.
func within(t *testing.T, fn func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	done := make(chan error, 1)
	// It ends when fn does; a store that hangs leaks it, and the test fails.
	go func() { done <- fn(ctx) }()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(patience + time.Second):
		t.Fatal("the store hangs when it is called from foreign code that it runs")
	}
}
