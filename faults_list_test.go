package subagent_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// order is how List shows tasks.
func (l *lab) order(f subagent.Filter) (ids []uuid.UUID) {
	l.t.Helper()
	list, err := l.List(l.ctx, f)
	require.NoError(l.t, err)
	for _, task := range list {
		ids = append(ids, task.ID)
	}
	return ids
}

// Batches whose members end in any order, and all at one instant, are listed as
// they were made, each time, while everything moves.
func TestB212_B213_TheOrderIsThatOfCreation(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 6}, func(t *testing.T, l *lab) {
		var made []uuid.UUID
		for batch := range 2 {
			for i := range 3 {
				made = append(made, l.spawn(fmt.Sprint("batch ", batch, " task ", i)).ID)
			}
			time.Sleep(time.Second)
		}
		for range 10 { // of one instant; six of them wait in line
			made = append(made, l.spawn("at once").ID)
		}
		newest := slices.Clone(made)
		slices.Reverse(newest)
		same := func() {
			t.Helper()
			require.Equal(t, made, l.order(subagent.Filter{}))
			require.Equal(t, newest, l.order(subagent.Filter{NewestFirst: true}))
			require.Equal(t, made[5:9], l.order(subagent.Filter{After: made[4], Limit: 4}))
			require.Equal(t, made[3:], l.order(subagent.Filter{After: made[2], SessionID: "s"}))
		}
		same()
		for _, i := range []int{5, 4, 3, 0, 2, 1, 15, 9, 12} { // the second batch first
			if i%4 == 0 {
				l.cancel(made[i])
			} else {
				l.gate.Release(made[i], subagent.Result{Text: "done"}, nil)
			}
			for range 10 {
				same() // also in the middle of what the end leads to
			}
			synctest.Wait()
			same()
		}
	})
}

// A filter by status looks at the state of the moment: whoever was told of a
// transition finds the task under its new status and under no other.
func TestB214_AFilterSeesTheStateOfTheMoment(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		all := []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning,
			subagent.StatusCompleted, subagent.StatusCancelled, subagent.StatusErrored}
		isOnly := func(id uuid.UUID, want subagent.Status) {
			t.Helper()
			for _, status := range all {
				ids := l.order(subagent.Filter{Statuses: []subagent.Status{status}})
				require.Equal(t, status == want, slices.Contains(ids, id), "%s, and it is %s", status, want)
			}
		}
		for _, end := range []struct {
			do func(id uuid.UUID)
			to subagent.Status
		}{
			{func(id uuid.UUID) { l.gate.Release(id, subagent.Result{}, nil) }, subagent.StatusCompleted},
			{func(id uuid.UUID) { l.gate.Release(id, subagent.Result{}, errBroken) }, subagent.StatusErrored},
			{func(id uuid.UUID) { l.cancel(id) }, subagent.StatusCancelled},
		} {
			blocker := l.spawn("blocker").ID
			id := l.spawn("task").ID
			isOnly(id, subagent.StatusQueued)
			l.gate.Release(blocker, subagent.Result{}, nil)
			l.gate.WaitEntered(t, id)
			isOnly(id, subagent.StatusRunning)
			end.do(id)
			l.wait(id) // not until nothing moves: until it is told
			isOnly(id, end.to)
			queued := l.spawn("blocker").ID
			stopped := l.spawn("stopped in line").ID
			l.cancel(stopped)
			isOnly(stopped, subagent.StatusCancelled)
			l.finish(queued)
		}
	})
}
