package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/subagenttest"
)

type chaosSink struct {
	mu   sync.Mutex
	last map[uuid.UUID]subagent.Card
	n    int
	ok   bool
}

func (s *chaosSink) PutCard(ctx context.Context, c subagent.Card) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	if s.n%37 == 0 && !s.ok {
		return errors.New("sink down")
	}
	s.last[c.TaskID] = c
	return nil
}

type chaosNotifier struct {
	mu sync.Mutex
	n  map[uuid.UUID]int
}

func (s *chaosNotifier) Notify(ctx context.Context, t subagent.Task) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n[t.ID]++
	if s.n[t.ID]%3 == 1 && t.ID[15]%7 == 0 {
		return errors.New("no")
	}
	return nil
}

// chaos is what the clients of TestChaos share.
type chaos struct {
	t        *testing.T
	runners  [2]*subagent.Runner
	store    *subagenttest.FaultyStore
	capacity *subagent.Capacity
	sink     *chaosSink

	mu  sync.Mutex // guards both below
	rng *rand.Rand
	ids []uuid.UUID
}

// Clients of two Runners on one store and one Capacity do everything at once,
// while the store and the sinks fail now and then, half of the time after the
// store has committed. At the end everything has ended once, and nothing is
// left behind.
func TestChaos(t *testing.T) {
	length := time.Second
	if s := os.Getenv("SUBAGENT_TEST_STRESS"); s != "" {
		var err error
		length, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	c := newChaos(t)
	ends := c.ends(c.runners[0].Subscribe(subagent.Filter{}))
	var clients sync.WaitGroup
	stop := time.Now().Add(length)
	for g := range 8 {
		clients.Go(func() {
			for time.Now().Before(stop) {
				c.step(fmt.Sprint("s", g))
			}
		})
	}
	clients.Wait()
	c.over()
	seen := <-ends
	for id, n := range seen {
		require.Equal(t, 1, n, id)
	}
	t.Logf("%d tasks, %d ends", c.nothingLeft(), len(seen))
}

func newChaos(t *testing.T) *chaos {
	c := &chaos{
		t: t, rng: seeded(t), capacity: subagent.NewCapacity(3, -1),
		store: subagenttest.NewFaultyStore(subagent.NewMemoryStore()),
		sink:  &chaosSink{last: map[uuid.UUID]subagent.Card{}},
	}
	for _, op := range []subagenttest.Op{subagenttest.OpUpdate, subagenttest.OpCreate} {
		c.store.On(op, func(subagenttest.Call) subagenttest.Fault {
			if c.chance(20) == 0 {
				return subagenttest.Fault{Err: errors.New("store down"), Committed: c.chance(2) == 0}
			}
			return subagenttest.Fault{}
		})
	}
	for i := range c.runners {
		r, err := subagent.New(context.Background(), subagent.Config{
			Store: c.store.Store(), Capacity: c.capacity, Func: c.work, Cards: c.sink,
			Notifier:    &chaosNotifier{n: map[uuid.UUID]int{}},
			CancelGrace: 200 * time.Millisecond, Timeout: 50 * time.Millisecond, ShutdownGrace: 2 * time.Second,
		})
		require.NoError(t, err)
		c.runners[i] = r
	}
	return c
}

func (c *chaos) chance(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

// briefly is a ctx that ends within so many milliseconds.
func (c *chaos) briefly(ctx context.Context, millis int) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Duration(c.chance(millis))*time.Millisecond)
}

// work is the Func of all tasks.
func (c *chaos) work(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
	for range c.chance(3) {
		run.Progress("x")
		_, _ = run.Write([]byte("abc"))
		run.ReportUsage("c", subagent.Usage{InputTokens: 1})
	}
	r := c.runners[c.chance(2)]
	switch c.chance(10) {
	case 0:
		panic("boo")
	case 1:
		return subagent.Result{}, errors.New("bad")
	case 2:
		<-ctx.Done()
		return subagent.Result{}, ctx.Err()
	case 3, 4:
		_, err := r.Run(ctx, subagent.Request{Description: "kid"})
		return subagent.Result{}, err
	case 5:
		kid, err := r.Spawn(ctx, subagent.Request{Description: "kid2"})
		if err != nil {
			return subagent.Result{}, err
		}
		soon, cancel := c.briefly(ctx, 3)
		defer cancel()
		_, err = r.Wait(soon, kid.ID)
		return subagent.Result{}, err
	case 6:
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(c.chance(2000)) * time.Microsecond):
		}
	}
	return subagent.Result{Text: "ok"}, nil
}

