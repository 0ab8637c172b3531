package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// diary is what a subscriber has read, in a bubble.
type diary struct {
	t      *testing.T
	sub    *subagent.Subscription
	events map[uuid.UUID][]subagent.Event
	seq    uint64
	at     time.Time
	lagged int
}

func newDiary(t *testing.T, r *subagent.Runner, f subagent.Filter) *diary {
	return &diary{t: t, sub: r.Subscribe(f), events: map[uuid.UUID][]subagent.Event{}}
}

// read takes what is unread, and returns how it ended.
func (d *diary) read(ctx context.Context) error {
	for {
		e, err := d.sub.Next(ctx)
		if errors.Is(err, subagent.ErrLagged) {
			d.lagged++
			continue
		}
		if err != nil {
			return err
		}
		require.Greater(d.t, e.Seq, d.seq)
		require.False(d.t, e.Time.Before(d.at), "time runs backwards")
		d.seq, d.at = e.Seq, e.Time
		d.events[e.Task.ID] = append(d.events[e.Task.ID], e)
	}
}

// tells checks that the events of a task tell a life: it is created once, goes
// on as states may follow each other, and ends once, with the last of them.
func (d *diary) tells(id uuid.UUID) {
	events := d.events[id]
	require.NotEmpty(d.t, events)
	require.Equal(d.t, subagent.EventCreated, events[0].Type)
	for i, e := range events {
		last := i == len(events)-1
		require.Equal(d.t, last, e.Task.Status.Terminal(), "event %d of %d: %+v", i, len(events), e)
		if i == 0 {
			continue
		}
		before := events[i-1]
		require.NotEqual(d.t, subagent.EventCreated, e.Type)
		require.GreaterOrEqual(d.t, e.Task.Version, before.Task.Version)
		require.False(d.t, e.Time.Before(before.Time))
		require.True(d.t, e.Task.Usage.InputTokens >= before.Task.Usage.InputTokens || last)
		if from, to := before.Task.Status, e.Task.Status; from != to {
			require.Equal(d.t, subagent.EventStatus, e.Type)
			require.True(d.t, follows(from, to), "%s after %s", to, from)
		} else if e.Type == subagent.EventStatus {
			require.False(d.t, e.Task.CancelRequestedAt.IsZero(), "nothing new in it: %+v", e)
		}
	}
}

// follows reports whether to can come after from, with what was merged in
// between.
func follows(from, to subagent.Status) bool {
	return subagent.CanTransition(from, to) || from == subagent.StatusPending || from == subagent.StatusQueued && to.Terminal()
}

// 1000 lives of every sort, told to one who reads each event at once and to
// one who reads now and then.
func TestEvents_TellEachLife(t *testing.T) {
	seed := seeded(t)
	const bubbles, lives = 20, 50
	for range bubbles {
		rnd := rand.New(rand.NewPCG(seed.Uint64(), 0))
		bubble.Test(t, func(t *testing.T) { eventLives(t, rnd, lives) })
	}
}

func eventLives(t *testing.T, rnd *rand.Rand, lives int) {
	ctx := context.Background()
	r, err := subagent.New(ctx, subagent.Config{Workers: 3, MaxQueued: -1, CancelGrace: 10 * time.Millisecond})
	require.NoError(t, err)
	at, slow := newDiary(t, r, subagent.Filter{}), newDiary(t, r, subagent.Filter{SessionID: "s1"})
	first := make(chan error, 1)
	go func() { first <- at.read(ctx) }() // ends with the Runner
	over, cancel := context.WithCancel(ctx)
	cancel()
	var ids []uuid.UUID
	for i := range lives {
		task, err := r.Spawn(ctx, subagent.Request{
			Description: "x", ParentSessionID: fmt.Sprint("s", i%2), Func: eventLife(rnd.Uint64()),
			Timeout:      time.Duration(rnd.IntN(2)*(1+rnd.IntN(50))) * time.Millisecond,
			QueueTimeout: time.Duration(rnd.IntN(2)*(1+rnd.IntN(200))) * time.Millisecond,
		})
		require.NoError(t, err)
		ids = append(ids, task.ID)
		if rnd.IntN(2) == 0 {
			time.Sleep(time.Duration(rnd.IntN(10)) * time.Millisecond)
		}
		if rnd.IntN(4) == 0 {
			_, err := r.Cancel(ctx, ids[rnd.IntN(len(ids))], subagent.CancelOptions{})
			require.NoError(t, err)
		}
		if rnd.IntN(4) == 0 {
			require.ErrorIs(t, slow.read(over), context.Canceled)
		}
	}
	time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
	require.NoError(t, r.Shutdown(ctx))
	require.ErrorIs(t, <-first, subagent.ErrClosed)
	require.ErrorIs(t, slow.read(ctx), subagent.ErrClosed)
	require.Len(t, at.events, lives)
	require.Len(t, slow.events, lives/2)
	for i, id := range ids {
		at.tells(id)
		got, err := r.Get(ctx, id)
		require.NoError(t, err)
		eventShowsEnd(t, got, at)
		if i%2 == 1 {
			slow.tells(id)
			eventShowsEnd(t, got, slow)
		}
	}
}

