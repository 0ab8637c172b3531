package subagent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// ShutdownError is a Shutdown that had to leave something behind. It is
// ErrShutdown.
type ShutdownError struct {
	Detached []uuid.UUID // tasks whose worker has not returned
	Unsaved  []uuid.UUID // tasks whose end the store would not take
}

// Error counts what was left behind; the IDs are in the fields.
func (e *ShutdownError) Error() string {
	return fmt.Sprintf("%v, but %d workers have not returned and %d ends are not stored", ErrShutdown, len(e.Detached), len(e.Unsaved))
}

// Unwrap returns ErrShutdown.
func (e *ShutdownError) Unwrap() error { return ErrShutdown }

// Shutdown ends the Runner. It refuses new tasks (ErrClosed), cancels those
// that have not started, and lets running Funcs finish for ShutdownGrace, or
// until ctx ends if that is sooner. Then it ends their ctxs and waits again:
// until ctx ends, but at least a second, and at most another ShutdownGrace, or a
// second if that is longer.
// What has not returned then is settled as errored (ReasonShutdown), Detached.
// Calls of the store and of sinks that are under way add at most one
// StoreTimeout. Ends that are not stored and notices that are owed are tried
// once more; leases are released and subscriptions end.
//
// When it returns every task is terminal, and no goroutine of the Runner is
// left but detached workers. It returns nil if all workers have returned and
// everything is stored, else a *ShutdownError. Calling it again, also at the
// same time, waits for the same end; any ctx that ends hurries it.
//
// With the ctx of a Func, or of a store or sink call, it starts the shutdown
// and returns when all else has ended (nil), or when that ctx ends (its error).
func (r *Runner) Shutdown(ctx context.Context) error {
	caller, over := funcOf(ctx), ctx.Done() // a ctx may panic: before anything is closed
	if caller == nil {
		caller = callOf(ctx)
	}
	s := r.close()
	if caller == nil || caller.runner != r {
		select {
		case <-s.done:
		case <-over:
			s.hurryUp()
			<-s.done
		}
		return s.err
	}
	defer s.enter(caller)()
	select {
	case <-s.done:
		return s.err
	case <-s.alone:
		return nil
	case <-over:
		s.hurryUp()
		return ended(ctx)
	}
}

// closing is a shutdown under way. Its goroutine belongs to the Runner and ends
// with done, which everybody who called Shutdown waits for.
type closing struct {
	r     *Runner
	poke  chan struct{} // something that may be waited for has changed
	hurry chan struct{} // closed when a caller's ctx has ended
	once  sync.Once
	done  chan struct{}
	err   error // set before done is closed

	// Guarded by Runner.mu.

	callers map[*execution]int // tasks from inside which Shutdown was called: it cannot wait for them
	alone   chan struct{}      // closed when no other task is left
}

// close begins the shutdown, once.
func (r *Runner) close() *closing {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing == nil {
		r.closing = &closing{
			r: r, poke: make(chan struct{}, 1), hurry: make(chan struct{}), done: make(chan struct{}),
			callers: make(map[*execution]int), alone: make(chan struct{}),
		}
		go r.closing.run() // the Runner's: ends with done, which every Shutdown waits for
	}
	return r.closing
}

func (s *closing) hurryUp() { s.once.Do(func() { close(s.hurry) }) }

// enter counts a caller that is part of what would be waited for.
func (s *closing) enter(e *execution) (leave func()) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.callers[e]++
	s.r.pokeLocked()
	return func() {
		s.r.mu.Lock()
		defer s.r.mu.Unlock()
		if s.callers[e]--; s.callers[e] == 0 {
			delete(s.callers, e)
		}
	}
}

