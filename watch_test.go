package subagent_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
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

// board is what the processes that share a store tell each other by.
type board struct {
	inner *subagent.MemoryStore

	mu  sync.Mutex // guards what follows
	fns map[string]func(subagent.Task)
}

// watched is one process's store: it tells the other's Runner of its changes.
type watched struct {
	subagent.Store
	subagent.Leaser
	board *board
	watch func(ctx context.Context, n int64, owner string, fn func(subagent.Task)) error // nil: as it should be
	calls atomic.Int64
}

func newWatched(b *board) *watched {
	return &watched{Store: b.inner, Leaser: b.inner, board: b}
}

func (w *watched) Watch(ctx context.Context, owner string, fn func(subagent.Task)) error {
	n := w.calls.Add(1)
	if w.watch != nil {
		if err := w.watch(ctx, n, owner, fn); !errors.Is(err, errWatchOn) {
			return err
		}
	}
	w.board.mu.Lock()
	w.board.fns[owner] = fn
	w.board.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

// errWatchOn has a test's Watch go on as it should.
var errWatchOn = errors.New("watch on")

func (w *watched) Update(ctx context.Context, id uuid.UUID, edit func(*subagent.Task) error) (subagent.Task, error) {
	row, err := w.Store.Update(ctx, id, edit)
	if err == nil {
		w.board.tell(row)
	}
	return row, err
}

// tell tells the owner of a record of it, as a store may that does not know
// who has changed it.
func (b *board) tell(row subagent.Task) {
	b.mu.Lock()
	fns := make([]func(subagent.Task), 0, len(b.fns))
	for owner, fn := range b.fns {
		if owner == row.Owner || row.Status.Terminal() {
			fns = append(fns, fn)
		}
	}
	b.mu.Unlock()
	for _, fn := range fns {
		fn(row)
	}
}

// inWatched is a rig and another Runner, both on one store with Watch. The
// rig's is as watch says.
func inWatched(t *testing.T, cfg subagent.Config, watch func(context.Context, int64, string, func(subagent.Task)) error,
	f func(t *testing.T, one, two *rig, w *watched)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		b := &board{inner: subagent.NewMemoryStore(), fns: map[string]func(subagent.Task){}}
		w := newWatched(b)
		w.watch = watch
		cfg.Store = w
		rigOn(t, cfg, newTape(), b.inner, subagenttest.NewFaultyStore(b.inner)).run(func(t *testing.T, one *rig) {
			rigOn(t, subagent.Config{Store: newWatched(b)}, newTape(), b.inner, subagenttest.NewFaultyStore(b.inner)).run(func(t *testing.T, two *rig) {
				synctest.Wait()
				f(t, one, two, w)
			})
		})
	})
}

// With a Watcher the owner acts on another process's request at once.
func TestWatch_ARequestArrivesAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		busy, deaf bool
		want       time.Duration
	}{"running": {}, "deaf": {deaf: true, want: 30 * time.Second}, "queued": {busy: true}} {
		t.Run(name, func(t *testing.T) {
			inWatched(t, subagent.Config{}, nil, func(t *testing.T, one, two *rig, w *watched) {
				if c.busy {
					one.runs("blocker")
				}
				task := one.spawn("x", func(q *subagent.Request) {
					if c.deaf {
						q.Func = one.gate.DeafFunc()
					}
				})
				time.Sleep(3 * time.Second) // between two renewals
				start := time.Now()
				got, err := two.Cancel(t.Context(), task.ID, subagent.CancelOptions{Reason: "policy", Message: "over there"})
				require.NoError(t, err)
				require.False(t, got.CancelRequestedAt.IsZero())
				end := one.awaited(task.ID)
				require.Equal(t, c.want, time.Since(start))
				require.Equal(t, subagent.StatusCancelled, end.Status)
				require.Equal(t, subagent.Reason("policy"), end.Reason)
				require.Equal(t, "over there", end.CancelMessage)
				require.Equal(t, start.UTC(), end.CancelRequestedAt)
				require.Equal(t, c.deaf, end.Detached)
				require.Equal(t, c.busy, end.StartedAt.IsZero())
				one.gate.ReleaseAll()
				one.settled(task.ID)
				require.EqualValues(t, 1, w.calls.Load())
			})
		})
	}
}

