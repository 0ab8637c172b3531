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

// lab is a Runner in a bubble, and everything that it tells of its tasks.
type lab struct {
	*subagent.Runner
	labSink

	t      *testing.T
	ctx    context.Context
	gate   *subagenttest.Gate
	store  *subagenttest.FaultyStore // the Runner's store, or, with a MemoryStore, a look into it
	events *subagent.Subscription
}

// labSink keeps the cards and the notices of each task.
type labSink struct {
	mu      sync.Mutex
	cards   map[uuid.UUID][]subagent.Card
	notices map[uuid.UUID][]subagent.Task
}

func (s *labSink) PutCard(_ context.Context, c subagent.Card) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cards[c.TaskID] = append(s.cards[c.TaskID], c)
	return nil
}

func (s *labSink) Notify(_ context.Context, t subagent.Task) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notices[t.ID] = append(s.notices[t.ID], t)
	return nil
}

func (s *labSink) told(id uuid.UUID) (cards []subagent.Card, notices []subagent.Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cards[id], s.notices[id]
}

// inLab runs f with a Runner whose store may be told to fail, and checks that
// nothing is left of its tasks when it is shut down. Func: the gate's; Workers: 1.
func inLab(t *testing.T, cfg subagent.Config, f func(t *testing.T, l *lab)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) { newLab(t, cfg, false).run(f) })
}

// inLabs runs f twice: with a store that is called like any other, and with a
// MemoryStore and no sinks, for which the Runner takes shorter ways.
func inLabs(t *testing.T, cfg subagent.Config, f func(t *testing.T, l *lab)) {
	t.Helper()
	for name, short := range map[string]bool{"any store": false, "memory": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { newLab(t, cfg, short).run(f) })
		})
	}
}

func newLab(t *testing.T, cfg subagent.Config, short bool) *lab {
	t.Helper()
	// A wait that never ends is to fail the test: the bubble's time never stands
	// still, because leases are renewed.
	ctx, cancel := context.WithTimeout(t.Context(), 48*time.Hour)
	t.Cleanup(cancel)
	l := &lab{t: t, ctx: ctx, gate: subagenttest.NewGate()}
	l.cards, l.notices = map[uuid.UUID][]subagent.Card{}, map[uuid.UUID][]subagent.Task{}
	memory := subagent.NewMemoryStore()
	l.store = subagenttest.NewFaultyStore(memory)
	switch {
	case cfg.Store != nil:
	case short:
		cfg.Store = memory
	default:
		cfg.Store, cfg.Cards, cfg.Notifier = l.store.Store(), l, l
	}
	if cfg.Func == nil {
		cfg.Func = l.gate.Func()
	}
	if cfg.Workers == 0 && cfg.Capacity == nil {
		cfg.Workers = 1
	}
	var err error
	l.Runner, err = subagent.New(l.ctx, cfg)
	require.NoError(t, err)
	l.events = l.Subscribe(subagent.Filter{})
	return l
}

func (l *lab) run(f func(t *testing.T, l *lab)) {
	l.t.Helper()
	defer func() { // also when f has failed, so that the bubble can end
		l.gate.ReleaseAll()
		_ = l.Shutdown(context.Background())
	}()
	f(l.t, l)
	l.gate.ReleaseAll()
	l.store.On(subagenttest.OpUpdate, nil)
	require.NoError(l.t, l.Shutdown(context.Background()))
	s := l.Stats()
	require.Zero(l.t, s.Capacity.Running+s.Capacity.Queued+s.Pending+s.Queued+s.Running+s.Lent+s.Detached+s.Unsaved, "%+v", s)
}

// ask is a request of session "s" for prompt.
func ask(prompt string, change ...func(*subagent.Request)) subagent.Request {
	q := subagent.Request{Description: prompt, ParentSessionID: "s"}
	for _, c := range change {
		c(&q)
	}
	return q
}

func noWait(q *subagent.Request) { q.NoWait = true }

func withFunc(f subagent.Func) func(*subagent.Request) {
	return func(q *subagent.Request) { q.Func = f }
}

func withID(id uuid.UUID) func(*subagent.Request) {
	return func(q *subagent.Request) { q.ID = id }
}

