package subagent_test

import (
	"context"
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

// stopCause is one thing that can make a task stop.
type stopCause struct {
	name string
	want subagent.Task // what it makes of the task, if it is the first
	// act brings it about; nil: the run time limit does.
	act func(r *rig, parent, id uuid.UUID, leave context.CancelFunc)
}

// stopCauses are all of them that can reach a task that runs.
func stopCauses() []stopCause {
	cancelled := func(why subagent.Reason) subagent.Task {
		return subagent.Task{Status: subagent.StatusCancelled, Reason: why, ResultText: "full"}
	}
	errored := func(why subagent.Reason, text string) subagent.Task {
		return subagent.Task{Status: subagent.StatusErrored, Reason: why, Error: text, ResultText: "full"}
	}
	return []stopCause{
		{"stop", cancelled(subagent.ReasonAgent), func(r *rig, _, id uuid.UUID, _ context.CancelFunc) { r.stop(id) }},
		{"stop of the session", cancelled(subagent.ReasonSession), func(r *rig, _, _ uuid.UUID, _ context.CancelFunc) {
			_, err := r.CancelSession(r.ctx, "s", subagent.CancelOptions{})
			require.NoError(r.t, err)
		}},
		{"stop of the parent", cancelled(subagent.ReasonParent), func(r *rig, parent, _ uuid.UUID, _ context.CancelFunc) { r.stop(parent) }},
		{"caller leaves", cancelled(subagent.ReasonCaller), func(_ *rig, _, _ uuid.UUID, leave context.CancelFunc) { leave() }},
		{"time limit", errored(subagent.ReasonTimeout, "timed out after "), nil},
		{"shutdown", errored(subagent.ReasonShutdown, "worker pool shutdown"), func(r *rig, _, _ uuid.UUID, _ context.CancelFunc) {
			r.left = true
			go func() { _ = r.Shutdown(context.Background()) }() // ends with the Runner, in the bubble
		}},
	}
}

// Of two causes that come 10 ms apart the first decides, on every surface,
// whichever two they are.
func TestB072_TheFirstCauseWins(t *testing.T) {
	for _, first := range stopCauses() {
		for _, second := range stopCauses() {
			if first.name == second.name {
				continue
			}
			t.Run(first.name+", then "+second.name, func(t *testing.T) {
				inRig(t, subagent.Config{Workers: 2, ShutdownGrace: time.Nanosecond}, func(t *testing.T, r *rig) { twoCauses(r, first, second) })
			})
		}
	}
}

func twoCauses(r *rig, first, second stopCause) {
	const at, apart = time.Minute, 10 * time.Millisecond
	id := uuid.Must(uuid.NewV7())
	child := rigAsk("child", withID(id), withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
		time.Sleep(at + 100*time.Millisecond) // it hears nothing
		return subagent.Result{Text: "full"}, ctx.Err()
	}))
	switch {
	case first.act == nil:
		child.Timeout = at
	case second.act == nil:
		child.Timeout = at + apart
	}
	inFront := first.name == "caller leaves" || second.name == "caller leaves"
	leaving := make(chan context.CancelFunc, 1)
	parent := r.spawn("parent", inSession("another"), withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
		ctx, leave := context.WithCancel(ctx)
		defer leave()
		leaving <- leave
		if inFront {
			_, _ = r.Run(ctx, child)
		} else if _, err := r.Spawn(ctx, child); err != nil {
			return subagent.Result{}, err
		}
		<-ctx.Done()
		return subagent.Result{}, nil
	}))
	leave := <-leaving
	synctest.Wait()
	time.Sleep(at - time.Nanosecond)
	for _, c := range []stopCause{first, second} {
		if c.name == "shutdown" {
			c.act(r, parent.ID, id, leave) // its grace is a nanosecond
			time.Sleep(time.Nanosecond)
		} else if time.Sleep(time.Nanosecond); c.act != nil {
			c.act(r, parent.ID, id, leave)
		}
		time.Sleep(apart - time.Nanosecond)
	}
	time.Sleep(time.Second)
	end := r.settled(id)
	want := first.want
	if want.Reason == subagent.ReasonTimeout {
		want.Error += child.Timeout.String()
	}
	require.Equal(r.t, want, subagent.Task{Status: end.Status, Reason: end.Reason, Error: end.Error, ResultText: end.ResultText})
	require.Equal(r.t, first.want.Status == subagent.StatusCancelled, !end.CancelRequestedAt.IsZero())
	_, _, notices := r.heard(id)
	require.Equal(r.t, !inFront, len(notices) == 1)
}

