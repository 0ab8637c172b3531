package subagenttest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// Gate stands in for the work of tasks. Its Func reports that a task has
// entered and returns when the test says so: no test of a host has to guess
// how long work takes. One Gate serves any number of tasks, also concurrently.
//
// In a testing/synctest bubble make the Gate inside the bubble: then a task at
// the gate counts as durably blocked.
type Gate struct {
	// mu guards all below. Nothing else is locked under it and nothing blocks.
	mu      sync.Mutex
	visits  map[uuid.UUID]*visit
	waiting []*subagent.Run // entered and not yet handed out by Entered
	arrival chan struct{}   // closed, and made anew, when a task enters
	open    bool            // ReleaseAll was called
	inside  int
}

// visit is one passage of a task through the gate. It may be made before the
// task comes, by those who wait for it or let it go in advance.
type visit struct {
	run      *subagent.Run // set before entered is closed
	entered  chan struct{}
	released chan struct{}   // closed once result and err are set
	result   subagent.Result // what the Func returns
	err      error
}

// NewGate returns a closed gate.
func NewGate() *Gate {
	return &Gate{visits: make(map[uuid.UUID]*visit), arrival: make(chan struct{})}
}

// Func returns the Func that stops at the gate. It returns what Release gave
// it, or context.Cause of its ctx if that ends first.
func (g *Gate) Func() subagent.Func {
	return func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		return g.pass(ctx, run, ctx.Done())
	}
}

// DeafFunc returns a Func that stops at the same gate and does not hear its
// ctx: it returns when it is released and not before, as stuck work does.
func (g *Gate) DeafFunc() subagent.Func {
	return func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		return g.pass(ctx, run, nil)
	}
}

// Entered blocks until a task has entered, or ctx ends, and returns its Run.
// Tasks are handed out in the order in which they entered, each to one caller.
func (g *Gate) Entered(ctx context.Context) (*subagent.Run, error) {
	for {
		g.mu.Lock()
		arrival := g.arrival
		if len(g.waiting) > 0 {
			run := g.waiting[0]
			g.waiting = g.waiting[1:]
			g.mu.Unlock()
			return run, nil
		}
		g.mu.Unlock()
		select {
		case <-arrival:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// enterWithin is far beyond what a healthy test takes; in a bubble it is a
// minute of the bubble's time.
const enterWithin = time.Minute

// WaitEntered blocks until the task has entered and returns its Run, at once if
// it has entered before, whether or not it is still inside. It ends the test
// if that has not happened within a minute, so call it from the test's own
// goroutine.
func (g *Gate) WaitEntered(t testing.TB, id uuid.UUID) *subagent.Run {
	t.Helper()
	g.mu.Lock()
	v := g.visitLocked(id)
	g.mu.Unlock()
	late := time.NewTimer(enterWithin)
	defer late.Stop()
	select {
	case <-v.entered:
	case <-late.C:
		t.Fatalf("subagenttest: task %s did not reach the gate within %v", id, enterWithin)
	}
	return v.run
}

// Release lets the task return result and err. One that has not entered yet
// will return at once when it does. Only the first Release of a task counts,
// and it counts only if the task's ctx has not ended before.
func (g *Gate) Release(id uuid.UUID, result subagent.Result, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.visitLocked(id).release(result, err)
}

// ReleaseAll opens the gate: tasks that are inside or still to come return an
// empty Result and no error.
func (g *Gate) ReleaseAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
	for _, v := range g.visits {
		v.release(subagent.Result{}, nil)
	}
}

// Inside returns how many tasks are at the gate now.
func (g *Gate) Inside() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inside
}

// pass is the Func. done is nil for one that does not hear ctx.
func (g *Gate) pass(ctx context.Context, run *subagent.Run, done <-chan struct{}) (subagent.Result, error) {
	v := g.enter(run)
	defer g.leave()
	select {
	case <-done: // before the gate was reached
		return subagent.Result{}, context.Cause(ctx)
	default:
	}
	select {
	case <-v.released:
		return v.result, v.err
	case <-done:
		return subagent.Result{}, context.Cause(ctx)
	}
}

func (g *Gate) enter(run *subagent.Run) *visit {
	id := run.Task().ID // not under mu: it is not our code
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.visitLocked(id)
	if v.run != nil { // the id is in use again, after its record was forgotten
		delete(g.visits, id)
		v = g.visitLocked(id)
	}
	v.run = run
	close(v.entered)
	g.inside++
	g.waiting = append(g.waiting, run)
	close(g.arrival)
	g.arrival = make(chan struct{})
	return v
}

func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
}

func (g *Gate) visitLocked(id uuid.UUID) *visit {
	v := g.visits[id]
	if v == nil {
		v = &visit{entered: make(chan struct{}), released: make(chan struct{})}
		g.visits[id] = v
		if g.open {
			v.release(subagent.Result{}, nil)
		}
	}
	return v
}

func (v *visit) release(result subagent.Result, err error) {
	select {
	case <-v.released: // the first counts
	default:
		v.result, v.err = result, err
		close(v.released)
	}
}