func (l *lab) spawn(prompt string, change ...func(*subagent.Request)) subagent.Task {
	l.t.Helper()
	return l.spawnIn(l.ctx, prompt, change...)
}

func (l *lab) spawnIn(ctx context.Context, prompt string, change ...func(*subagent.Request)) subagent.Task {
	l.t.Helper()
	task, err := l.Spawn(ctx, ask(prompt, change...))
	require.NoError(l.t, err)
	return task
}

// inside spawns a task that runs work, waits until it has been entered, and
// returns it with its Func's ctx. Without work it stops at the gate.
func (l *lab) inside(ctx context.Context, prompt string, work subagent.Func, change ...func(*subagent.Request)) (subagent.Task, context.Context) {
	l.t.Helper()
	if work == nil {
		work = l.gate.Func()
	}
	entered := make(chan context.Context, 1)
	task := l.spawnIn(ctx, prompt, append(change, withFunc(func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		entered <- ctx
		return work(ctx, run)
	}))...)
	return task, <-entered
}

func (l *lab) get(id uuid.UUID) subagent.Task {
	l.t.Helper()
	task, err := l.Get(l.ctx, id)
	require.NoError(l.t, err)
	return task
}

func (l *lab) wait(id uuid.UUID) subagent.Task {
	l.t.Helper()
	task, err := l.Wait(l.ctx, id)
	require.NoError(l.t, err)
	return task
}

func (l *lab) cancel(id uuid.UUID) subagent.Task {
	l.t.Helper()
	task, err := l.Cancel(l.ctx, id, subagent.CancelOptions{})
	require.NoError(l.t, err)
	return task
}

func (l *lab) finish(id uuid.UUID) subagent.Task {
	l.t.Helper()
	l.gate.Release(id, subagent.Result{}, nil)
	return l.wait(id)
}

// ends requires that a task has ended, or will, with this status and reason.
func (l *lab) ends(id uuid.UUID, status subagent.Status, reason subagent.Reason) subagent.Task {
	l.t.Helper()
	task := l.wait(id)
	require.Equal(l.t, status, task.Status, task.Description)
	require.Equal(l.t, reason, task.Reason, task.Description)
	return task
}

// read returns the events that are there.
func (l *lab) read() (events []subagent.Event) {
	l.t.Helper()
	synctest.Wait()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for range 10_000 {
		e, err := l.events.Next(over)
		if err != nil {
			return events
		}
		events = append(events, e)
	}
	l.t.Fatal("no end of events")
	return nil
}

// leavesNothing checks that f changes nothing that anybody can see.
func (l *lab) leavesNothing(f func()) {
	l.t.Helper()
	see := func() (list []subagent.Task, s subagent.Stats, cards int) {
		synctest.Wait()
		list, err := l.List(l.ctx, subagent.Filter{})
		require.NoError(l.t, err)
		l.mu.Lock()
		defer l.mu.Unlock()
		return list, l.Stats(), len(l.cards)
	}
	l.read()
	list, stats, cards := see()
	f()
	list2, stats2, cards2 := see()
	require.Equal(l.t, list, list2)
	require.Equal(l.t, stats, stats2)
	require.Equal(l.t, cards, cards2)
	require.Empty(l.t, l.read())
}

func endedContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestG1_EveryReaderFindsASpawnedTask(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		l.spawn("first")
		synctest.Wait()
		task := l.spawn("second")
		require.Equal(t, subagent.StatusQueued, task.Status)
		require.Equal(t, task, l.get(task.ID))
		row, err := l.store.Get(l.ctx, task.ID)
		require.NoError(t, err)
		require.Equal(t, task, row)
		list, err := l.List(l.ctx, subagent.Filter{Statuses: []subagent.Status{subagent.StatusQueued}, SessionID: "s"})
		require.NoError(t, err)
		require.Equal(t, []subagent.Task{task}, list)
		place, ok := l.QueuePosition(task.ID)
		require.True(t, ok)
		require.Equal(t, 1, place)
		require.Equal(t, 1, l.Stats().Queued)
		events := l.read()
		require.Equal(t, task.ID, events[len(events)-1].Task.ID)
		require.Equal(t, subagent.EventCreated, events[len(events)-1].Type, "merged with the status")
		l.cancel(task.ID)
	})
}