// Time limit and stop in the same instant: one end each, the one whose cause
// the work saw, and it stays.
func TestB073_TimeLimitAndStopInOneInstant(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const batch = 500
		store := subagent.NewMemoryStore()
		store.SetRetention(-1)
		p := newTape()
		r, err := subagent.New(t.Context(), subagent.Config{Store: store, Cards: p, Notifier: p, Workers: batch})
		require.NoError(t, err)
		ends := r.Subscribe(subagent.Filter{Statuses: []subagent.Status{subagent.StatusCompleted, subagent.StatusCancelled, subagent.StatusErrored}})
		go p.listen(ends) // ends with the Runner
		won := map[subagent.Reason]int{}
		for range bubble.Often(10_000, 1000) / batch {
			for reason, n := range timeLimitDuels(t, r, p, store, batch) {
				won[reason] += n
			}
		}
		require.NoError(t, r.Shutdown(t.Context()))
		require.Len(t, won, 2, "both win at times")
		t.Logf("%v", won)
	})
}

// timeLimitDuels has n tasks stopped in the instant when their time is over,
// and counts who won.
func timeLimitDuels(t *testing.T, r *subagent.Runner, p *tape, store subagent.Store, n int) map[subagent.Reason]int {
	var mu sync.Mutex
	seen := map[uuid.UUID]subagent.Reason{}
	var ids []uuid.UUID
	for i := range n {
		task, err := r.Spawn(t.Context(), rigAsk("x", func(q *subagent.Request) {
			q.Timeout = time.Second
			q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
				<-ctx.Done()
				var why *subagent.CancelError
				require.ErrorAs(t, context.Cause(ctx), &why)
				mu.Lock()
				seen[run.Task().ID] = why.Reason
				mu.Unlock()
				time.Sleep(time.Duration(i%3) * time.Millisecond)
				return subagent.Result{}, nil
			}
		}))
		require.NoError(t, err)
		ids = append(ids, task.ID)
	}
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() {
			time.Sleep(time.Second)
			_, err := r.Cancel(t.Context(), id, subagent.CancelOptions{})
			require.NoError(t, err)
		})
	}
	all.Wait()
	time.Sleep(time.Minute)
	synctest.Wait()
	won := map[subagent.Reason]int{}
	for _, id := range ids {
		row, err := store.Get(t.Context(), id)
		require.NoError(t, err)
		won[row.Reason]++
		require.Equal(t, seen[id], row.Reason)
		stopped := row.Reason == subagent.ReasonUser
		require.True(t, stopped && row.Status == subagent.StatusCancelled && row.Error == "" && !row.CancelRequestedAt.IsZero() ||
			!stopped && row.Status == subagent.StatusErrored && row.Error == "timed out after 1s" && row.CancelRequestedAt.IsZero(), "%+v", row)
		cards, events, notices := p.heard(id)
		require.True(t, len(events) == 1 && len(notices) == 1 && sameEnd(row, events[0].Task) && sameEnd(row, notices[0]))
		require.Equal(t, row.Card(), cards[len(cards)-1])
	}
	return won
}

