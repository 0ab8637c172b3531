package subagenttest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

var errDisk = errors.New("disk full")

func record(status subagent.Status) subagent.Task {
	return subagent.Task{ID: uuid.Must(uuid.NewV7()), Status: status, ParentSessionID: "s", CreatedAt: time.Unix(0, 0).UTC()}
}

func always(fault subagenttest.Fault) func(subagenttest.Call) subagenttest.Fault {
	return func(subagenttest.Call) subagenttest.Fault { return fault }
}

func TestFaultyStoreConforms(t *testing.T) {
	subagenttest.TestStore(t, func(*testing.T) subagent.Store {
		f := subagenttest.NewFaultyStore(subagent.NewMemoryStore())
		f.On(subagenttest.OpUpdate, always(subagenttest.Fault{})) // a rule that does nothing changes nothing
		return f.Store()
	})
}

// plain hides all of a store but Store.
type plain struct{ subagent.Store }

// watched adds a Watcher.
type watched struct{ subagent.Store }

func (watched) Watch(ctx context.Context, _ string, _ func(subagent.Task)) error { return ctx.Err() }

func TestFaultyStoreHasTheInnerAbilities(t *testing.T) {
	m := subagent.NewMemoryStore()
	for _, c := range []struct {
		inner           subagent.Store
		leaser, watcher bool
	}{
		{plain{m}, false, false},
		{m, true, false},
		{watched{m}, false, true},
		{leasedAndWatched{m}, true, true},
	} {
		f := subagenttest.NewFaultyStore(c.inner)
		_, leaser := f.Store().(subagent.Leaser)
		_, watcher := f.Store().(subagent.Watcher)
		require.Equal(t, []bool{c.leaser, c.watcher}, []bool{leaser, watcher}, "%T", c.inner)
		_, leaser = subagent.Store(f).(subagent.Leaser)
		require.False(t, leaser, "used itself it is a Store only")
	}
}

// leasedAndWatched is all that a store can be.
type leasedAndWatched struct{ *subagent.MemoryStore }

func (leasedAndWatched) Watch(ctx context.Context, _ string, _ func(subagent.Task)) error {
	return ctx.Err()
}

// callAll makes one call of each kind and returns their errors.
func callAll(ctx context.Context, s subagent.Store, live, ended uuid.UUID) map[subagenttest.Op]error {
	l := s.(subagent.Leaser)
	errs := make(map[subagenttest.Op]error)
	errs[subagenttest.OpCreate] = s.Create(ctx, record(subagent.StatusPending))
	_, errs[subagenttest.OpGet] = s.Get(ctx, live)
	_, errs[subagenttest.OpUpdate] = s.Update(ctx, live, func(t *subagent.Task) error { t.Progress.ToolUses++; return nil })
	for _, err := range s.List(ctx, subagent.Filter{}) {
		errs[subagenttest.OpList] = err
	}
	errs[subagenttest.OpDelete] = s.Delete(ctx, ended)
	errs[subagenttest.OpRenew] = l.Renew(ctx, "me", time.Hour)
	_, errs[subagenttest.OpLive] = l.Live(ctx, "me")
	errs[subagenttest.OpRelease] = l.Release(ctx, "me")
	return errs
}

func TestFaultyStoreFailsWhatItIsTold(t *testing.T) {
	for op := range callAll(t.Context(), subagent.NewMemoryStore(), uuid.Nil, uuid.Nil) {
		for _, committed := range []bool{false, true} {
			m := subagent.NewMemoryStore()
			live, ended := record(subagent.StatusRunning), record(subagent.StatusCompleted)
			require.NoError(t, m.Create(t.Context(), live, ended))
			f := subagenttest.NewFaultyStore(m)
			f.On(op, always(subagenttest.Fault{Err: errDisk, Committed: committed}))
			for other, err := range callAll(t.Context(), f.Store(), live.ID, ended.ID) {
				require.Equal(t, 1, f.Calls(other))
				if other == op {
					require.Equal(t, errDisk, err, "%s", op)
				} else {
					require.NoError(t, err, "%s while %s fails", other, op)
				}
			}
			f.On(op, nil)
			if op != subagenttest.OpDelete {
				got, err := f.Get(t.Context(), live.ID)
				require.NoError(t, err)
				done := op != subagenttest.OpUpdate || committed
				require.Equal(t, done, got.Progress.ToolUses == 1)
			}
			_, err := m.Get(t.Context(), ended.ID)
			gone := op != subagenttest.OpDelete || committed
			require.Equal(t, gone, errors.Is(err, subagent.ErrNotFound))
		}
	}
}

