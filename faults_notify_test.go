package subagent_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
)

// What is told of a task goes to the session that started it, whatever other
// session is busy when it ends: also what is told of its children.
func TestB099_AnEndIsToldToItsOwnSession(t *testing.T) {
	inRig(t, subagent.Config{Workers: 3}, func(t *testing.T, r *rig) {
		elsewhere := newTape()
		go elsewhere.listen(r.Subscribe(subagent.Filter{SessionID: "B"})) // ends with the Runner
		kids := make(chan uuid.UUID, 1)
		parent := r.spawn("parent", inSession("A"), withFunc(func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			kid, err := r.Spawn(ctx, subagent.Request{Description: "kid", Func: r.gate.Func()})
			kids <- kid.ID
			if err != nil {
				return subagent.Result{}, err
			}
			return r.gate.Func()(ctx, run)
		})).ID
		kid := <-kids
		other, _ := r.runs("other", inSession("B"))
		for _, id := range []uuid.UUID{parent, kid} {
			r.gate.Release(id, subagent.Result{Text: "for A"}, nil)
		}
		synctest.Wait()
		for _, id := range []uuid.UUID{parent, kid} {
			require.Equal(t, "A", r.settled(id).ParentSessionID)
			cards, events, notices := r.heard(id)
			for _, card := range cards {
				require.Equal(t, "A", card.Attach.SessionID)
			}
			for _, ev := range events {
				require.Equal(t, "A", ev.Task.ParentSessionID)
			}
			require.Len(t, notices, 1)
			require.Equal(t, "A", notices[0].ParentSessionID)
			_, events, _ = elsewhere.heard(id)
			require.Empty(t, events, "whoever listens to B hears nothing of it")
		}
		require.Equal(t, subagent.StatusRunning, r.row(other).Status)
		_, _, notices := r.heard(other)
		require.Empty(t, notices)
	})
}

// Tasks of one chat that look alike: each notice is of one record, and none
// comes twice, also where the first was refused until the second had ended.
func TestB100_ANoticeIsOfOneRecord(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprintf("first refused %v", refused), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := newTape()
				calls := 0
				p.onNotice = func(context.Context, subagent.Task) error {
					if calls++; refused && calls < 3 {
						return errBroken
					}
					return nil
				}
				newRig(t, subagent.Config{}, p).run(func(t *testing.T, r *rig) {
					var ids []uuid.UUID
					for _, name := range []string{"a", "b", "c"} {
						id, _ := r.runs(name, func(q *subagent.Request) { q.ExternalTaskID, q.Subject = "call_0", "same" })
						r.gate.Release(id, subagent.Result{Text: name + "'s"}, nil)
						synctest.Wait()
						ids = append(ids, id)
					}
					time.Sleep(time.Minute)
					require.Equal(t, ids, r.delivered())
					for i, id := range ids {
						name := string(rune('a' + i))
						end := r.settled(id)
						require.Equal(t, name+" "+name+"'s", end.Description+" "+end.ResultText)
						_, _, notices := r.heard(id)
						require.Len(t, notices, 1)
						require.Equal(t, essence(end), essence(notices[0]))
					}
				})
			})
		})
	}
}

// Sixteen tasks that end in one instant are sixteen notices, however quick the
// notifier is and however they end.
func TestB104_SixteenEndsAtOnce(t *testing.T) {
	for _, how := range []string{"completed", "stopped", "completed, slowly told", "stopped, refused at first"} {
		t.Run(how, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := newTape()
				var calls atomic.Int64
				p.onNotice = func(context.Context, subagent.Task) error {
					switch {
					case strings.HasSuffix(how, "slowly told"):
						time.Sleep(5 * time.Second)
					case strings.HasSuffix(how, "refused at first") && calls.Add(1)%2 == 1:
						return errBroken
					}
					return nil
				}
				newRig(t, subagent.Config{Workers: 16}, p).run(func(t *testing.T, r *rig) {
					var ids []uuid.UUID
					for i := range 16 {
						id, _ := r.runs(fmt.Sprint(i))
						ids = append(ids, id)
					}
					if strings.HasPrefix(how, "stopped") {
						_, err := r.CancelSession(r.ctx, "s", subagent.CancelOptions{})
						require.NoError(t, err)
					}
					r.gate.ReleaseAll()
					time.Sleep(10 * time.Minute)
					require.ElementsMatch(t, ids, r.delivered())
					for _, id := range ids {
						require.False(t, r.settled(id).NotifiedAt.IsZero())
					}
				})
			})
		})
	}
}

