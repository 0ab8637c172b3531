package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// logHook is a slog.Handler that hands each line to a func.
type logHook func(text string)

func (logHook) Enabled(context.Context, slog.Level) bool { return true }
func (h logHook) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h logHook) WithGroup(string) slog.Handler          { return h }
func (h logHook) Handle(_ context.Context, r slog.Record) error {
	h(r.Message)
	return nil
}

// sinkFaults are what a sink may do in the place of its work.
var sinkFaults = []struct {
	name string
	do   func(ctx context.Context) error
}{
	{"fails", func(context.Context) error { return errBroken }},
	{"blocks", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
	{"is deaf", func(context.Context) error { time.Sleep(2 * time.Minute); return errBroken }},
	{"is deaf and does it", func(context.Context) error { time.Sleep(2 * time.Minute); return nil }},
	{"is slow", func(context.Context) error { time.Sleep(9 * time.Second); return nil }},
	{"panics", func(context.Context) error { panic("the sink") }},
	{"calls Goexit", func(context.Context) error { runtime.Goexit(); return nil }},
}

// sinkSpells are how long it goes on, by the number of the call.
var sinkSpells = []struct {
	name string
	hits func(n int64, since time.Duration) bool
}{
	{"once", func(n int64, _ time.Duration) bool { return n == 1 }},
	{"every other time", func(n int64, _ time.Duration) bool { return n%2 == 1 }},
	{"for five minutes", func(_ int64, since time.Duration) bool { return since < 5*time.Minute }},
}

// A sink or a logger that misbehaves leaks no slot, holds nobody for long and
// loses nothing: in the end the card shows the end, and the notice was taken.
func TestG9_SinksThatMisbehave(t *testing.T) {
	made := sample(t, 4)
	for _, sink := range []string{"cards", "notifier", "logger", "all"} {
		for _, fault := range sinkFaults {
			for _, spell := range sinkSpells {
				if !made() {
					continue
				}
				t.Run(fmt.Sprintf("%s: %s %s", sink, fault.name, spell.name), func(t *testing.T) {
					bubble.Test(t, func(t *testing.T) {
						start := time.Now()
						var n atomic.Int64
						trouble := func(ctx context.Context) error {
							if since := time.Since(start); since < time.Hour && spell.hits(n.Add(1), since) {
								return fault.do(ctx)
							}
							return nil
						}
						p, cfg := newTape(), subagent.Config{Workers: 2}
						if sink == "cards" || sink == "all" {
							p.onCard = func(ctx context.Context, _ subagent.Card) error { return trouble(ctx) }
						}
						if sink == "notifier" || sink == "all" {
							p.onNotice = func(ctx context.Context, _ subagent.Task) error { return trouble(ctx) }
						}
						if sink == "logger" || sink == "all" {
							cfg.Logger = slog.New(logHook(func(string) { _ = trouble(t.Context()) }))
						}
						newRig(t, cfg, p).run(livesAmongSinks)
					})
				})
			}
		}
	}
}

func livesAmongSinks(t *testing.T, r *rig) {
	timed := func(most time.Duration, what string, f func()) {
		start := time.Now()
		f()
		require.LessOrEqual(t, time.Since(start), most, what)
	}
	var unseen, seen, waited subagent.Task
	timed(20*time.Second, "Spawn", func() { unseen = r.spawn("nobody waits") })
	timed(20*time.Second, "Spawn", func() { seen = r.spawn("somebody waits", r.thenPanics) })
	r.gate.WaitEntered(t, unseen.ID)
	r.gate.WaitEntered(t, seen.ID)
	done := make(chan struct{})
	go func() {
		defer close(done)
		waited = r.awaited(seen.ID)
	}()
	synctest.Wait()
	r.gate.Release(seen.ID, subagent.Result{}, nil)
	timed(10*time.Second, "Wait", func() { <-done })
	require.Equal(t, subagent.ReasonPanic, waited.Reason)
	require.Zero(t, waited.NotifiedAt)
	r.gate.Release(unseen.ID, subagent.Result{Text: "done"}, nil)
	timed(40*time.Second, "Run", func() {
		end, err := r.Run(r.ctx, rigAsk("foreground", func(q *subagent.Request) { q.Func = gives("now", nil) }))
		require.NoError(t, err)
		require.Equal(t, "now", end.ResultText)
	})
	id, _ := r.runs("stopped", r.lingers)
	timed(10*time.Second, "Cancel", func() { r.stop(id) })
	time.Sleep(2 * time.Hour) // all is well again after the first
	for row, err := range r.inner.List(r.ctx, subagent.Filter{}) {
		require.NoError(t, err)
		end := r.settled(row.ID)
		require.False(t, end.NotifiedAt.IsZero())
		cards, _, notices := r.heard(row.ID)
		require.Equal(t, end.Card(), cards[len(cards)-1])
		if row.Description == "nobody waits" || row.Description == "stopped" {
			require.Len(t, notices, 1)
		} else {
			require.Empty(t, notices)
		}
	}
	r.nothingHeld()
	next := r.spawn("next", func(q *subagent.Request) { q.NoWait, q.Func = true, gives("next", nil) })
	r.awaited(next.ID)
}

// thenPanics has the Func panic once it is let go, which is logged.
func (r *rig) thenPanics(q *subagent.Request) {
	q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		_, _ = r.gate.Func()(ctx, run)
		panic("logged")
	}
}