// A stop that comes when the work is done already: what was produced is never
// lost, and there is one end on every surface.
func TestB078_AStopAfterTheLastWord(t *testing.T) {
	completed := subagent.Task{Status: subagent.StatusCompleted, ResultText: "the answer"}
	cancelled := subagent.Task{Status: subagent.StatusCancelled, Reason: subagent.ReasonAgent, ResultText: "the answer"}
	for _, c := range []struct {
		when string
		want subagent.Task
	}{
		{"the Func is on its way out", cancelled},
		{"the end is being stored", completed},
		{"the card is being put", completed},
		{"the notice is being given", completed},
	} {
		t.Run(c.when, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := newTape()
				var r *rig
				at := func(when string, id uuid.UUID) {
					if when == c.when {
						r.stop(id)
					}
				}
				p.onCard = func(_ context.Context, card subagent.Card) error {
					if card.Attach.Status == string(subagent.StatusCompleted) {
						at("the card is being put", card.TaskID)
					}
					return nil
				}
				p.onNotice = func(_ context.Context, task subagent.Task) error {
					at("the notice is being given", task.ID)
					return nil
				}
				r = newRig(t, subagent.Config{}, p)
				r.store.On(subagenttest.OpUpdate, func(call subagenttest.Call) subagenttest.Fault {
					if call.Ends() {
						at("the end is being stored", call.IDs[0])
					}
					return subagenttest.Fault{}
				})
				r.run(func(t *testing.T, r *rig) {
					id := r.spawn("x", withFunc(func(_ context.Context, run *subagent.Run) (res subagent.Result, err error) {
						defer func() { at("the Func is on its way out", run.Task().ID) }() // res is set
						return subagent.Result{Text: "the answer"}, nil
					})).ID
					time.Sleep(time.Minute)
					end := r.settled(id)
					require.Equal(t, c.want, subagent.Task{Status: end.Status, Reason: end.Reason, Error: end.Error, ResultText: end.ResultText})
				})
			})
		})
	}
}

// A stop and the work's own end race: memory, store, card, event, notice and
// waiter agree. TestG3_StopAgainstFinish has all rounds of the same each time.
func TestB079_StopAndFinishRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // without timers, as there
		rounds := bubble.Often(20_000, 1000)
		rng, d := seeded(t), newDuels(t)
		for i := range rounds {
			d.first(d.fight(i%3, rng.IntN(3)))
		}
		require.NoError(t, d.r.Shutdown(t.Context()))
		d.listener.Wait()
		d.oneEndEach(rounds)
	})
}

// Success that comes five seconds after the forced end is dropped.
func TestB080_SuccessAfterTheForcedEnd(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		id, _ := r.runs("x", r.deaf)
		r.stop(id)
		time.Sleep(35 * time.Second) // 30 of them are the grace
		end := r.settled(id)
		require.Equal(t, subagent.StatusCancelled, end.Status)
		require.True(t, end.Detached)
		cards, events, notices := r.heard(id)
		require.Len(t, notices, 1)
		r.gate.Release(id, subagent.Result{Text: "success"}, nil)
		time.Sleep(time.Hour)
		require.Equal(t, end, r.settled(id))
		require.Equal(t, end, r.awaited(id))
		cardsNow, eventsNow, noticesNow := r.heard(id)
		require.Equal(t, cards, cardsNow)
		require.Equal(t, events, eventsNow)
		require.Equal(t, notices, noticesNow)
		r.runs("next", noWait)
	})
}

// endedIn has a task end in each terminal status.
func (r *rig) endedIn(status subagent.Status) (uuid.UUID, *subagent.Run) {
	r.t.Helper()
	id, run := r.runs(string(status))
	switch status {
	case subagent.StatusCompleted:
		r.gate.Release(id, subagent.Result{Text: "done"}, nil)
	case subagent.StatusErrored:
		r.gate.Release(id, subagent.Result{}, errors.New("no"))
	default:
		r.stop(id)
	}
	time.Sleep(time.Second)
	require.Equal(r.t, status, r.settled(id).Status)
	return id, run
}