// A notifier that takes nothing for ten minutes: the result is stored and can
// be read, its delivery is seen to be missing, and it comes when it can. The same
// of a card.
func TestB105_ANotifierThatTakesNothingForTenMinutes(t *testing.T) {
	for _, fault := range sinkFaults[:3] {
		t.Run(fault.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := newTape()
				start := time.Now()
				trouble := func(ctx context.Context) error {
					if time.Since(start) < 10*time.Minute {
						return fault.do(ctx)
					}
					return nil
				}
				p.onCard = func(ctx context.Context, _ subagent.Card) error { return trouble(ctx) }
				p.onNotice = func(ctx context.Context, _ subagent.Task) error { return trouble(ctx) }
				var lines atomic.Int64
				log := slog.New(logHook(func(text string) {
					if strings.Contains(text, "notice not delivered") {
						lines.Add(1)
					}
				}))
				newRig(t, subagent.Config{Logger: log}, p).run(func(t *testing.T, r *rig) {
					id := r.spawn("x", withFunc(gives("the result", nil))).ID
					time.Sleep(9*time.Minute - time.Since(start))
					got, err := r.Get(r.ctx, id)
					require.NoError(t, err)
					require.Equal(t, "the result", got.ResultText)
					require.Equal(t, got, r.row(id))
					require.Zero(t, got.NotifiedAt, "it is seen that it was not delivered")
					owed, err := r.List(r.ctx, subagent.Filter{Undelivered: true})
					require.NoError(t, err)
					require.Len(t, owed, 1)
					require.Positive(t, lines.Load(), "it is logged")
					require.Empty(t, r.delivered())
					time.Sleep(4 * time.Minute) // of which a deaf call may take two
					require.Equal(t, []uuid.UUID{id}, r.delivered())
					require.False(t, r.settled(id).NotifiedAt.IsZero())
				})
			})
		})
	}
}

// Whoever waits for a task goes on when it ends, whatever the notifier does;
// a card sink that does not answer holds him for one StoreTimeout.
func TestB106_WaitersDoNotDependOnSinks(t *testing.T) {
	for _, fault := range sinkFaults {
		for _, sink := range []string{"notifier", "card sink"} {
			t.Run(sink+" "+fault.name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) { waitersWith(t, sink, fault.do) })
			})
		}
	}
}

func waitersWith(t *testing.T, sink string, trouble func(context.Context) error) {
	p := newTape()
	var mended atomic.Bool
	if sink == "notifier" {
		p.onNotice = func(ctx context.Context, _ subagent.Task) error {
			if mended.Load() {
				return nil
			}
			return trouble(ctx)
		}
	} else {
		p.onCard = func(ctx context.Context, c subagent.Card) error {
			if !mended.Load() && c.Attach.Label == "x" && c.Attach.Status == string(subagent.StatusCompleted) {
				return trouble(ctx)
			}
			return nil
		}
	}
	newRig(t, subagent.Config{Workers: 5}, p).run(func(t *testing.T, r *rig) {
		// Another end has the notifier of this session busy already.
		r.spawn("earlier", withFunc(gives("", nil)))
		id, _ := r.runs("x")
		back := make(chan time.Time, 3)
		for _, wait := range []func(ctx context.Context) error{
			func(ctx context.Context) error { _, err := r.Wait(ctx, id); return err },
			func(ctx context.Context) error { _, err := r.Await(ctx, subagent.AwaitAll, id); return err },
			func(ctx context.Context) error { _, err := r.Await(ctx, subagent.AwaitAny, id); return err },
		} {
			r.spawn("parent", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
				err := wait(ctx)
				back <- time.Now()
				return subagent.Result{}, err
			}))
		}
		time.Sleep(time.Minute)
		ended := time.Now()
		r.gate.Release(id, subagent.Result{Text: "done"}, nil)
		held := time.Duration(0)
		if sink == "card sink" {
			held = 10 * time.Second
		}
		for range 3 {
			require.LessOrEqual(t, (<-back).Sub(ended), held)
		}
		mended.Store(true)
		time.Sleep(10 * time.Minute)
		require.Equal(t, "done", r.settled(id).ResultText)
	})
}