// A store may call the Runner from inside each of its methods.
func TestG10_AStoreMayCallBack(t *testing.T) {
	for _, op := range []subagenttest.Op{subagenttest.OpCreate, subagenttest.OpGet, subagenttest.OpUpdate, subagenttest.OpList,
		subagenttest.OpDelete, subagenttest.OpRenew, subagenttest.OpLive} {
		t.Run(string(op), func(t *testing.T) {
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				var inside atomic.Bool
				var calls atomic.Int64 // bounded: what is spawned there calls back, too
				r.store.On(op, func(c subagenttest.Call) subagenttest.Fault {
					if calls.Load() < 20 && inside.CompareAndSwap(false, true) {
						calls.Add(1)
						r.callBack(c.IDs)
						inside.Store(false)
					}
					return subagenttest.Fault{}
				})
				for range 3 {
					task := r.spawn("a")
					r.gate.Release(task.ID, subagent.Result{}, nil)
					r.awaited(task.ID)
					require.NoError(t, r.Forget(r.ctx, task.ID))
					_, err := r.Get(r.ctx, task.ID)
					require.ErrorIs(t, err, subagent.ErrNotFound)
				}
				foreign := subagent.Task{ID: uuid.Must(uuid.NewV7()), ParentSessionID: "f", Description: "f", Status: subagent.StatusRunning, Owner: "dead"}
				require.NoError(t, r.inner.Create(r.ctx, foreign))
				time.Sleep(time.Minute) // leases are renewed, and what is dead recovered
				got, err := r.Get(r.ctx, foreign.ID)
				require.NoError(t, err)
				require.Equal(t, subagent.ReasonLost, got.Reason)
				r.gate.ReleaseAll()
				time.Sleep(time.Minute)
				require.NotZero(t, calls.Load())
			})
		})
	}
}

// callBack makes every call of the Runner that returns soon.
func (r *rig) callBack(ids []uuid.UUID) {
	soon, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err := r.List(soon, subagent.Filter{})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		r.t.Errorf("List: %v", err)
	}
	for _, id := range ids {
		_, _ = r.Get(soon, id)
		_, _ = r.Wait(soon, id)
		r.QueuePosition(id)
	}
	task, err := r.Spawn(soon, rigAsk("called back"))
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, subagent.ErrClosed) {
		r.t.Errorf("Spawn: %v", err)
	}
	_, _ = r.Cancel(soon, task.ID, subagent.CancelOptions{})
	_, _ = r.CancelSession(soon, "none", subagent.CancelOptions{})
	_ = r.Forget(soon, uuid.New())
	_, _ = r.Prune(soon, subagent.Filter{SessionID: "none"}, time.Now())
	_, _ = r.UsageTree(soon, task.ID)
	r.Stats()
	r.Subscribe(subagent.Filter{}).Close()
}

