package subagent_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// modelWait is a call that waits: of a worker, or from outside.
type modelWait struct {
	by     *modelTask // nil: from outside
	on     []*modelTask
	any    bool
	run    bool      // it is a Run
	doomed bool      // its ctx had ended before
	lent   bool      // the worker's slot is lent for it
	ends   time.Time // of its ctx; zero: never
	gone   bool      // its ctx has ended; a Run waits on all the same
	cancel context.CancelFunc

	// Written by the waiting goroutine.
	tasks    []subagent.Task
	err      error
	returned atomic.Bool
}

func (w *modelWait) String() string {
	s := fmt.Sprintf("wait any=%v run=%v doomed=%v lent=%v", w.any, w.run, w.doomed, w.lent)
	if w.by != nil {
		s += " by " + w.by.req.Description
	}
	return s + " on"
}

func (w *modelWait) satisfied() bool {
	over := func(x *modelTask) bool { return !x.live() }
	if w.any {
		return slices.ContainsFunc(w.on, over)
	}
	return !slices.ContainsFunc(w.on, func(x *modelTask) bool { return x.live() })
}

// newWait is a wait that may have a time limit.
func (m *runnerModel) newWait(by *modelTask, on ...*modelTask) *modelWait {
	w := &modelWait{by: by, on: on, cancel: func() {}}
	if m.pick(3) == 0 {
		w.ends = time.Now().Add(m.span())
	}
	return w
}

// do makes the call that waits.
func (w *modelWait) do(ctx context.Context, call func(context.Context) ([]subagent.Task, error)) {
	cancel := func() {}
	if !w.ends.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, w.ends)
	}
	defer cancel()
	w.tasks, w.err = call(ctx)
	w.returned.Store(true)
}

// begin notes that w waits; a worker lends its slot unless there is no need.
func (m *runnerModel) begin(w *modelWait) {
	m.waits = append(m.waits, w)
	m.note("begins: "+w.String(), w.on...)
	if w.by == nil {
		return
	}
	w.by.wait = w
	if !w.satisfied() && w.by.slot && w.by.cause == nil {
		w.lent, w.by.slot = true, false
		m.held--
		m.tally["lent"]++
	}
}

func (m *runnerModel) runOutside() bool {
	if m.crowded() {
		return false
	}
	x := m.newTask(nil, true)
	want := m.refusal(x, false)
	w := m.waitAside(func(ctx context.Context) ([]subagent.Task, error) {
		task, err := m.r.Run(ctx, x.req)
		return []subagent.Task{task}, err
	}, x)
	w.run = true
	if want != nil {
		require.True(m.t, w.returned.Load())
		m.refused(want, w.err)
		return true
	}
	m.adopt(x)
	m.begin(w)
	return true
}

// waitAside makes a call that waits on a goroutine that ends with it.
func (m *runnerModel) waitAside(call func(context.Context) ([]subagent.Task, error), on ...*modelTask) *modelWait {
	w := m.newWait(nil, on...)
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() {
		w.do(ctx, call)
	}()
	synctest.Wait()
	return w
}

// some picks up to three tasks to wait for.
func (m *runnerModel) some() (on []*modelTask, ids []uuid.UUID) {
	for range 1 + m.pick(3) {
		x := m.oneOf(func(x *modelTask) bool {
			return !x.forgotten && !slices.Contains(on, x) && (x.live() || m.pick(4) == 0)
		})
		if x != nil {
			on, ids = append(on, x), append(ids, x.id)
		}
	}
	return on, ids
}

func (m *runnerModel) await(w *modelWait, ids []uuid.UUID) func(context.Context) ([]subagent.Task, error) {
	return func(ctx context.Context) ([]subagent.Task, error) {
		if len(ids) == 1 {
			task, err := m.r.Wait(ctx, ids[0])
			return []subagent.Task{task}, err
		}
		mode := subagent.AwaitAll
		if w.any {
			mode = subagent.AwaitAny
		}
		return m.r.Await(ctx, mode, ids...)
	}
}

func (m *runnerModel) waitInside() bool {
	p := m.oneOf(func(x *modelTask) bool { return x.idle() && x.live() })
	on, ids := m.some()
	if p == nil || len(on) == 0 {
		return false
	}
	w := m.newWait(p, on...)
	w.any = len(on) > 1 && m.pick(2) == 0
	cycle := m.hopeless(w)
	w.doomed = p.cause != nil
	m.tell(p, func(ctx context.Context, _ *subagent.Run) *modelAnswer {
		w.do(ctx, m.await(w, ids))
		return nil
	})
	if cycle && !m.unread(w) {
		m.tally["cycle"]++
		require.True(m.t, w.returned.Load())
		require.ErrorIs(m.t, w.err, subagent.ErrWaitCycle)
		return true
	}
	m.begin(w)
	return true
}

// hopeless reports whether w could never be satisfied: a wait can be if all,
// or any, of what it waits for can end, and a worker can if its wait can be.
func (m *runnerModel) hopeless(w *modelWait) bool {
	ends := map[*modelTask]bool{}
	ancestor := func(x *modelTask) bool {
		p := w.by
		for p != nil && p != x {
			p = p.parent
		}
		return p != nil
	}
	possible := func(v *modelWait) bool {
		for _, x := range v.on {
			if ok := !x.live() || ends[x] && !(v == w && ancestor(x)); ok == v.any {
				return ok
			}
		}
		return !v.any
	}
	for range len(m.tasks) + 1 {
		for _, x := range m.tasks {
			waits := x.wait
			if x == w.by {
				waits = w
			}
			ends[x] = ends[x] || !x.live() || waits == nil || !waits.lent && waits != w || possible(waits)
		}
	}
	return !possible(w)
}

func (m *runnerModel) waitOutside() bool {
	on, ids := m.some()
	if len(on) == 0 {
		return false
	}
	w := &modelWait{any: len(on) > 1 && m.pick(2) == 0}
	kind := w.any
	w = m.waitAside(m.await(w, ids), on...)
	w.any = kind
	m.begin(w)
	return true
}

// leave ends the ctx of a wait from outside.
func (m *runnerModel) leave() bool {
	for _, w := range m.waits {
		if w.by == nil && !w.gone && m.pick(2) == 0 {
			w.cancel()
			m.gone(w)
			return true
		}
	}
	return false
}

// gone notes that the ctx of w has ended. What it ran in the foreground is
// cancelled, and the worker that waited takes its slot back.
func (m *runnerModel) gone(w *modelWait) {
	w.gone = true
	m.note("its ctx ends: "+w.String(), w.on...)
	m.takeBack(w)
	if w.run {
		m.stop(subagent.ReasonCaller, "", w.on[0])
	}
}

func (m *runnerModel) takeBack(w *modelWait) {
	if w.lent {
		m.tally["lent slot forced"]++
		w.lent, w.by.slot, w.by.inLane = false, true, false
		m.held++
	}
}
