package subagent_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// A stop and the Func's own end at the same moment: memory, store, card,
// event, notice and waiter agree on one of the two, and exactly one of notice
// and waiter is the first to see it.
func TestG3_StopAgainstFinish(t *testing.T) {
	rounds := 20_000
	if testing.Short() {
		rounds = 2_000
	}
	rng := seeded(t)
	// No timer fires here, so that the detector stands several processors
	// (see internal/bubble), and the race is one.
	synctest.Test(t, func(t *testing.T) {
		d := newDuels(t)
		stopped, both := 0, 0
		for i := range rounds {
			one := d.fight(i%3, rng.IntN(3))
			if one.row.Status == subagent.StatusCancelled {
				stopped++
			}
			if d.first(one) == 2 {
				both++
			}
		}
		require.NoError(t, d.r.Shutdown(t.Context()))
		d.listener.Wait()
		d.oneEndEach(rounds)
		t.Logf("%d of %d were stopped in time; %d waiters came while the notice was on its way", stopped, rounds, both)
	})
}

// duels are between a Func and a Cancel.
type duels struct {
	*tape
	t        *testing.T
	r        *subagent.Runner
	store    *subagent.MemoryStore
	listener sync.WaitGroup
}

// duel is what is known of one after it.
type duel struct {
	waiting int
	row     subagent.Task
	handed  subagent.Task // to the waiter
}

// newDuels must be called in a bubble.
func newDuels(t *testing.T) *duels {
	d := &duels{t: t, tape: newTape(), store: subagent.NewMemoryStore()}
	d.store.SetRetention(-1)
	var err error
	d.r, err = subagent.New(t.Context(), subagent.Config{Store: d.store, Cards: d, Notifier: d, Workers: 2})
	require.NoError(t, err)
	ended := d.r.Subscribe(subagent.Filter{Statuses: []subagent.Status{subagent.StatusCompleted, subagent.StatusCancelled, subagent.StatusErrored}})
	d.listener.Go(func() { d.listen(ended) })
	return d
}

// When somebody begins to wait for the task.
const (
	waitsBefore = iota // it may end
	waitsThen          // while it ends
	waitsAfter         // its notice was delivered
)

func (d *duels) fight(waiting, yields int) duel {
	t, ctx := d.t, d.t.Context()
	time.Sleep(time.Millisecond) // no two ends have the same time
	entered, finish := make(chan struct{}), make(chan struct{})
	task, err := d.r.Spawn(ctx, rigAsk("x", func(q *subagent.Request) {
		q.Func = func(context.Context, *subagent.Run) (subagent.Result, error) {
			close(entered)
			<-finish
			return subagent.Result{Text: "done"}, nil
		}
	}))
	require.NoError(t, err)
	<-entered
	one := duel{waiting: waiting}
	wait := func() {
		var err error
		one.handed, err = d.r.Wait(ctx, task.ID)
		require.NoError(t, err)
		cards, _, _ := d.heard(task.ID)
		require.Equal(t, one.handed.Card(), cards[len(cards)-1], "the card comes before the waiters")
	}
	var all sync.WaitGroup
	if waiting == waitsBefore {
		all.Go(wait)
		synctest.Wait()
	}
	all.Go(func() { close(finish) })
	all.Go(func() {
		for range yields {
			runtime.Gosched()
		}
		_, err := d.r.Cancel(ctx, task.ID, subagent.CancelOptions{})
		require.NoError(t, err)
	})
	if waiting == waitsThen {
		all.Go(wait)
	}
	all.Wait()
	if waiting == waitsAfter {
		synctest.Wait()
		wait()
	}
	one.row, err = d.store.Get(ctx, task.ID)
	require.NoError(t, err)
	got, err := d.r.Get(ctx, task.ID)
	require.NoError(t, err)
	require.True(t, sameEnd(one.row, got) && sameEnd(one.row, one.handed), "%+v, %+v and %+v", one.row, got, one.handed)
	require.Equal(t, "done", one.row.ResultText)
	return one
}

// first checks who was the first to see the end. Notice and waiter both are only
// if the waiter came while the notice was on its way: neither is held up for
// the other.
func (d *duels) first(one duel) (firsts int) {
	synctest.Wait() // a notice that is on its way arrives
	_, _, notices := d.heard(one.row.ID)
	firsts = len(notices)
	if one.handed.NotifiedAt.IsZero() {
		firsts++
	}
	switch one.waiting {
	case waitsBefore:
		require.Empty(d.t, notices, "a waiter sees it")
		require.Zero(d.t, one.handed.NotifiedAt)
	case waitsAfter:
		require.Len(d.t, notices, 1, "nobody else has seen it")
		require.False(d.t, one.handed.NotifiedAt.IsZero())
	default:
		require.LessOrEqual(d.t, len(notices), 1)
		require.Positive(d.t, firsts)
	}
	return firsts
}

// oneEndEach checks that of each task the same end was told everywhere, once.
func (d *duels) oneEndEach(rounds int) {
	require.Len(d.t, d.events, rounds)
	for id, events := range d.events {
		require.Len(d.t, events, 1, "%s ended more than once", id)
		row, err := d.store.Get(d.t.Context(), id)
		require.NoError(d.t, err)
		require.False(d.t, row.NotifiedAt.IsZero(), "it was delivered")
		require.Equal(d.t, row.Card(), d.cards[id][len(d.cards[id])-1])
		for _, seen := range append(d.notices[id], events[0].Task) {
			if !sameEnd(row, seen) {
				require.Equal(d.t, essence(row), essence(seen), "event or notice")
			}
		}
	}
}
