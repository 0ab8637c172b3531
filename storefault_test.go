package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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

// storeStep is one of the writes on a task's way.
type storeStep string

const (
	stepCreate   storeStep = "create"
	stepQueued   storeStep = "queued"
	stepRunning  storeStep = "running"
	stepRequest  storeStep = "cancel request"
	stepEnd      storeStep = "end"
	stepDelivery storeStep = "delivery"
	stepNone     storeStep = "" // a write that changes nothing
)

// stepOf is what a call would store.
func stepOf(inner subagent.Store, c subagenttest.Call) storeStep {
	if c.Op == subagenttest.OpCreate {
		return stepCreate
	}
	before, err := inner.Get(context.Background(), c.IDs[0])
	if err != nil || len(c.Tasks) == 0 {
		return stepNone
	}
	after := c.Tasks[0]
	switch {
	case before.Status.Terminal():
		if before.NotifiedAt.Equal(after.NotifiedAt) {
			return stepNone
		}
		return stepDelivery
	case after.Status.Terminal():
		return stepEnd
	case before.Status != after.Status:
		return storeStep(after.Status)
	case before.CancelRequestedAt.IsZero() && !after.CancelRequestedAt.IsZero():
		return stepRequest
	}
	return stepNone
}

var errBroken = errors.New("broken")

// storeFaults are what a store may do to a call.
var storeFaults = []struct {
	name string
	do   func() subagenttest.Fault
}{
	{"fails", func() subagenttest.Fault { return subagenttest.Fault{Err: errBroken} }},
	{"commits and fails", func() subagenttest.Fault { return subagenttest.Fault{Err: errBroken, Committed: true} }},
	{"blocks", func() subagenttest.Fault { return subagenttest.Fault{Delay: time.Hour} }},
	{"commits and blocks", func() subagenttest.Fault { return subagenttest.Fault{Delay: time.Hour, Committed: true} }},
	{"is deaf", func() subagenttest.Fault { return subagenttest.Fault{Delay: 2 * time.Minute, Deaf: true} }},
	{"commits and is deaf", func() subagenttest.Fault {
		return subagenttest.Fault{Delay: 2 * time.Minute, Deaf: true, Committed: true}
	}},
	{"is slow", func() subagenttest.Fault { return subagenttest.Fault{Delay: 9 * time.Second} }},
	{"panics", func() subagenttest.Fault { panic("the store") }},
	{"calls Goexit", func() subagenttest.Fault { runtime.Goexit(); return subagenttest.Fault{} }},
}

// storeSpells are how long it goes on: whether the nth call that is in
// question, since the first, is hit.
var storeSpells = []struct {
	name string
	hits func(n int, since time.Duration) bool
	all  bool // every write from the first on, not the one step alone
}{
	{"once", func(n int, _ time.Duration) bool { return n == 1 }, false},
	{"for five minutes", func(_ int, since time.Duration) bool { return since < 5*time.Minute }, false},
	{"for ever", func(int, time.Duration) bool { return true }, false},
	{"with all that follows", func(_ int, since time.Duration) bool { return since < 5*time.Minute }, true},
}

// storeLives are ways through all steps. Each returns what a caller was handed.
var storeLives = []struct {
	name  string
	steps []storeStep
	live  func(r *rig) (subagent.Task, error)
}{
	{"nobody waits", []storeStep{stepCreate, stepQueued, stepRunning, stepEnd, stepDelivery}, func(r *rig) (subagent.Task, error) {
		r.gate.ReleaseAll()
		return r.Spawn(r.ctx, rigAsk("a"))
	}},
	{"somebody waits", []storeStep{stepCreate, stepQueued, stepRunning, stepEnd, stepDelivery}, func(r *rig) (subagent.Task, error) {
		r.gate.ReleaseAll()
		task, err := r.Spawn(r.ctx, rigAsk("a"))
		if err != nil {
			return task, err
		}
		return r.Wait(r.ctx, task.ID)
	}},
	{"in the foreground", []storeStep{stepCreate, stepQueued, stepRunning, stepEnd}, func(r *rig) (subagent.Task, error) {
		r.gate.ReleaseAll()
		return r.Run(r.ctx, rigAsk("a"))
	}},
	{"stopped", []storeStep{stepRequest, stepEnd, stepDelivery}, func(r *rig) (subagent.Task, error) {
		id, _ := r.runs("a", r.lingers)
		r.stop(id)
		return r.Wait(r.ctx, id)
	}},
	{"stopped and deaf", []storeStep{stepRequest, stepEnd, stepDelivery}, func(r *rig) (subagent.Task, error) {
		id, _ := r.runs("a", r.deaf)
		r.stop(id)
		return r.Wait(r.ctx, id)
	}},
}

