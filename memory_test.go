package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
)

// The conformance suite in subagenttest covers what every Store promises; here
// is what MemoryStore promises beyond that.

var memoryEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// storeTask returns a task of session "s", created later than those before.
func storeTask(status subagent.Status) subagent.Task {
	return subagent.Task{
		ID: uuid.Must(uuid.NewV7()), Status: status, ParentSessionID: "s",
		Description: "work", CreatedAt: memoryEpoch, Version: 1,
	}
}

// endedAfter returns a task that completed so many seconds after the epoch.
func endedAfter(seconds int) subagent.Task {
	t := storeTask(subagent.StatusCompleted)
	t.CompletedAt = memoryEpoch.Add(time.Duration(seconds) * time.Second)
	return t
}

func owed(t subagent.Task) subagent.Task {
	t.Background = true
	return t
}

func create(t *testing.T, m *subagent.MemoryStore, tasks ...subagent.Task) {
	t.Helper()
	require.NoError(t, m.Create(t.Context(), tasks...))
}

func change(t *testing.T, m *subagent.MemoryStore, id uuid.UUID, edit func(*subagent.Task)) subagent.Task {
	t.Helper()
	got, err := m.Update(t.Context(), id, func(t *subagent.Task) error { edit(t); return nil })
	require.NoError(t, err)
	return got
}

func listed(t *testing.T, s subagent.Store, f subagent.Filter) []uuid.UUID {
	t.Helper()
	ids := []uuid.UUID{}
	for task, err := range s.List(t.Context(), f) {
		require.NoError(t, err)
		ids = append(ids, task.ID)
	}
	return ids
}

func idsOf(tasks ...subagent.Task) []uuid.UUID {
	ids := []uuid.UUID{}
	for _, t := range tasks {
		ids = append(ids, t.ID)
	}
	slices.SortFunc(ids, compareUUIDs)
	return ids
}

func compareUUIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

func TestMemoryStoreKeepsTenThousandEnds(t *testing.T) {
	m := subagent.NewMemoryStore()
	live := storeTask(subagent.StatusRunning)
	create(t, m, live)
	ended := make([]subagent.Task, 10_050)
	for i := range ended {
		ended[i] = endedAfter(i)
	}
	create(t, m, ended[:10_000]...)
	require.Len(t, listed(t, m, subagent.Filter{}), 10_001)
	create(t, m, ended[10_000:]...)
	require.Equal(t, idsOf(append(ended[50:], live)...), listed(t, m, subagent.Filter{}))
}

func TestMemoryStoreRetention(t *testing.T) {
	t.Run("oldest end first, ties by ID", func(t *testing.T) {
		m := subagent.NewMemoryStore()
		a, b, c, d := endedAfter(9), endedAfter(5), endedAfter(1), endedAfter(5)
		create(t, m, a, b, c, d)
		for _, left := range [][]subagent.Task{{a, b, d}, {a, d}, {a}, nil} {
			m.SetRetention(len(left))
			require.Equal(t, idsOf(left...), listed(t, m, subagent.Filter{}), "at once")
			require.Equal(t, idsOf(left...), listed(t, m, subagent.Filter{SessionID: "s"}))
		}
	})
	t.Run("live tasks are not counted", func(t *testing.T) {
		m := subagent.NewMemoryStore()
		m.SetRetention(1)
		live := []subagent.Task{storeTask(subagent.StatusPending), storeTask(subagent.StatusQueued), storeTask(subagent.StatusRunning)}
		create(t, m, live...)
		ended := endedAfter(1)
		create(t, m, ended)
		require.Equal(t, idsOf(append(live, ended)...), listed(t, m, subagent.Filter{}))
	})
	t.Run("zero: the task that just ended goes, and is returned", func(t *testing.T) {
		m := subagent.NewMemoryStore()
		m.SetRetention(0)
		running := storeTask(subagent.StatusRunning)
		create(t, m, running)
		end := change(t, m, running.ID, func(t *subagent.Task) { t.Status, t.ResultText = subagent.StatusCompleted, "done" })
		require.Equal(t, "done", end.ResultText)
		_, err := m.Get(t.Context(), running.ID)
		require.ErrorIs(t, err, subagent.ErrNotFound)
	})
	t.Run("negative: all stay", func(t *testing.T) {
		m := subagent.NewMemoryStore()
		m.SetRetention(-1)
		for i := range 10_100 {
			create(t, m, endedAfter(i))
		}
		require.Len(t, listed(t, m, subagent.Filter{}), 10_100)
	})
}

