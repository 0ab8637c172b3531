package subagent_test

import (
	"encoding/json"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/subagenttest"
)

// shown is all that anybody can see of a task, byte for byte.
func (r *rig) shown(id uuid.UUID) string {
	r.t.Helper()
	synctest.Wait()
	got, err := r.Get(r.ctx, id)
	require.NoError(r.t, err)
	cards, events, notices := r.heard(id)
	all, err := json.Marshal([]any{r.row(id), got, got.Card(), cards, events, notices})
	require.NoError(r.t, err)
	return string(all)
}

// Whatever becomes of B, and however often its worker reports, nothing of it
// is ever shown as A's, whose call id is the same.
func TestB001_B002_OneCallIDTwoTasks(t *testing.T) {
	for name, end := range map[string]func(r *rig, b uuid.UUID){
		"completes":            func(r *rig, b uuid.UUID) { r.gate.Release(b, subagent.Result{Text: "B's"}, nil) },
		"fails":                func(r *rig, b uuid.UUID) { r.gate.Release(b, subagent.Result{Text: "B's"}, errBroken) },
		"is stopped":           func(r *rig, b uuid.UUID) { r.stop(b) },
		"is stopped and waits": func(r *rig, b uuid.UUID) { r.stop(b); r.awaited(b) },
		"its chat is stopped": func(r *rig, b uuid.UUID) {
			task, err := r.Get(r.ctx, b)
			require.NoError(r.t, err)
			_, err = r.CancelSession(r.ctx, task.ParentSessionID, subagent.CancelOptions{})
			require.NoError(r.t, err)
		},
	} {
		for chat, parallel := range map[string]bool{"B": true, "C": false, "A": false} { // the chat of B
			inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
				a, _ := r.runs("of A", external("call_0", "A"))
				if !parallel { // the provider counts anew in each turn
					r.gate.Release(a, subagent.Result{Text: "A's own"}, nil)
				}
				before := r.shown(a)
				b, run := r.runs("of B", external("call_0", chat))
				require.NotEqual(t, a, b, name)
				run.Progress("B's")
				run.ReportUsage("m", subagent.Usage{InputTokens: 7})
				_, _ = run.Write([]byte("B's"))
				end(r, b)
				require.NotEmpty(t, r.settled(b).ResultText)
				require.Equal(t, before, r.shown(a), name)
				if parallel {
					r.gate.Release(a, subagent.Result{Text: "A's own"}, nil)
				}
				row := r.settled(a)
				require.Equal(t, "A's own", row.ResultText)
				require.Zero(t, row.Usage)
				cards, _, _ := r.heard(b)
				require.Equal(t, b, cards[0].TaskID, "B has a card of its own")
				both, err := r.List(r.ctx, subagent.Filter{ExternalTaskID: "call_0"})
				require.NoError(t, err)
				require.Len(t, both, 2)
			})
		}
	}
}

// Twenty readers look while the store is slow, and on every way of asking the
// task is there and alive.
func TestB010_NoReaderMissesASpawnedTask(t *testing.T) {
	for _, op := range []subagenttest.Op{subagenttest.OpCreate, subagenttest.OpUpdate, subagenttest.OpList} {
		inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
			r.store.On(op, func(subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Delay: 200 * time.Millisecond} })
			id := r.spawn("work").ID
			var readers sync.WaitGroup
			for range 20 {
				readers.Go(func() {
					task, err := r.Get(r.ctx, id)
					require.NoError(t, err)
					require.False(t, task.Status.Terminal())
					list, err := r.List(r.ctx, subagent.Filter{SessionID: "s"})
					require.NoError(t, err)
					require.True(t, slices.ContainsFunc(list, func(t subagent.Task) bool { return t.ID == id }))
				})
			}
			readers.Wait()
			r.gate.Release(id, subagent.Result{}, nil)
			r.awaited(id)
		})
	}
}

// The host goes on under another key: on every surface the task stays with the
// conversation that started it.
func TestB012_ATaskStaysWithItsConversation(t *testing.T) {
	inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
		id, _ := r.runs("work", external("call_0", "S1"))
		next, _ := r.runs("after the roll-over", external("call_1", "S2"))
		_, err := r.CancelSession(r.ctx, "S2", subagent.CancelOptions{})
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCancelled, r.settled(next).Status)
		require.Zero(t, r.row(id).CancelRequestedAt)
		r.gate.Release(id, subagent.Result{Text: "done"}, nil)
		row := r.settled(id)
		require.Equal(t, "S1", row.ParentSessionID)
		require.Equal(t, subagent.StatusCompleted, row.Status)
		cards, events, notices := r.heard(id)
		require.Len(t, notices, 1)
		require.Equal(t, "S1", notices[0].ParentSessionID)
		for _, c := range cards {
			require.Equal(t, "S1", c.Attach.SessionID)
		}
		for _, e := range events {
			require.Equal(t, "S1", e.Task.ParentSessionID)
		}
		list, err := r.List(r.ctx, subagent.Filter{SessionID: "S1"})
		require.NoError(t, err)
		require.Len(t, list, 1)
	})
}