// lingers has the Func take a second to obey, so that the request is stored
// before the end.
func (r *rig) lingers(q *subagent.Request) {
	q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		res, err := r.gate.Func()(ctx, run)
		time.Sleep(time.Second)
		return res, err
	}
}

// Every write on a task's way, disturbed in every way: no slot leaks, nobody
// waits longer than he must, no end is lost, and store and memory agree in the
// end.
func TestG9_EveryWriteDisturbed(t *testing.T) {
	made := sample(t, 8)
	for _, life := range storeLives {
		for _, step := range life.steps {
			for _, fault := range storeFaults {
				for _, spell := range storeSpells {
					if !made() {
						continue
					}
					t.Run(fmt.Sprintf("%s: %s %s %s", life.name, step, fault.name, spell.name), func(t *testing.T) {
						inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
							r.disturb(step, spell.all, spell.hits, fault.do)
							r.disturbedLife(life.live)
						})
					})
				}
			}
		}
	}
}

// sample says of one case after the other whether it is made: all are, or where
// that takes long a random one in n.
func sample(t *testing.T, n int) func() bool {
	if !bubble.Race && !testing.Short() {
		return func() bool { return true }
	}
	i, first := 0, seeded(t).IntN(n)
	return func() bool { i++; return i%n == first }
}

// disturb sets the rule of a case. It holds for the task's own writes alone.
func (r *rig) disturb(step storeStep, all bool, hits func(int, time.Duration) bool, fault func() subagenttest.Fault) {
	var mu sync.Mutex // of the three below
	var first time.Time
	var id uuid.UUID
	n := 0
	rule := func(c subagenttest.Call) subagenttest.Fault {
		this := stepOf(r.inner, c)
		mu.Lock()
		if this == step && n == 0 {
			first, id = time.Now(), c.IDs[0]
		}
		hit := c.IDs[0] == id && (this == step || all)
		if hit {
			n++
			hit = hits(n, time.Since(first))
		}
		mu.Unlock()
		if hit {
			return fault()
		}
		return subagenttest.Fault{}
	}
	r.store.On(subagenttest.OpCreate, rule)
	r.store.On(subagenttest.OpUpdate, rule)
}

func (r *rig) disturbedLife(live func(r *rig) (subagent.Task, error)) {
	t := r.t
	stop := make(chan struct{})
	watched := make(chan struct{})
	go r.watchOneEnd(stop, watched)
	start := time.Now()
	handed, err := live(r)
	// The grace, and for each step of a life that is disturbed one StoreTimeout.
	require.LessOrEqual(t, time.Since(start), 30*time.Second+5*10*time.Second)
	time.Sleep(7 * time.Minute)
	r.gate.ReleaseAll()
	r.heal()
	time.Sleep(3 * time.Minute) // even a deaf call has returned then
	close(stop)
	<-watched
	require.Zero(t, r.Stats().Unsaved)
	r.nothingHeld()
	for row, lerr := range r.inner.List(r.ctx, subagent.Filter{}) {
		require.NoError(t, lerr)
		require.True(t, row.Status.Terminal())
		require.False(t, row.NotifiedAt.IsZero(), "it was delivered")
		r.deliveredOnce(row, handed)
		if handed.ID != uuid.Nil && handed.Status.Terminal() {
			require.Equal(t, essence(row), essence(handed))
		}
		if row.Status != subagent.StatusCancelled && row.Reason != subagent.ReasonStore {
			require.Equal(t, subagent.StatusCompleted, row.Status)
		}
	}
	if err != nil && handed.ID == uuid.Nil {
		require.Zero(t, r.gate.Inside())
	}
	next := r.spawn("next", func(q *subagent.Request) { q.NoWait = true })
	r.awaited(next.ID)
}

// deliveredOnce checks that there was a first to see the end, and only one.
// The Notifier may be told again of what could not be stored as delivered.
func (r *rig) deliveredOnce(row, handed subagent.Task) {
	r.t.Helper()
	_, _, notices := r.heard(row.ID)
	firsts := min(len(notices), 1)
	if handed.ID == row.ID && handed.Status.Terminal() && handed.NotifiedAt.IsZero() && row.Reason != subagent.ReasonStore {
		firsts++
	}
	if row.Background {
		require.LessOrEqual(r.t, firsts, 1, "delivered twice")
	}
	require.LessOrEqual(r.t, len(notices), 1)
}