func TestMemoryStoreRetentionSparesOwedNotices(t *testing.T) {
	m := subagent.NewMemoryStore()
	m.SetRetention(2)
	first, second, third := owed(endedAfter(1)), owed(endedAfter(2)), owed(endedAfter(3))
	told, foreground := owed(endedAfter(4)), endedAfter(5)
	told.NotifiedAt = told.CompletedAt
	create(t, m, first, second, told, foreground)
	require.Equal(t, idsOf(first, second), listed(t, m, subagent.Filter{}), "owed ones count, and stay")

	create(t, m, third)
	require.Equal(t, idsOf(first, second, third), listed(t, m, subagent.Filter{}), "beyond the bound, too")

	notify := func(t *subagent.Task) { t.NotifiedAt = memoryEpoch.Add(time.Hour) }
	require.False(t, change(t, m, second.ID, notify).NotifiedAt.IsZero())
	require.Equal(t, idsOf(first, third), listed(t, m, subagent.Filter{}), "it may go once it is told")

	change(t, m, first.ID, notify)
	require.Equal(t, idsOf(first, third), listed(t, m, subagent.Filter{}), "two are within the bound")
	change(t, m, first.ID, func(t *subagent.Task) { t.NotifiedAt = time.Time{} })
	m.SetRetention(0)
	require.Equal(t, idsOf(first, third), listed(t, m, subagent.Filter{}), "told, then taken back: owed again")
	require.NoError(t, m.Delete(t.Context(), first.ID, third.ID))
	require.Empty(t, listed(t, m, subagent.Filter{}))
}

