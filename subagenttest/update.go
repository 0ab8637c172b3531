package subagenttest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// refusal is an error of an edit, of a type and a value that must come back.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

func testUpdate(t *testing.T, open opener) {
	t.Run("stores and returns", func(t *testing.T) {
		s, task := open(t), inStatus(subagent.StatusRunning)
		put(t, s, task, newTask())
		for range 3 {
			got := update(t, s, task.ID, func(t *subagent.Task) { t.Progress.ToolUses++ })
			task.Progress.ToolUses++
			task.Version++
			requireSame(t, task, got)
			requireStored(t, s, task)
		}
	})
	t.Run("every field of a live row", func(t *testing.T) { testLiveFields(t, open) })
	t.Run("the store sets Version", func(t *testing.T) {
		s, task := open(t), newTask()
		put(t, s, task)
		got := update(t, s, task.ID, func(t *subagent.Task) { t.Version, t.AgentID = 99, "a" })
		require.EqualValues(t, 2, got.Version)
		got = update(t, s, task.ID, func(t *subagent.Task) { t.Version = 99 })
		require.EqualValues(t, 2, got.Version, "Version alone is no change")
		require.EqualValues(t, 2, get(t, s, task.ID).Version)
	})
	t.Run("nothing changed, nothing written", func(t *testing.T) {
		s := open(t)
		for _, status := range statuses {
			task := inStatus(status)
			put(t, s, task)
			requireSame(t, task, update(t, s, task.ID, func(t *subagent.Task) { t.Subject += "" }))
			requireStored(t, s, task)
		}
	})
	t.Run("error of the edit", func(t *testing.T) {
		s, task, refused := open(t), newTask(), &refusal{"not today"}
		put(t, s, task)
		_, err := s.Update(t.Context(), task.ID, func(t *subagent.Task) error {
			t.AgentID, t.Metadata = "changed", map[string]string{"k": "v"}
			return refused
		})
		require.Same(t, refused, err, "returned unchanged")
		requireStored(t, s, task)
	})
	t.Run("unknown ID", func(t *testing.T) {
		s, other := open(t), newTask()
		put(t, s, other)
		_, err := s.Update(t.Context(), newID(), func(t *subagent.Task) error { t.AgentID = "a"; return nil })
		require.ErrorIs(t, err, subagent.ErrNotFound)
		requireListed(t, s, subagent.Filter{}, []subagent.Task{other})
	})
	t.Run("what never changes", func(t *testing.T) { testImmutable(t, open) })
	t.Run("store used by the edit", func(t *testing.T) { testEditCallsBack(t, open) })
	t.Run("atomic", func(t *testing.T) { testAtomic(t, open) })
}

func testLiveFields(t *testing.T, open opener) {
	s := open(t)
	for _, leaf := range leaves {
		switch leaf.name {
		case "ID", "ParentSessionID", "CreatedAt", "Status", "Version":
			continue
		}
		task := inStatus(subagent.StatusRunning)
		put(t, s, task)
		got := update(t, s, task.ID, leaf.vary)
		leaf.vary(&task)
		task.Version = 2
		requireSame(t, task, got)
		requireStored(t, s, task)
	}
}

func testImmutable(t *testing.T, open opener) {
	s := open(t)
	for name, edit := range map[string]func(*subagent.Task){
		"ID":              func(t *subagent.Task) { t.ID = newID() },
		"ParentSessionID": func(t *subagent.Task) { t.ParentSessionID = "other" },
		"CreatedAt":       func(t *subagent.Task) { t.CreatedAt = t.CreatedAt.Add(time.Microsecond) },
	} {
		for _, status := range statuses[:3] {
			task := inStatus(status)
			put(t, s, task)
			_, err := s.Update(t.Context(), task.ID, func(t *subagent.Task) error {
				t.AgentID = "changed"
				edit(t)
				return nil
			})
			require.ErrorIs(t, err, subagent.ErrInvalidRequest, name)
			require.ErrorContains(t, err, name)
			requireStored(t, s, task)
		}
	}
}

func testEditCallsBack(t *testing.T, open opener) {
	s, task, other, ended := open(t), newTask(), newTask(), inStatus(subagent.StatusCompleted)
	put(t, s, task, other, ended)
	within(t, func(ctx context.Context) error {
		_, err := s.Update(ctx, task.ID, func(t *subagent.Task) error {
			t.AgentID = "outer"
			if _, err := s.Get(ctx, task.ID); err != nil {
				return err
			}
			if _, err := s.Update(ctx, other.ID, func(t *subagent.Task) error { t.AgentID = "inner"; return nil }); err != nil {
				return err
			}
			for _, err := range s.List(ctx, subagent.Filter{}) {
				if err != nil {
					return err
				}
			}
			return s.Delete(ctx, ended.ID)
		})
		return err
	})
	require.Equal(t, "outer", get(t, s, task.ID).AgentID)
	require.Equal(t, "inner", get(t, s, other.ID).AgentID)
	requireUnknown(t, s, ended.ID)
}

