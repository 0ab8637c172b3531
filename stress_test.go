package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/subagenttest"
)

const (
	stressSlots = 4
	stressLine  = 64
)

// TestStress_Runners does everything at once, in real time, on two Runners
// that share a store and a Capacity, while the store and the sinks fail now and
// then, half of the time after the store has committed. What must hold in the
// end is written in settled. SUBAGENT_TEST_STRESS says for how long.
func TestStress_Runners(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	length := time.Second
	if v := os.Getenv("SUBAGENT_TEST_STRESS"); v != "" {
		var err error
		length, err = time.ParseDuration(v)
		require.NoError(t, err, "SUBAGENT_TEST_STRESS")
	}
	s := newStress(t)
	ctx, stop := context.WithTimeout(context.Background(), length)
	defer stop()
	var clients sync.WaitGroup
	for range 12 {
		c := s.client()
		clients.Go(func() {
			for ctx.Err() == nil && !t.Failed() {
				c.step()
			}
		})
	}
	clients.Go(func() {
		for rnd := s.client().rnd; ctx.Err() == nil; runtime.Gosched() {
			s.capacity.Resize(1 + rnd.IntN(2*stressSlots))
			s.pause(ctx, rnd, 2000)
		}
	})
	clients.Wait()
	s.settled()
	require.NoError(t, goleak.Find(leaks))
}

// stress is what the clients share.
type stress struct {
	t        *testing.T
	store    *subagenttest.FaultyStore
	capacity *subagent.Capacity
	runners  [2]*subagent.Runner
	readers  [2]*stressReader
	reading  sync.WaitGroup
	calm     atomic.Bool // nothing fails any more

	mu      sync.Mutex // guards what follows
	seeds   *rand.Rand
	owners  map[uuid.UUID]int  // which Runner was asked for a task
	ids     []uuid.UUID        // of owners
	entered map[uuid.UUID]int  // Funcs that were entered
	doomed  map[uuid.UUID]bool // somebody tried to forget it
	cards   map[uuid.UUID]subagent.Card
	notices map[uuid.UUID]int
	fixed   int // IDs that several asked for
}

func newStress(t *testing.T) *stress {
	memory := subagent.NewMemoryStore()
	memory.SetRetention(-1)
	s := &stress{
		t: t, store: subagenttest.NewFaultyStore(memory), capacity: subagent.NewCapacity(stressSlots, stressLine),
		seeds: seeded(t), owners: map[uuid.UUID]int{}, entered: map[uuid.UUID]int{}, doomed: map[uuid.UUID]bool{},
		cards: map[uuid.UUID]subagent.Card{}, notices: map[uuid.UUID]int{},
	}
	for _, op := range []subagenttest.Op{subagenttest.OpCreate, subagenttest.OpGet, subagenttest.OpUpdate, subagenttest.OpList, subagenttest.OpDelete} {
		s.store.On(op, func(c subagenttest.Call) (f subagenttest.Fault) {
			if s.fails(20) {
				f = subagenttest.Fault{Err: errors.New("the store is down"), Committed: s.fails(2)}
			}
			return f
		})
	}
	for i := range s.runners {
		var err error
		s.runners[i], err = s.open()
		require.NoError(t, err)
		s.readers[i] = &stressReader{t: t, sub: s.runners[i].Subscribe(subagent.Filter{}), last: map[uuid.UUID]subagent.Event{}}
		s.reading.Go(s.readers[i].read)
	}
	return s
}

// open makes a Runner; New fails if the store does.
func (s *stress) open() (r *subagent.Runner, err error) {
	for range 100 {
		r, err = subagent.New(context.Background(), subagent.Config{
			Store: s.store.Store(), Capacity: s.capacity, Cards: s, Notifier: s, MaxDepth: 4,
			CancelGrace: 30 * time.Millisecond, ShutdownGrace: 20 * time.Second,
		})
		if err == nil {
			return r, nil
		}
	}
	return nil, err
}

// fails is true once in n times, until all is calm.
func (s *stress) fails(n int) bool {
	if s.calm.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seeds.IntN(n) == 0
}

