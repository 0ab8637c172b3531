package subagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// ErrDepth refuses a sub-agent of more layers than Config.MaxDepth.
var ErrDepth = errors.New("subagent: too many layers of sub-agents")

// Spawn starts a task in the background and returns it once its record is
// stored and it has its place in line, as it was then: queued. It never waits
// for a slot.
//
// ctx governs the call: one that is done spawns nothing. Once the record
// exists ctx no longer matters; its values reach the Func. Inside a Func, its
// ctx makes the new task its child.
//
// A request that is refused leaves nothing behind: ErrInvalidRequest,
// ErrClosed, ErrTaskExists (Request.ID is taken by another content),
// ErrParentCancelled, ErrDepth, *CapacityError, or the store's error. If a
// write fails once the record exists, the errored task is returned together
// with the error. If a cancel or a shutdown comes while Spawn is under way, the
// cancelled task is returned without error.
//
// With Request.ID set Spawn is idempotent: an ID that is known with the same
// content returns that task as it is, whatever its state; nothing runs again.
func (r *Runner) Spawn(ctx context.Context, req Request) (Task, error) {
	t, _, err := r.spawn(ctx, &req, false)
	if t == nil {
		return Task{}, err
	}
	return t.copy(), err
}

// Run is Spawn and Wait: it returns the terminal task. How the task ended is
// Task.Err; the error is about the call. It lends the slot of the Func that it
// is called from while it waits.
//
// If ctx ends the task is cancelled (ReasonCaller), and Run returns it,
// terminal, together with ctx.Err(): at the latest when the grace of the
// cancel is over. Only inside a Func that is itself being stopped it returns
// as soon as it has asked, with the task as it is. A Run whose Request.ID is
// known joins that task: it only waits, and its ctx cancels nothing. If the
// task came to wait for its caller at once, Run is ErrWaitCycle and the task
// goes on.
func (r *Runner) Run(ctx context.Context, req Request) (Task, error) {
	by, done := funcOf(ctx), ctx.Done() // a ctx may panic: before there is a task
	t, e, err := r.spawn(ctx, &req, true)
	switch {
	case t == nil:
		return Task{}, err
	case e == nil && err == nil:
		return r.Wait(ctx, t.ID)
	case t.Status.Terminal():
		return e.firstSight(), err
	}
	err = r.waitFor(ctx, done, by, e)
	if err == nil {
		return e.firstSight(), nil
	}
	if errors.Is(err, ErrWaitCycle) && e.abandon() {
		return e.view(true).copy(), err // it goes on in the background
	}
	_, after := r.stop([]*execution{e}, newCause(causeRequest, ReasonCaller, "", r.cfg.CancelGrace), nil)
	stored := make(chan struct{})
	r.begin()
	go func() { // ends with the store calls; a Run that stays waits for it through its task
		defer r.finish()
		defer close(stored)
		after()
	}()
	if by != nil && by.why() != nil && e.abandon() {
		return e.view(true).copy(), err
	}
	<-stored
	_ = r.waitFor(context.Background(), nil, nil, e) // bounded: the grace ends it
	return e.firstSight(), err
}

// firstSight is the terminal task as it is handed to its foreground Run, whose
// reading was stored with the end, unless another was handed it before.
func (e *execution) firstSight() Task {
	e.mu.Lock()
	defer e.mu.Unlock()
	first := e.viewLocked(true).copy()
	if !e.second {
		first.NotifiedAt = time.Time{}
	}
	return first
}

// abandon has the foreground Run of e leave. It cannot once the end is decided.
func (e *execution) abandon() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase == phaseEnded {
		return false
	}
	e.foreground = false
	return true
}

// spawn returns the task and its execution; no execution if the ID was known.
func (r *Runner) spawn(ctx context.Context, q *Request, foreground bool) (*Task, *execution, error) {
	if r.memory == nil { // else ctx is not asked again
		ctx = asked(ctx)
	}
	for {
		e, t, err := r.newExecution(ctx, q)
		if err != nil {
			return nil, nil, err
		}
		t.Background, e.foreground = !foreground, foreground
		known, err := r.admit(ctx, e, t, q)
		if err != nil || known != nil {
			return known, nil, err
		}
		err = r.create(ctx, e, t)
		if err != nil {
			t, err := e.failed(err)
			if errors.Is(err, ErrTaskExists) && q.ID != uuid.Nil {
				continue // somebody was faster: look again
			}
			return t, e, err
		}
		t, err = e.line(q.queueTimeout(r.cfg.QueueTimeout))
		return t, e, err
	}
}