var endStatuses = []subagent.Status{subagent.StatusCompleted, subagent.StatusCancelled, subagent.StatusErrored}

// Nothing leads out of an end, whoever tries: the store says so to its caller,
// and what the Runner is asked for answers with the end as it is.
func TestB081_NoWayLeadsOutOfAnEnd(t *testing.T) {
	for _, from := range endStatuses {
		inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
			id, run := r.endedIn(from)
			end := r.settled(id)
			for _, to := range []subagent.Status{subagent.StatusRunning, subagent.StatusCompleted, subagent.StatusRunning, subagent.StatusQueued,
				subagent.StatusPending, subagent.StatusCancelled, subagent.StatusErrored} {
				require.False(t, subagent.CanTransition(from, to))
				_, err := r.inner.Update(r.ctx, id, func(t *subagent.Task) error {
					t.Status, t.ResultText, t.Error = to, "another", "another"
					return nil
				})
				var refused *subagent.TransitionError
				require.ErrorAs(t, err, &refused, "%s to %s", from, to)
				require.Equal(t, subagent.TransitionError{ID: id, From: from, To: to}, *refused)
				require.Equal(t, end, r.settled(id))
			}
			require.Equal(t, end, r.stop(id))
			asked, err := r.CancelSession(r.ctx, "s", subagent.CancelOptions{})
			require.NoError(t, err)
			require.Empty(t, asked)
			require.Equal(t, end, r.spawn(string(from), withID(id)), "the same request is answered with the task as it is")
			_, err = r.Spawn(r.ctx, rigAsk("another", withID(id)))
			require.ErrorIs(t, err, subagent.ErrTaskExists)
			run.Progress("again")
			run.ToolUse("again")
			run.ReportUsage("m", subagent.Usage{TotalTokens: 1})
			_, _ = run.Write([]byte("again"))
			require.Equal(t, end, r.settled(id))
			require.Zero(t, r.gate.Inside(), "nothing runs again")
		})
	}
}

// Six places that must know what has ended agree on all three.
func TestB084_SixPlacesAgreeOnWhatHasEnded(t *testing.T) {
	for i, status := range endStatuses {
		t.Run(string(status), func(t *testing.T) {
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				id, _ := r.endedIn(status)
				end := r.settled(id)
				ended, err := r.List(r.ctx, subagent.Filter{Statuses: endStatuses})
				require.NoError(t, err)
				require.Equal(t, []subagent.Task{end}, ended, "list")
				live, err := r.List(r.ctx, subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}})
				require.NoError(t, err)
				require.Empty(t, live, "list")
				blocker, _ := r.runs("blocker", noWait) // capacity: its slot is free
				over, cancel := context.WithCancel(r.ctx)
				cancel()
				for mode, ids := range map[subagent.AwaitMode][]uuid.UUID{subagent.AwaitAll: {id}, subagent.AwaitAny: {blocker, id}} {
					got, err := r.Await(over, mode, ids...)
					require.NoError(t, err, "await")
					require.Equal(t, end, got[len(got)-1])
				}
				cards, _, _ := r.heard(id)
				require.Equal(t, string(status), cards[len(cards)-1].Attach.Status, "card")
				require.NotEqual(t, "(running)", cards[len(cards)-1].Content)
				rigOn(t, subagent.Config{}, newTape(), r.inner, r.store).run(func(t *testing.T, next *rig) {
					require.Equal(t, end, next.row(id), "recovery")
				})
				r.gate.Release(blocker, subagent.Result{}, nil)
				r.awaited(blocker)
				r.endedIn(endStatuses[(i+1)%3])
				r.inner.SetRetention(1)
				_, err = r.Get(r.ctx, id)
				require.ErrorIs(t, err, subagent.ErrNotFound, "retention: the oldest end goes first, whatever it is")
			})
		})
	}
}
