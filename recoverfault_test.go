package subagent_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// Two calls recover one task, of one Runner or of two. The slow one has read it
// before the fast one ends it, and goes on after that, at whatever point: the end
// is told once, by the Runner whose end it is.
func TestG3_ALostEndIsToldOnce(t *testing.T) {
	for _, who := range []string{"a stop", "a stop of the session", "a renewal"} {
		for _, same := range []bool{true, false} {
			for _, at := range []string{"before it asks", "before it writes", "and its write fails", "and it is forgotten"} {
				t.Run(fmt.Sprintf("%s, one Runner %v, %s", who, same, at), func(t *testing.T) {
					pair(t, subagent.Config{}, subagent.Config{}, func(t *testing.T, one, two *rig) {
						fast := two
						if same {
							fast = one
						}
						time.Sleep(9500 * time.Millisecond)
						lostTwice(t, one, fast, who, at)
						require.EqualValues(t, 1, one.Stats().Errored+two.Stats().Errored, "it is counted once")
						toldOnce(t, one, two)
					})
				})
			}
		}
	}
}

// lostTwice has slow and fast recover one task.
func lostTwice(t *testing.T, slow, fast *rig, who, at string) {
	row := orphan(subagent.StatusRunning)
	require.NoError(t, slow.inner.Create(t.Context(), row))
	slow.holdUp(row.ID, at)
	over := make(chan error, 1)
	go func() { // ends with the call, and is waited for
		switch who {
		case "a stop":
			_, err := slow.Cancel(slow.ctx, row.ID, subagent.CancelOptions{})
			over <- err
		case "a stop of the session":
			_, err := slow.CancelSession(slow.ctx, "s", subagent.CancelOptions{})
			over <- err
		default:
			over <- nil
		}
	}()
	if who == "a renewal" {
		time.Sleep(500 * time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond)
	end, err := fast.Cancel(fast.ctx, row.ID, subagent.CancelOptions{})
	require.NoError(t, err)
	synctest.Wait()
	if at == "and it is forgotten" {
		require.NoError(t, fast.Forget(fast.ctx, row.ID))
	}
	err = <-over
	if at == "and it is forgotten" && who == "a stop" {
		require.ErrorIs(t, err, subagent.ErrNotFound)
	} else {
		require.NoError(t, err)
	}
	time.Sleep(time.Minute)
	if at != "before it writes" { // then the slow one may be it
		require.Equal(t, subagent.ReasonLost, end.Reason)
	}
}

// holdUp delays a recovery of r by a second, at a point, and may have it fail
// then.
func (r *rig) holdUp(id uuid.UUID, at string) {
	var held, failed atomic.Bool
	second := func(subagenttest.Call) (f subagenttest.Fault) {
		if held.CompareAndSwap(false, true) {
			f.Delay = time.Second
		}
		return f
	}
	if at != "before it writes" {
		r.store.On(subagenttest.OpLive, second)
	}
	start := time.Now()
	r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) (f subagenttest.Fault) {
		switch {
		case c.IDs[0] != id:
		case at == "before it writes":
			return second(c)
		case at == "and its write fails" && time.Since(start) >= time.Second && failed.CompareAndSwap(false, true):
			f.Err = errBroken
		}
		return f
	})
}

// toldOnce checks what both have told of all their tasks.
func toldOnce(t *testing.T, rigs ...*rig) {
	ends, cards, notices := 0, 0, 0
	for _, r := range rigs {
		r.mu.Lock()
		for _, events := range r.events {
			ends += len(events)
		}
		for _, put := range r.cards {
			cards += len(put)
		}
		notices += len(r.order)
		r.mu.Unlock()
	}
	require.Equal(t, []int{1, 1, 1}, []int{ends, cards, notices}, "events, cards and notices")
}