// pokeLocked has a shutdown under way look again, and lets those callers go who
// are part of all that is left.
func (r *Runner) pokeLocked() {
	s := r.closing
	if s == nil {
		return
	}
	others := r.open
	for e := range s.callers {
		if e.open {
			others--
		}
	}
	if len(s.callers) > 0 && others == 0 && !isClosed(s.alone) {
		close(s.alone)
	}
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

func (s *closing) run() {
	defer close(s.done)
	r := s.r
	notStarted := s.stop(func(e *execution) bool { return e.phase < phaseRunning })
	settled := make(chan struct{})
	go func() { // ends with the store's and sinks' answers
		defer close(settled)
		notStarted()
	}()
	s.wait(r.cfg.ShutdownGrace, 0)
	s.stop(func(e *execution) bool { return true })()
	s.wait(max(r.cfg.ShutdownGrace, time.Second), time.Second)
	by := time.Now().Add(r.cfg.StoreTimeout)
	r.by.Store(&by)
	s.force()
	<-settled
	s.lastWrites(by)
	r.by.Store(nil)
	r.hub.close()
	s.flushLog()
	s.err = s.account()
}

// stop gives every task that matches, and has no cause yet, this one.
func (s *closing) stop(match func(*execution) bool) func() {
	c := newCause(causeShutdown, ReasonShutdown, "worker pool shutdown", 0)
	var marked []*execution
	for _, e := range s.r.executions(nil) {
		e.mu.Lock()
		if match(e) && e.takeLocked(c) {
			marked = append(marked, e)
		}
		e.mu.Unlock()
	}
	slices.Reverse(marked) // parents are older than their children
	return signalAll(marked)
}

// wait returns when every worker is back and every end is told, or after the
// longest time, or when somebody is in a hurry, but not before the least.
func (s *closing) wait(longest, least time.Duration) {
	over, soonest := time.NewTimer(longest), time.NewTimer(least)
	defer over.Stop()
	defer soonest.Stop()
	hurry := s.hurry
	early := soonest.C
	for !s.quiet() {
		select {
		case <-s.poke:
		case <-over.C:
			return
		case <-early:
			early = nil
			if hurry == nil {
				return
			}
		case <-hurry:
			hurry = nil
			if early == nil || least == 0 {
				return
			}
		}
	}
}

// quiet reports whether nothing is left to be waited for.
func (s *closing) quiet() bool {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return s.r.open == 0
}

// force settles what has not returned, side by side.
func (s *closing) force() {
	var left []func()
	for _, e := range s.r.executions(nil) {
		left = append(left, e.force)
	}
	sideBySide(left)
}

// lastWrites tries once more, until by, what is not
// stored, put or delivered yet, and gives the lease back after that.
func (s *closing) lastWrites(by time.Time) {
	r := s.r
	s.settleAll()
	r.final.Store(true)
	close(r.quit)
	var left []func()
	for _, e := range union(r.executions(nil), r.unsavedEnds()) {
		left = append(left, e.saveNow, e.repostNow)
	}
	r.begin()
	go func() { // ends with the store's and sinks' answers
		defer r.finish()
		sideBySide(left)
		r.stopped.Wait()
	}()
	last := time.NewTimer(time.Until(by))
	defer last.Stop()
	for late := false; !late && s.helpers() > 0; {
		select {
		case <-s.poke:
		case <-last.C:
			late = true
		}
	}
	close(r.lastCall)
	if left := time.Until(by); r.leaser != nil && left > 0 { // else it expires by itself
		r.release(left)
	}
}

func (r *Runner) release(within time.Duration) {
	_, err := guard(withoutRun(context.Background()), within, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, r.leaser.Release(ctx, r.id)
	}, nil)
	if err != nil {
		r.log.warn("lease not released", uuid.Nil, "error", logText(err))
	}
}

// settleAll waits until every end is visible and told: what is under way is
// bounded by the time that store and sinks may take.
func (s *closing) settleAll() {
	for s.untold() {
		<-s.poke
	}
}

func (s *closing) untold() bool {
	return len(s.r.executions(func(e *execution) bool { return !e.isTold() && !s.called(e) })) > 0
}

// called reports whether Shutdown was called from inside e, which then waits.
func (s *closing) called(e *execution) bool {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return s.callers[e] > 0
}

func (s *closing) helpers() int {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return s.r.helpers
}

func (s *closing) flushLog() {
	if idle := s.r.log.flushed(); idle != nil {
		timer := time.NewTimer(s.r.cfg.StoreTimeout)
		defer timer.Stop()
		select {
		case <-idle:
		case <-timer.C:
		}
	}
}

// account says what was left behind. The Runner remembers nothing else: from
// here on readers are served from the store, which another Runner may write.
func (s *closing) account() error {
	r := s.r
	var left ShutdownError
	for _, e := range union(r.executions(nil), r.unsavedEnds()) {
		e.mu.Lock()
		inside, unsaved := e.inside, e.rest != nil && e.rest.want != nil && e.rest.want.end != nil && !e.forgotten
		e.mu.Unlock()
		if inside {
			left.Detached = append(left.Detached, e.id)
		}
		if unsaved {
			left.Unsaved = append(left.Unsaved, e.id)
		}
		if !unsaved {
			r.drop(e, false, true)
		}
	}
	slices.SortFunc(left.Detached, compareIDs)
	slices.SortFunc(left.Unsaved, compareIDs)
	if len(left.Detached)+len(left.Unsaved) == 0 {
		return nil
	}
	return &left
}
