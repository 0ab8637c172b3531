package subagent_test

import (
	"context"
	"errors"
	"fmt"
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
	rng := seeded(t)
	var rmu sync.Mutex
	rnd := func(n int) int {
		rmu.Lock()
		defer rmu.Unlock()
		return rng.IntN(n)
	}
	faulty := subagenttest.NewFaultyStore(subagent.NewMemoryStore())
	for _, op := range []subagenttest.Op{subagenttest.OpUpdate, subagenttest.OpCreate} {
		faulty.On(op, func(c subagenttest.Call) subagenttest.Fault {
			if rnd(20) == 0 {
				return subagenttest.Fault{Err: errors.New("store down"), Committed: rnd(2) == 0}
			}
			return subagenttest.Fault{}
		})
	}
	capacity := subagent.NewCapacity(3, -1)
	sink := &chaosSink{last: map[uuid.UUID]subagent.Card{}}
	note := &chaosNotifier{n: map[uuid.UUID]int{}}
	var rs [2]*subagent.Runner
	ctx := context.Background()
	fn := func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		for range rnd(3) {
			run.Progress("x")
			run.Write([]byte("abc"))
			run.ReportUsage("c", subagent.Usage{InputTokens: 1})
		}
		r := rs[rnd(2)]
		switch rnd(10) {
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
			a, err := r.Spawn(ctx, subagent.Request{Description: "kid2"})
			if err != nil {
				return subagent.Result{}, err
			}
			c, cancel := context.WithTimeout(ctx, time.Duration(rnd(3))*time.Millisecond)
			defer cancel()
			_, err = r.Wait(c, a.ID)
			return subagent.Result{}, err
		case 6:
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(rnd(2000)) * time.Microsecond):
			}
		}
		return subagent.Result{Text: "ok"}, nil
	}
	for i := range rs {
		r, err := subagent.New(ctx, subagent.Config{Store: faulty.Store(), Capacity: capacity, Func: fn, Cards: sink, Notifier: note,
			CancelGrace: 200 * time.Millisecond, Timeout: 50 * time.Millisecond, ShutdownGrace: 2 * time.Second})
		require.NoError(t, err)
		rs[i] = r
	}
	sub := rs[0].Subscribe(subagent.Filter{})
	ends := map[uuid.UUID]int{}
	var subDone sync.WaitGroup
	subDone.Go(func() {
		for {
			ev, err := sub.Next(ctx)
			if errors.Is(err, subagent.ErrLagged) {
				continue
			}
			if err != nil {
				return
			}
			if ev.Task.Status.Terminal() {
				ends[ev.Task.ID]++
			} else if ends[ev.Task.ID] > 0 {
				t.Errorf("event after end %v", ev)
			}
		}
	})
	var wg sync.WaitGroup
	var ids []uuid.UUID
	var imu sync.Mutex
	stop := time.Now().Add(length)
	for g := range 8 {
		wg.Go(func() {
			for time.Now().Before(stop) {
				r := rs[rnd(2)]
				imu.Lock()
				var some uuid.UUID
				if len(ids) > 0 {
					some = ids[rnd(len(ids))]
				}
				imu.Unlock()
				switch rnd(10) {
				case 0, 1, 2:
					task, err := r.Spawn(ctx, subagent.Request{Description: "p", ParentSessionID: fmt.Sprint("s", g), NoWait: rnd(5) == 0, QueueTimeout: time.Duration(1+rnd(30)) * time.Millisecond})
					if err == nil {
						imu.Lock()
						ids = append(ids, task.ID)
						imu.Unlock()
					}
				case 3:
					c, cancel := context.WithTimeout(ctx, time.Duration(rnd(5))*time.Millisecond)
					r.Run(c, subagent.Request{Description: "p", ParentSessionID: fmt.Sprint("s", g)})
					cancel()
				case 4:
					r.Cancel(ctx, some, subagent.CancelOptions{})
				case 5:
					if rnd(10) == 0 {
						r.CancelSession(ctx, fmt.Sprint("s", rnd(8)), subagent.CancelOptions{})
					}
				case 6:
					c, cancel := context.WithTimeout(ctx, time.Duration(rnd(5))*time.Millisecond)
					r.Wait(c, some)
					cancel()
				case 7:
					r.List(ctx, subagent.Filter{Limit: 10, NewestFirst: true})
				case 8:
					r.Get(ctx, some)
					r.QueuePosition(some)
				case 9:
					capacity.Resize(1 + rnd(4))
				}
			}
		})
	}
	wg.Wait()
	faulty.On(subagenttest.OpUpdate, nil)
	faulty.On(subagenttest.OpCreate, nil)
	sink.mu.Lock()
	sink.ok = true
	sink.mu.Unlock()
	for _, r := range rs {
		err := r.Shutdown(ctx)
		require.NoError(t, err)
	}
	subDone.Wait()
	for id, n := range ends {
		require.Equal(t, 1, n, id)
	}
	require.Zero(t, capacity.Stats().Running)
	require.Zero(t, capacity.Stats().Queued)
	capacity.Resize(3)
	for range 3 { // and no place is reserved: all slots are free
		_, ok := capacity.TryAcquire()
		require.True(t, ok)
	}
	n := 0
	for task, err := range faulty.List(ctx, subagent.Filter{}) {
		require.NoError(t, err)
		n++
		require.True(t, task.Status.Terminal(), "%+v", task)
		if c, ok := sink.last[task.ID]; ok {
			require.Equal(t, string(task.Status), c.Attach.Status, "%+v", task)
		}
	}
	for _, r := range rs {
		s := r.Stats()
		require.Zero(t, s.Pending+s.Queued+s.Running+s.Lent+s.Detached+s.Unsaved, "%+v", s)
	}
	t.Logf("%d tasks, %d ends", n, len(ends))
}
