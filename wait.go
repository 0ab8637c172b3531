package subagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// AwaitMode says when Await is over.
type AwaitMode string

// The two modes.
const (
	AwaitAll AwaitMode = "all" // when every task has ended
	AwaitAny AwaitMode = "any" // when one has
)

// ErrWaitCycle refuses a wait that could never end: on oneself, on an ancestor,
// or on a task that waits, over however many others, for the one that asks.
var ErrWaitCycle = errors.New("subagent: wait cycle")

// Wait blocks until the task has ended and returns it with its whole
// ResultText. The error is about waiting: ErrNotFound, ErrWaitCycle, the
// store's if it cannot be asked about a task that is not in memory, or ctx.Err()
// together with the task as it is then; how the task ended is Task.Err. What
// memory knows to have ended is returned even if ctx is done. Whoever is handed
// the end first sees NotifiedAt zero, and its notice is delivered with that;
// a later one may see it zero again only if the store has failed to record that
// of a task that is no longer in memory.
//
// With the ctx of a Func, its slot is lent to the tasks in line while it waits;
// Wait takes it again, ahead of the line, before it returns, and at once if
// ctx or the Func's own ctx ends.
func (r *Runner) Wait(ctx context.Context, id uuid.UUID) (Task, error) {
	if e := r.findPinned(id); e != nil {
		defer e.unpin()
		if e.exists() {
			err := r.waitFor(ctx, ctx.Done(), funcOf(ctx), e)
			if errors.Is(err, ErrWaitCycle) {
				return Task{}, err
			}
			if e.exists() { // else it was withdrawn
				return r.handOver(ctx, &target{e: e}), err
			}
		}
	}
	tasks, err := r.Await(ctx, AwaitAll, id)
	if len(tasks) == 0 {
		return Task{}, err
	}
	return tasks[0], err
}

// Await is Wait for several tasks: until all or any of them have ended. It
// returns one snapshot for each id, in the order asked, also together with
// ctx's error; those that have ended were handed over, as Wait says. Unknown
// ids are ErrNotFound at once, naming all of them; no ids are no tasks at
// once. With AwaitAny it is ErrWaitCycle only if each id is part of one.
func (r *Runner) Await(ctx context.Context, mode AwaitMode, ids ...uuid.UUID) ([]Task, error) {
	if mode != AwaitAll && mode != AwaitAny {
		return nil, invalid("AwaitMode", "is %q; allowed are %q and %q", mode, AwaitAll, AwaitAny)
	}
	targets, err := r.targets(ctx, ids)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	defer unpin(targets)
	err = r.await(ctx, mode, targets)
	if errors.Is(err, ErrWaitCycle) {
		return nil, err
	}
	for _, t := range targets { // before any is handed over: what is not returned was not delivered
		if t.gone {
			return nil, fmt.Errorf("%w: %s, it was deleted meanwhile", ErrNotFound, t.row.ID)
		}
		if t.e != nil && !t.e.exists() {
			return r.Await(ctx, mode, ids...) // its spawn failed; if it is known, another Runner has it
		}
	}
	tasks := make([]Task, len(targets))
	for i := range targets {
		tasks[i] = r.handOver(ctx, &targets[i])
	}
	return tasks, err
}

// target is a task that is waited for: an execution of ours, or a record that
// has ended or that another Runner executes.
type target struct {
	e   *execution // nil: not in memory
	row *Task

	gone   bool // another Runner's task was deleted before its end was seen
	unseen bool // the store could not be asked about it when that was last tried
}

// targets finds the tasks of ids and pins those in memory.
func (r *Runner) targets(ctx context.Context, ids []uuid.UUID) (targets []target, err error) {
	targets = make([]target, 0, len(ids))
	found := false
	defer func() {
		if !found { // also when ctx, which is foreign code, has panicked
			unpin(targets)
		}
	}()
	var unknown []uuid.UUID
	for _, id := range ids {
		targets = append(targets, target{e: r.findPinned(id)})
		t := &targets[len(targets)-1]
		if t.e == nil || !t.e.exists() {
			// A task whose Create is under way exists once a reader finds it.
			var lerr error
			if t.row, lerr = r.load(ctx, id); lerr != nil && ctx.Err() != nil {
				t.row, lerr = r.load(endless(ctx), id) // a snapshot is owed, also with ctx's error
			}
			if gone(lerr) {
				unknown = append(unknown, id)
			} else if lerr != nil {
				err = lerr
			}
		}
	}
	if len(unknown) > 0 {
		err = fmt.Errorf("%w: %s", ErrNotFound, joinIDs(unknown))
	}
	found = err == nil
	return targets, err
}

