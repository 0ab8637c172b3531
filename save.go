package subagent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// What memory knows and the store does not yet is kept with its execution and
// written again, with growing pauses, until the store has it.

// aftermath is what only few executions have: writes to be repeated and cards
// to be put. It is guarded by the execution's lock.
type aftermath struct {
	want   *edit // what is still to be stored; nil: nothing
	saving work
	dirty  bool // its card is older than its record
	card   work
	idle   chan struct{} // closed when the card under way was put, or failed
	halt   chan struct{} // closed when e is told to stop while it waits for its card
}

// work is a job that is repeated until it succeeds, by one goroutine at a time.
type work struct {
	state workState
	timer *time.Timer
	pause time.Duration
}

type workState uint8

const (
	workIdle      workState = iota
	workScheduled           // its timer runs
	workRunning             // some goroutine is at it
)

// The pauses between attempts double from the first to the longest.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 30 * time.Second
)

// nextPause is how long to wait after one more failure.
func nextPause(last time.Duration) time.Duration {
	return min(max(2*last, firstPause), longestPause)
}

// scheduleLocked has try run after a pause, in a goroutine of its own that
// ends with the attempt; Shutdown takes it over or waits for it.
func (w *work) scheduleLocked(try func()) {
	w.state, w.pause = workScheduled, nextPause(w.pause)
	w.timer = time.AfterFunc(w.pause, try) // as said above
}

func (a *aftermath) busy() bool {
	return a != nil && (a.want != nil || a.dirty || a.saving.state != workIdle || a.card.state != workIdle)
}

func (e *execution) restLocked() *aftermath {
	if e.rest == nil {
		e.rest = new(aftermath)
	}
	return e.rest
}

// saveNow makes the attempt that is scheduled, if one is.
func (e *execution) saveNow() {
	e.mu.Lock()
	scheduled := e.rest != nil && e.rest.saving.state == workScheduled
	e.mu.Unlock()
	if scheduled {
		e.save()
	}
}

// callKey finds, in the ctx of a call of ours, the execution that it is for.
type callKey struct{}

// callContext is what a store, sink or notifier gets: the values of the host's
// ctx without its Run, for what these calls do is not the task's doing. Whoever
// makes the call ends it: package context would ask the host's ctx, which is
// foreign code, on goroutines where a panic is the end of the process; and one
// with a deadline need not end, as the ctx of a Func that is over.
type callContext struct {
	context.Context
	e *execution
}

func (callContext) Done() <-chan struct{} { return nil }

func (callContext) Err() error { return nil }

func (callContext) Deadline() (time.Time, bool) { return time.Time{}, false }

func (c callContext) Value(key any) any {
	switch key {
	case runKey{}:
		return (*Run)(nil)
	case callKey{}:
		return c.e
	}
	return c.Context.Value(key)
}

// callOf is the execution for which a call of ours was made with ctx, nil if ctx
// is of none.
func callOf(ctx context.Context) *execution {
	e, _ := ctx.Value(callKey{}).(*execution)
	return e
}

// guard calls foreign code and comes back when it has answered, when host's ctx
// ends, or after the time it may take: whatever that code does. It turns a
// panic into an error. A call that does not answer goes on alone, on a goroutine
// that ends when it does; late (if not nil) is told then, for even one that
// fails may have done something. Done of host's ctx is asked before the call is
// made, and may panic: see asked.
func guard[T any](host callContext, within time.Duration, call func(context.Context) (T, error), late func()) (T, error) {
	type answer struct {
		v       T
		err     error
		overdue bool // its error says that its ctx has ended
	}
	const open, answered, abandoned = 0, 1, 2
	var (
		state atomic.Int32
		reply = make(chan answer, 1)
		over  = host.Context.Done()
	)
	ctx, cancel := context.WithTimeout(host, within)
	if isClosed(over) {
		cancel() // a store is to see that from the start
	}
	// Whether the call says so or is left alone, the error is the same.
	outOfTime := func() error {
		if isClosed(over) {
			return ended(host.Context)
		}
		return fmt.Errorf("no answer within %v: %w", within, context.DeadlineExceeded)
	}
	go func() { // the call's own: ends with it, waited for as long as it may take
		defer cancel()
		a := answer{err: errGoexit}
		defer func() {
			if v := recover(); v != nil {
				a.err = newPanicError(v)
			}
			if state.CompareAndSwap(open, answered) {
				reply <- a
			} else if late != nil {
				late()
			}
		}()
		v, err := call(ctx)
		a = answer{v, sound(err), ctx.Err() != nil && errors.Is(err, ctx.Err())}
	}()
	select {
	case <-ctx.Done():
	case <-over:
		cancel()
	case a := <-reply:
		reply <- a
	}
	if state.CompareAndSwap(open, abandoned) {
		var none T
		return none, outOfTime()
	}
	a := <-reply
	if a.overdue {
		a.err = outOfTime()
	}
	return a.v, a.err
}

