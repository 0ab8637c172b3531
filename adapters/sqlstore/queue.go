package sqlstore

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// queue brings writes together. At any time one of the callers is the leader:
// it takes what has piled up, its own write first, stores all of it in one
// transaction, makes the first of those who came meanwhile the next leader, and
// tells the others how it went. Whoever finds no leader leads at once, so
// nobody waits for company, and nobody leads for more than one transaction.
//
// There is no goroutine of its own: the leader is always a caller.
type queue struct {
	mu      sync.Mutex // guards all below; a leaf, never held while anything is stored
	waiting []*entry
	led     bool
	closed  bool
	idle    chan struct{} // made by close, closed when the last leader has left
}

// entry is one write that was asked for.
type entry struct {
	do   func(*txn) error
	size int   // bytes, about
	err  error // how it went
	// turn says that the entry's caller leads (true) or that the entry is done
	// (false). The one send happens before the receive, and all that the leader
	// wrote into the entry and its closure before the send.
	turn chan bool
}

// What one transaction takes at most, so that the first in it does not wait
// long for the last.
const (
	maxEntries = 512
	maxBytes   = 8 << 20
)

// submit has do run in a transaction and returns when that is durable, has
// failed, or ctx ended before it began. do's error is the database's and undoes
// what do has done; what do refuses is not one. do may run on the goroutine of
// another caller, and again if another's write has failed.
func (s *Store) submit(ctx context.Context, size int, do func(*txn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e := &entry{do: do, size: size, turn: make(chan bool, 1)}
	lead, err := s.queue.enter(e)
	if err != nil {
		return err
	}
	if !lead {
		select {
		case lead = <-e.turn:
		case <-ctx.Done():
			if s.queue.leave(e) {
				return ctx.Err()
			}
			lead = <-e.turn // it is being stored, or it is this one's turn to lead
		}
	}
	if !lead {
		return e.err
	}
	// Those who can ask for a write right now are let go first, so that they
	// share this transaction. It is no waiting: if nobody can, it goes on.
	runtime.Gosched()
	batch := s.queue.take(e)
	s.store(batch)
	s.queue.handOn()
	for _, other := range batch[1:] {
		other.turn <- false
	}
	return e.err
}

// store stores a batch and notes in each entry how that went. An entry that the
// database does not take, of a damaged page perhaps, does not spoil it for the
// others: they are stored without it.
func (s *Store) store(batch []*entry) {
	for rest := slices.Clone(batch); len(rest) > 0; {
		bad, err := s.transact(rest)
		if bad < 0 {
			for _, e := range rest {
				e.err = err
			}
			return
		}
		rest[bad].err = err
		rest = slices.Delete(rest, bad, bad+1)
	}
}

// enter reports whether e's caller leads; else e waits for its turn.
func (q *queue) enter(e *entry) (lead bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false, ErrClosed
	}
	if !q.led {
		q.led = true
		return true, nil
	}
	q.waiting = append(q.waiting, e)
	return false, nil
}

// leave takes e out of the line and reports false if it is not in it any more.
func (q *queue) leave(e *entry) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, e)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	return true
}

// take is what the leader stores: its own entry and those that wait, in order.
func (q *queue) take(own *entry) []*entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, size := 0, own.size
	for n < len(q.waiting) && n < maxEntries-1 && size+q.waiting[n].size <= maxBytes {
		size += q.waiting[n].size
		n++
	}
	batch := append([]*entry{own}, q.waiting[:n]...)
	q.waiting = slices.Delete(q.waiting, 0, n)
	return batch
}

// handOn makes the first in line the leader.
func (q *queue) handOn() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 {
		next := q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
		next.turn <- true // has room: it is the only send
		return
	}
	q.led = false
	if q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}

// close refuses new entries and returns when those that were in line are done.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	if !q.led {
		q.mu.Unlock()
		return
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	<-idle
}