func unpin(targets []target) {
	for _, t := range targets {
		if t.e != nil {
			t.e.unpin()
		}
	}
}

// findPinned is find, and the execution stays in memory until it is unpinned.
func (r *Runner) findPinned(id uuid.UUID) *execution {
	e := r.find(id)
	if e != nil {
		e.pin()
	}
	return e
}

func joinIDs(ids []uuid.UUID) string {
	s := ids[0].String()
	for _, id := range ids[1:] {
		s += ", " + id.String()
	}
	return s
}

// pollEvery is how often a task of another Runner is looked at.
const pollEvery = 250 * time.Millisecond

func (r *Runner) await(ctx context.Context, mode AwaitMode, targets []target) error {
	done := ctx.Done()
	w := &wait{any: mode == AwaitAny, by: funcOf(ctx), on: make([]*execution, 0, len(targets))}
	var foreign []*target
	for i := range targets {
		switch t := &targets[i]; {
		case t.e != nil:
			w.on = append(w.on, t.e) // twice, if it is asked for twice: then its end counts twice
		case !t.row.Status.Terminal():
			foreign = append(foreign, t)
		default:
			w.over++
		}
	}
	if w.foreign = len(foreign); w.foreign > 0 {
		ctx = asked(ctx) // it goes to the store while others wait for this wait
	}
	return r.follow(ctx, done, w, foreign)
}

// waitFor blocks until e was told, or ctx ends, of which done and by were asked
// before.
func (r *Runner) waitFor(ctx context.Context, done <-chan struct{}, by, e *execution) error {
	w := &wait{by: by}
	w.on = append(w.one[:0], e)
	return r.follow(ctx, done, w, nil)
}

// funcOf is the execution whose Func ctx belongs to, nil if there is none.
func funcOf(ctx context.Context) *execution {
	if run, ok := RunFromContext(ctx); ok {
		return run.e
	}
	return nil
}

// follow waits until w is satisfied or done is closed, which is ctx's. Tasks of
// other Runners are looked at now and then. ctx is foreign code: what it does
// while w is part of the graph of waits must not keep w from leaving it.
func (r *Runner) follow(ctx context.Context, done <-chan struct{}, w *wait, foreign []*target) error {
	if err := w.start(); err != nil {
		return err
	}
	var tick <-chan time.Time
	if len(foreign) > 0 {
		ticker := time.NewTicker(pollEvery)
		defer ticker.Stop()
		tick = ticker.C
	}
	lookAll := func(ctx context.Context) {
		foreign = slices.DeleteFunc(foreign, func(t *target) bool {
			over := r.look(ctx, t)
			if over {
				w.foreignEnd()
			}
			return over
		})
	}
	for {
		select {
		case <-w.ready:
			return nil
		case <-done:
			// Once more, for "as it is then" is not as it was a while ago; but a
			// store that did not answer is not waited for.
			if !slices.ContainsFunc(foreign, func(t *target) bool { return t.unseen }) {
				late, cancel := context.WithTimeout(endless(ctx), pollEvery)
				lookAll(late)
				cancel()
			}
			if w.leave() {
				return ended(ctx)
			}
			return nil
		case <-tick:
			lookAll(ctx)
		}
	}
}

// look reads the record of a task of another Runner and reports whether it has
// ended, or is no more: only what has ended is deleted.
func (r *Runner) look(ctx context.Context, t *target) bool {
	row, err := r.load(ctx, t.row.ID)
	if err == nil {
		t.row = row
	}
	t.gone = gone(err)
	t.unseen = err != nil && !t.gone
	return t.gone || t.row.Status.Terminal()
}

// current is e's task as any reader may see it now.
func (r *Runner) current(e *execution) *Task {
	if t := e.answer(true); t != nil {
		return t
	}
	if row, err := r.load(e.ctx, e.id); err == nil {
		e.observe(row)
	}
	return e.view(true)
}

// pin and unpin keep e in memory while somebody waits for it: until he was
// handed its end.
func (e *execution) pin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pins++
}

func (e *execution) unpin() {
	e.mu.Lock()
	e.pins--
	e.mu.Unlock()
	e.retire()
}