// Every way to end without ever working, and each end by a shutdown, is told
// once, with its reason.
func TestB109_EndsWithoutAStartAreTold(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(r *rig)
		change func(*subagent.Request)
		act    func(r *rig, id uuid.UUID)
		status subagent.Status
		reason subagent.Reason
	}{
		{"stopped in the queue", occupied, nil, stopIt, subagent.StatusCancelled, subagent.ReasonAgent},
		{"stopped while pending", delaying(subagent.StatusQueued), nil, stopIt, subagent.StatusCancelled, subagent.ReasonAgent},
		{"stopped at the start", delaying(subagent.StatusRunning), nil, stopIt, subagent.StatusCancelled, subagent.ReasonAgent},
		{"its session was stopped", occupied, nil, func(r *rig, _ uuid.UUID) {
			_, err := r.CancelSession(r.ctx, "s", subagent.CancelOptions{})
			require.NoError(r.t, err)
		}, subagent.StatusCancelled, subagent.ReasonSession},
		{"shut down in the queue", occupied, nil, shutItDown, subagent.StatusCancelled, subagent.ReasonShutdown},
		{"shut down while it ran", nil, nil, shutItDown, subagent.StatusErrored, subagent.ReasonShutdown},
		{"shut down, deaf", nil, func(q *subagent.Request) {
			q.Func = func(context.Context, *subagent.Run) (subagent.Result, error) {
				time.Sleep(30 * time.Minute)
				return subagent.Result{}, nil
			}
		}, shutItDown, subagent.StatusErrored, subagent.ReasonShutdown},
		{"waited too long", occupied, queueTimeout(time.Minute), nil, subagent.StatusErrored, subagent.ReasonQueueTimeout},
		{"the store refused it", refusing(subagent.StatusQueued), nil, nil, subagent.StatusErrored, subagent.ReasonStore},
	} {
		t.Run(c.name, func(t *testing.T) {
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				if c.before != nil {
					c.before(r)
				}
				id := uuid.Must(uuid.NewV7())
				go func() { // ends with the call, within StoreTimeout
					_, _ = r.Spawn(r.ctx, rigAsk("x", withID(id), func(q *subagent.Request) {
						if c.change != nil {
							c.change(q)
						}
					}))
				}()
				synctest.Wait()
				if c.act != nil {
					c.act(r, id)
				}
				time.Sleep(time.Hour)
				end := r.settled(id)
				require.Equal(t, string(c.status+" ")+string(c.reason), string(end.Status+" ")+string(end.Reason))
				_, _, notices := r.heard(id)
				require.Len(t, notices, 1)
				require.Equal(t, c.reason, notices[0].Reason)
				r.heal()
			})
		})
	}
}

// A child that ends after its parent, however that one ended: its notice goes
// to the session and is not dropped.
func TestB111_ANoticeOutlivesTheParent(t *testing.T) {
	for _, how := range []string{"completed", "errored", "panicked", "stopped", "forgotten"} {
		for _, session := range []string{"", "another"} {
			t.Run(how+" "+session, func(t *testing.T) {
				inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
					kids := make(chan uuid.UUID, 1)
					parent := r.spawn("parent", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
						kid, err := r.Spawn(ctx, subagent.Request{Description: "kid", ParentSessionID: session, Independent: how == "stopped", Func: r.gate.Func()})
						require.NoError(t, err)
						kids <- kid.ID
						switch how {
						case "errored":
							return subagent.Result{}, errBroken
						case "panicked":
							panic("parent")
						case "stopped":
							<-ctx.Done()
						}
						return subagent.Result{}, nil
					})).ID
					kid := <-kids
					if how == "stopped" {
						r.stop(parent)
					}
					r.awaited(parent)
					if how == "forgotten" {
						require.NoError(t, r.Forget(r.ctx, parent))
					}
					time.Sleep(time.Minute)
					r.gate.Release(kid, subagent.Result{Text: "late"}, nil)
					end := r.settled(kid)
					_, _, notices := r.heard(kid)
					require.Len(t, notices, 1)
					require.Equal(t, "late", notices[0].ResultText)
					require.Equal(t, parent, end.ParentTaskID)
					require.Equal(t, map[string]string{"": "s", "another": "another"}[session], notices[0].ParentSessionID)
				})
			})
		}
	}
}

