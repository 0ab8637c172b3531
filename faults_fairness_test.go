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

// Chat A has filled the slots and the line. B's task has its place behind
// A's, it is there to be seen, it never grows, and B is served in that order.
func TestB061_OneLineForAllChats(t *testing.T) {
	inRig(t, subagent.Config{Workers: 4}, func(t *testing.T, r *rig) {
		var all []uuid.UUID
		for i := range 20 {
			all = append(all, r.spawn(fmt.Sprint(i), external("", "A")).ID)
		}
		b := r.spawn("B", external("", "B")).ID
		for i := range 10 { // newcomers stand behind it
			all = append(all, r.spawn(fmt.Sprint("later ", i), external("", "A")).ID)
		}
		_, err := r.Spawn(r.ctx, rigAsk("in a hurry", noWait, external("", "C")))
		require.ErrorIs(t, err, subagent.ErrNoCapacity)
		synctest.Wait()
		var entered []uuid.UUID
		for place, next := 17, 0; place > 0; place-- {
			now, ok := r.QueuePosition(b)
			require.True(t, ok)
			require.Equal(t, place, now)
			require.Equal(t, subagent.StatusQueued, r.row(b).Status)
			r.gate.Release(all[next], subagent.Result{}, nil)
			r.awaited(all[next])
			synctest.Wait()
			next++
		}
		_, ok := r.QueuePosition(b)
		require.False(t, ok, "it is its turn")
		r.gate.WaitEntered(t, b)
		synctest.Wait()
		for range 21 {
			run, err := r.gate.Entered(endedContext())
			require.NoError(t, err)
			entered = append(entered, run.Task().ID)
		}
		slices.SortFunc(entered[:4], func(x, y uuid.UUID) int { return slices.Index(all, x) - slices.Index(all, y) }) // side by side
		require.Equal(t, append(slices.Clone(all[:20]), b), entered)
		r.neverEntered()
	})
}

// On every surface a task in line is queued, has not started, and its place is
// that in the line, whoever ahead of it leaves.
func TestB062_AQueuedTaskIsShownAsThat(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		first, _ := r.runs("runs")
		one, two := r.spawn("one").ID, r.spawn("two").ID
		id := r.spawn("T").ID
		time.Sleep(time.Minute)
		shows := func(place int) {
			t.Helper()
			synctest.Wait()
			now, ok := r.QueuePosition(id)
			require.True(t, ok)
			require.Equal(t, place, now)
			task, err := r.Get(r.ctx, id)
			require.NoError(t, err)
			cards, events, _ := r.heard(id)
			require.Equal(t, "(queued)", cards[len(cards)-1].Content)
			require.Equal(t, "queued", cards[len(cards)-1].Attach.Status)
			for where, seen := range map[string]subagent.Task{"Get": task, "store": r.row(id), "event": events[len(events)-1].Task} {
				require.Equal(t, subagent.StatusQueued, seen.Status, where)
				require.Zero(t, seen.StartedAt, where)
				require.Equal(t, task.QueuedAt, seen.QueuedAt, where)
			}
			running, err := r.List(r.ctx, subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}})
			require.NoError(t, err)
			require.Len(t, running, 1)
		}
		shows(3)
		r.stop(one)
		shows(2)
		r.gate.Release(first, subagent.Result{}, nil)
		r.gate.WaitEntered(t, two)
		shows(1)
		time.Sleep(time.Hour)
		r.gate.Release(two, subagent.Result{}, nil)
		r.gate.WaitEntered(t, id)
		_, ok := r.QueuePosition(id)
		require.False(t, ok)
		row := r.row(id)
		require.Equal(t, time.Hour+time.Minute, row.StartedAt.Sub(row.QueuedAt), "it has waited since it came")
	})
}