// eventShowsEnd checks that the last event is the record.
func eventShowsEnd(t *testing.T, want subagent.Task, d *diary) {
	t.Helper()
	events := d.events[want.ID]
	got := events[len(events)-1].Task
	want.NotifiedAt, want.Version = got.NotifiedAt, got.Version
	require.Equal(t, want, got)
}

// eventLife is a Func that says a few things, at times still when its task has
// ended without it.
func eventLife(seed uint64) subagent.Func {
	return func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		deaf := rnd.IntN(3) == 0
		for i := range rnd.IntN(8) {
			switch rnd.IntN(4) {
			case 0:
				run.Progress("on it")
			case 1:
				run.ToolUse("grep")
			case 2:
				_, _ = run.Write([]byte("text"))
			case 3:
				run.ReportUsage(fmt.Sprint("call ", i), subagent.Usage{InputTokens: 1})
			}
			time.Sleep(time.Duration(rnd.IntN(10)) * time.Millisecond)
			if !deaf && ctx.Err() != nil {
				return subagent.Result{}, ctx.Err()
			}
		}
		switch rnd.IntN(5) {
		case 0:
			return subagent.Result{}, errors.New("no luck")
		case 1:
			panic("no luck")
		}
		return subagent.Result{Text: "done"}, nil
	}
}

// What a worker says after its end is told to nobody.
func TestEvents_NothingAfterTheEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, gate := context.Background(), subagenttest.NewGate()
		r, err := subagent.New(ctx, subagent.Config{Func: gate.DeafFunc(), CancelGrace: time.Second})
		require.NoError(t, err)
		d := newDiary(t, r, subagent.Filter{})
		task, err := r.Spawn(ctx, subagent.Request{Description: "x", ParentSessionID: "s"})
		require.NoError(t, err)
		run := gate.WaitEntered(t, task.ID)
		_, err = r.Cancel(ctx, task.ID, subagent.CancelOptions{})
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		before, err := r.Get(ctx, task.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCancelled, before.Status)
		soon, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, d.read(soon), context.Canceled)
		run.Progress("still here")
		run.ToolUse("grep")
		run.ReportUsage("call", subagent.Usage{InputTokens: 1})
		_, _ = run.Write([]byte("text"))
		gate.ReleaseAll()
		synctest.Wait()
		require.ErrorIs(t, d.read(soon), context.Canceled)
		d.tells(task.ID)
		after, err := r.Get(ctx, task.ID)
		require.NoError(t, err)
		require.Equal(t, before, after)
		require.NoError(t, r.Shutdown(ctx))
		require.ErrorIs(t, d.read(ctx), subagent.ErrClosed)
		d.tells(task.ID)
	})
}

// A subscriber that lags is told so once; then it reads what happens from
// there on, and others are not touched by it.
func TestEvents_LagIsToldOnce(t *testing.T) {
	const room = 4096
	bubble.Test(t, func(t *testing.T) {
		ctx, gate := context.Background(), subagenttest.NewGate()
		r, err := subagent.New(ctx, subagent.Config{Workers: 1, MaxQueued: -1, Func: gate.Func()})
		require.NoError(t, err)
		d, other := newDiary(t, r, subagent.Filter{}), newDiary(t, r, subagent.Filter{SessionID: "last"})
		spawn := func(session string) uuid.UUID {
			task, err := r.Spawn(ctx, subagent.Request{Description: "x", ParentSessionID: session})
			require.NoError(t, err)
			return task.ID
		}
		for range room {
			spawn("s")
		}
		synctest.Wait()
		spawn("s")
		last := spawn("last")
		soon, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, d.read(soon), context.Canceled)
		require.Equal(t, 1, d.lagged)
		require.Empty(t, d.events, "what was unread is gone")
		require.ErrorIs(t, other.read(soon), context.Canceled)
		require.Len(t, other.events, 1)
		gate.ReleaseAll()
		_, err = r.Wait(ctx, last)
		require.NoError(t, err)
		require.ErrorIs(t, other.read(soon), context.Canceled)
		require.Zero(t, other.lagged)
		other.tells(last)
		d.sub.Close()
		other.sub.Close()
		require.ErrorIs(t, d.read(ctx), subagent.ErrClosed)
		require.NoError(t, r.Shutdown(ctx))
	})
}

// The ends that a shutdown brings about are told before the subscription is
// over; one that comes later is over at once.
func TestEvents_ShutdownTellsTheEndsFirst(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, gate := context.Background(), subagenttest.NewGate()
		r, err := subagent.New(ctx, subagent.Config{Workers: 1, Func: gate.DeafFunc()})
		require.NoError(t, err)
		d := newDiary(t, r, subagent.Filter{})
		var ids []uuid.UUID
		for range 3 {
			task, err := r.Spawn(ctx, subagent.Request{Description: "x", ParentSessionID: "s"})
			require.NoError(t, err)
			ids = append(ids, task.ID)
		}
		gate.WaitEntered(t, ids[0])
		var left *subagent.ShutdownError
		require.ErrorAs(t, r.Shutdown(ctx), &left)
		require.Equal(t, ids[:1], left.Detached)
		require.ErrorIs(t, d.read(ctx), subagent.ErrClosed)
		for _, id := range ids {
			d.tells(id)
		}
		_, err = r.Subscribe(subagent.Filter{}).Next(ctx)
		require.ErrorIs(t, err, subagent.ErrClosed)
		gate.ReleaseAll()
	})
}