func TestG1_OnceTheRecordExistsCtxNoLongerMatters(t *testing.T) {
	type key struct{}
	inLab(t, subagent.Config{}, func(t *testing.T, l *lab) {
		ctx, cancel := context.WithCancel(context.WithValue(l.ctx, key{}, "kept"))
		l.store.On(subagenttest.OpUpdate, func(subagenttest.Call) subagenttest.Fault {
			cancel()
			return subagenttest.Fault{Delay: time.Second}
		})
		task, in := l.inside(ctx, "a", nil)
		require.NoError(t, in.Err())
		require.Equal(t, "kept", in.Value(key{}))
		l.gate.Release(task.ID, subagent.Result{}, nil)
		l.ends(task.ID, subagent.StatusCompleted, "")
	})
}

// Of several reasons to refuse a task the first in the documented order counts.
func TestG1_RefusalsComeInOrderAndLeaveNothing(t *testing.T) {
	inLabs(t, subagent.Config{Capacity: subagent.NewCapacity(2, 0), MaxDepth: 2}, func(t *testing.T, l *lab) {
		spawn := func(ctx context.Context, change ...func(*subagent.Request)) (err error) {
			l.leavesNothing(func() {
				var task subagent.Task
				task, err = l.Spawn(ctx, ask("refused", change...))
				require.Equal(t, subagent.Task{}, task)
			})
			return err
		}
		parent, in := l.inside(l.ctx, "parent", nil)
		child, below := l.inside(in, "child", l.gate.DeafFunc())
		below = context.WithoutCancel(below) // else a cancel makes it a ctx that is done
		taken := withID(parent.ID)
		for _, cancelled := range []bool{false, true} {
			if cancelled {
				l.cancel(child.ID)
				require.ErrorIs(t, spawn(below), subagent.ErrParentCancelled, "before depth")
				require.ErrorIs(t, spawn(below, noWait), subagent.ErrParentCancelled)
			} else {
				require.ErrorIs(t, spawn(below), subagent.ErrDepth, "before the queue's bound")
				require.ErrorIs(t, spawn(below, noWait), subagent.ErrDepth)
			}
			require.ErrorIs(t, spawn(below, taken), subagent.ErrTaskExists, "before the parent's state")
		}
		done, cancel := context.WithCancel(below)
		cancel()
		require.ErrorIs(t, spawn(done, taken), context.Canceled)
		require.ErrorIs(t, spawn(l.ctx), subagent.ErrQueueFull)
		err := spawn(l.ctx, noWait)
		require.ErrorIs(t, err, subagent.ErrNoCapacity)
		var full *subagent.CapacityError
		require.ErrorAs(t, err, &full)
		require.Equal(t, subagent.CapacityError{Limit: 2, Running: 2, Err: subagent.ErrNoCapacity}, *full)
		require.ErrorIs(t, spawn(endedContext(), func(q *subagent.Request) { q.Description = "" }), subagent.ErrInvalidRequest)

		l.gate.ReleaseAll()
		require.NoError(t, l.Shutdown(l.ctx))
		require.ErrorIs(t, spawn(l.ctx, taken), subagent.ErrClosed)
		require.ErrorIs(t, spawn(endedContext(), taken), context.Canceled)
	})
}

// lateStore creates its records when nobody waits for that any more.
type lateStore struct {
	subagent.Store
	hold chan struct{}
}

func (s *lateStore) Create(ctx context.Context, tasks ...subagent.Task) error {
	<-s.hold
	return s.Store.Create(context.WithoutCancel(ctx), tasks...)
}

