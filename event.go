package subagent

import (
	"container/list"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// EventType says what an Event tells of.
type EventType string

// The three types, strongest first: an event that stands for several has the
// type of the strongest.
const (
	EventCreated  EventType = "task_created"  // its record exists
	EventStatus   EventType = "task_status"   // a transition, or a cancel that was requested
	EventProgress EventType = "task_progress" // usage, progress or partial text of a running task
)

func (k EventType) rank() int {
	switch k {
	case EventCreated:
		return 2
	case EventStatus:
		return 1
	}
	return 0
}

// Event is one change of one task, or several that a subscriber was too slow
// to read one by one. Task is how the task stands after it, with at most 2000
// bytes of ResultText.
type Event struct {
	Seq  uint64    `json:"seq"` // rises by one per event of the Runner; merged events leave gaps
	Type EventType `json:"type"`
	Task Task      `json:"task"`
	Time time.Time `json:"time"` // of the newest change in it
}

// maxUnread is how many tasks with unread events a Subscription holds.
const maxUnread = 4096

// ErrLagged is returned by Next, once, when a subscriber fell so far behind
// that its unread events were dropped: it has to read the state anew, and
// Next goes on with what happens from then on.
var ErrLagged = errors.New("subagent: subscriber lagged, events were dropped: read the state anew")

// Subscription receives the events of the tasks that its Filter matches at
// the moment of the event. A slow subscriber never slows a task: the unread
// events of one task are merged into one with the newest snapshot, which moves
// to the end, and beyond 4096 unread tasks all are dropped and Next returns
// ErrLagged. The last event of a task is its end, unless ErrLagged came in
// between. Who subscribes must call Close.
type Subscription struct {
	hub    *hub
	filter Filter

	// All that follows is guarded by hub.mu.
	order  list.List             // of *unread, by rising seq
	byTask map[any]*list.Element // by source.life
	lagged bool                  // what happens is not kept until Next has said so
	ended  bool                  // nothing is added any more
	wake   chan struct{}         // made by a Next that waits; closed when there is something to see
}

// unread is an Event that its subscriber has not read. task is immutable and
// shared between subscriptions.
type unread struct {
	seq  uint64
	kind EventType
	of   any
	task *Task
	at   time.Time
}

// Next returns the oldest unread event; the Seq of what it returns rises. It
// blocks until there is one, ctx ends (ctx's error) or the subscription is
// over (ErrClosed): at once after Close, and after the last unread event when
// the Runner was shut down. ErrLagged says that events were dropped, and is no
// end. An event that is there is returned even if ctx is done. Several
// goroutines may call Next; each event goes to one of them.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		u, wake, err := s.take()
		switch {
		case err != nil:
			return Event{}, err
		case u != nil:
			return u.event(), nil
		case ctx.Err() != nil:
			return Event{}, ctx.Err()
		}
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
}

// Close ends the subscription: unread events are gone and every Next returns
// ErrClosed, those that wait included. It does not block and may be called
// again.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.subs, s)
	s.forgetLocked()
	s.lagged = false
	s.endLocked()
}

// take returns what Next is to return, or the channel that is closed when it
// is worth asking again.
func (s *Subscription) take() (*unread, <-chan struct{}, error) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.lagged {
		s.lagged = false
		return nil, nil, ErrLagged
	}
	if oldest := s.order.Front(); oldest != nil {
		u := s.order.Remove(oldest).(*unread)
		delete(s.byTask, u.of)
		return u, nil, nil
	}
	if s.ended {
		return nil, nil, ErrClosed
	}
	if s.wake == nil {
		s.wake = make(chan struct{})
	}
	return nil, s.wake, nil
}

// event is made outside the lock: it is a large copy, and nobody writes to u
// once it has left the list. The map is copied because the snapshot is shared
// with other subscribers, and this one may do as it likes with its own.
func (u *unread) event() Event {
	e := Event{Seq: u.seq, Type: u.kind, Task: *u.task, Time: u.at}
	e.Task.Metadata = maps.Clone(e.Task.Metadata)
	return e
}

// addLocked puts news at the end. What the same task still had unread is
// merged into it: the end of a task is the exception, it never gives way to a
// snapshot from before.
func (s *Subscription) addLocked(news unread) {
	if e, ok := s.byTask[news.of]; ok {
		old := e.Value.(*unread)
		if old.task.Status.Terminal() && !news.task.Status.Terminal() {
			return
		}
		if old.kind.rank() > news.kind.rank() {
			news.kind = old.kind
		}
		*old = news
		s.order.MoveToBack(e)
		return
	}
	if s.order.Len() == maxUnread {
		s.forgetLocked()
		s.lagged = true
		return
	}
	if s.byTask == nil {
		s.byTask = make(map[any]*list.Element)
	}
	kept := news // a variable of its own, so that merging allocates nothing
	s.byTask[news.of] = s.order.PushBack(&kept)
	s.wakeLocked() // nobody waits while there is something unread: only here
}

func (s *Subscription) forgetLocked() {
	s.order.Init()
	s.byTask = nil
}

func (s *Subscription) endLocked() {
	s.ended = true
	s.wakeLocked()
}

// wakeLocked wakes every Next that waits: all but one may find nothing and
// wait again. Waking one would need it to pass the word on when there is more,
// also when its ctx ends just then.
func (s *Subscription) wakeLocked() {
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}

// hub hands events to subscriptions. The zero hub is ready.
type hub struct {
	// mu guards all below and what the subscriptions hold. It is taken with an
	// execution's lock held and is a leaf: nothing else is locked, nothing
	// blocks and no foreign code runs under it.
	mu     sync.Mutex
	seq    uint64
	last   time.Time // of the newest event: time does not run backwards in the stream
	subs   map[*Subscription]struct{}
	closed bool
}

// source is a task that an event tells of. Both methods are called with the
// lock of whoever publishes held, and lock nothing.
type source interface {
	// record is what filters look at: cheap, and not kept.
	record() *Task
	// snapshot is a fresh preview that nobody will ever write to.
	snapshot() *Task
	// life is the key of what is merged: a forgotten ID may live again. It is
	// kept as long as an event is unread, so it must not hold on to the task: a
	// subscriber that does not read would keep thousands of results alive.
	life() any
}

// subscribe starts a subscription of what happens from now on; if the hub is
// closed it is over already.
func (h *hub) subscribe(f Filter) *Subscription {
	f.Statuses = slices.Clone(f.Statuses)
	s := &Subscription{hub: h, filter: f}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		s.ended = true
		return s
	}
	if h.subs == nil {
		h.subs = make(map[*Subscription]struct{})
	}
	h.subs[s] = struct{}{}
	return s
}

// publish tells the subscriptions of s. It is called in the critical section
// that made the change, so that the events of one task come in the order of
// its changes. It never blocks; a snapshot is made only if somebody wants it.
func (h *hub) publish(kind EventType, s source) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	if len(h.subs) == 0 {
		return
	}
	news := unread{seq: h.seq, kind: kind, of: s.life()}
	record := s.record()
	for sub := range h.subs {
		if sub.lagged || !sub.filter.match(record) {
			continue
		}
		if news.task == nil {
			h.last = stamp(h.last)
			news.task, news.at = s.snapshot(), h.last
		}
		sub.addLocked(news)
	}
}

// close ends every subscription after the event that it has unread last, and
// those that are still to come.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for sub := range h.subs {
		sub.endLocked()
	}
	h.subs = nil
}

// count is how many subscriptions are open.
func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subs)
}
