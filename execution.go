package subagent

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
)

// phase is where an execution stands, and so who owns it. Only the owner
// settles; everybody else leaves a cause and goes.
type phase uint8

const (
	phaseNew      phase = iota // owned by Spawn
	phaseQueued                // owned by whoever takes it out of the line
	phaseStarting              // it was granted a slot: owned by its goroutine
	phaseRunning               // owned by the first of Func's return, the end of the grace, and Shutdown
	phaseEnded                 // its end is decided; whoever did that settles it
)

// execution is a task while it is in memory: from before its record exists
// until its end is stored, told and delivered.
type execution struct {
	// Set before anybody else knows the execution.
	runner      *Runner
	id          uuid.UUID
	number      uint64 // of its life in this Runner: an ID that was forgotten may live again
	fn          Func
	ctx         context.Context // what Spawn was given, without its end: its values reach the Func
	timeout     time.Duration
	parent      *execution // the task whose Func spawned it; it may have ended
	depth       int32      // 1 for a task that no Func spawned
	independent bool       // nothing reaches it from its parent

	// mu guards all below, but kids. Under it the locks of a Capacity, of the
	// hub and of nothing else are taken; no store, sink or Func is called.
	mu         sync.Mutex
	phase      phase
	stored     bool      // its record exists: readers may know of it
	shown      bool      // its end is visible
	staged     bool      // the Funcs that its end lets go on are lined up
	told       bool      // its end was told: waiters have been let go
	inside     bool      // its goroutine is in its Func
	leaving    bool      // it was detached and has returned: its slot is being handed on
	slot       bool      // a slot is its own: held, or lent by lend
	foreground bool      // a Run waits for it, and stays until it is told
	retired    bool      // told, and its worker is back: Shutdown need not wait for it
	late       bool      // its Create returned when nobody waited for that any more
	disowned   bool      // its spawn failed, yet its record may exist
	forgotten  bool      // its record was deleted: nothing of it is stored any more
	quiet      bool      // somebody else has ended it, and tells that
	second     bool      // somebody else was handed its end before its foreground Run
	claimed    time.Time // when somebody was handed its end; zero: nobody was
	owing      bool      // its notice is in an outbox
	tally      int8      // where Stats counts it
	pins       int32     // calls that wait for it, or are being handed its end
	place      ticket    // while queued
	task       *Task     // the newest record that may be seen; never written to
	cause      *cause    // why it must stop; set once
	run        *Run      // from the moment before its Func is entered
	lend       *lender   // nil: its Func never waited for another task
	family     *family   // nil: it has no parent in memory and never had a child
	queueTimer *time.Timer
	waits      []*wait
	oneWait    [1]*wait      // room for waits
	born       chan struct{} // closed, and nil, once Spawn has made it or failed to; for a given ID only
	rest       *aftermath

	kids map[*execution]struct{} // guarded by family
	open bool                    // guarded by Runner.mu: it is counted in Runner.open
}

// record and snapshot make an execution the source of events.
func (e *execution) record() *Task   { return e.task }
func (e *execution) snapshot() *Task { return e.viewLocked(false) }
func (e *execution) life() any       { return e.number }

// view is the task as it is now: full, or with a preview of its text. It may
// be the record itself: copy it before it is handed to a caller.
func (e *execution) view(full bool) *Task {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.viewLocked(full)
}

func (e *execution) viewLocked(full bool) *Task {
	if full && e.task.Status.Terminal() {
		return e.task
	}
	t := snapshot(e.task)
	if !t.Status.Terminal() {
		if req := e.cause.request(); req != nil {
			(&edit{cancel: req}).apply(t)
		}
		if e.run != nil {
			e.run.overlayLocked(t, full)
		}
	}
	if !full {
		preview(t)
	}
	return t
}

// answer is the task as memory knows it, or nil where only the store can say:
// before the record is known to exist, and while the end is being stored. For
// once the store has it, somebody may have seen it.
func (e *execution) answer(full bool) *Task {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.stored || (e.phase == phaseEnded && !e.shown) {
		return nil
	}
	return e.viewLocked(full)
}

// observe takes over a record that a reader found in the store.
func (e *execution) observe(row *Task) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.showLocked(row)
}

// showLocked makes row visible unless a newer one is: a late answer of the
// store never takes a reader back. Versions alone do not tell: an end that is
// not stored yet was counted on top of a record that the store may have
// changed since.
func (e *execution) showLocked(row *Task) {
	back := e.task.Status.Terminal() && !row.Status.Terminal()
	if row.Version >= e.task.Version && !back {
		e.task = row
	}
}

func (e *execution) exists() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stored
}

func (e *execution) ended() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.phase == phaseEnded
}

func (e *execution) isTold() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.told
}

func (e *execution) why() *cause {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cause
}

func (e *execution) session() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.task.ParentSessionID
}

// take gives e its cause. It reports false if e has one or has ended.
func (e *execution) take(c *cause) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.takeLocked(c)
}