func TestFaultyStoreShowsCalls(t *testing.T) {
	ctx, f := t.Context(), subagenttest.NewFaultyStore(subagent.NewMemoryStore())
	var calls []subagenttest.Call
	see := func(c subagenttest.Call) subagenttest.Fault {
		calls = append(calls, c)
		return subagenttest.Fault{}
	}
	f.On(subagenttest.OpCreate, see)
	f.On(subagenttest.OpUpdate, see)
	a, b := record(subagent.StatusRunning), record(subagent.StatusPending)
	require.NoError(t, f.Create(ctx, a, b))
	end := func(t *subagent.Task) error { t.Status = subagent.StatusCompleted; return nil }
	_, err := f.Update(ctx, a.ID, end)
	require.NoError(t, err)
	_, err = f.Update(ctx, b.ID, func(*subagent.Task) error { return errDisk })
	require.Equal(t, errDisk, err)
	_, err = f.Update(ctx, uuid.New(), end)
	require.ErrorIs(t, err, subagent.ErrNotFound)

	require.Len(t, calls, 4)
	require.Equal(t, []uuid.UUID{a.ID, b.ID}, calls[0].IDs)
	require.False(t, calls[0].Ends())
	require.True(t, calls[1].Ends())
	require.Equal(t, a.ID, calls[1].Tasks[0].ID)
	require.Empty(t, calls[2].Tasks, "the edit refuses")
	require.Empty(t, calls[3].Tasks, "no such record")
	require.Equal(t, []int{1, 1, 2, 3}, []int{calls[0].N, calls[1].N, calls[2].N, calls[3].N})

	f.On(subagenttest.OpCreate, see)
	require.NoError(t, f.Create(ctx))
	require.Equal(t, 1, calls[4].N, "counted from the rule on")
	require.Equal(t, 2, f.Calls(subagenttest.OpCreate))
}

func TestFaultyStoreListBreaksOff(t *testing.T) {
	ctx, f := t.Context(), subagenttest.NewFaultyStore(subagent.NewMemoryStore())
	require.NoError(t, f.Create(ctx, record(subagent.StatusPending), record(subagent.StatusPending)))
	f.On(subagenttest.OpList, always(subagenttest.Fault{Err: errDisk, Committed: true}))
	var errs []error
	for _, err := range f.List(ctx, subagent.Filter{}) {
		errs = append(errs, err)
	}
	require.Equal(t, []error{nil, nil, errDisk}, errs)
	for _, err := range f.List(ctx, subagent.Filter{}) { // nothing is yielded after a break
		require.NoError(t, err)
		break
	}
}

func TestFaultyStoreHoldsUp(t *testing.T) {
	for name, held := range map[string]func() (fault subagenttest.Fault, letGoLater func()){
		"delay": func() (subagenttest.Fault, func()) { return subagenttest.Fault{Delay: time.Minute}, func() {} },
		"block": func() (subagenttest.Fault, func()) {
			block := make(chan struct{})
			return subagenttest.Fault{Block: block}, func() { time.AfterFunc(time.Minute, func() { close(block) }) }
		},
	} {
		for _, deaf := range []bool{false, true} {
			for _, committed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, deaf %v, committed %v", name, deaf, committed), func(t *testing.T) {
					bubble.Test(t, func(t *testing.T) {
						fault, letGoLater := held()
						fault.Deaf, fault.Committed = deaf, committed
						letGoLater()
						testHeldUp(t, fault)
					})
				})
			}
		}
	}
}

// testHeldUp makes one call whose ctx ends while it is held up for a minute.
func testHeldUp(t *testing.T, fault subagenttest.Fault) {
	m := subagent.NewMemoryStore()
	f, task, start := subagenttest.NewFaultyStore(m), record(subagent.StatusPending), time.Now()
	f.On(subagenttest.OpCreate, always(fault))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := f.Create(ctx, task)
	_, stored := m.Get(t.Context(), task.ID)
	if !fault.Deaf {
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, fault.Committed, stored == nil)
		return
	}
	require.Equal(t, time.Minute, time.Since(start))
	if fault.Committed {
		require.NoError(t, err)
		require.NoError(t, stored)
	} else { // the inner store sees that its ctx has ended
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, stored, subagent.ErrNotFound)
	}
}

// The worst that a store can do to a task's end: store it and report that it
// failed. The Runner writes again, and recognises its own end.
func ExampleFaultyStore() {
	ctx := context.Background()
	store := subagenttest.NewFaultyStore(subagent.NewMemoryStore())
	store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
		if c.Ends() && c.N == 3 { // after queued and running
			return subagenttest.Fault{Err: errors.New("connection reset"), Committed: true}
		}
		return subagenttest.Fault{}
	})
	runner, err := subagent.New(ctx, subagent.Config{
		Store: store.Store(),
		Func: func(context.Context, *subagent.Run) (subagent.Result, error) {
			return subagent.Result{Text: "kept"}, nil
		},
	})
	if err != nil {
		panic(err)
	}
	task, err := runner.Run(ctx, subagent.Request{ParentSessionID: "session", Description: "Work."})
	fmt.Println(task.Status, task.ResultText, err)
	fmt.Println(runner.Shutdown(ctx))
	// Output:
	// completed kept <nil>
	// <nil>
}