// wait is one call that waits. What it waits for has two stages: an end is
// settled when its record is stored, and told when everybody may know. A Func
// that lent its slot lines up for it at the first and goes on after the second.
type wait struct {
	by      *execution    // whose Func waits; nil: nobody's
	on      []*execution  // what it waits for, in memory
	one     [1]*execution // room for on
	foreign int           // tasks of other Runners that it waits for
	over    int           // tasks that had ended before
	any     bool
	ready   chan struct{} // closed when it may go on

	// What follows is guarded by waits.

	unsettled int  // ends that must still be settled
	untold    int  // ends that must still be told; 0: it is satisfied
	lends     bool // it is one of by.lend.asks
	left      bool
}

// waits guards all waits of the process and who lent a slot for them: who
// waits for whom may lead from one Runner to another, so there is one graph.
// It is taken before any execution's lock.
var waits sync.Mutex

// start begins the wait, unless it could never end.
func (w *wait) start() error {
	w.ready = make(chan struct{})
	waits.Lock()
	if err := w.hopelessLocked(); err != nil {
		waits.Unlock()
		return err
	}
	w.unsettled, w.untold = w.foreign, w.foreign
	settled, told := w.over > 0, w.over > 0
	for _, e := range w.on {
		e.mu.Lock()
		settled, told = settled || e.staged, told || e.told
		if !e.staged {
			w.unsettled++
		}
		if !e.told {
			w.untold++
			if e.waits == nil {
				e.waits = e.oneWait[:0]
			}
			e.waits = append(e.waits, w)
		}
		e.mu.Unlock()
	}
	if w.any {
		w.unsettled, w.untold = oneUnless(settled), oneUnless(told)
	}
	var next grantee
	if w.untold == 0 {
		w.unlinkLocked()
		close(w.ready)
	} else if w.by != nil && w.unsettled > 0 {
		next = w.lendLocked()
	}
	waits.Unlock()
	handOn(next)
	return nil
}

func oneUnless(over bool) int {
	if over {
		return 0
	}
	return 1
}

// stage says that e's end is settled: Funcs that wait for nothing else line up
// for the slots that they lent, before e's own goes on.
func (e *execution) stage() {
	e.mu.Lock()
	e.staged = true // a wait that starts from here on does not count it
	var early []*wait
	if slices.ContainsFunc(e.waits, func(w *wait) bool { return w.by != nil }) {
		early = slices.Clone(e.waits)
	}
	e.mu.Unlock()
	if early == nil {
		return
	}
	waits.Lock()
	defer waits.Unlock()
	for _, w := range early {
		w.settledLocked()
	}
}

func (w *wait) settledLocked() {
	if w.left || w.unsettled == 0 {
		return
	}
	w.unsettled--
	if w.unsettled == 0 && w.lends {
		w.by.lend.unblockLocked()
	}
}

// wake says to those who waited for an end that it was told.
func wake(ws []*wait) {
	if len(ws) == 0 {
		return
	}
	waits.Lock()
	defer waits.Unlock()
	for _, w := range ws {
		w.toldLocked()
	}
}

func (w *wait) toldLocked() {
	if w.left || w.untold == 0 {
		return
	}
	w.untold--
	if w.untold > 0 {
		return
	}
	if w.any {
		w.unlinkLocked()
	}
	if w.lends {
		w.by.lend.comeBackLocked(w)
	} else {
		close(w.ready)
	}
}

// foreignEnd counts the end of a task that another Runner executed.
func (w *wait) foreignEnd() {
	waits.Lock()
	defer waits.Unlock()
	w.settledLocked()
	w.toldLocked()
}

// leave gives the wait up because its ctx has ended. It reports false if it was
// satisfied meanwhile. A slot that was lent for it is back when it returns.
func (w *wait) leave() bool {
	waits.Lock()
	defer waits.Unlock()
	satisfied := w.untold == 0
	if !satisfied {
		w.left = true
		w.unlinkLocked()
	}
	if w.lends {
		w.by.lend.forsakeLocked(w, !satisfied && w.unsettled > 0)
	}
	return !satisfied
}

// unlinkLocked takes w off the lists of those whose end it does not need.
func (w *wait) unlinkLocked() {
	for _, e := range w.on {
		e.mu.Lock()
		if i := slices.Index(e.waits, w); i >= 0 {
			// Copied, because stage may be looking at the old list.
			e.waits = slices.Concat(e.waits[:i], e.waits[i+1:])
		}
		e.mu.Unlock()
	}
}