// The sinks and the logger may call everything of the Runner.
func TestG10_SinksMayCallBack(t *testing.T) {
	for _, sink := range []string{"cards", "notifier", "logger"} {
		t.Run(sink, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var r *rig
				var calls, inside atomic.Int64
				back := func(ids ...uuid.UUID) {
					if inside.Add(1) == 1 && calls.Add(1) <= 20 {
						r.callBack(ids)
					}
					inside.Add(-1)
				}
				p, cfg := newTape(), subagent.Config{Workers: 2}
				switch sink {
				case "cards":
					p.onCard = func(_ context.Context, c subagent.Card) error { back(c.TaskID); return nil }
				case "notifier":
					p.onNotice = func(_ context.Context, t subagent.Task) error { back(t.ID); return nil }
				default:
					cfg.Logger = slog.New(logHook(func(string) { back() }))
				}
				r = newRig(t, cfg, p)
				r.run(func(t *testing.T, r *rig) {
					for range 3 {
						task := r.spawn("x", func(q *subagent.Request) { q.Func = panics("logged") })
						time.Sleep(time.Minute)
						require.Equal(t, subagent.ReasonPanic, r.settled(task.ID).Reason)
					}
					require.NotZero(t, calls.Load())
				})
			})
		})
	}
}

// A card stops its own task: whatever the state that it shows.
func TestG10_ACardMayStopItsTask(t *testing.T) {
	for _, at := range []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning} {
		t.Run(string(at), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := newTape()
				var r *rig
				p.onCard = func(ctx context.Context, c subagent.Card) error {
					if c.Attach.Status == string(at) {
						got, err := r.Cancel(ctx, c.TaskID, subagent.CancelOptions{Reason: "policy"})
						require.NoError(t, err)
						require.Equal(t, c.TaskID, got.ID)
					}
					return nil
				}
				r = newRig(t, subagent.Config{}, p)
				r.run(func(t *testing.T, r *rig) {
					task := r.spawn("x")
					require.Equal(t, at == subagent.StatusPending || at == subagent.StatusQueued, task.Status.Terminal())
					end := r.awaited(task.ID)
					require.Equal(t, subagent.Reason("policy"), end.Reason)
					require.Zero(t, r.gate.Inside(), "it was never entered")
					r.settled(task.ID)
				})
			})
		})
	}
}

// What the log is told after a logger has misbehaved still comes through.
func TestG16_TheLogGoesOn(t *testing.T) {
	for name, trouble := range map[string]func(){"panic": func() { panic("logger") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var lines []string
			logger := slog.New(logHook(func(text string) {
				mu.Lock()
				lines = append(lines, text)
				first := len(lines) == 1
				mu.Unlock()
				if first {
					trouble()
				}
			}))
			inRig(t, subagent.Config{Logger: logger}, func(t *testing.T, r *rig) {
				for range 3 {
					r.awaited(r.spawn("x", func(q *subagent.Request) { q.Func = panics("logged") }).ID)
					synctest.Wait()
				}
			})
			require.Len(t, lines, 3)
		})
	}
}

func TestCards_AreGivenBeforeSpawnReturns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newTape()
		p.onCard = func(context.Context, subagent.Card) error { time.Sleep(3 * time.Second); return nil }
		newRig(t, subagent.Config{}, p).run(func(t *testing.T, r *rig) {
			task := r.spawn("x")
			cards, _, _ := r.heard(task.ID)
			require.Len(t, cards, 2)
			require.Equal(t, "pending", cards[0].Attach.Status)
			require.Equal(t, "queued", cards[1].Attach.Status)
			r.gate.Release(task.ID, subagent.Result{Text: "done"}, nil)
			r.awaited(task.ID)
			cards, _, _ = r.heard(task.ID)
			require.Equal(t, "done", cards[len(cards)-1].Content, "the card comes before the waiters wake")
		})
	})
}

// A sink that does not answer holds Spawn for one StoreTimeout.
func TestCards_ADeafSinkHoldsSpawnForOneStoreTimeout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newTape()
		p.onCard = func(context.Context, subagent.Card) error { time.Sleep(5 * time.Minute); return nil }
		newRig(t, subagent.Config{}, p).run(func(t *testing.T, r *rig) {
			start := time.Now()
			task := r.spawn("x")
			require.LessOrEqual(t, time.Since(start), 10*time.Second)
			r.gate.WaitEntered(t, task.ID)
			r.gate.Release(task.ID, subagent.Result{}, nil)
			start = time.Now()
			r.awaited(task.ID)
			require.LessOrEqual(t, time.Since(start), 10*time.Second)
			time.Sleep(20 * time.Minute)
			r.settled(task.ID)
		})
	})
}