// watchOneEnd reads all the time and checks that no reader goes back.
func (r *rig) watchOneEnd(stop, watched chan struct{}) {
	defer close(watched)
	ends := map[uuid.UUID]subagent.Task{}
	for pause := 250 * time.Millisecond; ; pause += pause / 50 {
		list, err := r.List(context.Background(), subagent.Filter{})
		if err != nil {
			r.t.Errorf("List: %v", err)
			return
		}
		for _, task := range list {
			got, err := r.Get(context.Background(), task.ID)
			if err != nil {
				r.t.Errorf("Get: %v", err)
				continue
			}
			for _, seen := range []subagent.Task{task, got} {
				end, ended := ends[seen.ID]
				if ended && !sameEnd(end, seen) {
					r.t.Errorf("an end changed from %+v to %+v", end, seen)
				}
				if seen.Status.Terminal() {
					ends[seen.ID] = seen
				}
			}
		}
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
	}
}

// While an end is not stored, every reader is served it from memory, it is
// counted, and it is tried again with growing pauses.
func TestG9_AnUnsavedEndIsServedAndCounted(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		tries := new(attempts)
		r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			if c.Ends() {
				return subagenttest.Fault{Err: tries.try()}
			}
			return subagenttest.Fault{}
		})
		id, _ := r.runs("a")
		r.gate.Release(id, subagent.Result{Text: "kept"}, nil)
		end := r.awaited(id)
		require.Equal(t, "kept", end.ResultText)
		require.Equal(t, 1, r.Stats().Unsaved)
		require.Equal(t, subagent.StatusRunning, r.row(id).Status)
		for name, f := range map[string]subagent.Filter{
			"all": {}, "status": {Statuses: []subagent.Status{subagent.StatusCompleted}}, "session": {SessionID: "s", Limit: 1},
		} {
			list, err := r.List(r.ctx, f)
			require.NoError(t, err)
			require.Len(t, list, 1, name)
			require.Equal(t, end.Status, list[0].Status, name)
		}
		list, err := r.List(r.ctx, subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}})
		require.NoError(t, err)
		require.Empty(t, list, "it does not run any more")
		time.Sleep(10 * time.Minute)
		r.growing(tries.times())
		got, err := r.Get(r.ctx, id)
		require.NoError(t, err)
		require.Equal(t, "kept", got.ResultText)
		r.heal()
		time.Sleep(31 * time.Second)
		require.Zero(t, r.Stats().Unsaved)
		require.Equal(t, essence(end), essence(r.settled(id)))
		require.False(t, r.row(id).NotifiedAt.IsZero(), "the waiter's reading is stored, too")
	})
}

// A waiter is not held longer than StoreTimeout by a store that is deaf to
// every write.
func TestG9_AWaiterIsHeldForOneStoreTimeout(t *testing.T) {
	inRig(t, subagent.Config{Workers: 2, StoreTimeout: 4 * time.Second}, func(t *testing.T, r *rig) {
		id, _ := r.runs("a")
		other, _ := r.runs("b")
		r.store.On(subagenttest.OpUpdate, func(subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Delay: time.Minute, Deaf: true} })
		start := time.Now()
		r.gate.Release(id, subagent.Result{Text: "kept"}, nil)
		require.Equal(t, "kept", r.awaited(id).ResultText)
		require.LessOrEqual(t, time.Since(start), 4*time.Second)
		r.gate.Release(other, subagent.Result{}, nil)
		time.Sleep(5 * time.Second)
		start = time.Now()
		r.awaited(other)
		require.LessOrEqual(t, time.Since(start), 4*time.Second, "its end is known")
		r.heal()
		time.Sleep(2 * time.Minute)
	})
}