// TestG3MemoryStoreSettlesOnce: of many that end a task, one does, and nobody
// sees another end or the task live after it.
func TestG3MemoryStoreSettlesOnce(t *testing.T) {
	m, running := subagent.NewMemoryStore(), storeTask(subagent.StatusRunning)
	create(t, m, running)
	var (
		all  sync.WaitGroup
		mu   sync.Mutex // guards won
		won  []string
		errs = make([]error, 32)
	)
	for i := range errs {
		all.Go(func() {
			name := fmt.Sprint("winner ", i)
			_, err := m.Update(t.Context(), running.ID, func(t *subagent.Task) error {
				t.Status, t.ResultText = subagent.StatusCompleted, name
				return nil
			})
			if err == nil {
				mu.Lock()
				won = append(won, name)
				mu.Unlock()
			} else if !errors.Is(err, subagent.ErrInvalidTransition) {
				errs[i] = err
			}
			seen, err := m.Get(t.Context(), running.ID)
			if err == nil && !seen.Status.Terminal() {
				err = errors.New("live again")
			}
			errs[i] = errors.Join(errs[i], err)
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Len(t, won, 1)
	end, err := m.Get(t.Context(), running.ID)
	require.NoError(t, err)
	require.Equal(t, won[0], end.ResultText)
	require.EqualValues(t, 2, end.Version)
}

func TestMemoryStoreRunsEditAgain(t *testing.T) {
	ctx := t.Context()
	t.Run("after another's change", func(t *testing.T) {
		m, task := subagent.NewMemoryStore(), storeTask(subagent.StatusRunning)
		create(t, m, task)
		runs := 0
		got := change(t, m, task.ID, func(own *subagent.Task) {
			if runs++; runs <= 3 {
				change(t, m, task.ID, func(t *subagent.Task) { t.Progress.ToolUses++ })
			}
			own.Progress.ToolUses += 10
		})
		require.Equal(t, 4, runs)
		require.Equal(t, 13, got.Progress.ToolUses)
		require.EqualValues(t, 5, got.Version)
	})
	t.Run("after another's end", func(t *testing.T) {
		m, task := subagent.NewMemoryStore(), storeTask(subagent.StatusRunning)
		create(t, m, task)
		_, err := m.Update(ctx, task.ID, func(own *subagent.Task) error {
			if own.Status == subagent.StatusRunning {
				change(t, m, task.ID, func(t *subagent.Task) { t.Status = subagent.StatusCancelled })
			}
			own.Status = subagent.StatusCompleted
			return nil
		})
		require.ErrorIs(t, err, subagent.ErrInvalidTransition)
	})
	t.Run("after a delete", func(t *testing.T) {
		m, task := subagent.NewMemoryStore(), owed(endedAfter(1))
		create(t, m, task)
		_, err := m.Update(ctx, task.ID, func(t *subagent.Task) error {
			t.NotifiedAt = memoryEpoch
			return m.Delete(ctx, task.ID)
		})
		require.ErrorIs(t, err, subagent.ErrNotFound)
	})
	t.Run("after a delete and a create", func(t *testing.T) {
		m, task := subagent.NewMemoryStore(), owed(endedAfter(1))
		create(t, m, task)
		runs := 0
		got, err := m.Update(ctx, task.ID, func(t *subagent.Task) error {
			t.NotifiedAt = memoryEpoch
			if runs++; runs > 1 {
				return nil
			}
			next := task
			next.ResultText = "another task of the same ID"
			return errors.Join(m.Delete(ctx, task.ID), m.Create(ctx, next))
		})
		require.NoError(t, err)
		require.Equal(t, 2, runs)
		require.Equal(t, "another task of the same ID", got.ResultText)
	})
}

func TestMemoryStoreRunsEditAgainUnlessCtxEnds(t *testing.T) {
	m, task := subagent.NewMemoryStore(), storeTask(subagent.StatusRunning)
	create(t, m, task)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := m.Update(ctx, task.ID, func(own *subagent.Task) error {
		cancel()
		change(t, m, task.ID, func(t *subagent.Task) { t.Progress.ToolUses++ })
		own.AgentID = "never stored"
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
}

func TestMemoryStoreSurvivesPanicInEdit(t *testing.T) {
	m, task := subagent.NewMemoryStore(), storeTask(subagent.StatusRunning)
	create(t, m, task)
	require.Panics(t, func() { change(t, m, task.ID, func(*subagent.Task) { panic("edit") }) })
	require.EqualValues(t, 2, change(t, m, task.ID, func(t *subagent.Task) { t.AgentID = "a" }).Version)
}

// TestMemoryStoreListSeesLaterBatches: a long listing is not a snapshot.
func TestMemoryStoreListSeesLaterBatches(t *testing.T) {
	m := subagent.NewMemoryStore()
	tasks := make([]subagent.Task, 1000)
	for i := range tasks {
		tasks[i] = storeTask(subagent.StatusPending)
	}
	create(t, m, tasks...)
	last, n := tasks[len(tasks)-1].ID, 0
	for task, err := range m.List(t.Context(), subagent.Filter{}) {
		require.NoError(t, err)
		if n++; n == 1 {
			change(t, m, last, func(t *subagent.Task) { t.AgentID = "changed meanwhile" })
		}
		if task.ID == last {
			require.Equal(t, "changed meanwhile", task.AgentID)
		}
	}
	require.Equal(t, len(tasks), n)
}

func TestMemoryStoreListStopsWithCtx(t *testing.T) {
	m := subagent.NewMemoryStore()
	for range 2000 {
		create(t, m, storeTask(subagent.StatusPending))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	var last error
	for _, err := range m.List(ctx, subagent.Filter{}) {
		cancel()
		last = err
		n++
	}
	require.ErrorIs(t, last, context.Canceled)
	require.Less(t, n, 2000)
}

// TestMemoryStoreListFindsFewAmongMany: a listing goes on through stretches in
// which nothing matches.
func TestMemoryStoreListFindsFewAmongMany(t *testing.T) {
	m := subagent.NewMemoryStore()
	var want []subagent.Task
	for i := range 20_000 {
		task := storeTask(subagent.StatusQueued)
		if i%9_999 == 0 {
			task.AgentID = "rare"
			want = append(want, task)
		}
		create(t, m, task)
	}
	ids := idsOf(want...)
	require.Len(t, ids, 3)
	require.Equal(t, ids, listed(t, m, subagent.Filter{AgentID: "rare"}))
	require.Equal(t, ids[:2], listed(t, m, subagent.Filter{AgentID: "rare", Limit: 2}))
	slices.Reverse(ids)
	require.Equal(t, ids, listed(t, m, subagent.Filter{AgentID: "rare", NewestFirst: true}))
	require.Equal(t, ids[1:2], listed(t, m, subagent.Filter{AgentID: "rare", NewestFirst: true, After: ids[0], Limit: 1}))
}

func TestMemoryStoreLeases(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, ctx := subagent.NewMemoryStore(), t.Context()
		live := func(owner string) bool {
			ok, err := m.Live(ctx, owner)
			require.NoError(t, err)
			return ok
		}
		require.NoError(t, m.Renew(ctx, "a", 30*time.Second))
		time.Sleep(30*time.Second - 1)
		require.True(t, live("a"), "to the last nanosecond")
		time.Sleep(time.Nanosecond)
		require.False(t, live("a"), "and no longer")

		require.NoError(t, m.Renew(ctx, "a", 30*time.Second))
		for range 10 {
			time.Sleep(20 * time.Second)
			require.True(t, live("a"))
			require.NoError(t, m.Renew(ctx, "a", 30*time.Second))
		}
		require.NoError(t, m.Renew(ctx, "b", time.Hour))
		require.NoError(t, m.Release(ctx, "a"))
		require.False(t, live("a"))
		for i := range 1000 { // owners come and go; those that live are not swept away
			require.NoError(t, m.Renew(ctx, fmt.Sprint("short-lived ", i), time.Second))
			time.Sleep(time.Second)
			require.True(t, live("b"))
		}
	})
}

// Two states of a newer version are listed each by itself, beside a known one.
func TestMemoryStoreListsStatesThatItDoesNotKnow(t *testing.T) {
	m := subagent.NewMemoryStore()
	create(t, m, storeTask("paused"), storeTask("parked"), storeTask(subagent.StatusRunning))
	for _, states := range [][]subagent.Status{
		{"paused"}, {"parked"}, {"paused", "parked"}, {"paused", subagent.StatusRunning}, {subagent.StatusRunning}, {"else"},
	} {
		var found []subagent.Status
		for task, err := range m.List(t.Context(), subagent.Filter{Statuses: states}) {
			require.NoError(t, err)
			found = append(found, task.Status)
		}
		if states[0] == "else" {
			states = nil
		}
		require.Equal(t, states, found)
	}
}
