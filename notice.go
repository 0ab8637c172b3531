package subagent

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Notifier delivers the end of a background task to its session: at least once
// for each task whose end nobody was handed by a wait.
type Notifier interface {
	// Notify delivers t, which is the stored record with its whole ResultText.
	// It is called for one task of a session at a time, in the order in which
	// they ended, and holds up the next one of its session alone. ctx ends after
	// Config.StoreTimeout; a call that goes on regardless is waited for by its
	// session, and by Shutdown for one StoreTimeout. nil means delivered: that
	// is stored as NotifiedAt. An error, or a panic, means not delivered: it is
	// called again, with growing pauses, also by a later Runner on the same
	// store, until it is delivered or somebody was handed the end by a wait. It
	// may call the Runner.
	Notify(ctx context.Context, t Task) error
}

// outboxes are the notices that a Runner owes, one queue for each session. A
// task gets its place when its end is decided, so that notices go out in the
// order of the ends however long it takes to store and tell each.
type outboxes struct {
	// mu guards all below. It is taken with an execution's lock held; only the
	// Runner's is taken under it.
	mu    sync.Mutex
	boxes map[string]*outbox
}

type outbox struct {
	queue []*execution
	busy  bool // a goroutine delivers the head
}

// add gives e its place.
func (o *outboxes) add(session string, e *execution) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.boxes == nil {
		o.boxes = make(map[string]*outbox)
	}
	box := o.boxes[session]
	if box == nil {
		box = new(outbox)
		o.boxes[session] = box
	}
	box.queue = append(box.queue, e)
}

// placeNoticeLocked gives the notice of e's end its place, if one may be owed:
// whether it is, tell decides.
func (e *execution) placeNoticeLocked() {
	if e.task.Background && e.runner.cfg.Notifier != nil {
		e.owing = true
		e.runner.outboxes.add(e.task.ParentSessionID, e)
	}
}

// deliverDue delivers what is due in a session: its goroutine ends when the box is
// empty or its head's end is still to be told, which starts it again. Shutdown
// has it try once more and waits for it.
func (r *Runner) deliverDue(session string) {
	r.outboxes.mu.Lock()
	defer r.outboxes.mu.Unlock()
	if box := r.outboxes.boxes[session]; box != nil && !box.busy {
		box.busy = true
		r.begin()
		go r.deliver(session, box) // the box's: ends as said above
	}
}

func (r *Runner) deliver(session string, box *outbox) {
	defer r.finish()
	for {
		r.outboxes.mu.Lock()
		if len(box.queue) == 0 {
			delete(r.outboxes.boxes, session)
			r.outboxes.mu.Unlock()
			return
		}
		e := box.queue[0]
		r.outboxes.mu.Unlock()
		if !e.isTold() && !r.rest(box, e) {
			return
		}
		r.deliverOne(e)
		r.outboxes.mu.Lock()
		box.queue[0] = nil
		box.queue = box.queue[1:]
		r.outboxes.mu.Unlock()
		e.mu.Lock()
		e.owing = false
		e.mu.Unlock()
		e.retire()
	}
}

// rest ends the delivery for now, because e, the head, is still to be told. It
// reports whether it was told after all: then tell saw a busy box.
func (r *Runner) rest(box *outbox, e *execution) (told bool) {
	r.outboxes.mu.Lock()
	box.busy = false
	r.outboxes.mu.Unlock()
	if !e.isTold() {
		return false
	}
	r.outboxes.mu.Lock()
	defer r.outboxes.mu.Unlock()
	if box.busy {
		return false // tell has started another
	}
	box.busy = true
	return true
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
	owes := e.owing && e.claimed.IsZero() && !e.forgotten
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
	at := r.deliveryStamp(e.view(false).lastStamp())
	if first, _ := e.claim(at); !first {
		return // somebody was handed the end during the call
	}
	r.storeDelivery(e.callCtx(), e.id, e, at)
}

// storeDelivery stores that somebody was handed an end. It returns what is
// stored then and whether he was the first, or nil if that failed: then it is
// stored later, if the task is in memory as e.
func (r *Runner) storeDelivery(ctx context.Context, id uuid.UUID, e *execution, at time.Time) (row *Task, first bool) {
	row, first, err := r.update(ctx, id, &edit{notified: at}, r.cfg.StoreTimeout)
	switch {
	case err == nil && row.Status.Terminal():
		if e != nil {
			e.observe(row)
		}
		return row, first
	case gone(err):
	case e != nil:
		e.saveLater(&edit{notified: at}, err) // without an error: its end is to be stored first
	case err != nil:
		r.log.warn("delivery not stored", id, "error", logText(err))
	}
	return nil, false
}

// handOver is t's task as whoever waited for it gets it: if it has ended, this
// is its delivery. Exactly one sees NotifiedAt zero, the first.
func (r *Runner) handOver(ctx context.Context, t *target) Task {
	task := t.row
	if t.e != nil {
		task = r.current(t.e)
	}
	if !task.Status.Terminal() || !task.NotifiedAt.IsZero() {
		return task.copy()
	}
	now := r.deliveryStamp(task.lastStamp())
	if t.e != nil {
		if first, at := t.e.claim(now); !first {
			handed := task.copy()
			handed.NotifiedAt = at // whoever was first stores that
			return handed
		}
		if t.e.endUnsaved() {
			t.e.saveLater(&edit{notified: now}, nil) // with its end: the store is not asked in vain
			return task.copy()
		}
	}
	first := true
	if row, changed := r.storeDelivery(endless(ctx), task.ID, t.e, now); row != nil {
		task, first = row, changed // false: somebody in another process was
	}
	handed := task.copy()
	if first {
		handed.NotifiedAt = time.Time{}
	} else if handed.NotifiedAt.IsZero() {
		handed.NotifiedAt = now
	}
	return handed
}

// deliveryStamp is the present as NotifiedAt records it: not before floor, and
// never the same twice in this Runner. It is what tells whose delivery was stored
// where a store has run an edit again: two readers of one end in one microsecond
// would both take the one that is stored for theirs.
func (r *Runner) deliveryStamp(floor time.Time) time.Time {
	for at := stamp(floor); ; {
		last := r.lastDelivery.Load()
		next := max(at.UnixMicro(), last+1)
		if r.lastDelivery.CompareAndSwap(last, next) {
			return time.UnixMicro(next).UTC()
		}
	}
}

// claim reports whether nobody was handed e's end before at, or when that was.
// The first stores it: of several who are handed the end at once, one is.
func (e *execution) claim(at time.Time) (first bool, when time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if first = e.claimed.IsZero(); first {
		e.claimed = at
	}
	return first, e.claimed
}

// endUnsaved reports whether e's end is still to be stored.
func (e *execution) endUnsaved() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rest != nil && e.rest.want != nil && e.rest.want.end != nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
