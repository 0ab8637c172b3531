package subagent_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
)

// insider calls the Runner once from inside a sink, a logger or the reader of
// a subscription.
type insider struct {
	r     *rig
	armed atomic.Bool
	at    subagent.Status // of the card that it acts on; "": of any
	done  chan error      // what the call came to
}

// inInsider runs f with a rig whose sink calls act when it is armed. The id is
// that of the task that the sink is told of; none in a logger.
func inInsider(t *testing.T, sink string, workers int, act func(ctx context.Context, r *rig, id uuid.UUID) error, f func(t *testing.T, in *insider)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		in := &insider{done: make(chan error, 1)}
		call := func(ctx context.Context, id uuid.UUID) {
			if in.armed.CompareAndSwap(true, false) {
				in.done <- act(ctx, in.r, id)
			}
		}
		p, cfg := newTape(), subagent.Config{Workers: workers}
		switch sink {
		case "cards":
			p.onCard = func(ctx context.Context, c subagent.Card) error {
				if in.at == "" || string(in.at) == c.Attach.Status {
					call(ctx, c.TaskID)
				}
				return nil
			}
		case "notifier":
			p.onNotice = func(ctx context.Context, t subagent.Task) error { call(ctx, t.ID); return nil }
		case "logger":
			cfg.Logger = slog.New(logHook(func(string) { call(context.Background(), uuid.Nil) }))
		}
		in.r = newRig(t, cfg, p)
		in.r.run(func(t *testing.T, r *rig) {
			if sink == "reader" {
				sub := r.Subscribe(subagent.Filter{})
				go func() { // ends with the Runner
					for {
						ev, err := sub.Next(context.Background())
						if err != nil {
							return
						}
						call(r.ctx, ev.Task.ID)
					}
				}()
			}
			f(t, in)
		})
	})
}

// came returns what the call came to, within a minute.
func (in *insider) came() error {
	in.r.t.Helper()
	select {
	case err := <-in.done:
		return err
	case <-time.After(time.Minute):
		require.FailNow(in.r.t, "the call did not return")
		return nil
	}
}

var insidePlaces = []string{"cards", "notifier", "logger", "reader"}

// A sink may lead another task through its whole life, also where the task
// that it was told of holds the only slot: that one waits for its sink no
// longer than a StoreTimeout.
func TestG10_SinksMayLeadOtherTasks(t *testing.T) {
	for _, sink := range insidePlaces {
		for _, workers := range []int{1, 2} {
			t.Run(sink, func(t *testing.T) {
				lead := func(_ context.Context, r *rig, _ uuid.UUID) error {
					other, err := r.Spawn(r.ctx, rigAsk("other", func(q *subagent.Request) { q.Func = panics("logged, too") }))
					if err != nil {
						return err
					}
					stopped, err := r.Spawn(r.ctx, rigAsk("stopped"))
					if err != nil {
						return err
					}
					if _, err = r.Cancel(r.ctx, stopped.ID, subagent.CancelOptions{}); err != nil {
						return err
					}
					ends, err := r.Await(r.ctx, subagent.AwaitAll, other.ID, stopped.ID)
					if err != nil {
						return err
					}
					require.Equal(t, subagent.ReasonPanic, ends[0].Reason)
					require.Equal(t, subagent.StatusCancelled, ends[1].Status)
					if got, err := r.Get(r.ctx, other.ID); err != nil || !got.Status.Terminal() {
						return err
					}
					if _, err := r.List(r.ctx, subagent.Filter{}); err != nil {
						return err
					}
					return r.Forget(r.ctx, other.ID, stopped.ID)
				}
				inInsider(t, sink, workers, lead, func(t *testing.T, in *insider) {
					in.at = subagent.StatusRunning // it holds its slot then
					in.armed.Store(true)
					start := time.Now()
					task := in.r.spawn("x", func(q *subagent.Request) { q.Func = panics("logged") })
					if sink != "notifier" { // else no notice would be owed
						in.r.awaited(task.ID)
						require.LessOrEqual(t, time.Since(start), 10*time.Second)
					}
					require.NoError(t, in.came())
					require.Equal(t, subagent.ReasonPanic, in.r.awaited(task.ID).Reason)
					time.Sleep(time.Minute)
					list, err := in.r.List(in.r.ctx, subagent.Filter{})
					require.NoError(t, err)
					require.Len(t, list, 1)
					require.False(t, list[0].NotifiedAt.IsZero())
				})
			})
		}
	}
}