func TestG1_ARecordThatIsStoredTooLateIsEnded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		late := &lateStore{subagent.NewMemoryStore(), make(chan struct{})}
		l := newLab(t, subagent.Config{Store: late, StoreTimeout: time.Second}, false)
		l.run(func(t *testing.T, l *lab) {
			for _, change := range []func(*subagent.Request){noWait, func(*subagent.Request) {}} {
				l.leavesNothing(func() {
					_, err := l.Spawn(l.ctx, ask("late", change))
					require.ErrorIs(t, err, context.DeadlineExceeded)
				})
			}
			close(late.hold)
			time.Sleep(time.Minute)
			list, err := l.List(l.ctx, subagent.Filter{})
			require.NoError(t, err)
			require.Len(t, list, 2)
			for _, task := range list {
				require.Equal(t, subagent.ReasonStore, task.Reason, "it must not run: its spawn failed")
				l.wait(task.ID)
			}
			require.Zero(t, l.gate.Inside())
			require.Zero(t, l.Stats().Capacity.Running)
			l.spawn("next", noWait)
		})
	})
}

func TestG1_AFailedCreateLeavesNothing(t *testing.T) {
	broken := errors.New("broken")
	for name, fault := range map[string]func() subagenttest.Fault{
		"fails":             func() subagenttest.Fault { return subagenttest.Fault{Err: broken} },
		"panics":            func() subagenttest.Fault { panic("broken") },
		"blocks":            func() subagenttest.Fault { return subagenttest.Fault{Delay: time.Hour} },
		"is deaf and fails": func() subagenttest.Fault { return subagenttest.Fault{Delay: time.Hour, Deaf: true, Err: broken} },
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, subagent.Config{StoreTimeout: 10 * time.Second}, func(t *testing.T, l *lab) {
				l.store.On(subagenttest.OpCreate, func(subagenttest.Call) subagenttest.Fault { return fault() })
				for _, change := range []func(*subagent.Request){noWait, withID(uuid.Must(uuid.NewV7()))} {
					l.leavesNothing(func() {
						ctx, cancel := context.WithTimeout(l.ctx, 2*time.Second)
						defer cancel()
						began := time.Now()
						task, err := l.Spawn(ctx, ask("a", change))
						require.Error(t, err)
						require.Equal(t, subagent.Task{}, task)
						if time.Since(began) > 0 {
							require.ErrorIs(t, err, context.DeadlineExceeded)
							require.Equal(t, 2*time.Second, time.Since(began), "ctx governs the call")
						}
					})
				}
				time.Sleep(2 * time.Hour)
				list, err := l.List(l.ctx, subagent.Filter{})
				require.NoError(t, err)
				require.Empty(t, list)
				l.store.On(subagenttest.OpCreate, nil)
				l.spawn("next", noWait)
			})
		})
	}
}

// A write that fails once the record exists ends the task, and its slot or
// place is free again.
func TestG1_AFailedWriteIsReturnedWithTheErroredTask(t *testing.T) {
	broken := errors.New("broken")
	for op, fault := range map[subagenttest.Op]subagenttest.Fault{
		subagenttest.OpCreate: {Err: broken, Committed: true},
		subagenttest.OpUpdate: {Err: broken},
	} {
		t.Run(string(op), func(t *testing.T) {
			inLab(t, subagent.Config{}, func(t *testing.T, l *lab) {
				for _, change := range []func(*subagent.Request){noWait, func(*subagent.Request) {}} {
					l.store.On(op, func(c subagenttest.Call) subagenttest.Fault {
						if c.N == 1 {
							return fault
						}
						return subagenttest.Fault{}
					})
					task, err := l.Spawn(l.ctx, ask("a", change))
					require.ErrorIs(t, err, broken)
					require.Equal(t, subagent.StatusErrored, task.Status)
					require.Equal(t, subagent.ReasonStore, task.Reason)
					require.Equal(t, "store: broken", task.Error)
					require.Equal(t, subagent.CapacityStats{Limit: 1}, l.Stats().Capacity)
					row, err := l.store.Get(l.ctx, task.ID)
					require.NoError(t, err)
					require.Equal(t, subagent.ReasonStore, row.Reason)
					synctest.Wait()
					cards, notices := l.told(task.ID)
					require.Equal(t, "errored", cards[len(cards)-1].Attach.Status)
					require.Len(t, notices, 1)
				}
				require.Zero(t, l.gate.Inside())
				l.store.On(op, nil)
				l.spawn("next", noWait)
			})
		})
	}
}