// A record that cannot be read once more is recovered later, and whoever waits
// for it meanwhile, or was about to, gets its end.
func TestG13_ARecordThatCannotBeReadAgain(t *testing.T) {
	for _, leases := range []bool{true, false} {
		t.Run(fmt.Sprintf("leases %v", leases), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				inner := subagent.NewMemoryStore()
				store := subagenttest.NewFaultyStore(inner)
				cfg := subagent.Config{}
				if !leases {
					cfg.Store = store
				}
				row := orphan(subagent.StatusRunning)
				require.NoError(t, inner.Create(t.Context(), row))
				store.On(subagenttest.OpGet, func(c subagenttest.Call) (f subagenttest.Fault) {
					if c.N <= 2 {
						f.Err = errBroken
					}
					return f
				})
				rigOn(t, cfg, newTape(), inner, store).run(func(t *testing.T, r *rig) {
					_, err := r.Cancel(r.ctx, row.ID, subagent.CancelOptions{})
					require.ErrorIs(t, err, errBroken)
					store.On(subagenttest.OpGet, func(c subagenttest.Call) (f subagenttest.Fault) {
						if c.N == 1 {
							f.Delay, f.Err = time.Second, errBroken
						}
						return f
					})
					time.Sleep(10500 * time.Millisecond) // it is tried again
					require.Equal(t, 1, store.Calls(subagenttest.OpGet)-2)
					require.Equal(t, subagent.ReasonLost, r.awaited(row.ID).Reason)
					require.Equal(t, subagent.ReasonLost, r.settled2(row.ID).Reason)
					time.Sleep(time.Minute)
				})
			})
		})
	}
}

// owing is a task of a dead owner's that has ended and owes its notice.
func owing(r *subagent.MemoryStore, t *testing.T) subagent.Task {
	row := orphan(subagent.StatusCompleted, func(row *subagent.Task) { row.NotifiedAt = time.Time{} })
	require.NoError(t, r.Create(t.Context(), row))
	return row
}

// A notice that is taken over waits for its card, as every notice does: else a
// process that dies in between has delivered an end whose card stays as it was,
// for nobody looks at it again.
func TestG11_ACardComesBeforeTheNoticeThatIsTakenOver(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("sink fails %v", fails), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				inner, p := subagent.NewMemoryStore(), newTape()
				var tried atomic.Int32
				p.onCard = func(context.Context, subagent.Card) error {
					time.Sleep(time.Second)
					if tried.Add(1); fails && tried.Load() < 3 {
						return errBroken
					}
					return nil
				}
				p.onNotice = func(context.Context, subagent.Task) error {
					require.Positive(t, tried.Load(), "its card was put, or has failed")
					return nil
				}
				rows := []subagent.Task{owing(inner, t), owing(inner, t)}
				rigOn(t, subagent.Config{}, p, inner, subagenttest.NewFaultyStore(inner)).run(func(t *testing.T, r *rig) {
					time.Sleep(time.Minute)
					require.Equal(t, []uuid.UUID{rows[0].ID, rows[1].ID}, r.delivered(), "in the order of their ends")
					for _, row := range rows {
						cards, events, _ := r.heard(row.ID)
						require.Len(t, cards, 1)
						require.Empty(t, events, "it had ended before")
						require.NotZero(t, r.awaited(row.ID).NotifiedAt)
					}
				})
			})
		})
	}
}

// A Runner without a Notifier puts the cards of tasks whose notice is owed again,
// each once, however often it looks: also those of owners that die later.
func TestG13_CardsArePutAgainOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		inner, p := subagent.NewMemoryStore(), newTape()
		first := owing(inner, t)
		r, err := subagent.New(t.Context(), subagent.Config{Store: inner, Cards: p})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		later := owing(inner, t)
		time.Sleep(time.Hour)
		for _, row := range []subagent.Task{first, later} {
			cards, _, _ := p.heard(row.ID)
			require.Equal(t, []subagent.Card{row.Card()}, cards)
			end, err := r.Wait(t.Context(), row.ID)
			require.NoError(t, err)
			require.Zero(t, end.NotifiedAt, "it is still owed")
		}
		require.NoError(t, r.Shutdown(t.Context()))
	})
}

