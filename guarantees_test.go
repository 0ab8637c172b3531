package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// world is a Runner with everything attached that can be told of an end.
type world struct {
	*subagent.Runner
	t       *testing.T
	ctx     context.Context
	gate    *subagenttest.Gate
	store   *subagenttest.FaultyStore
	surface *surface
}

// surface keeps the last card, and all notices, of each task.
type surface struct {
	mu      sync.Mutex
	cards   map[uuid.UUID][]subagent.Card
	notices map[uuid.UUID][]subagent.Task
	order   []uuid.UUID
}

func (s *surface) PutCard(_ context.Context, c subagent.Card) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cards[c.TaskID] = append(s.cards[c.TaskID], c)
	return nil
}

func (s *surface) Notify(_ context.Context, t subagent.Task) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notices[t.ID] = append(s.notices[t.ID], t)
	s.order = append(s.order, t.ID)
	return nil
}

func (s *surface) lastCard(id uuid.UUID) subagent.Card {
	s.mu.Lock()
	defer s.mu.Unlock()
	cards := s.cards[id]
	if len(cards) == 0 {
		return subagent.Card{}
	}
	return cards[len(cards)-1]
}

func (s *surface) noticesOf(id uuid.UUID) []subagent.Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notices[id]
}

// inWorld runs f in a bubble with a Runner of its own and shuts it down.
func inWorld(t *testing.T, cfg subagent.Config, f func(w *world)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		w := &world{t: t, ctx: t.Context(), gate: subagenttest.NewGate()}
		w.surface = &surface{cards: map[uuid.UUID][]subagent.Card{}, notices: map[uuid.UUID][]subagent.Task{}}
		w.store = subagenttest.NewFaultyStore(subagent.NewMemoryStore())
		if cfg.Store == nil {
			cfg.Store = w.store.Store()
		}
		if cfg.Func == nil {
			cfg.Func = w.gate.Func()
		}
		if cfg.Workers == 0 && cfg.Capacity == nil {
			cfg.Workers = 1
		}
		cfg.Cards, cfg.Notifier = w.surface, w.surface
		var err error
		w.Runner, err = subagent.New(w.ctx, cfg)
		require.NoError(t, err)
		defer func() { // also when f has failed, so that the bubble can end
			w.gate.ReleaseAll()
			_ = w.Shutdown(context.Background())
		}()
		f(w)
		w.gate.ReleaseAll()
		w.store.On(subagenttest.OpUpdate, nil)
		require.NoError(t, w.Shutdown(context.Background()))
		s := w.Stats()
		require.Zero(t, s.Capacity.Running+s.Capacity.Queued+s.Pending+s.Queued+s.Running+s.Lent+s.Detached+s.Unsaved, "%+v", s)
	})
}

func (w *world) request(prompt string) subagent.Request {
	return subagent.Request{Description: prompt, ParentSessionID: "s"}
}

func (w *world) spawn(prompt string, change ...func(*subagent.Request)) subagent.Task {
	w.t.Helper()
	q := w.request(prompt)
	for _, c := range change {
		c(&q)
	}
	task, err := w.Spawn(w.ctx, q)
	require.NoError(w.t, err)
	return task
}

func (w *world) get(id uuid.UUID) subagent.Task {
	w.t.Helper()
	task, err := w.Get(w.ctx, id)
	require.NoError(w.t, err)
	return task
}

func (w *world) wait(id uuid.UUID) subagent.Task {
	w.t.Helper()
	task, err := w.Wait(w.ctx, id)
	require.NoError(w.t, err)
	return task
}

// agreed checks that every surface shows the same end of a task, once.
func (w *world) agreed(want subagent.Task) {
	w.t.Helper()
	synctest.Wait()
	row, err := w.store.Get(w.ctx, want.ID)
	require.NoError(w.t, err)
	list, err := w.List(w.ctx, subagent.Filter{Statuses: []subagent.Status{want.Status}})
	require.NoError(w.t, err)
	seen := map[string]subagent.Task{"store": row, "Get": w.get(want.ID)}
	for _, t := range list {
		if t.ID == want.ID {
			seen["List"] = t
		}
	}
	require.Len(w.t, seen, 3, "List knows it by its status")
	for where, t := range seen {
		require.Equal(w.t, want.Status, t.Status, where)
		require.Equal(w.t, want.Reason, t.Reason, where)
		require.Equal(w.t, want.Error, t.Error, where)
		require.Equal(w.t, want.ResultText, t.ResultText, where)
		require.Equal(w.t, want.CompletedAt, t.CompletedAt, where)
	}
	require.Equal(w.t, string(want.Status), w.surface.lastCard(want.ID).Attach.Status, "card")
}