// sound is err, of which everything was asked that will be: an error is foreign
// code too, and here a panic is caught.
func sound(err error) error {
	for _, target := range [...]error{ErrNotFound, ErrTaskExists, context.Canceled, context.DeadlineExceeded} {
		errors.Is(err, target)
	}
	errors.As(err, new(*panicError))
	return err
}

// ended is why the host's ctx has ended, whose Done is closed. It is asked in the
// middle of our work: that it panics, or knows no reason, is a reason.
func ended(ctx context.Context) error {
	if err := protect(ctx.Err); err != nil {
		return err
	}
	return context.Canceled
}

// askedContext is the host's ctx where a panic would leave something half done:
// its Done was asked before. What else is asked there cannot do harm.
type askedContext struct {
	context.Context
	done <-chan struct{}
}

func asked(ctx context.Context) context.Context { return &askedContext{ctx, ctx.Done()} }

func (c *askedContext) Done() <-chan struct{} { return c.done }

// endless is ctx without its end. It asks ctx nothing.
func endless(ctx context.Context) context.Context {
	if ctx == context.Background() {
		return ctx // to spare an allocation
	}
	return context.WithoutCancel(ctx)
}

// withoutRun makes ctx one for a call of ours.
func withoutRun(ctx context.Context) callContext {
	if c, ours := ctx.(callContext); ours {
		return c
	}
	return callContext{ctx, nil}
}

// callCtx is the ctx for a call about e.
func (e *execution) callCtx() callContext { return callContext{e.ctx, e} }

// protect runs foreign code that is not to be left alone, on a goroutine that
// it waits for, so that neither a panic nor runtime.Goexit is more than an
// error.
func protect(call func() error) error {
	reply := make(chan error, 1)
	go func() { // the call's own: ends with it, and protect waits for that
		err := errGoexit
		defer func() {
			if v := recover(); v != nil {
				err = newPanicError(v)
			}
			reply <- err
		}()
		err = sound(call())
	}()
	return <-reply
}

var errGoexit = errors.New("it called runtime.Goexit")

// panicError is a panic of foreign code. Its stack is for the log alone.
type panicError struct {
	text  string
	stack []byte
}

func newPanicError(v any) error { return &panicError{fmt.Sprint("panic: ", v), debug.Stack()} }

func (e *panicError) Error() string { return e.text }

// logText is err as the log shows it.
func logText(err error) string {
	if p := (*panicError)(nil); errors.As(err, &p) {
		return errorText(err) + "\n" + string(p.stack)
	}
	return errorText(err)
}

// within is d, or what Shutdown has left for it.
func (r *Runner) within(d time.Duration) time.Duration {
	if by := r.by.Load(); by != nil {
		d = min(d, max(time.Until(*by), 0))
	}
	return d
}

// write applies d to e's record and returns what is stored then, and whether
// that changed anything. It takes no longer than within.
func (e *execution) write(d *edit, within time.Duration) (row *Task, changed bool, err error) {
	if m := e.runner.memory; m != nil {
		return m.change(e.id, d)
	}
	return e.runner.update(e.callCtx(), e.id, d, within)
}

// update is write for any record. A MemoryStore of our own make neither blocks
// nor fails nor panics: it needs no guard.
func (r *Runner) update(ctx context.Context, id uuid.UUID, d *edit, within time.Duration) (*Task, bool, error) {
	if r.memory != nil {
		return r.memory.change(id, d)
	}
	change := *d
	type result struct {
		row     Task
		changed bool
		before  bool // an earlier run of the edit had something to change
	}
	res, err := guard(withoutRun(ctx), r.within(within), func(ctx context.Context) (res result, err error) {
		res.row, err = r.store.Update(ctx, id, func(t *Task) error {
			res.before = res.before || res.changed
			res.changed = change.apply(t)
			return nil
		})
		return res, err
	}, nil)
	if err != nil {
		return nil, false, err
	}
	return &res.row, res.changed || res.before && r.recognizes(d, &res.row), nil
}

// recognizes reports whether row says that d was committed before the store ran
// it again. A delivery it recognizes by its stamp, which another Runner's may
// equal: where there may be one, nobody claims to be first who cannot know.
func (r *Runner) recognizes(d *edit, row *Task) bool {
	if d.owner != nil {
		return !d.shared && d.owner.from != d.owner.to && row.Owner == d.owner.to
	}
	return r.leaser == nil && !d.notified.IsZero() && row.NotifiedAt.Equal(later(d.notified, row.CompletedAt))
}

// load reads one record.
func (r *Runner) load(ctx context.Context, id uuid.UUID) (*Task, error) {
	if r.memory != nil {
		return r.memory.get(id)
	}
	t, err := guard(withoutRun(ctx), r.within(r.cfg.StoreTimeout), func(ctx context.Context) (Task, error) {
		return r.store.Get(ctx, id)
	}, nil)
	if err != nil {
		return nil, err
	}
	return &t, nil
}

