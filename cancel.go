package subagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent/internal/runes"
)

// CancelOptions say why a task is to stop.
type CancelOptions struct {
	Reason  Reason // "": ReasonUser; of a session ReasonSession; at most 256 bytes
	Message string // for people; kept in Task.CancelMessage, cut to 2000 bytes
}

// CancelError is the context.Cause of a Func's ctx that ended because its task
// must stop. It is ErrCancelled; for ReasonTimeout it is ErrTimeout and
// context.DeadlineExceeded too, for ReasonShutdown ErrShutdown, for ReasonLost
// ErrLost.
type CancelError struct {
	Reason  Reason
	Message string
}

// Error names the reason and, if there is one, the message.
func (e *CancelError) Error() string {
	s := fmt.Sprintf("%v (%s)", ErrCancelled, e.Reason)
	if e.Message != "" {
		s += ": " + e.Message
	}
	return s
}

// Is reports whether target is what e stands for.
func (e *CancelError) Is(target error) bool {
	switch target {
	case ErrCancelled:
		return true
	case ErrTimeout, context.DeadlineExceeded:
		return e.Reason == ReasonTimeout || e.Reason == ReasonQueueTimeout
	case ErrShutdown:
		return e.Reason == ReasonShutdown
	case ErrLost:
		return e.Reason == ReasonLost
	}
	other, ok := target.(*CancelError)
	return ok && *other == *e
}

// What a cancelled task or call unwraps to.
var (
	ErrCancelled = errors.New("subagent: task cancelled")
	ErrShutdown  = errors.New("subagent: runner shut down")
)

// Cancel asks a task to stop, and all its descendants but those spawned
// Independent, and returns the task as it is then. It does not wait for the
// worker: a task that has not started is cancelled at once, a running one has
// its ctx ended and is settled when its Func returns, at the latest after
// Config.CancelGrace. On a task that has ended it changes nothing. Calling it
// again changes nothing either and does not prolong the grace.
//
// The request takes effect in memory first, whatever ctx and the store do;
// then it is stored, which is what Cancel waits for until ctx ends (ctx.Err())
// or StoreTimeout has passed. A task that another live Runner executes is
// cancelled by storing the request; one whose owner is dead is recovered, or, if
// its status is none that this version knows, left alone: *TransitionError. An
// unknown id is ErrNotFound, a bad option ErrInvalidRequest.
func (r *Runner) Cancel(ctx context.Context, id uuid.UUID, o CancelOptions) (Task, error) {
	c, err := o.cause(ReasonUser, r.cfg.CancelGrace)
	if err != nil {
		return Task{}, err
	}
	e := r.find(id)
	// A call of the recovery's own must not wait for that.
	if e == nil || e.recovering() && e != callOf(ctx) || !r.exists(ctx, e) {
		t, err := r.load(ctx, id)
		return r.cancelStored(ctx, t, err, c)
	}
	_, after := r.stop([]*execution{e}, c, nil)
	err = r.attend(ctx, after)
	return r.current(e).copy(), err
}

// CancelSession asks every live task of a session to stop, with the session's
// reason, and their descendants in other sessions, with ReasonParent. It
// returns all that it asked, ordered by ID, as they are then; otherwise it is
// as Cancel. A session without live tasks is no error.
func (r *Runner) CancelSession(ctx context.Context, sessionID string, o CancelOptions) ([]Task, error) {
	c, err := o.cause(ReasonSession, r.cfg.CancelGrace)
	if err != nil {
		return nil, err
	}
	if sessionID == "" {
		return nil, fmt.Errorf("%w: sessionID is empty", ErrInvalidRequest)
	}
	inSession := func(e *execution) bool { return e.session() == sessionID }
	live := r.executions(func(e *execution) bool { return inSession(e) && !e.ended() })
	marked, after := r.stop(live, c, inSession)
	err = r.attend(ctx, after)
	tasks, ferr := r.cancelForeign(ctx, sessionID, c)
	for _, e := range union(live, marked) {
		if r.exists(ctx, e) {
			t := r.current(e).copy()
			preview(&t)
			tasks = append(tasks, t)
		}
	}
	slices.SortFunc(tasks, func(a, b Task) int { return compareIDs(a.ID, b.ID) })
	return tasks, errors.Join(err, ferr)
}

// stop gives the executions and their descendants the cause c, as mark does,
// and carries it out where that takes no store: it ends the ctxs of those that
// run, descendants first, and takes those that wait out of the line. It
// returns those that took the cause, and what is left to do: to store and tell
// what has become of them. All are marked before anybody is signalled, so that
// a parent whose ctx ends cannot give its child another reason first.
func (r *Runner) stop(roots []*execution, c *cause, own func(*execution) bool) (marked []*execution, after func()) {
	for _, e := range roots {
		marked = e.mark(c, own, marked)
	}
	return marked, signalAll(marked)
}

func signalAll(marked []*execution) (after func()) {
	var left []func()
	for _, e := range marked {
		if f := e.signal(); f != nil {
			left = append(left, f)
		}
	}
	return func() { sideBySide(left) }
}