func TestG1_SpawnReturnsWhatEveryReaderFinds(t *testing.T) {
	inWorld(t, subagent.Config{}, func(w *world) {
		task := w.spawn("a")
		require.Equal(t, subagent.StatusQueued, task.Status)
		row, err := w.store.Get(w.ctx, task.ID)
		require.NoError(t, err)
		require.False(t, row.Status.Terminal())
		w.surface.mu.Lock()
		defer w.surface.mu.Unlock()
		require.Equal(t, "(queued)", w.surface.cards[task.ID][0].Content)
	})
}

func TestG1_CancelWhileSpawnIsUnderWay(t *testing.T) {
	for _, stage := range []string{"create", "queued"} {
		t.Run(stage, func(t *testing.T) {
			inWorld(t, subagent.Config{}, func(w *world) {
				id := uuid.Must(uuid.NewV7())
				op := subagenttest.OpCreate
				if stage == "queued" {
					op = subagenttest.OpUpdate
				}
				w.store.On(op, func(c subagenttest.Call) subagenttest.Fault {
					if c.N == 1 {
						return subagenttest.Fault{Delay: time.Second}
					}
					return subagenttest.Fault{}
				})
				var task subagent.Task
				var err error
				done := make(chan struct{})
				go func() {
					defer close(done)
					q := w.request("a")
					q.ID = id
					task, err = w.Spawn(w.ctx, q)
				}()
				synctest.Wait()
				_, serr := w.CancelSession(w.ctx, "s", subagent.CancelOptions{})
				require.NoError(t, serr)
				<-done
				require.NoError(t, err)
				require.Equal(t, subagent.StatusCancelled, task.Status)
				require.Equal(t, subagent.ReasonSession, task.Reason)
				require.True(t, task.StartedAt.IsZero())
				require.Zero(t, w.gate.Inside())
			})
		})
	}
}

func TestG1_FailedSpawnLeavesNothing(t *testing.T) {
	broken := errors.New("broken")
	for name, fault := range map[string]subagenttest.Fault{
		"fails":             {Err: broken},
		"blocks":            {Delay: time.Hour},
		"commits and fails": {Err: broken, Committed: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, subagent.Config{StoreTimeout: time.Second}, func(w *world) {
				w.store.On(subagenttest.OpCreate, func(subagenttest.Call) subagenttest.Fault { return fault })
				task, err := w.Spawn(w.ctx, w.request("a"))
				require.Error(t, err)
				list, lerr := w.List(w.ctx, subagent.Filter{})
				require.NoError(t, lerr)
				if fault.Committed { // the record exists: it is ended and told
					require.Equal(t, subagent.ReasonStore, task.Reason)
					require.Len(t, list, 1)
					require.Equal(t, "store: broken", list[0].Error)
				} else {
					require.Equal(t, subagent.Task{}, task)
					require.Empty(t, list)
					require.Empty(t, w.surface.cards)
				}
				w.store.On(subagenttest.OpCreate, nil)
				w.spawn("b", func(q *subagent.Request) { q.NoWait = true })
			})
		})
	}
}

func TestG2_TasksThatShareAnExternalIDAreStrangers(t *testing.T) {
	inWorld(t, subagent.Config{Workers: 2}, func(w *world) {
		shared := func(session string) func(*subagent.Request) {
			return func(q *subagent.Request) { q.ExternalTaskID, q.ParentSessionID = "call_0", session }
		}
		a, b := w.spawn("a", shared("A")), w.spawn("b", shared("B"))
		require.NotEqual(t, a.ID, b.ID)
		w.gate.WaitEntered(t, a.ID).ReportUsage("m", subagent.Usage{InputTokens: 1})
		w.gate.WaitEntered(t, b.ID).ReportUsage("m", subagent.Usage{InputTokens: 2})
		_, err := w.Cancel(w.ctx, b.ID, subagent.CancelOptions{})
		require.NoError(t, err)
		w.agreed(w.wait(b.ID))
		require.Equal(t, subagent.StatusRunning, w.get(a.ID).Status)
		w.gate.Release(a.ID, subagent.Result{Text: "A's own"}, nil)
		end := w.wait(a.ID)
		w.agreed(end)
		require.Equal(t, "A's own", end.ResultText)
		require.EqualValues(t, 1, end.Usage.InputTokens)
		require.EqualValues(t, 2, w.get(b.ID).Usage.InputTokens)
		require.NoError(t, w.Forget(w.ctx, b.ID))
		require.Equal(t, "A's own", w.get(a.ID).ResultText)
		_, err = w.Get(w.ctx, b.ID)
		require.ErrorIs(t, err, subagent.ErrNotFound)
		require.Equal(t, "A", w.surface.lastCard(a.ID).Attach.SessionID)
	})
}