// testAtomic has many goroutines count in one record. Every one must get back
// what it stored itself, and none may be lost.
func testAtomic(t *testing.T, open opener) {
	const goroutines, rounds = 64, 2
	s, task := open(t), inStatus(subagent.StatusRunning)
	put(t, s, task)
	var (
		mu   sync.Mutex // guards seen, for which both counts must agree
		seen = make(map[int]bool)
	)
	concurrently(t, goroutines, func(ctx context.Context, _ int) error {
		for range rounds {
			got, err := s.Update(ctx, task.ID, count)
			if err != nil {
				return err
			}
			if got.Version != int64(got.Progress.ToolUses)+1 || len(got.Metadata["n"]) != got.Progress.ToolUses {
				return fmt.Errorf("torn: version %d, %d tool uses, metadata %q", got.Version, got.Progress.ToolUses, got.Metadata)
			}
			mu.Lock()
			seen[got.Progress.ToolUses] = true
			mu.Unlock()
		}
		return nil
	})
	require.Len(t, seen, goroutines*rounds, "two updates returned the same state")
	got := get(t, s, task.ID)
	require.Equal(t, goroutines*rounds, got.Progress.ToolUses)
	require.EqualValues(t, goroutines*rounds+1, got.Version)
}

// count is pure: it builds on nothing but the task that it is given. It lets
// others run, so that a store which only seems atomic is found out.
func count(t *subagent.Task) error {
	runtime.Gosched()
	t.Progress.ToolUses++
	t.Metadata = map[string]string{"n": t.Metadata["n"] + "."}
	return nil
}

func testTransitions(t *testing.T, open opener) {
	s := open(t)
	for _, from := range statuses {
		for _, to := range append(statuses, "", "stopped") {
			task := inStatus(from)
			put(t, s, task)
			edit := func(t *subagent.Task) {
				if from != to {
					moveTo(t, to)
				}
				t.Status = to
			}
			if from == to || subagent.CanTransition(from, to) {
				got := update(t, s, task.ID, edit)
				edit(&task)
				task.Version = got.Version
				requireSame(t, task, got)
				requireStored(t, s, task)
				continue
			}
			requireTransitionError(t, s, task, to, edit)
		}
	}
}

// testTerminal is the suite's part of the guarantee that an ended record does
// not change.
func testTerminal(t *testing.T, open opener) {
	t.Run("no other field", func(t *testing.T) { testTerminalFields(t, open) })
	t.Run("NotifiedAt", func(t *testing.T) {
		s := open(t)
		for _, status := range statuses[3:] {
			for _, background := range []bool{false, true} {
				task := inStatus(status)
				task.Background = background
				put(t, s, task)
				task.NotifiedAt, task.Version = epoch.Add(time.Hour), 2
				requireSame(t, task, update(t, s, task.ID, func(t *subagent.Task) { t.NotifiedAt = epoch.Add(time.Hour) }))
				requireStored(t, s, task)
			}
		}
	})
	t.Run("Owner while a notice is owed", func(t *testing.T) {
		s, task := open(t), inStatus(subagent.StatusErrored)
		task.Background, task.Owner = true, "dead"
		put(t, s, task)
		own := func(t *subagent.Task) { t.Owner = "heir" }
		task.Owner, task.Version = "heir", 2
		requireSame(t, task, update(t, s, task.ID, own))
		update(t, s, task.ID, func(t *subagent.Task) { t.Owner, t.NotifiedAt = "last", epoch.Add(time.Hour) })
		require.Equal(t, "last", get(t, s, task.ID).Owner)
		requireTransitionError(t, s, get(t, s, task.ID), task.Status, own)
	})
	t.Run("Owner when none is owed", func(t *testing.T) {
		s, foreground := open(t), inStatus(subagent.StatusCompleted)
		put(t, s, foreground)
		requireTransitionError(t, s, foreground, foreground.Status, func(t *subagent.Task) { t.Owner = "heir" })
	})
	t.Run("NotifiedAt together with another field", func(t *testing.T) {
		s, task := open(t), inStatus(subagent.StatusCompleted)
		task.Background = true
		put(t, s, task)
		requireTransitionError(t, s, task, task.Status, func(t *subagent.Task) {
			t.NotifiedAt, t.ResultText = epoch.Add(time.Hour), "late"
		})
	})
}

func testTerminalFields(t *testing.T, open opener) {
	s := open(t)
	for _, status := range statuses[3:] {
		for _, leaf := range leaves {
			task := inStatus(status)
			task.Background = true
			switch leaf.name {
			case "NotifiedAt", "Owner", "Version", "Status":
				continue // allowed, or a matter of other tests
			}
			put(t, s, task)
			_, err := s.Update(t.Context(), task.ID, func(t *subagent.Task) error { leaf.vary(t); return nil })
			switch leaf.name {
			case "ID", "ParentSessionID", "CreatedAt": // either of two rules forbids it
				require.Error(t, err, leaf.name)
			default:
				requireIsTransitionError(t, err, task.ID, status, status)
			}
			requireStored(t, s, task)
		}
	}
}

// requireTransitionError checks that edit is refused as a change of the stored
// task to another status, and leaves it alone.
func requireTransitionError(t *testing.T, s subagent.Store, task subagent.Task, to subagent.Status, edit func(*subagent.Task)) {
	t.Helper()
	_, err := s.Update(t.Context(), task.ID, func(t *subagent.Task) error { edit(t); return nil })
	requireIsTransitionError(t, err, task.ID, task.Status, to)
	requireStored(t, s, task)
}

func requireIsTransitionError(t *testing.T, err error, id uuid.UUID, from, to subagent.Status) {
	t.Helper()
	require.ErrorIs(t, err, subagent.ErrInvalidTransition, "from %q to %q", from, to)
	var refused *subagent.TransitionError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, subagent.TransitionError{ID: id, From: from, To: to}, *refused)
}

func update(t *testing.T, s subagent.Store, id uuid.UUID, edit func(*subagent.Task)) subagent.Task {
	t.Helper()
	got, err := s.Update(t.Context(), id, func(t *subagent.Task) error { edit(t); return nil })
	require.NoError(t, err)
	return got
}
