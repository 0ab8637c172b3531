package subagent_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
)

// 100 000 tasks of every way to end leave no memory, no goroutine and no
// timer behind: only what the store is told to keep.
//
// Each task has timers of an hour: queue time, run time, and, where it was
// stopped, the grace. One that is left holds on to its task, and so to the token
// that the Func and the ctx of every third task carry: all tokens are gone when
// none is left.
func TestG17_TasksOfEveryEndLeaveNothing(t *testing.T) {
	const each = 1000
	batches := 100
	if bubble.Race {
		batches = 10
	}
	store := subagent.NewMemoryStore()
	store.SetRetention(10)
	slots := subagent.NewCapacity(4, -1)
	r, err := subagent.New(t.Context(), subagent.Config{
		Store: store, Capacity: slots, Timeout: time.Hour, QueueTimeout: time.Hour, CancelGrace: time.Hour,
	})
	require.NoError(t, err)
	tokens := newHeapTokens()
	sub := r.Subscribe(subagent.Filter{SessionID: "nobody"})
	leaks := goleak.IgnoreCurrent()
	heapBatch(t, r, slots, each, tokens) // what is made once is there then
	require.NoError(t, goleak.Find(leaks))
	before := liveHeap()
	for range batches {
		heapBatch(t, r, slots, each, tokens)
	}
	tokens.gone(t)
	require.NoError(t, goleak.Find(leaks)) // a Func's goroutine ends a moment after its task
	grown := int64(liveHeap()) - int64(before)
	t.Logf("%d bytes more after %d tasks", grown, batches*each)
	require.Less(t, grown, int64(1<<20))
	n := r.Stats()
	require.Zero(t, n.Pending+n.Queued+n.Running+n.Detached+n.Lent+n.Unsaved+n.Capacity.Running+n.Capacity.Queued, "%+v", n)
	sub.Close()
	require.NoError(t, r.Shutdown(t.Context()))
	require.NoError(t, t.Context().Err())
}

// heapTokens counts the tokens that are still held.
type heapTokens struct {
	made, freed atomic.Int64
	news        chan struct{} // one was freed
}

type heapTokenKey struct{}

func newHeapTokens() *heapTokens { return &heapTokens{news: make(chan struct{}, 1)} }

// carry has ctx and f hold on to a new token.
func (h *heapTokens) carry(ctx context.Context, f subagent.Func) (context.Context, subagent.Func) {
	token := new([64]byte)
	h.made.Add(1)
	runtime.AddCleanup(token, func(h *heapTokens) {
		h.freed.Add(1)
		select {
		case h.news <- struct{}{}:
		default:
		}
	}, h)
	return context.WithValue(ctx, heapTokenKey{}, token), func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		defer runtime.KeepAlive(token)
		return f(ctx, run)
	}
}

// gone checks that nothing holds on to a token any more.
func (h *heapTokens) gone(t *testing.T) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for h.freed.Load() < h.made.Load() {
		// The runtime forgets stopped timers when they are a quarter of its
		// timers, and pools what was put into them at the second collection.
		for range 100 {
			time.AfterFunc(time.Hour, func() {}).Stop()
		}
		runtime.GC()
		select {
		case <-h.news:
		case <-time.After(10 * time.Millisecond):
		case <-deadline.C:
			require.Equal(t, h.made.Load(), h.freed.Load(), "timers, or something else, hold on to ended tasks")
		}
	}
}

// heapBatch spawns tasks, ends them, and waits for them. None starts before all
// are in line: what a map keeps depends on how many it once held.
func heapBatch(t *testing.T, r *subagent.Runner, slots *subagent.Capacity, n int, tokens *heapTokens) {
	ids := make([]uuid.UUID, n)
	var start []func()
	for range slots.Stats().Limit {
		release, err := slots.Acquire(t.Context())
		require.NoError(t, err)
		start = append(start, release)
	}
	for i := range ids {
		ctx, fn := t.Context(), heapFunc(r, i)
		if i%3 == 0 { // of every kind of end
			ctx, fn = tokens.carry(ctx, fn)
		}
		task, err := r.Spawn(ctx, subagent.Request{
			ParentSessionID: fmt.Sprint("session ", i%10), Description: "x", ExternalTaskID: "call", Func: fn,
		})
		require.NoError(t, err)
		if ids[i] = task.ID; i%10 == 7 || i%10 == 9 {
			_, err = r.Cancel(t.Context(), task.ID, subagent.CancelOptions{})
			require.NoError(t, err)
		}
	}
	for _, release := range start {
		release()
	}
	for chunk := range 2 {
		tasks, err := r.Await(t.Context(), subagent.AwaitAll, ids[chunk*n/2:(chunk+1)*n/2]...)
		require.NoError(t, err)
		require.Len(t, tasks, n/2)
	}
}

func heapFunc(r *subagent.Runner, i int) subagent.Func {
	return func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		switch i % 10 {
		case 0:
			panic("x")
		case 1:
			runtime.Goexit()
		case 2:
			return subagent.Result{}, fmt.Errorf("x")
		case 3:
			_, err := r.Run(ctx, subagent.Request{Description: "kid", Func: heapFunc(r, 5)})
			return subagent.Result{}, err
		case 4:
			kid, err := r.Spawn(ctx, subagent.Request{Description: "kid", Func: heapFunc(r, 5)})
			if err != nil {
				return subagent.Result{}, err
			}
			_, err = r.Wait(ctx, kid.ID)
			return subagent.Result{}, err
		case 6:
			run.ReportUsage("call", subagent.Usage{InputTokens: 1})
			run.Progress("x")
			_, _ = run.Write([]byte("some text"))
		case 7: // it is stopped in the queue, or while it runs
			<-ctx.Done()
		case 8: // it stops itself, and has its grace
			_, err := r.Cancel(ctx, run.Task().ID, subagent.CancelOptions{})
			return subagent.Result{}, err
		}
		return subagent.Result{Text: "done"}, nil
	}
}