func TestG2_SpawnOfAKnownIDIsIdempotent(t *testing.T) {
	inWorld(t, subagent.Config{Workers: 4}, func(w *world) {
		id := uuid.Must(uuid.NewV7())
		q := w.request("same")
		q.ID = id
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				task, err := w.Spawn(w.ctx, q)
				require.NoError(t, err)
				require.Equal(t, id, task.ID)
			})
		}
		wg.Wait()
		w.gate.WaitEntered(t, id)
		require.Equal(t, 1, w.gate.Inside())
		other := q
		other.Description = "another"
		_, err := w.Spawn(w.ctx, other)
		require.ErrorIs(t, err, subagent.ErrTaskExists)
		joined, stop := context.WithTimeout(w.ctx, time.Second)
		defer stop()
		_, err = w.Run(joined, q)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, subagent.StatusRunning, w.get(id).Status, "a Run that joined cancels nothing")
		w.gate.Release(id, subagent.Result{Text: "once"}, nil)
		w.wait(id)
		again, err := w.Spawn(w.ctx, q)
		require.NoError(t, err)
		require.Equal(t, "once", again.ResultText)
	})
}

func TestG4_SlotsAreGrantedInOrder(t *testing.T) {
	var order []string
	inWorld(t, subagent.Config{Func: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
		order = append(order, run.Task().Description)
		return subagent.Result{}, nil
	}}, func(w *world) {
		first := w.spawn("0", func(q *subagent.Request) { q.Func = w.gate.Func() })
		var last subagent.Task
		for i := range 20 {
			last = w.spawn(fmt.Sprint(i + 1))
			n, ok := w.QueuePosition(last.ID)
			require.True(t, ok)
			require.Equal(t, i+1, n)
		}
		_, err := w.Spawn(w.ctx, subagent.Request{Description: "new", ParentSessionID: "s", NoWait: true})
		require.ErrorIs(t, err, subagent.ErrNoCapacity)
		w.gate.Release(first.ID, subagent.Result{}, nil)
		w.wait(last.ID)
	})
	require.Equal(t, "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20", strings.Join(order, " "))
}

func TestG5_NeverMoreFuncsThanSlots(t *testing.T) {
	var mu sync.Mutex
	inside, peak := 0, 0
	inWorld(t, subagent.Config{Workers: 10, Func: func(context.Context, *subagent.Run) (subagent.Result, error) {
		mu.Lock()
		inside++
		peak = max(peak, inside)
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		inside--
		return subagent.Result{}, nil
	}}, func(w *world) {
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				_, err := w.Run(w.ctx, w.request(fmt.Sprint(i)))
				require.NoError(t, err)
			})
		}
		wg.Wait()
	})
	require.Equal(t, 10, peak)
}

// A slot is handed from A to B. B is cancelled, or its queue time ends, before
// or after that, and more cancels come meanwhile.
func TestG6_HandOffRace(t *testing.T) {
	for _, first := range []string{"cancel", "queue timeout"} {
		for _, released := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, released %v", first, released), func(t *testing.T) {
				capacity := subagent.NewCapacity(1, -1)
				inWorld(t, subagent.Config{Capacity: capacity}, func(w *world) {
					var entered bool
					a := w.spawn("a")
					b := w.spawn("b", func(q *subagent.Request) {
						q.QueueTimeout = time.Minute
						q.Func = func(context.Context, *subagent.Run) (subagent.Result, error) {
							entered = true
							return subagent.Result{}, nil
						}
					})
					w.gate.WaitEntered(t, a.ID)
					// The grant window: B holds the slot, and its start is being stored.
					w.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
						if c.IDs[0] == b.ID && !c.Ends() {
							return subagenttest.Fault{Delay: time.Second}
						}
						return subagenttest.Fault{}
					})
					want := subagent.StatusCancelled
					if first == "queue timeout" && !released {
						time.Sleep(time.Minute)
						synctest.Wait()
						want = subagent.StatusErrored
					}
					if released {
						if first == "queue timeout" { // it comes half a second after the grant
							time.Sleep(59500 * time.Millisecond)
						}
						w.gate.Release(a.ID, subagent.Result{}, nil)
						synctest.Wait()
						if first == "queue timeout" {
							time.Sleep(500 * time.Millisecond)
							synctest.Wait()
						}
					}
					for range 5 {
						_, err := w.Cancel(w.ctx, b.ID, subagent.CancelOptions{})
						require.NoError(t, err)
					}
					w.gate.Release(a.ID, subagent.Result{}, nil)
					end := w.wait(b.ID)
					require.Equal(t, want, end.Status)
					if want == subagent.StatusErrored {
						require.Equal(t, subagent.ReasonQueueTimeout, end.Reason)
						require.Equal(t, "waited 1m0s for a slot", end.Error)
					}
					require.False(t, entered)
					w.wait(a.ID)
					require.Equal(t, subagent.CapacityStats{Limit: 1}, capacity.Stats())
					c := w.spawn("c", func(q *subagent.Request) { q.NoWait = true })
					w.gate.WaitEntered(t, c.ID)
					w.agreed(end)
				})
			})
		}
	}
}
