package subagent_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
)

// overtaken is a store in which another call comes between the first run of the
// next edit and its commit, so that the edit is run again.
type overtaken struct {
	subagent.Store
	between func()
}

func (s *overtaken) Update(ctx context.Context, id uuid.UUID, edit func(*subagent.Task) error) (subagent.Task, error) {
	if f := s.between; f != nil {
		s.between = nil
		t, err := s.Get(ctx, id)
		if err == nil {
			err = edit(&t)
		}
		if err != nil {
			return subagent.Task{}, err
		}
		f()
	}
	return s.Store.Update(ctx, id, edit)
}

// Two read one end in the same microsecond, and the store runs the edit of one of
// them again: one of the two is the first, and has the usage to hand out.
func TestB164_TwoReadersInOneInstant(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := &overtaken{Store: subagent.NewMemoryStore()}
		r, err := subagent.New(t.Context(), subagent.Config{Store: store, Func: gives("done", nil)})
		require.NoError(t, err)
		task, err := r.Spawn(t.Context(), rigAsk("x"))
		require.NoError(t, err)
		synctest.Wait() // it has ended, and is in the store alone
		var readers [2]subagent.Task
		store.between = func() { readers[1], err = r.Wait(t.Context(), task.ID) }
		first, ferr := r.Wait(t.Context(), task.ID)
		require.NoError(t, ferr)
		require.NoError(t, err)
		readers[0] = first
		require.NotZero(t, readers[0].NotifiedAt, "the other was faster")
		require.Zero(t, readers[1].NotifiedAt)
		row, err := r.Get(t.Context(), task.ID)
		require.NoError(t, err)
		require.Equal(t, row.NotifiedAt, readers[0].NotifiedAt)
		require.NoError(t, r.Shutdown(t.Context()))
	})
}

// Two Runners on one store read one end in the same microsecond, as they do
// always where the clock of the one that ended it is ahead of theirs, and the
// store runs the edit of one again: the stamps do not tell whose was stored. Only
// the other is the first.
func TestB164_TwoRunnersInOneInstant(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"same instant": 0, "clock ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				inner := subagent.NewMemoryStore()
				store := &overtaken{Store: inner}
				row := orphan(subagent.StatusCompleted, func(row *subagent.Task) {
					row.NotifiedAt = time.Time{}
					row.CompletedAt = row.CompletedAt.Add(ahead)
				})
				var both [2]*subagent.Runner
				for i := range both {
					r, err := subagent.New(t.Context(), subagent.Config{Store: struct {
						subagent.Store
						subagent.Leaser
					}{store, inner}})
					require.NoError(t, err)
					defer func() { require.NoError(t, r.Shutdown(context.Background())) }()
					both[i] = r
				}
				require.NoError(t, inner.Create(t.Context(), row))
				var first, second subagent.Task
				var err error
				store.between = func() { first, err = both[1].Wait(t.Context(), row.ID) }
				second, serr := both[0].Wait(t.Context(), row.ID)
				require.NoError(t, serr)
				require.NoError(t, err)
				require.Zero(t, first.NotifiedAt)
				require.NotZero(t, second.NotifiedAt, "the other was faster")
			})
		})
	}
}

// A Run whose Runner has lost its lease is handed the end that another Runner gave
// its task: it is the first to see it only if nobody was before.
func TestB164_ARunWhoseTaskAnotherHasEnded(t *testing.T) {
	for _, seen := range []bool{true, false} {
		t.Run(fmt.Sprintf("seen before %v", seen), func(t *testing.T) {
			pair(t, subagent.Config{}, subagent.Config{}, func(t *testing.T, one, two *rig) {
				ended := make(chan subagent.Task, 1)
				go func() { // ends with its task, which two ends
					task, _ := one.Run(one.ctx, rigAsk("x"))
					ended <- task
				}()
				synctest.Wait()
				one.cutOff()
				time.Sleep(time.Minute)
				rows, err := two.List(two.ctx, subagent.Filter{Statuses: []subagent.Status{subagent.StatusErrored}})
				require.NoError(t, err)
				require.Len(t, rows, 1)
				if seen {
					require.Zero(t, two.awaited(rows[0].ID).NotifiedAt, "the first to see it")
				}
				one.heal()
				task := <-ended
				require.Equal(t, subagent.ReasonLost, task.Reason)
				require.Equal(t, seen, !task.NotifiedAt.IsZero())
				require.NotZero(t, two.awaited(task.ID).NotifiedAt)
			})
		})
	}
}