// A thousand lives of every sort: each has one last event, and only those that
// ran were ever shown running.
func TestB112_EachStartHasOneEnd(t *testing.T) {
	seed := seeded(t)
	bubble.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(seed.Uint64(), 0))
		r, err := subagent.New(t.Context(), subagent.Config{Workers: 20, MaxQueued: -1, CancelGrace: 10 * time.Millisecond})
		require.NoError(t, err)
		p := newTape()
		news := r.Subscribe(subagent.Filter{})
		read := make(chan struct{})
		go func() { // ends with the Runner
			defer close(read)
			p.listen(news)
		}()
		var ids []uuid.UUID
		for range 1000 {
			task, err := r.Spawn(t.Context(), rigAsk("x", withFunc(eventLife(rnd.Uint64())), queueTimeout(time.Duration(1+rnd.IntN(300))*time.Millisecond)))
			require.NoError(t, err)
			ids = append(ids, task.ID)
			if rnd.IntN(3) == 0 {
				time.Sleep(time.Millisecond)
			}
			if rnd.IntN(3) == 0 {
				_, err := r.Cancel(t.Context(), ids[max(0, len(ids)-1-rnd.IntN(40))], subagent.CancelOptions{})
				require.NoError(t, err)
			}
		}
		time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
		require.NoError(t, r.Shutdown(t.Context()))
		<-read
		kinds := map[string]int{}
		for _, id := range ids {
			events := p.events[id]
			last := events[len(events)-1].Task
			ran := slices.ContainsFunc(events, func(e subagent.Event) bool { return e.Task.Status == subagent.StatusRunning })
			ends := slices.DeleteFunc(slices.Clone(events), func(e subagent.Event) bool { return !e.Task.Status.Terminal() })
			require.Len(t, ends, 1)
			require.True(t, last.Status.Terminal(), "nothing comes after it")
			started := !last.StartedAt.IsZero()
			require.True(t, started || !ran, "it never started, and was shown running: %+v", last)
			kinds[fmt.Sprint(last.Status, " started ", started)]++
		}
		require.Len(t, kinds, 5, "%v: only those that ran complete", kinds)
	})
}

// A notice tells the stored end: of a success just before a deadline, of the
// notifier's own deadline too, it is the success, with all of its text.
func TestB113_ASuccessJustInTime(t *testing.T) {
	text := strings.Repeat("long ", 380)
	for _, tries := range []int{1, 3} {
		t.Run(fmt.Sprintf("taken at call %d", tries), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := newTape()
				var told []subagent.Task
				p.onNotice = func(ctx context.Context, task subagent.Task) error {
					if told = append(told, task); len(told) < tries {
						<-ctx.Done() // its own deadline
						return ctx.Err()
					}
					return nil
				}
				newRig(t, subagent.Config{Timeout: time.Minute}, p).run(func(t *testing.T, r *rig) {
					id := r.spawn("x", withFunc(func(context.Context, *subagent.Run) (subagent.Result, error) {
						time.Sleep(time.Minute - time.Nanosecond)
						return subagent.Result{Text: text}, nil
					})).ID
					time.Sleep(10 * time.Minute)
					end := r.settled2(id)
					require.Equal(t, subagent.StatusCompleted, end.Status)
					require.Len(t, told, tries)
					for _, n := range told {
						require.Equal(t, essence(end), essence(n))
						require.Equal(t, text, n.ResultText)
					}
				})
			})
		})
	}
}