// An end that another process has stored, because the lease was lost, arrives
// by the watch, too.
func TestWatch_AnotherEndArrivesAtOnce(t *testing.T) {
	inWatched(t, subagent.Config{}, nil, func(t *testing.T, one, two *rig, _ *watched) {
		cause := make(chan error, 1)
		task := one.spawn("x", func(q *subagent.Request) {
			q.Func = func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return subagent.Result{Text: "too late"}, nil
			}
		})
		synctest.Wait()
		require.NoError(t, one.inner.Release(t.Context(), one.ID()))
		got, err := two.Cancel(t.Context(), task.ID, subagent.CancelOptions{}) // whose owner seems dead
		require.NoError(t, err)
		require.Equal(t, subagent.ReasonLost, got.Reason)
		synctest.Wait()
		require.Len(t, cause, 1)
		require.ErrorIs(t, <-cause, subagent.ErrLost)
		seen, err := one.Get(t.Context(), task.ID)
		require.NoError(t, err)
		require.Equal(t, essence(one.row(task.ID)), essence(seen))
	})
}

// watchFaults are what a Watch may do in the place of its work.
var watchFaults = map[string]func() error{
	"fails":        func() error { return errBroken },
	"ends":         func() error { return nil },
	"says it's on": func() error { return context.Canceled },
	"panics":       func() error { panic("the store") },
	"calls Goexit": func() error { runtime.Goexit(); return nil },
}

// A Watch that does not last is called again, with growing pauses; until it
// lasts, requests are seen at the renewals.
func TestWatch_IsRepeatedUntilItLasts(t *testing.T) {
	for name, fault := range watchFaults {
		t.Run(name, func(t *testing.T) {
			var logged atomic.Int64
			var calls attempts
			cfg := subagent.Config{Workers: 2, Logger: slog.New(logHook(func(string) { logged.Add(1) }))}
			watch := func(context.Context, int64, string, func(subagent.Task)) error {
				if calls.try() != nil {
					return fault()
				}
				return errWatchOn
			}
			inWatched(t, cfg, watch, func(t *testing.T, one, two *rig, w *watched) {
				time.Sleep(5 * time.Minute)
				id, _ := one.runs("x")
				_, err := two.Cancel(t.Context(), id, subagent.CancelOptions{})
				require.NoError(t, err)
				start := time.Now()
				require.Equal(t, subagent.StatusCancelled, one.awaited(id).Status)
				require.LessOrEqual(t, time.Since(start), 10*time.Second)
				time.Sleep(5 * time.Minute)
				one.growing(calls.times())
				require.Equal(t, int64(len(calls.times())), logged.Load())
				calls.mend()
				time.Sleep(31 * time.Second)
				n := w.calls.Load()
				id, _ = one.runs("y")
				time.Sleep(time.Second)
				_, err = two.Cancel(t.Context(), id, subagent.CancelOptions{})
				require.NoError(t, err)
				start = time.Now()
				one.awaited(id)
				require.Zero(t, time.Since(start))
				require.Equal(t, n, w.calls.Load(), "it lasts")
			})
		})
	}
}

// A Watch that has lasted and ends is called again soon, however often it has
// failed before that.
func TestWatch_TheFirstPauseAfterALongWatchIsShort(t *testing.T) {
	var at []time.Time
	watch := func(ctx context.Context, n int64, _ string, _ func(subagent.Task)) error {
		at = append(at, time.Now())
		if n == 20 {
			select {
			case <-ctx.Done():
			case <-time.After(time.Hour):
			}
		}
		if n == 21 {
			return errWatchOn
		}
		return errBroken
	}
	inWatched(t, subagent.Config{}, watch, func(t *testing.T, _, _ *rig, _ *watched) {
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		require.Len(t, at, 21)
		require.Equal(t, 30*time.Second, at[19].Sub(at[18]))
		require.Less(t, at[20].Sub(at[19]), time.Hour+time.Second)
	})
}

// A Watch that does not heed its ctx holds Shutdown up for one StoreTimeout.
func TestWatch_ThatIsDeaf(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		watch := func(context.Context, int64, string, func(subagent.Task)) error {
			<-release
			return nil
		}
		w := newWatched(&board{inner: subagent.NewMemoryStore(), fns: map[string]func(subagent.Task){}})
		w.watch = watch
		r, err := subagent.New(t.Context(), subagent.Config{Store: w, Func: gives("done", nil)})
		require.NoError(t, err)
		end, err := r.Run(t.Context(), rigAsk("x"))
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCompleted, end.Status)
		start := time.Now()
		require.NoError(t, r.Shutdown(t.Context()))
		require.LessOrEqual(t, time.Since(start), 10*time.Second)
		close(release)
	})
}