// newExecution checks the request and makes an execution and its first record.
func (r *Runner) newExecution(ctx context.Context, q *Request) (*execution, *Task, error) {
	run, child := RunFromContext(ctx)
	if child && q.ParentSessionID == "" {
		q.ParentSessionID = run.e.session()
	}
	if err := q.validate(); err != nil {
		return nil, nil, err
	}
	e := &execution{runner: r, id: q.ID, number: r.lives.Add(1), fn: q.Func, ctx: endless(ctx), timeout: q.Timeout, depth: 1, independent: q.Independent}
	if e.fn == nil {
		e.fn = r.cfg.Func
	}
	if e.fn == nil {
		return nil, nil, invalid("Func", "is nil, and so is Config.Func; one of them is required")
	}
	if e.timeout == 0 {
		e.timeout = r.cfg.Timeout
	}
	t := q.task()
	if child {
		e.parent, e.depth = run.e, run.e.depth+1
		t.ParentTaskID = run.e.id
	}
	if e.id != uuid.Nil {
		e.born = make(chan struct{})
	} else {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, nil, fmt.Errorf("subagent: no random numbers: %w", err)
		}
		e.id = id
	}
	t.ID, t.Owner, t.Status, t.Version = e.id, r.id, StatusPending, 1
	t.CreatedAt = stamp(time.Time{})
	e.task = t
	return e, t, nil
}

func (q *Request) queueTimeout(def time.Duration) time.Duration {
	if q.QueueTimeout == 0 {
		return def
	}
	return max(q.QueueTimeout, 0)
}

// admit asks, in the order that the errors are documented in, whether e may
// exist, and makes it known: to its parent, in the line and in the registry.
// If its ID is known already it returns that task.
func (r *Runner) admit(ctx context.Context, e *execution, t *Task, q *Request) (known *Task, err error) {
	if err := ctx.Err(); err != nil {
		if e.parent != nil { // whose ctx this may be
			if why := e.parent.admitsKids(); why != nil {
				err = fmt.Errorf("%w: %w", why, err)
			}
		}
		return nil, err
	}
	if r.isClosing() {
		return nil, ErrClosed
	}
	if q.ID != uuid.Nil {
		if known, err := r.known(ctx, t); known != nil || err != nil {
			return known, err
		}
	}
	if e.parent != nil {
		if err := e.parent.admitsKids(); err != nil {
			return nil, err
		}
	}
	if r.cfg.MaxDepth > 0 && int(e.depth) > r.cfg.MaxDepth {
		return nil, fmt.Errorf("%w: layer %d of at most %d", ErrDepth, e.depth, r.cfg.MaxDepth)
	}
	if err := e.reserve(q.NoWait); err != nil {
		return nil, err
	}
	if err := e.join(); err != nil {
		e.unreserve()
		return nil, err
	}
	taken, err := r.register(e)
	if err == nil && taken == nil {
		return nil, nil
	}
	e.unreserve()
	e.part(true)
	if err != nil {
		return nil, err
	}
	return r.admit(ctx, e, t, q) // a spawn of the same ID was faster: it is known now
}

// known returns the task of t's ID if there is one, and if it is the same.
func (r *Runner) known(ctx context.Context, t *Task) (*Task, error) {
	var have *Task
	e := r.find(t.ID)
	for e != nil && !e.exists() {
		born := e.birth()
		if born == nil {
			break // a minted ID: if somebody knows it, the store has it
		}
		select { // its Spawn is under way: it will exist, or it won't
		case <-born:
		case <-ctx.Done():
			return nil, ended(ctx)
		}
		e = r.find(t.ID)
	}
	if e != nil {
		have = e.answer(true)
	}
	if have == nil {
		row, err := r.load(ctx, t.ID)
		if gone(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		have = row
	}
	if !sameContent(have, t) {
		return nil, fmt.Errorf("%w: %s, with another content", ErrTaskExists, t.ID)
	}
	return have, nil
}

// reserve takes a place in line for e, or the slot itself for one that will
// not wait.
func (e *execution) reserve(noWait bool) error {
	if !noWait {
		return e.runner.capacity.reserve()
	}
	if err := e.runner.capacity.take(); err != nil {
		return err
	}
	e.mu.Lock()
	e.slot = true
	e.mu.Unlock()
	return nil
}

// unreserve gives back what reserve took.
func (e *execution) unreserve() {
	e.mu.Lock()
	slot := e.slot
	e.slot = false
	e.mu.Unlock()
	if slot {
		handOn(e.runner.capacity.release())
	} else {
		e.runner.capacity.unreserve()
	}
}

// create stores the first record. ctx governs it: the caller is not kept
// longer. If the call succeeds after that, the record is ended: nobody was
// told of it, so it must not run.
func (r *Runner) create(ctx context.Context, e *execution, t *Task) error {
	var err error
	if r.memory != nil {
		err = r.memory.create(t)
	} else {
		_, err = guard(callContext{ctx, e}, r.within(r.cfg.StoreTimeout), func(ctx context.Context) (struct{}, error) {
			return struct{}{}, r.store.Create(ctx, *t)
		}, e.bornLate)
	}
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.stored = true
	e.tallyLocked(StatusPending)
	e.announceBirthLocked()
	e.mu.Unlock()
	e.post(r.cfg.StoreTimeout, true)
	e.mu.Lock()
	r.hub.publish(EventCreated, e)
	e.mu.Unlock()
	return nil
}

// birth is closed once e exists, or will not; nil if nobody is told.
func (e *execution) birth() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.born
}