// What a sink does with the very task that it is told of takes effect, and a
// wait for it there ends with the ctx of the call.
func TestG10_SinksMayActOnTheirTask(t *testing.T) {
	waits := func(ctx context.Context, r *rig, id uuid.UUID) error {
		_, err := r.Wait(ctx, id)
		return err
	}
	forgets := func(ctx context.Context, r *rig, id uuid.UUID) error { return r.Forget(ctx, id) }
	for _, c := range []struct {
		sink, what string
		act        func(context.Context, *rig, uuid.UUID) error
		live       bool // it is told of a task that has not ended
		want       error
		gone       bool
	}{
		{"cards", "waits", waits, true, context.DeadlineExceeded, false},
		{"cards", "waits at the end", waits, false, context.DeadlineExceeded, false},
		{"cards", "forgets", forgets, true, subagent.ErrNotTerminal, false},
		{"cards", "forgets at the end", forgets, false, nil, true},
		{"notifier", "waits", waits, false, nil, false},
		{"notifier", "forgets", forgets, false, nil, true},
		{"reader", "waits", waits, false, nil, false},
		{"reader", "forgets", forgets, true, subagent.ErrNotTerminal, false},
		{"reader", "forgets at the end", forgets, false, nil, true},
	} {
		t.Run(c.sink+" "+c.what, func(t *testing.T) {
			inInsider(t, c.sink, 1, c.act, func(t *testing.T, in *insider) {
				in.armed.Store(c.live)
				task := in.r.spawn("x")
				in.r.gate.WaitEntered(t, task.ID)
				synctest.Wait()
				in.armed.Store(!c.live)
				in.r.gate.Release(task.ID, subagent.Result{Text: "done"}, nil)
				err := in.came()
				switch {
				case c.what == "waits at the end" && err == nil:
					// The task had stopped waiting for its sink at that moment.
				case c.want != nil:
					require.ErrorIs(t, err, c.want)
				default:
					require.NoError(t, err)
				}
				time.Sleep(time.Minute)
				got, err := in.r.Get(in.r.ctx, task.ID)
				if c.gone {
					require.ErrorIs(t, err, subagent.ErrNotFound)
				} else {
					require.NoError(t, err)
					require.Equal(t, "done", got.ResultText)
					require.False(t, got.NotifiedAt.IsZero())
				}
				next := in.r.spawn("next", func(q *subagent.Request) { q.NoWait, q.Func = true, gives("next", nil) })
				in.r.awaited(next.ID)
			})
		})
	}
}

// From a logger or a reader Shutdown is called as from anywhere: it returns,
// although a logger is itself waited for, once a StoreTimeout has passed.
func TestG12_ShutdownFromALoggerOrAReader(t *testing.T) {
	for sink, longest := range map[string]time.Duration{"logger": 10 * time.Second, "reader": 0} {
		t.Run(sink, func(t *testing.T) {
			shut := func(ctx context.Context, r *rig, _ uuid.UUID) error { return r.Shutdown(ctx) }
			inInsider(t, sink, 1, shut, func(t *testing.T, in *insider) {
				in.armed.Store(true)
				task := in.r.spawn("x", func(q *subagent.Request) { q.Func = panics("logged") })
				start := time.Now()
				require.NoError(t, in.came())
				require.Equal(t, longest, time.Since(start))
				require.NoError(t, in.r.Shutdown(in.r.ctx))
				require.True(t, in.r.row(task.ID).Status.Terminal())
				require.False(t, in.r.row(task.ID).NotifiedAt.IsZero())
			})
		})
	}
}

// A reader that stops reading is a slow one: no task and no shutdown waits for
// it, and what it has not read is there for it later.
func TestG9_AReaderThatStopsReading(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		slow := r.Subscribe(subagent.Filter{})
		var one uuid.UUID
		start := time.Now()
		for range 100 {
			one = r.spawn("x", func(q *subagent.Request) { q.Func = gives("done", nil) }).ID
			r.awaited(one)
		}
		require.Zero(t, time.Since(start))
		first, err := slow.Next(r.ctx)
		require.NoError(t, err)
		require.Equal(t, subagent.EventCreated, first.Type)
		require.Equal(t, subagent.StatusCompleted, first.Task.Status, "merged to the end")
		require.NoError(t, r.Shutdown(r.ctx))
		for range 98 {
			_, err := slow.Next(r.ctx)
			require.NoError(t, err)
		}
		last, err := slow.Next(r.ctx)
		require.NoError(t, err)
		require.Equal(t, one, last.Task.ID)
		_, err = slow.Next(r.ctx)
		require.ErrorIs(t, err, subagent.ErrClosed)
	})
}