// What a Watch says of tasks that are none, of other lives, of other states or
// after the end is heard and changes nothing.
func TestWatch_Nonsense(t *testing.T) {
	asked := func(row *subagent.Task) { row.CancelRequestedAt, row.Reason = time.Now().UTC(), subagent.ReasonUser }
	ended := func(row *subagent.Task) {
		row.Status, row.Reason, row.CompletedAt = subagent.StatusErrored, subagent.ReasonLost, time.Now().UTC()
	}
	for name, c := range map[string]func(row *subagent.Task){
		"nothing":         func(row *subagent.Task) { *row = subagent.Task{} },
		"an unknown task": func(row *subagent.Task) { row.ID = uuid.New(); asked(row) },
		"an unknown end":  func(row *subagent.Task) { row.ID = uuid.New(); ended(row) },
		"what is known":   func(*subagent.Task) {},
		"what was": func(row *subagent.Task) {
			row.Status, row.StartedAt, row.Version = subagent.StatusPending, time.Time{}, 1
		},
		"no state":            func(row *subagent.Task) { row.Status = "paused" },
		"an end that is none": func(row *subagent.Task) { ended(row); row.Version++ },
		"an old end":          func(row *subagent.Task) { ended(row); row.Version = 0 },
		"another life":        func(row *subagent.Task) { asked(row); row.CreatedAt = row.CreatedAt.Add(-time.Hour) },
		"another life's end":  func(row *subagent.Task) { ended(row); row.CreatedAt, row.Version = row.CreatedAt.Add(-time.Hour), 100 },
	} {
		t.Run(name, func(t *testing.T) {
			inWatched(t, subagent.Config{}, nil, func(t *testing.T, one, _ *rig, w *watched) {
				id, _ := one.runs("x")
				time.Sleep(time.Second)
				before := one.row(id)
				for range 3 {
					row := before
					c(&row)
					w.board.mu.Lock()
					fn := w.board.fns[one.ID()]
					w.board.mu.Unlock()
					fn(row)
					synctest.Wait()
					got, err := one.Get(t.Context(), id)
					require.NoError(t, err)
					require.Equal(t, before, got)
					require.Equal(t, before, one.row(id))
				}
				one.gate.Release(id, subagent.Result{Text: "done"}, nil)
				end := one.awaited(id)
				require.Equal(t, "done", end.ResultText)
				end = one.row(id)
				row := end
				row.Status, row.CompletedAt = subagent.StatusRunning, time.Time{}
				asked(&row)
				w.board.mu.Lock()
				fn := w.board.fns[one.ID()]
				w.board.mu.Unlock()
				fn(row)
				require.Equal(t, end, one.settled(id))
			})
		})
	}
}

// A request that another program has stored without the care of this one is
// obeyed, and what is made of it is within bounds.
func TestWatch_ARequestOfAnotherMake(t *testing.T) {
	for name, c := range map[string]struct {
		reason subagent.Reason
		text   string
		want   subagent.Reason
		shown  string
	}{
		"no reason":  {want: subagent.ReasonUser},
		"bad text":   {reason: "a\x00", text: "b\xff", want: subagent.ReasonUser, shown: "b\uFFFD"},
		"long texts": {reason: subagent.Reason(strings.Repeat("r", 257)), text: strings.Repeat("m", 5000), want: subagent.ReasonUser, shown: strings.Repeat("m", 2000)},
	} {
		t.Run(name, func(t *testing.T) {
			inWatched(t, subagent.Config{}, nil, func(t *testing.T, one, _ *rig, w *watched) {
				id, _ := one.runs("x")
				row := one.row(id)
				row.CancelRequestedAt, row.Reason, row.CancelMessage = time.Now().UTC(), c.reason, c.text
				w.board.tell(row)
				end := one.awaited(id)
				require.Equal(t, subagent.StatusCancelled, end.Status)
				require.Equal(t, c.want, end.Reason)
				require.Equal(t, c.shown, end.CancelMessage)
			})
		})
	}
}

// Watch may call from many goroutines at once, and after it was told to end.
func TestWatch_CallsFromEverywhere(t *testing.T) {
	var last func(subagent.Task)
	inWatched(t, subagent.Config{Workers: 10}, nil, func(t *testing.T, one, _ *rig, w *watched) {
		w.board.mu.Lock()
		last = w.board.fns[one.ID()]
		w.board.mu.Unlock()
		var rows []subagent.Task
		for range 10 {
			id, _ := one.runs("x", one.lingers)
			row := one.row(id)
			row.CancelRequestedAt, row.Reason = time.Now().UTC(), "policy"
			rows = append(rows, row)
		}
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() { last(rows[i%10]) })
		}
		all.Wait()
		for _, row := range rows {
			require.Equal(t, subagent.Reason("policy"), one.awaited(row.ID).Reason)
		}
		require.NoError(t, one.Shutdown(t.Context()))
		for _, row := range rows {
			last(row)
		}
	})
}