func (e *execution) announceBirthLocked() {
	if e.born != nil {
		close(e.born)
		e.born = nil
	}
}

// failed ends a spawn whose Create did not succeed: ErrTaskExists if another has
// the ID. A store may have committed it all the same: then the record is ended,
// now or as soon as the store can be asked, and until then nobody can see the
// task.
func (e *execution) failed(err error) (*Task, error) {
	r := e.runner
	if errors.Is(err, ErrTaskExists) {
		e.vanish()
		return nil, err
	}
	err = fmt.Errorf("subagent: task not stored: %w", err)
	row, lerr := r.load(e.callCtx(), e.id)
	if lerr != nil {
		if late := e.vanish(); late || !gone(lerr) {
			e.disown(err)
		}
		return nil, err
	}
	if row.Owner != r.id {
		if e.vanish() {
			e.disown(err)
		}
		return nil, fmt.Errorf("%w: %s", ErrTaskExists, e.id)
	}
	e.mu.Lock()
	e.stored = true
	e.tallyLocked(StatusPending)
	e.announceBirthLocked()
	e.mu.Unlock()
	e.giveUpPlace()
	e.refuse(errors.Unwrap(err))
	return e.view(true), err
}

// line stores that e is queued and puts it in line. What comes in between is
// seen in the critical section that opens the queued phase.
func (e *execution) line(queueTimeout time.Duration) (*Task, error) {
	r := e.runner
	e.mu.Lock()
	stop := e.cause != nil
	d := edit{to: StatusQueued, at: stamp(e.task.lastStamp())}
	e.mu.Unlock()
	if !stop {
		row, _, err := e.write(&d, r.cfg.StoreTimeout)
		if err != nil {
			e.giveUpPlace()
			e.refuse(err)
			return e.view(true), fmt.Errorf("subagent: task not queued: %w", err)
		}
		e.advance(row)
	}
	e.mu.Lock()
	if e.task.Status.Terminal() {
		e.takeLocked(lostLease) // another Runner, or a host, ended it
	}
	if e.cause != nil {
		end := e.concludeLocked(nil)
		e.mu.Unlock()
		e.giveUpPlace()
		e.settle(end)
		return e.view(true), nil
	}
	queued := e.task
	start := e.slot // NoWait has one
	if !start {
		e.phase = phaseQueued
		e.place, start = r.capacity.enter(e)
		if !start && queueTimeout > 0 {
			// Stopped by the grant and by any end; its goroutine ends with that of e.
			e.queueTimer = time.AfterFunc(queueTimeout, func() { e.overdue(queueTimeout) })
		}
	}
	if start {
		e.phase = phaseStarting
	}
	e.mu.Unlock()
	if start {
		e.granted()
	}
	return queued, nil
}

// giveUpPlace gives an admitted place back; a slot that NoWait took goes the
// way of all slots, when the end is stored.
func (e *execution) giveUpPlace() {
	e.mu.Lock()
	slot := e.slot
	e.mu.Unlock()
	if !slot {
		e.runner.capacity.unreserve()
	}
}

// vanish undoes a spawn that left no record: whoever waits finds nothing. It
// reports whether the record was stored after all.
func (e *execution) vanish() (late bool) {
	e.unreserve()
	e.mu.Lock()
	e.phase = phaseEnded
	late = e.late
	e.announceBirthLocked()
	e.mu.Unlock()
	e.part(true)
	e.withdraw()
	return late
}

// bornLate is a Create that returns when it is no longer waited for. If the
// spawn has vanished meanwhile, its record is disowned; else whoever sees to
// the failed spawn does that, or finds it.
func (e *execution) bornLate() {
	e.mu.Lock()
	e.late = true
	vanished := e.phase == phaseEnded && !e.stored
	e.mu.Unlock()
	if vanished {
		e.disown(errors.New("its record was stored too late"))
	}
}

// disown sees to a record that may or may not have been stored, although its
// spawn failed: if there is one, it is ended and told like any other end.
func (e *execution) disown(err error) {
	c := newCause(causeStore, ReasonStore, "store: "+errorText(err), 0)
	e.mu.Lock()
	e.phase, e.disowned, e.forgotten = phaseEnded, true, false
	e.mu.Unlock()
	var n ending
	n.decide(c, nil, false)
	mine := e.runner.id // and never the task of another who took the ID
	e.saveLater(&edit{to: StatusErrored, at: c.at, end: &n, owner: &handover{mine, mine}}, err)
}