// signal carries out the cause that e has just taken. What it returns is still
// to be done then: to settle a task that was taken out of the line, or to
// store the request where the task runs. In every other phase its owner will
// see the cause.
func (e *execution) signal() func() {
	e.mu.Lock()
	c, run := e.cause, e.run
	switch {
	case e.phase == phaseQueued && e.runner.capacity.leave(e.place):
		end := e.concludeLocked(nil)
		e.mu.Unlock()
		return func() { e.settle(end) }
	case e.phase == phaseRunning:
		if c.kind != causeShutdown { // Shutdown forces the end itself
			run.grace = time.AfterFunc(time.Until(c.grace), e.force) // its goroutine ends with that; stopped by another end
		}
	default:
		e.mu.Unlock()
		return nil
	}
	e.mu.Unlock()
	// Its ctx has ended, so it takes a slot that it lent back at once: what
	// it does from here on is counted.
	run.cancel(c.err())
	e.takeBack()
	if c.kind != causeRequest {
		return nil
	}
	return func() { e.saveRequest(c.request()) }
}

// sideBySide runs all of fs, a few at a time, and returns when all have.
func sideBySide(fs []func()) {
	const most = 64
	if len(fs) == 1 {
		fs[0]()
		return
	}
	var (
		next atomic.Int64
		wg   sync.WaitGroup
	)
	for range min(most, len(fs)) {
		wg.Go(func() { // sideBySide's: ends with fs, and is waited for
			for i := int(next.Add(1)) - 1; i < len(fs); i = int(next.Add(1)) - 1 {
				fs[i]()
			}
		})
	}
	wg.Wait()
}

// union is a and what of b is not in it.
func union(a, b []*execution) []*execution {
	in := make(map[*execution]bool, len(a))
	for _, e := range a {
		in[e] = true
	}
	for _, e := range b {
		if !in[e] {
			a = append(a, e)
		}
	}
	return a
}

// causeKind is what sort of thing ended a task, where its Func did not.
type causeKind uint8

const (
	causeRequest      causeKind = iota // somebody asked
	causeTimeout                       // run time limit
	causeQueueTimeout                  // queue time limit
	causeShutdown                      // the Runner shut down
	causeStore                         // the store refused a transition
	causeLost                          // its owner died, or lost its lease
)

// cause is why a task must stop. The first one that a task is given counts; it
// is set once, under the execution's lock, and shared by a whole tree.
type cause struct {
	kind    causeKind
	reason  Reason
	message string    // of a request, else the error text that the record gets
	at      time.Time // when it arose
	grace   time.Time // until when a running Func may return, on the monotonic clock
}

func newCause(kind causeKind, reason Reason, message string, grace time.Duration) *cause {
	now := time.Now()
	return &cause{kind, reason, message, stamp(time.Time{}), now.Add(grace)}
}

func (o CancelOptions) cause(reason Reason, grace time.Duration) (*cause, error) {
	if o.Reason == "" {
		o.Reason = reason
	}
	if err := checkID("CancelOptions.Reason", string(o.Reason)); err != nil {
		return nil, err
	}
	return newCause(causeRequest, o.Reason, runes.Cut(runes.Clean(o.Message), maxPreview), grace), nil
}

// forDescendant is the cause that a task's descendants get from c.
func (c *cause) forDescendant() *cause {
	d := &cause{causeRequest, ReasonParent, c.message, c.at, c.grace}
	if c.kind != causeRequest {
		d.message = ""
	}
	return d
}

func (c *cause) err() *CancelError { return &CancelError{c.reason, c.message} }

func (c *cause) request() *request {
	if c == nil || c.kind != causeRequest {
		return nil
	}
	return &request{c.at, c.reason, c.message}
}

// outcome is how a Func came back.
type outcome struct {
	result    Result
	truncated bool
	reason    Reason // "": it returned no error; else ReasonError or ReasonPanic
	err       string // the error text that the record gets
	deadline  bool   // its error is context.DeadlineExceeded
}

// decide makes n how a task ends, from its first cause (nil: none) and the way in
// which its Func came back (nil: it has not). entered says whether the Func was
// ever entered. It is the one place where an end is decided.
func (n *ending) decide(c *cause, o *outcome, entered bool) {
	n.cancel, n.detached = c.request(), entered && o == nil
	if o != nil {
		n.Result, n.truncated = o.result, o.truncated
	}
	if c == nil {
		n.status, n.reason, n.err = StatusErrored, o.reason, o.err
		if o.reason == "" {
			n.status = StatusCompleted
		}
		return
	}
	n.status, n.reason, n.err = StatusErrored, c.reason, c.message
	switch {
	case c.kind == causeRequest:
		n.status, n.err = StatusCancelled, ""
		if n.detached {
			n.err = "cancel timed out, worker may be stuck"
		}
	case c.kind == causeTimeout && n.detached:
		n.err += "; worker may be stuck"
	case c.kind == causeShutdown && !entered:
		n.status, n.err = StatusCancelled, ""
	}
}
