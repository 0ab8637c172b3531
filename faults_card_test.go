package subagent_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// lastCard is the card that the chat shows of a task.
func (p *tape) lastCard(t *testing.T, id uuid.UUID) subagent.Card {
	t.Helper()
	cards, _, _ := p.heard(id)
	require.NotEmpty(t, cards)
	return cards[len(cards)-1]
}

// A process dies right after a task's first card, or later: the card was never
// shown as final, is linked to the execution, and shows the end after recovery.
func TestB226_ACardWhoseProcessDies(t *testing.T) {
	for _, dies := range []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning} {
		bubble.Test(t, func(t *testing.T) {
			inner, tape := subagent.NewMemoryStore(), newTape()
			dead := subagenttest.NewFaultyStore(inner)
			died := make(chan struct{})
			gone := func() error { // what a dead process asks for does not happen
				select {
				case <-died:
					return errBroken
				default:
					return nil
				}
			}
			before := newTape()
			before.onCard = func(ctx context.Context, c subagent.Card) error {
				if err := gone(); err != nil {
					return err
				}
				if c.Attach.ExternalTaskID == "call_0" && c.Attach.Status == string(dies) {
					defer close(died)
				}
				return tape.PutCard(ctx, c)
			}
			for _, op := range []subagenttest.Op{subagenttest.OpUpdate, subagenttest.OpRenew, subagenttest.OpRelease} {
				dead.On(op, func(subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Err: gone()} })
			}
			first := rigOn(t, subagent.Config{StoreTimeout: time.Second}, before, inner, dead)
			if dies == subagent.StatusQueued {
				occupied(first)
			}
			_, _ = first.Spawn(first.ctx, rigAsk("x", func(q *subagent.Request) { q.ExternalTaskID = "call_0" }))
			synctest.Wait()
			rows := listed(t, inner, subagent.Filter{ExternalTaskID: "call_0"})
			require.Len(t, rows, 1)
			card := tape.lastCard(t, rows[0])
			require.False(t, card.Expand())
			require.Equal(t, []string{string(dies), rows[0].String(), "call_0"}, []string{card.Attach.Status, card.Attach.TaskID, card.Attach.ExternalTaskID})
			time.Sleep(time.Minute) // its lease runs out
			rigOn(t, subagent.Config{}, tape, inner, subagenttest.NewFaultyStore(inner)).run(func(t *testing.T, r *rig) {
				synctest.Wait()
				card := tape.lastCard(t, rows[0])
				require.Equal(t, string(subagent.StatusErrored), card.Attach.Status)
				require.Equal(t, string(subagent.ReasonLost), card.Attach.Reason)
				require.Equal(t, "Error: worker died before completion", card.Content)
			})
			first.gate.ReleaseAll()
			_ = first.Shutdown(context.Background())
			time.Sleep(time.Hour)
		})
	}
}

// Each end brings the card to its final look: when it ends by itself, in line,
// while it runs, by force, and by recovery.
func TestB228_EveryEndFinishesTheCard(t *testing.T) {
	for name, c := range map[string]struct {
		before  func(r *rig)
		change  func(r *rig, q *subagent.Request)
		act     func(r *rig, id uuid.UUID)
		status  subagent.Status
		content string
	}{
		"completed": {act: func(r *rig, id uuid.UUID) { r.gate.Release(id, subagent.Result{Text: "all done"}, nil) },
			status: subagent.StatusCompleted, content: "all done"},
		"errored": {act: func(r *rig, id uuid.UUID) { r.gate.Release(id, subagent.Result{Text: "half"}, errors.New("no model")) },
			status: subagent.StatusErrored, content: "Error: no model"},
		"cancelled in line":     {before: occupied, act: stopIt, status: subagent.StatusCancelled, content: "(cancelled)"},
		"cancelled as it runs":  {act: stopIt, status: subagent.StatusCancelled, content: "(cancelled)"},
		"cancelled with a part": {change: func(r *rig, q *subagent.Request) { q.Func = partly(obeys)(r) }, act: stopIt, status: subagent.StatusCancelled, content: "partpartial"},
		"forced":                {change: func(r *rig, q *subagent.Request) { r.deaf(q) }, act: stopIt, status: subagent.StatusCancelled, content: "(cancelled)"},
		"timed out": {change: func(_ *rig, q *subagent.Request) { q.Timeout = time.Minute }, act: func(*rig, uuid.UUID) {},
			status: subagent.StatusErrored, content: "Error: timed out after 1m0s"},
		"a panic": {change: func(_ *rig, q *subagent.Request) { q.Func = panics("no") }, act: func(*rig, uuid.UUID) {},
			status: subagent.StatusErrored, content: "Error: panic: no"},
		"the store fails": {before: refusing(subagent.StatusRunning), act: func(*rig, uuid.UUID) {}, status: subagent.StatusErrored, content: "Error: store: no \uFFFD thanks"},
	} {
		for _, broken := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
					var mended sync.Map
					r.onCard = func(context.Context, subagent.Card) error {
						if _, ok := mended.Load(0); broken && !ok {
							return errBroken
						}
						return nil
					}
					if c.before != nil {
						c.before(r)
					}
					id := r.spawn("x", func(q *subagent.Request) {
						if c.change != nil {
							c.change(r, q)
						}
					}).ID
					synctest.Wait()
					c.act(r, id)
					time.Sleep(5 * time.Minute)
					mended.Store(0, 0)
					time.Sleep(5 * time.Minute)
					card := r.lastCard(t, id)
					require.Equal(t, string(c.status), card.Attach.Status)
					require.Equal(t, c.content, card.Content)
					require.Equal(t, c.status == subagent.StatusCompleted, card.Expand())
				})
			})
		}
	}
}

