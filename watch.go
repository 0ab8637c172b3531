package subagent

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
)

// What others do to the tasks of this Runner: a Watcher tells of it, or the next
// renewal of the lease finds it.

// watch has the store tell what others do to this Runner's tasks.
func (r *Runner) watch(w Watcher) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.stopped.Go(func() { // ends with quit
		<-r.quit
		cancel()
	})
	for pause := time.Duration(0); ctx.Err() == nil; {
		start := time.Now()
		err := protect(func() error { return w.Watch(ctx, r.id, func(t Task) { r.heard(ctx, &t) }) })
		if ctx.Err() != nil {
			return
		}
		r.log.warn("watching the store failed, it will be repeated", uuid.Nil, "error", logText(err))
		if time.Since(start) > longestPause {
			pause = 0 // it has worked meanwhile
		}
		pause = nextPause(pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// heard acts on a record of which a Watcher tells. An end is too grave to be
// taken from hearsay, which may be old or wrong: readers would see an end that
// nobody has stored. It is read, which is rare: a task that runs here is ended
// elsewhere only after its lease was lost.
func (r *Runner) heard(ctx context.Context, row *Task) {
	if e := r.find(row.ID); e == nil || !e.live() {
		return
	}
	if row.Status.Terminal() {
		stored, err := r.load(ctx, row.ID)
		if err != nil {
			return // the next renewal sees it
		}
		row = stored
	}
	r.seen(row)
}

// compare acts on what others did to the tasks that were live here before the
// store was read.
func (r *Runner) compare(ctx context.Context, mine []*execution, open []*Task) {
	rows := make(map[uuid.UUID]*Task, len(open))
	for _, row := range open {
		rows[row.ID] = row
	}
	// Children are younger: the request that is stored for one counts before
	// what its parent's hands down.
	for _, e := range slices.Backward(mine) {
		row := rows[e.id]
		if row == nil && e.live() {
			row, _ = r.load(ctx, e.id)
		}
		if row != nil {
			r.seen(row)
		}
	}
}

// live reports whether e is stored and has not ended.
func (e *execution) live() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stored && e.phase != phaseEnded
}

// is reports whether row is of e's life: an ID that was forgotten may live again,
// and what is told of its other life is over.
func (e *execution) is(row *Task) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return row.CreatedAt.Equal(e.task.CreatedAt)
}

// seen acts on the record of a task of this Runner: a cancel that another
// process asked for is obeyed, with the grace from now on; an end that another
// gave it, because this Runner's lease was lost, counts.
func (r *Runner) seen(row *Task) {
	e := r.find(row.ID)
	if e == nil || !e.live() || !e.is(row) {
		return
	}
	if row.Status.Terminal() {
		e.observe(row)
		if e.take(newCause(causeLost, ReasonLost, lostMessage, r.cfg.CancelGrace)) {
			if after := e.signal(); after != nil {
				after()
			}
			e.force()
		}
		return
	}
	if row.CancelRequestedAt.IsZero() {
		return
	}
	_, after := r.stop([]*execution{e}, r.storedRequest(row), nil)
	after()
}

// storedRequest is the cause that another process stored on row; whatever it
// wrote there, the cause is within bounds. The grace starts when it is seen.
func (r *Runner) storedRequest(row *Task) *cause {
	o := CancelOptions{row.Reason, row.CancelMessage}
	c, err := o.cause(ReasonUser, r.cfg.CancelGrace)
	if err != nil {
		o.Reason = ReasonUser
		c, _ = o.cause(ReasonUser, r.cfg.CancelGrace)
	}
	c.at = row.CancelRequestedAt
	return c
}

// lostLease is the cause of a task that another Runner ended.
var lostLease = &cause{kind: causeLost, reason: ReasonLost, message: lostMessage}