func (e *execution) takeLocked(c *cause) bool {
	if e.cause != nil || e.phase == phaseEnded {
		return false
	}
	e.cause = c
	if e.rest != nil && e.rest.halt != nil {
		close(e.rest.halt)
		e.rest.halt = nil
	}
	return true
}

// granted starts e on a goroutine of its own: a recycled one could be locked
// to a thread. Whoever released the slot calls it. The goroutine ends when the
// Func has returned and its end was told; Shutdown waits for it, unless it is
// detached.
func (e *execution) granted() grantee {
	go e.main() // the task's: ends as said above
	return nil
}

func (e *execution) main() {
	growStack(false)
	if !e.start() {
		return
	}
	o := outcome{reason: ReasonPanic, err: "panic: runtime.Goexit"}
	// Deferred, because runtime.Goexit in the Func runs nothing else. Then o
	// still says so: call replaces it on every other way out.
	defer func() { e.returned(&o) }()
	e.call(&o)
}

// start stores that e runs and reports whether its Func is to be entered. The
// cause is looked at before, because the queue may have been left for another
// reason than to run, and in the critical section that opens the running
// phase, so that no cancel falls between.
func (e *execution) start() bool {
	r := e.runner
	e.mu.Lock()
	e.phase, e.slot = phaseStarting, true
	stopTimer(e.queueTimer)
	if e.cause != nil {
		d := e.concludeLocked(nil)
		e.mu.Unlock()
		e.settle(d)
		return false
	}
	d := edit{to: StatusRunning, at: stamp(e.task.lastStamp())}
	e.mu.Unlock()
	row, _, err := e.write(&d, r.cfg.StoreTimeout)
	if err != nil {
		e.refuse(err)
		return false
	}
	e.advance(row)
	run := newRun(e)
	e.mu.Lock()
	if row.Status.Terminal() {
		e.takeLocked(lostLease)
	}
	if e.cause != nil {
		d := e.concludeLocked(nil)
		e.mu.Unlock()
		e.settle(d)
		return false
	}
	e.phase, e.run, e.inside = phaseRunning, run, true
	run.limitLocked()
	e.mu.Unlock()
	return true
}

// refuse ends e, which its caller owns, because the store would not have the
// transition.
func (e *execution) refuse(err error) {
	e.mu.Lock()
	e.takeLocked(newCause(causeStore, ReasonStore, "store: "+errorText(err), 0))
	d := e.concludeLocked(nil)
	// The store may have made the transition all the same. Nobody has seen
	// that, and nobody will: the end says what memory says.
	t := snapshot(e.task)
	d.apply(t)
	e.mu.Unlock()
	e.settle(d.asShown(t))
}

// advance shows and tells a transition that was stored and is not the end.
func (e *execution) advance(row *Task) {
	e.mu.Lock()
	e.showLocked(row)
	e.tallyLocked(row.Status)
	if !row.CancelRequestedAt.IsZero() {
		e.takeLocked(e.runner.storedRequest(row)) // by another process
	}
	e.mu.Unlock()
	e.post(e.runner.cfg.StoreTimeout, true)
	e.mu.Lock()
	if !row.Status.Terminal() {
		e.runner.hub.publish(EventStatus, e)
	}
	e.mu.Unlock()
}

func (e *execution) call(o *outcome) {
	defer func() {
		if v := recover(); v != nil {
			o.panicked(e, v)
		}
	}()
	res, err := e.fn(e.run.ctx, e.run)
	o.returned(res, err)
}

// returned takes what the Func came back with. Where the end was decided
// without it, it is too late: only the slot is left to be handed on.
func (e *execution) returned(o *outcome) {
	if o.deadline && e.run.outOfTime() {
		e.expire() // it obeyed its deadline before our own timer came
	}
	e.mu.Lock()
	if e.phase == phaseRunning {
		d := e.concludeLocked(o)
		e.mu.Unlock()
		e.settle(d)
		return
	}
	e.inside, e.leaving = false, true
	e.mu.Unlock()
	r := e.runner
	r.detached.Add(-1)
	r.log.warn("detached worker returned, its result is dropped", e.id, "reason", string(o.reason), "error", o.err)
	e.freeSlot()
	e.mu.Lock()
	e.leaving = false
	e.mu.Unlock()
	e.retire()
}

// force ends e when the grace is over and its Func has not returned.
func (e *execution) force() {
	e.mu.Lock()
	if e.phase != phaseRunning {
		e.mu.Unlock()
		return
	}
	d := e.concludeLocked(nil)
	e.mu.Unlock()
	e.settle(d)
}

// expire gives e, whose run time is over, that cause.
func (e *execution) expire() {
	r := e.runner
	text := "timed out after " + e.timeout.String()
	_, after := r.stop([]*execution{e}, newCause(causeTimeout, ReasonTimeout, text, r.cfg.CancelGrace), nil)
	after()
}

// overdue takes e out of the line when it has waited too long. Only he who
// takes it out may say why it ends: once it was granted, queue time is over.
func (e *execution) overdue(limit time.Duration) {
	e.mu.Lock()
	if e.phase != phaseQueued || !e.runner.capacity.leave(e.place) {
		e.mu.Unlock()
		return
	}
	e.takeLocked(newCause(causeQueueTimeout, ReasonQueueTimeout, "waited "+limit.String()+" for a slot", 0))
	d := e.concludeLocked(nil)
	e.mu.Unlock()
	e.settle(d)
}