// Who comes late and has only the store, as a panel after a restart, makes the
// same cards of it as were put, with all that identifies them.
func TestB230_CardsAreMadeOfRecords(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		call := func(q *subagent.Request) { q.ExternalTaskID = "call_0" }
		ended, _ := r.runs("ended", call)
		r.gate.Release(ended, subagent.Result{Text: "result", HeadID: "h", SourceCommitID: "c"}, nil)
		running, _ := r.runs("running", call)
		queued := r.spawn("queued", call).ID
		synctest.Wait()
		for id, status := range map[uuid.UUID]subagent.Status{ended: subagent.StatusCompleted, running: subagent.StatusRunning, queued: subagent.StatusQueued} {
			row := r.row(id)
			card := row.Card()
			require.Equal(t, r.lastCard(t, id), card)
			require.Equal(t, []string{id.String(), "call_0", string(status), "s"},
				[]string{card.Attach.TaskID, card.Attach.ExternalTaskID, card.Attach.Status, card.Attach.SessionID})
			var again subagent.Card
			require.NoError(t, json.Unmarshal(jsonOf(t, card), &again), "and as the chat stored it")
			require.Equal(t, card, again)
			times := timesOf(t, row)
			require.Contains(t, times, "created_at")
			require.Equal(t, status != subagent.StatusQueued, !times["started_at"].IsZero())
			require.Equal(t, status == subagent.StatusCompleted, !times["completed_at"].IsZero())
		}
	})
}

// Whenever nothing moves, card, list, output, store and the last event agree.
// internal/soak compares them at rest after everything else.
func TestB232_AllSurfacesAgreeAtRest(t *testing.T) {
	random := seeded(t)
	inRig(t, subagent.Config{Workers: 3, CancelGrace: time.Second}, func(t *testing.T, r *rig) {
		var ids []uuid.UUID
		agree := func() {
			synctest.Wait()
			list, err := r.List(r.ctx, subagent.Filter{})
			require.NoError(t, err)
			require.Len(t, list, len(ids))
			for i, id := range ids {
				row := r.row(id)
				got, err := r.Get(r.ctx, id)
				require.NoError(t, err)
				_, events, _ := r.heard(id)
				seen := map[string]subagent.Task{"Get": got, "List": list[i], "event": events[len(events)-1].Task}
				for where, task := range seen {
					require.Equal(t, []any{id, row.Status, row.Reason, row.Error, row.CompletedAt, row.CancelRequestedAt},
						[]any{task.ID, task.Status, task.Reason, task.Error, task.CompletedAt, task.CancelRequestedAt}, where)
				}
				require.Equal(t, string(row.Status), r.lastCard(t, id).Attach.Status)
			}
		}
		for instants := 0; instants < bubble.Often(1000, 150); {
			switch n := random.IntN(10); {
			case n < 3 || len(ids) == 0:
				ids = append(ids, r.spawn("x", func(q *subagent.Request) {
					if random.IntN(3) == 0 {
						r.deaf(q)
					}
					if random.IntN(3) == 0 {
						q.Timeout = time.Second
					}
				}).ID)
			case n < 5:
				r.stop(ids[random.IntN(len(ids))])
			case n < 7:
				r.gate.Release(ids[random.IntN(len(ids))], subagent.Result{Text: "done"}, nil)
			case n < 8:
				r.gate.Release(ids[random.IntN(len(ids))], subagent.Result{}, errBroken)
			case n < 9:
				time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
			default:
				if id := ids[random.IntN(len(ids))]; r.row(id).Status.Terminal() {
					r.awaited(id)
				}
			}
			if random.IntN(4) == 0 {
				agree()
				instants++
			}
		}
	})
}