// After failures the sink gets the newest state only, with growing pauses.
func TestCards_OnlyTheNewestStateIsRepeated(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newTape()
		tries := new(attempts)
		p.onCard = func(context.Context, subagent.Card) error { return tries.try() }
		newRig(t, subagent.Config{}, p).run(func(t *testing.T, r *rig) {
			id, _ := r.runs("x")
			r.gate.Release(id, subagent.Result{Text: "newest"}, nil)
			synctest.Wait()
			start := time.Now()
			n := len(tries.times())
			require.LessOrEqual(t, n, 4, "one for each transition")
			time.Sleep(10 * time.Minute)
			again := tries.times()[n:]
			r.growing(again)
			require.Less(t, again[0].Sub(start), 2*time.Second)
			tries.mend()
			time.Sleep(31 * time.Second)
			cards, _, _ := r.heard(id)
			require.Len(t, cards, 1)
			require.Equal(t, "newest", cards[0].Content)
		})
	})
}

// A task that makes a transition while its card waits to be repeated has the
// new one put at once, and the old one never.
func TestCards_ATransitionComesBeforeTheRepetition(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newTape()
		p.onCard = func(_ context.Context, c subagent.Card) error {
			if c.Attach.Status == "running" {
				return errBroken
			}
			return nil
		}
		newRig(t, subagent.Config{}, p).run(func(t *testing.T, r *rig) {
			id, _ := r.runs("x")
			time.Sleep(10*time.Minute + time.Second)
			r.gate.Release(id, subagent.Result{Text: "done"}, nil)
			start := time.Now()
			r.awaited(id)
			synctest.Wait() // nobody waits for a sink that has failed
			require.Equal(t, start, time.Now())
			cards, _, _ := r.heard(id)
			require.Equal(t, "done", cards[len(cards)-1].Content)
			require.NotContains(t, cardStatuses(cards), "running")
		})
	})
}

func cardStatuses(cards []subagent.Card) string {
	var all []string
	for _, c := range cards {
		all = append(all, c.Attach.Status)
	}
	return strings.Join(all, " ")
}

// For one task there is one call at a time, in order, however slow the sink is;
// other tasks' cards do not wait for it.
func TestCards_OneAtATimeForEachTask(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rng := seeded(t)
		p := newTape()
		var mu sync.Mutex
		inside := map[uuid.UUID]int{}
		together := 0
		p.onCard = func(_ context.Context, c subagent.Card) error {
			mu.Lock()
			inside[c.TaskID]++
			if inside[c.TaskID] > 1 {
				t.Errorf("two cards of one task at once")
			}
			together = max(together, len(inside))
			pause, fails := time.Duration(rng.IntN(20_000))*time.Millisecond, rng.IntN(4) == 0
			mu.Unlock()
			time.Sleep(pause)
			mu.Lock()
			delete(inside, c.TaskID)
			mu.Unlock()
			if fails {
				return errBroken
			}
			return nil
		}
		newRig(t, subagent.Config{Workers: 20}, p).run(func(t *testing.T, r *rig) {
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					end, err := r.Run(r.ctx, rigAsk("x", func(q *subagent.Request) { q.Func = gives("done", nil) }))
					require.NoError(t, err)
					require.Equal(t, subagent.StatusCompleted, end.Status)
				})
			}
			all.Wait()
			time.Sleep(10 * time.Minute)
			mu.Lock()
			defer mu.Unlock()
			require.Greater(t, together, 5)
			for row := range r.inner.List(r.ctx, subagent.Filter{}) {
				cards, _, _ := r.heard(row.ID)
				require.Equal(t, "done", cards[len(cards)-1].Content)
			}
		})
	})
}

// A cancel that was asked for is no transition, and no card.
func TestCards_StoppingIsShownByTheEventAlone(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		id, _ := r.runs("x", r.deaf)
		r.stop(id)
		synctest.Wait()
		cards, events, _ := r.heard(id)
		require.Equal(t, "pending queued running", cardStatuses(cards))
		require.True(t, slices.ContainsFunc(events, func(ev subagent.Event) bool {
			return ev.Task.Status == subagent.StatusRunning && !ev.Task.CancelRequestedAt.IsZero()
		}))
		r.gate.Release(id, subagent.Result{}, nil)
		r.awaited(id)
	})
}