// ends counts the ends that a subscription tells of, until it is over.
func (c *chaos) ends(sub *subagent.Subscription) <-chan map[uuid.UUID]int {
	counted := make(chan map[uuid.UUID]int, 1)
	go func() { // ends with the Runner
		ends := map[uuid.UUID]int{}
		defer func() { counted <- ends }()
		for {
			ev, err := sub.Next(context.Background())
			switch {
			case errors.Is(err, subagent.ErrLagged):
			case err != nil:
				return
			case ev.Task.Status.Terminal():
				ends[ev.Task.ID]++
			case ends[ev.Task.ID] > 0:
				c.t.Errorf("event after end %v", ev)
			}
		}
	}()
	return counted
}

// some is a task that was spawned, if there is one.
func (c *chaos) some() (id uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ids) > 0 {
		id = c.ids[c.rng.IntN(len(c.ids))]
	}
	return id
}

// step is one thing that a client does.
func (c *chaos) step(session string) {
	ctx, r, some := context.Background(), c.runners[c.chance(2)], c.some()
	switch c.chance(10) {
	case 0, 1, 2:
		task, err := r.Spawn(ctx, subagent.Request{
			Description: "p", ParentSessionID: session, NoWait: c.chance(5) == 0,
			QueueTimeout: time.Duration(1+c.chance(30)) * time.Millisecond,
		})
		if err == nil {
			c.mu.Lock()
			c.ids = append(c.ids, task.ID)
			c.mu.Unlock()
		}
	case 3:
		soon, cancel := c.briefly(ctx, 5)
		defer cancel()
		_, _ = r.Run(soon, subagent.Request{Description: "p", ParentSessionID: session})
	case 4:
		_, _ = r.Cancel(ctx, some, subagent.CancelOptions{})
	case 5:
		if c.chance(10) == 0 {
			_, _ = r.CancelSession(ctx, fmt.Sprint("s", c.chance(8)), subagent.CancelOptions{})
		}
	case 6:
		soon, cancel := c.briefly(ctx, 5)
		defer cancel()
		_, _ = r.Wait(soon, some)
	case 7:
		_, _ = r.List(ctx, subagent.Filter{Limit: 10, NewestFirst: true})
	case 8:
		_, _ = r.Get(ctx, some)
		r.QueuePosition(some)
	case 9:
		c.capacity.Resize(1 + c.chance(4))
	}
}

// over mends everything and shuts the Runners down.
func (c *chaos) over() {
	c.store.On(subagenttest.OpUpdate, nil)
	c.store.On(subagenttest.OpCreate, nil)
	c.sink.mu.Lock()
	c.sink.ok = true
	c.sink.mu.Unlock()
	for _, r := range c.runners {
		require.NoError(c.t, r.Shutdown(context.Background()))
	}
}

// nothingLeft checks what is there after the end, and counts the tasks.
func (c *chaos) nothingLeft() (tasks int) {
	t := c.t
	require.Zero(t, c.capacity.Stats().Running)
	require.Zero(t, c.capacity.Stats().Queued)
	c.capacity.Resize(3)
	for range 3 { // and no place is reserved: all slots are free
		_, ok := c.capacity.TryAcquire()
		require.True(t, ok)
	}
	for task, err := range c.store.List(context.Background(), subagent.Filter{}) {
		require.NoError(t, err)
		tasks++
		require.True(t, task.Status.Terminal(), "%+v", task)
		if card, ok := c.sink.last[task.ID]; ok {
			require.Equal(t, string(task.Status), card.Attach.Status, "%+v", task)
		}
	}
	for _, r := range c.runners {
		s := r.Stats()
		require.Zero(t, s.Pending+s.Queued+s.Running+s.Lent+s.Detached+s.Unsaved, "%+v", s)
	}
	return tasks
}