func (s *stress) PutCard(_ context.Context, c subagent.Card) error {
	if s.fails(30) {
		return errors.New("no card today")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cards[c.TaskID] = c
	return nil
}

func (s *stress) Notify(_ context.Context, task subagent.Task) error {
	if !task.Status.Terminal() || !task.Background {
		s.t.Errorf("notice of %+v", task)
	}
	if s.fails(30) {
		panic("no notice today")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notices[task.ID]++
	return nil
}

// stressReader reads the events of one Runner, and checks their order.
type stressReader struct {
	t    *testing.T
	sub  *subagent.Subscription
	last map[uuid.UUID]subagent.Event
	seq  uint64
}

func (r *stressReader) read() {
	for {
		e, err := r.sub.Next(context.Background())
		if err != nil {
			if !errors.Is(err, subagent.ErrClosed) {
				r.t.Error(err)
			}
			return
		}
		old, known := r.last[e.Task.ID]
		if e.Seq <= r.seq || known && (old.Task.Status.Terminal() || e.Type == subagent.EventCreated) {
			r.t.Errorf("event %+v after %+v", e, old)
		}
		r.seq, r.last[e.Task.ID] = e.Seq, e
	}
}

// stressClient is one goroutine with chances of its own.
type stressClient struct {
	*stress
	rnd  *rand.Rand
	seen map[uuid.UUID]bool // what this client has seen the end of
}

func (s *stress) client() *stressClient {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &stressClient{stress: s, rnd: rand.New(rand.NewPCG(s.seeds.Uint64(), 1)), seen: map[uuid.UUID]bool{}}
}

// pause is up to so many microseconds long.
func (s *stress) pause(ctx context.Context, rnd *rand.Rand, micros int) {
	timer := time.NewTimer(time.Duration(rnd.IntN(micros)) * time.Microsecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// some returns a task and the Runner that it belongs to, mostly a young one.
func (c *stressClient) some() (uuid.UUID, *subagent.Runner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ids) == 0 {
		return uuid.New(), c.runners[0]
	}
	id := c.ids[len(c.ids)-1-c.rnd.IntN(min(len(c.ids), 1+c.rnd.IntN(100)))]
	return id, c.runners[c.owners[id]]
}

func (c *stressClient) request() subagent.Request {
	q := subagent.Request{
		Description: "stress", ParentSessionID: fmt.Sprint("s", c.rnd.IntN(8)), NoWait: c.rnd.IntN(8) == 0,
		Independent: c.rnd.IntN(4) == 0, Func: c.work(),
	}
	if c.rnd.IntN(3) == 0 {
		q.Timeout = time.Duration(1+c.rnd.IntN(5000)) * time.Microsecond
	}
	if c.rnd.IntN(3) == 0 {
		q.QueueTimeout = time.Duration(1+c.rnd.IntN(20_000)) * time.Microsecond
	}
	return q
}

// spawn asks one of the Runners for a task, and remembers what it gave.
func (c *stressClient) spawn(ctx context.Context) {
	c.asked(c.rnd.IntN(2), ctx, c.request())
}

func (c *stressClient) asked(i int, ctx context.Context, q subagent.Request) uuid.UUID {
	task, err := c.runners[i].Spawn(ctx, q)
	if task.ID == uuid.Nil {
		if err == nil {
			c.t.Error("neither a task nor an error")
		}
		return uuid.Nil
	}
	if err != nil && (!task.Status.Terminal() || task.Status == subagent.StatusCompleted) { // errored, unless a cancel came first
		c.t.Errorf("%v, and %+v", err, task)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.owners[task.ID]; !known {
		if task.Owner == c.runners[1-i].ID() {
			i = 1 - i
		}
		c.owners[task.ID] = i
		c.ids = append(c.ids, task.ID)
	}
	return task.ID
}

// twice asks one Runner, or both, for one ID at the same time: it runs once.
func (c *stressClient) twice(ctx context.Context) {
	q := c.request()
	q.ID, q.NoWait = uuid.Must(uuid.NewV7()), false
	c.mu.Lock()
	c.doomed[q.ID] = false
	c.fixed++
	c.mu.Unlock()
	other, i, j := c.client(), c.rnd.IntN(2), c.rnd.IntN(2)
	done := make(chan struct{})
	go func() { // ends with its Spawn
		defer close(done)
		other.asked(i, ctx, q)
	}()
	c.asked(j, ctx, q)
	<-done
}

func (c *stressClient) step() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+c.rnd.IntN(5000))*time.Microsecond)
	defer cancel()
	always := context.Background()
	id, r := c.some()
	switch c.rnd.IntN(20) {
	case 0, 1, 2, 3, 4:
		c.spawn(always)
	case 5:
		c.spawn(ctx)
	case 6, 7:
		task, err := r.Run(ctx, c.request())
		if err == nil && !task.Status.Terminal() {
			c.t.Errorf("Run returned %+v", task)
		}
	case 8:
		c.twice(always)
	case 9, 10:
		_, _ = r.Cancel(ctx, id, subagent.CancelOptions{Message: "stress"})
	case 11:
		_, _ = r.CancelSession(always, fmt.Sprint("s", c.rnd.IntN(8)), subagent.CancelOptions{})
	case 12, 13:
		if task, err := r.Wait(ctx, id); err == nil && !task.Status.Terminal() {
			c.t.Errorf("Wait returned %+v", task)
		}
	case 14:
		other, _ := c.some()
		mode := []subagent.AwaitMode{subagent.AwaitAll, subagent.AwaitAny}[c.rnd.IntN(2)]
		_, _ = r.Await(ctx, mode, id, other)
	case 15:
		c.forget(r, id)
	case 16:
		sub := r.Subscribe(subagent.Filter{SessionID: "s1"})
		_, _ = sub.Next(ctx)
		sub.Close()
	default:
		c.look(ctx, r, id)
	}
}

func (c *stressClient) forget(r *subagent.Runner, id uuid.UUID) {
	c.mu.Lock()
	if spare, given := c.doomed[id]; given && !spare {
		c.mu.Unlock()
		return // an ID that is forgotten may run again
	}
	c.doomed[id] = true
	c.mu.Unlock()
	_ = r.Forget(context.Background(), id)
}

// look reads, and checks that nobody is taken back from an end.
func (c *stressClient) look(ctx context.Context, r *subagent.Runner, id uuid.UUID) {
	see := func(task subagent.Task) {
		if task.Status.Terminal() {
			c.seen[task.ID] = true
		} else if c.seen[task.ID] {
			c.t.Errorf("seen live after its end: %+v", task)
		}
	}
	if task, err := r.Get(ctx, id); err == nil {
		see(task)
	}
	_, _ = r.QueuePosition(id)
	_ = r.Stats()
	list, _ := r.List(ctx, subagent.Filter{NewestFirst: true, Limit: 20})
	for _, task := range list {
		if task.Owner == r.ID() { // the other one's unsaved ends are not known here
			see(task)
		}
	}
}

// work is a Func with a temper of its own.
func (c *stressClient) work() subagent.Func {
	mine := c.client()
	temper := mine.rnd.IntN(12)
	return func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		id := run.Task().ID
		mine.mu.Lock()
		mine.entered[id]++
		if mine.entered[id] > 1 {
			mine.t.Errorf("%s was entered again", id)
		}
		mine.mu.Unlock()
		for range mine.rnd.IntN(3) {
			run.Progress("busy")
			_, _ = run.Write([]byte("text "))
			run.ReportUsage("call", subagent.Usage{InputTokens: 1})
		}
		return mine.behave(ctx, run, temper)
	}
}