// meeting has the first two edits of a task read the same record before either
// is committed, as stores without locks may.
type meeting struct {
	*subagent.MemoryStore
	id   uuid.UUID
	seen atomic.Int32
	both chan struct{}
}

func (m *meeting) Update(ctx context.Context, id uuid.UUID, edit func(*subagent.Task) error) (subagent.Task, error) {
	return m.MemoryStore.Update(ctx, id, func(t *subagent.Task) error {
		err := edit(t)
		if id == m.id {
			if m.seen.Add(1) == 2 {
				close(m.both)
			}
			<-m.both
		}
		return err
	})
}

// A Runner that is shut down keeps no register of what it recovers: there the
// store alone can say which of two calls was it.
func TestG3_ALostEndIsToldOnceByARunnerThatCloses(t *testing.T) {
	for when, shutFor := range map[string]time.Duration{"closing": time.Second, "closed": time.Minute} {
		t.Run(when, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				row := orphan(subagent.StatusRunning)
				store, told := &meeting{MemoryStore: subagent.NewMemoryStore(), id: row.ID, both: make(chan struct{})}, newTape()
				r, err := subagent.New(t.Context(), subagent.Config{Store: store, Cards: told, ShutdownGrace: time.Minute})
				require.NoError(t, err)
				_, err = r.Spawn(t.Context(), rigAsk("slow", func(q *subagent.Request) {
					q.Func = func(context.Context, *subagent.Run) (subagent.Result, error) {
						time.Sleep(30 * time.Second)
						return subagent.Result{}, nil
					}
				}))
				require.NoError(t, err)
				synctest.Wait()
				require.NoError(t, store.Create(t.Context(), row))
				go r.Shutdown(context.Background()) // ends with the slow task
				time.Sleep(shutFor)
				for range 2 {
					go func() { // ends with the other, and before the test
						end, err := r.Cancel(context.Background(), row.ID, subagent.CancelOptions{})
						assert.NoError(t, err)
						assert.Equal(t, subagent.ReasonLost, end.Reason)
					}()
				}
				synctest.Wait()
				cards, _, _ := told.heard(row.ID)
				require.Len(t, cards, 1)
				require.EqualValues(t, 1, r.Stats().Errored)
				require.NoError(t, r.Shutdown(context.Background()))
			})
		})
	}
}

// A recovery that comes to nothing, because the store cannot be read, is not an
// answer to another who asks the task to stop meanwhile: he recovers it himself.
func TestG13_AStopDuringARecoveryThatFails(t *testing.T) {
	for _, leases := range []bool{true, false} {
		t.Run(fmt.Sprintf("leases %v", leases), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				inner := subagent.NewMemoryStore()
				store := subagenttest.NewFaultyStore(inner)
				cfg := subagent.Config{Store: store}
				if leases {
					cfg.Store = store.Store()
				}
				r, err := subagent.New(t.Context(), cfg)
				require.NoError(t, err)
				row := orphan(subagent.StatusRunning)
				require.NoError(t, inner.Create(t.Context(), row))
				var gets atomic.Int32
				store.On(subagenttest.OpGet, func(subagenttest.Call) (f subagenttest.Fault) {
					if gets.Add(1) == 2 { // the recovery's own
						f.Delay, f.Err = time.Second, errBroken
					}
					return f
				})
				first := make(chan error, 1)
				go func() { // ends with the call, and is waited for
					_, err := r.Cancel(context.Background(), row.ID, subagent.CancelOptions{})
					first <- err
				}()
				time.Sleep(500 * time.Millisecond)
				end, err := r.Cancel(context.Background(), row.ID, subagent.CancelOptions{})
				require.NoError(t, err)
				require.Equal(t, subagent.ReasonLost, end.Reason)
				require.ErrorIs(t, <-first, errBroken)
				stored, err := inner.Get(t.Context(), row.ID)
				require.NoError(t, err)
				require.Equal(t, subagent.StatusErrored, stored.Status)
				require.EqualValues(t, 1, r.Stats().Errored)
				require.NoError(t, r.Shutdown(context.Background()))
			})
		})
	}
}