// concludeLocked decides the end of e, which the caller owns, from its first
// cause and the way its Func came back. From here on nothing that the worker
// does changes it.
func (e *execution) concludeLocked(o *outcome) *edit {
	entered := e.phase == phaseRunning
	e.phase = phaseEnded
	stopTimer(e.queueTimer)
	if o != nil {
		e.inside = false
	}
	var d *endEdit
	if e.run != nil {
		d = &e.run.end // made with it, to spare an allocation
	} else {
		d = new(endEdit)
	}
	d.decide(e.cause, o, entered)
	if d.detached {
		e.runner.detached.Add(1)
	}
	if e.run != nil {
		e.run.closeLocked(&d.ending)
	}
	d.edit = edit{to: d.status, at: stamp(later(e.task.lastStamp(), d.progress.LastActivityAt)), end: &d.ending}
	if e.foreground {
		d.notified = d.at
	}
	if e.stored {
		e.placeNoticeLocked()
	}
	return &d.edit
}

// settle stores the end that was decided, and then lets the world know, in the
// one order that keeps the promises: who waits for this end with his own slot
// lent is lined up before the slot goes on; the slot goes on before waiters
// wake, so that a caller whose Wait returned finds it free; the notice comes
// last.
func (e *execution) settle(d *edit) {
	r := e.runner
	by := time.Now().Add(r.cfg.StoreTimeout)
	if c := e.why(); c != nil && (c.kind == causeRequest || c.kind == causeTimeout) {
		if last := c.grace.Add(r.cfg.StoreTimeout); last.Before(by) {
			by = last
		}
	}
	row, changed, err := e.write(d, time.Until(by))
	e.stage()
	missing := gone(err)
	e.mu.Lock()
	e.foundLocked(d, row, changed, missing)
	unsaved := e.showEndLocked(d, row, missing)
	e.mu.Unlock()
	if unsaved != nil {
		e.saveLater(unsaved, err)
	}
	e.freeSlot()
	e.part(false)
	if !e.quiet || row != nil && row.Owner == d.owner.from { // it may have died before it put it
		e.post(time.Until(by), false)
	}
	e.tell()
	e.retire()
}

// showEndLocked makes the end visible: the stored one, which is another's if
// he was first, or, if the store failed, the one that is still to be stored.
func (e *execution) showEndLocked(d *edit, row *Task, missing bool) (unsaved *edit) {
	if row != nil {
		e.showLocked(row)
	} else {
		e.forgotten = e.forgotten || missing
		t := new(Task)
		*t = *e.task
		if d.apply(t) {
			t.Version++
		}
		e.task = t
		if !e.forgotten {
			unsaved = d.asShown(t)
		}
	}
	e.shown = true
	if e.claimed.IsZero() { // else somebody has read the end in the store and was handed it
		e.claimed = e.task.NotifiedAt
	}
	if !e.quiet {
		e.tallyLocked(e.task.Status)
	}
	return unsaved
}

// freeSlot hands the slot on once the end is visible, never before: the store
// would show more tasks running than there are slots. A detached worker keeps
// it until it returns, unless the host would not have that.
func (e *execution) freeSlot() {
	e.mu.Lock()
	if !e.slot || !e.shown || (e.inside && !e.runner.cfg.FreeOnDetach) {
		e.mu.Unlock()
		return
	}
	e.slot = false // from here on its Func lends nothing any more
	l := e.lend
	e.mu.Unlock()
	if l != nil {
		handOn(l.end())
	} else {
		handOn(e.runner.capacity.release())
	}
}

// tell lets everybody know of the end. Event, waiters and the claim on the
// notice are one critical section: a waiter that came in time is handed the
// end and no notice is owed, one that comes later finds the end.
func (e *execution) tell() {
	r := e.runner
	e.mu.Lock()
	if e.stored && !e.quiet {
		r.hub.publish(EventStatus, e)
	}
	e.told = true
	waits := e.waits
	e.waits = nil
	placed := e.owing
	e.owing = placed && e.task.owesNotice() && e.claimed.IsZero() && len(waits) == 0 && e.task.Owner == r.id
	session := e.task.ParentSessionID
	e.mu.Unlock()
	wake(waits)
	if placed {
		r.deliverDue(session)
	}
}

// retire drops e from the registry once nothing about it is left to be done.
func (e *execution) retire() {
	e.mu.Lock()
	back := e.told && !e.inside && !e.leaving
	first := back && !e.retired
	e.retired = e.retired || back
	stuck := e.told && e.inside
	over := back && e.pins == 0 && !e.owing && !e.rest.busy()
	e.mu.Unlock()
	if first || over || stuck {
		e.runner.drop(e, first, over)
	}
}

func stopTimer(t *time.Timer) {
	if t != nil {
		t.Stop()
	}
}