func (c *stressClient) behave(ctx context.Context, run *subagent.Run, temper int) (subagent.Result, error) {
	switch temper {
	case 0:
		panic("stress")
	case 1:
		runtime.Goexit()
	case 2:
		return subagent.Result{}, errors.New("stress")
	case 3: // deaf
		c.pause(context.Background(), c.rnd, []int{1000, 1000, 1000, 80_000}[c.rnd.IntN(4)])
	case 4:
		c.pause(ctx, c.rnd, 5000)
	case 5:
		c.pause(ctx, c.rnd, 20_000)
		return subagent.Result{}, ctx.Err()
	case 6, 7:
		_, err := c.runners[c.rnd.IntN(2)].Run(ctx, c.request())
		return subagent.Result{}, err
	case 8, 9:
		i := c.rnd.IntN(2)
		a, b := c.asked(i, ctx, c.request()), c.asked(i, ctx, c.request())
		short, cancel := context.WithTimeout(ctx, time.Duration(1+c.rnd.IntN(3000))*time.Microsecond)
		defer cancel()
		mode := []subagent.AwaitMode{subagent.AwaitAll, subagent.AwaitAny}[c.rnd.IntN(2)]
		_, err := c.runners[i].Await(short, mode, a, b)
		return subagent.Result{}, err
	case 10:
		other, r := c.some()
		_, err := r.Wait(ctx, other)
		return subagent.Result{}, err
	case 11:
		c.spawn(ctx)
		_, _ = c.runners[0].Cancel(ctx, run.Task().ID, subagent.CancelOptions{Reason: subagent.ReasonAgent})
	}
	return subagent.Result{Text: "done"}, nil
}