// rows reads the records that match f.
func (r *Runner) rows(ctx context.Context, f Filter) ([]*Task, error) {
	if r.memory != nil {
		return r.memory.listed(f), ctx.Err()
	}
	return guard(withoutRun(ctx), r.within(r.cfg.StoreTimeout), func(ctx context.Context) ([]*Task, error) {
		return collect(r.store.List(ctx, f))
	}, nil)
}

// gone reports whether a store said that there is no such record.
func gone(err error) bool { return errors.Is(err, ErrNotFound) }

// saveLater keeps what could not be stored, and tries again until it can.
func (e *execution) saveLater(d *edit, err error) {
	if err != nil {
		e.runner.log.error("store failed, the write will be repeated", e.id, "error", logText(err))
	}
	if e.keepWanted(d) && e.runner.final.Load() {
		e.saveNow() // nobody else will: Shutdown has tried what it knew of
	}
}

// keepWanted reports whether d is to be stored by an attempt that it has
// scheduled.
func (e *execution) keepWanted(d *edit) (scheduled bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.forgotten {
		return false
	}
	rest := e.restLocked()
	rest.want = d.over(rest.want)
	if d.end != nil {
		e.runner.keep(e, !e.disowned)
	}
	if rest.saving.state == workIdle {
		rest.saving.scheduleLocked(e.save)
		return true
	}
	return false
}

// over is d on top of an earlier edit that was not stored either.
func (d *edit) over(earlier *edit) *edit {
	if earlier == nil {
		return d
	}
	both := *earlier
	if d.end != nil {
		both.to, both.at, both.end, both.cancel = d.to, d.at, d.end, nil
	} else if d.cancel != nil {
		both.cancel = d.cancel
	}
	if !d.notified.IsZero() {
		both.notified = d.notified
	}
	return &both
}

// save is one attempt to store what is still to be stored.
func (e *execution) save() {
	r := e.runner
	r.begin()
	defer r.finish()
	e.mu.Lock()
	rest := e.rest
	if rest.saving.state != workScheduled {
		e.mu.Unlock()
		return
	}
	stopTimer(rest.saving.timer)
	rest.saving.state = workRunning
	if e.disowned && e.disputedLocked() {
		rest.saving.state = workIdle
		rest.saving.scheduleLocked(e.save)
		e.mu.Unlock()
		return
	}
	mine := false
	for rest.want != nil && !e.forgotten {
		d := rest.want
		e.mu.Unlock()
		row, _, err := e.write(d, r.cfg.StoreTimeout)
		missing := gone(err)
		e.mu.Lock()
		if err != nil && !missing {
			rest.saving.state = workIdle
			if !r.final.Load() {
				rest.saving.scheduleLocked(e.save)
			}
			e.mu.Unlock()
			r.log.warn("store failed again", e.id, "error", logText(err))
			return
		}
		if err == nil {
			e.showLocked(row)
			mine = mine || d.end != nil && d.end.wrote(row, r.id) // a later edit finds the end of an earlier one
		}
		e.forgotten = e.forgotten || missing
		if rest.want == d { // else something was added meanwhile
			rest.want = nil
		}
	}
	rest.want = nil
	rest.saving.state = workIdle
	late := e.disowned && mine && !e.forgotten
	e.stored = e.stored || late
	if late {
		e.placeNoticeLocked()
	}
	e.mu.Unlock()
	r.saved(e)
	if late {
		e.post(r.cfg.StoreTimeout, false)
		e.tell()
	}
	e.retire()
}

// disputedLocked looks for a spawn of e's ID, whose own was disowned. If that
// spawn's record is stored, it is the one that there is, and e's is forgotten.
// While its Create is under way it is disputed whose the record is: to give up
// then would leave the notice of an end that is stored to nobody.
func (e *execution) disputedLocked() bool {
	e.mu.Unlock()
	later := e.runner.find(e.id)
	taken := later != nil && later.exists()
	e.mu.Lock()
	e.forgotten = e.forgotten || taken
	return later != nil && !taken && !e.runner.final.Load()
}

// saveRequest stores that e was asked to stop, which is what other processes
// and panels see of it, and tells it.
func (e *execution) saveRequest(req *request) {
	r := e.runner
	d := &edit{cancel: req}
	row, _, err := e.write(d, r.cfg.StoreTimeout)
	if err != nil && !gone(err) {
		e.mu.Lock()
		live := e.phase != phaseEnded // its end will say so too
		e.mu.Unlock()
		if live {
			e.saveLater(d, err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase == phaseEnded {
		return
	}
	if err == nil {
		e.showLocked(row)
	}
	r.hub.publish(EventStatus, e)
}