// Forced ends of a session are stored side by side, and readers see them one
// StoreTimeout after the grace at the latest.
func TestG7_ForcedEndsOfASession(t *testing.T) {
	const tasks = 100
	for name, fault := range map[string]subagenttest.Fault{
		"slow": {Delay: time.Second}, "blocked": {Delay: time.Hour}, "deaf": {Delay: time.Minute, Deaf: true}, "broken": {Err: errBroken},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, subagent.Config{Workers: tasks}, func(t *testing.T, r *rig) {
				var ids []uuid.UUID
				for range tasks {
					id, _ := r.runs("deaf", r.deaf)
					ids = append(ids, id)
				}
				r.store.On(subagenttest.OpUpdate, func(subagenttest.Call) subagenttest.Fault { return fault })
				start := time.Now()
				go func() { _, _ = r.CancelSession(r.ctx, "s", subagent.CancelOptions{}) }()
				time.Sleep(40*time.Second + time.Millisecond)
				for _, id := range ids {
					got, err := r.Get(r.ctx, id)
					require.NoError(t, err)
					require.Equal(t, subagent.StatusCancelled, got.Status)
					require.True(t, got.Detached)
					require.WithinDuration(t, start.Add(30*time.Second), got.CompletedAt, 2*time.Second)
				}
				r.heal()
				r.gate.ReleaseAll()
				time.Sleep(10 * time.Minute)
				require.Zero(t, r.Stats().Unsaved)
			})
		})
	}
}

// ctxStore looks at the ctx of each call.
type ctxStore struct {
	subagent.Store
	look func(ctx context.Context, op string)
}

func (s *ctxStore) Create(ctx context.Context, tasks ...subagent.Task) error {
	s.look(ctx, "create")
	return s.Store.Create(ctx, tasks...)
}

func (s *ctxStore) Update(ctx context.Context, id uuid.UUID, edit func(*subagent.Task) error) (subagent.Task, error) {
	s.look(ctx, "update")
	return s.Store.Update(ctx, id, edit)
}

type ctxStoreKey struct{}

// What is written for a task is never written with a ctx that has ended, and
// what the call is given has the caller's values but not his Run.
func TestG8_CleanupNeverRunsOnAnEndedCtx(t *testing.T) {
	var updates atomic.Int64
	store := &ctxStore{subagent.NewMemoryStore(), func(ctx context.Context, op string) {
		updates.Add(1)
		require.NoError(t, ctx.Err(), op)
		by, ok := ctx.Deadline()
		require.True(t, ok, op)
		require.LessOrEqual(t, time.Until(by), 10*time.Second)
		_, ok = subagent.RunFromContext(ctx)
		require.False(t, ok, op)
		require.Equal(t, "v", ctx.Value(ctxStoreKey{}), op)
	}}
	inRig(t, subagent.Config{Store: store}, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(context.WithValue(r.ctx, ctxStoreKey{}, "v"))
		parent := rigAsk("parent", func(q *subagent.Request) {
			q.Func = func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
				_, err := r.Run(ctx, subagent.Request{Description: "kid"})
				return subagent.Result{}, err
			}
		})
		var end subagent.Task
		done := make(chan struct{})
		go func() {
			defer close(done)
			var err error
			end, err = r.Run(ctx, parent)
			require.ErrorIs(t, err, context.Canceled)
		}()
		synctest.Wait()
		queued, err := r.Spawn(ctx, rigAsk("queued"))
		require.NoError(t, err)
		cancel()
		<-done
		require.Equal(t, subagent.ReasonCaller, end.Reason)
		r.gate.WaitEntered(t, queued.ID)
		got, err := r.Cancel(ctx, queued.ID, subagent.CancelOptions{})
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, got.CancelRequestedAt.IsZero(), "the request took effect")
		synctest.Wait()
		got, err = r.Get(r.ctx, queued.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCancelled, got.Status)
	})
	require.Greater(t, updates.Load(), int64(10))
}

// When a call returns because its ctx ended, line and slots are settled, even
// with a store that is deaf.
func TestG8_CountsAreSettledWithADeafStore(t *testing.T) {
	inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
		r.runs("blocker")
		r.runs("blocker")
		full := subagent.CapacityStats{Limit: 2, Running: 2}
		r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			if c.Ends() {
				return subagenttest.Fault{Delay: 15 * time.Second, Deaf: true}
			}
			return subagenttest.Fault{}
		})
		for range 5 {
			short, cancel := context.WithTimeout(r.ctx, time.Millisecond)
			task, err := r.Run(short, rigAsk("waits"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, subagent.ReasonCaller, task.Reason)
			require.Equal(t, full, r.Stats().Capacity)
			queued := r.spawn("queued")
			_, err = r.Cancel(short, queued.ID, subagent.CancelOptions{})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, full, r.Stats().Capacity)
			_, err = r.Wait(short, queued.ID)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		r.heal()
		time.Sleep(time.Minute)
	})
}
