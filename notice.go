package subagent

import (
	"context"
	"sync"
	"time"
)

// Notifier delivers the end of a background task to its session. It is called
// at least once for each task whose end nobody was handed by a wait, for one
// task of a session at a time, in the order in which they ended. t is the
// stored record with its whole ResultText. An error, or a panic, means not
// delivered: it is called again, with growing pauses, also by a later Runner
// on the same store. ctx ends after Config.StoreTimeout.
type Notifier interface {
	Notify(ctx context.Context, t Task) error
}

// outboxes are the notices that a Runner owes, one queue for each session.
type outboxes struct {
	// mu guards all below. It is a leaf.
	mu    sync.Mutex
	boxes map[string][]*execution // a session that has a box has a goroutine at work on it
}

// add queues the notice of e. Its session's goroutine starts with the first
// one and ends when the box is empty; Shutdown has it try once more and waits
// for it.
func (o *outboxes) add(e *execution) {
	session := e.session()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.boxes == nil {
		o.boxes = make(map[string][]*execution)
	}
	box, busy := o.boxes[session]
	o.boxes[session] = append(box, e)
	if !busy {
		e.runner.begin()
		go e.runner.deliver(session)
	}
}

// next is the head of a session's box; nil ends the box.
func (o *outboxes) next(session string, done bool) *execution {
	o.mu.Lock()
	defer o.mu.Unlock()
	box := o.boxes[session]
	if done {
		box[0] = nil
		box = box[1:]
		o.boxes[session] = box
	}
	if len(box) == 0 {
		delete(o.boxes, session)
		return nil
	}
	return box[0]
}

func (r *Runner) deliver(session string) {
	defer r.finish()
	for e := r.outboxes.next(session, false); e != nil; e = r.outboxes.next(session, true) {
		r.deliverOne(e)
		e.mu.Lock()
		e.owing = false
		e.mu.Unlock()
		e.retire()
	}
}

// deliverOne tries until e's notice is delivered or no longer owed. During
// Shutdown it tries once.
func (r *Runner) deliverOne(e *execution) {
	for pause, first := time.Duration(0), true; r.owes(e, first); first = false {
		last := r.final.Load()
		if last && isClosed(r.lastCall) {
			return
		}
		t := e.view(true).copy()
		err := protect(func() error {
			ctx, cancel := context.WithTimeout(e.callCtx(), r.within(r.cfg.StoreTimeout))
			defer cancel()
			return r.cfg.Notifier.Notify(ctx, t)
		})
		if err == nil {
			r.delivered(e)
			return
		}
		r.log.warn("notice not delivered", e.id, "error", logText(err))
		if last {
			return
		}
		pause = nextPause(pause)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-r.quit:
			timer.Stop()
		}
	}
}

// owes reports whether the notice of e is still to be delivered: not if
// somebody was handed the end meanwhile, here or, as the store knows, in
// another process.
func (r *Runner) owes(e *execution, first bool) bool {
	e.mu.Lock()
	owes := !e.claimed && !e.forgotten
	unsaved := e.rest != nil && e.rest.want != nil
	e.mu.Unlock()
	if !owes || first || unsaved {
		return owes
	}
	row, err := r.load(e.callCtx(), e.id)
	if err != nil {
		return !gone(err)
	}
	return row.owesNotice()
}

func (r *Runner) delivered(e *execution) {
	if !e.claim() {
		return // somebody was handed the end during the call
	}
	d := &edit{notified: stamp(e.view(false).lastStamp())}
	row, _, err := e.write(d, r.cfg.StoreTimeout)
	switch {
	case err == nil && row.Status.Terminal():
		e.observe(row)
	case !gone(err): // without an error: its end is to be stored first
		e.saveLater(d, err)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
