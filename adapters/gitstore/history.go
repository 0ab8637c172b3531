package gitstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// How the history is kept. What a write has stored is appended, in order, to
// the queue of its session. A historian, a goroutine that lives while there is
// a queue, feeds it to one git fast-import, a burst, which puts the commits on
// the branch when it ends. Nothing waits for a historian but Close. When git
// fails, the same entries are given to another burst, after a pause: a burst
// moves the branch once, at its end, so that either all of it is there or none.

// history is a session's. All of it is guarded by Store.mu, except that known
// and sent belong to the historian.
type history struct {
	queue  []entry       // what is to be committed, oldest first
	texts  int           // bytes of long results in queue
	active bool          // there is a historian
	more   chan struct{} // has one place: something was added to queue
	synced bool          // the branch says what tasks.json says, as far as we know
	err    error         // of the last attempt
	known  bool          // the branch is as the last burst left it
	sent   int           // how many entries, of those at the head of queue, were given to a burst that failed
}

// entry is one commit to be.
type entry struct {
	subject string
	at      time.Time
	state   *state // after it; nil, of a reconcile: what is stored now
	texts   []textFile
	gone    []string

	// reconcile is an entry that says nothing of how state came to be. It is
	// left out if the branch says the same already.
	reconcile bool
}

const reconcileSubject = "task: reconcile"

const (
	// A queue that git does not take is not kept for ever: beyond these it
	// becomes one reconcile.
	maxQueue      = 4096
	maxQueueTexts = 64 << 20

	linger    = 100 * time.Millisecond // how long a burst waits for more
	burstTime = 2 * time.Second        // how long it takes more
	burstSize = 1000                   // how many commits it takes

	firstPause   = 100 * time.Millisecond // after a failure; doubled with each
	longestPause = time.Minute

	// After Close has begun. A git that the process before this one has left
	// behind may come in between one.
	maxLastAttempts = 3
)

// recordLocked appends entries to se's history. before is the state that the
// first of them started from.
func (s *Store) recordLocked(se *session, before *state, entries []entry) {
	h := &se.history
	if n := len(h.queue); n > 0 && h.queue[n-1].state == nil {
		h.queue[n-1].state = before // it has to say how it was until now
	}
	for _, e := range entries {
		for _, t := range e.texts {
			h.texts += len(t.text)
		}
	}
	h.queue = append(h.queue, entries...)
	if len(h.queue) > maxQueue || h.texts > maxQueueTexts {
		s.log.Error("gitstore: the history is too far behind, and leaves out transitions", "session", se.name, "left_out", len(h.queue))
		h.queue, h.texts = []entry{{at: time.Now(), reconcile: true}}, 0
	}
	h.synced = false
	s.changedLocked(se)
	s.wakeLocked(se)
}

func (s *Store) wakeLocked(se *session) {
	h := &se.history
	if s.opening {
		return
	}
	if h.active {
		select {
		case h.more <- struct{}{}:
		default:
		}
		return
	}
	h.active = true
	// It ends when the queue is empty, or when it fails after Close has begun;
	// Close waits for it.
	s.historians.Go(func() { s.historian(se) })
}

func (s *Store) historian(se *session) {
	lastAttempts := 0
	for pause := time.Duration(0); ; {
		s.waiting.Add(1)
		s.bursts <- struct{}{}
		s.waiting.Add(-1)
		if s.isClosing() {
			lastAttempts++
		}
		err := s.burst(se)
		<-s.bursts
		s.noteIndex()
		if s.retire(se, err, lastAttempts >= maxLastAttempts) {
			return
		}
		if err == nil {
			pause = 0
			continue
		}
		pause = min(max(2*pause, firstPause), longestPause)
		s.log.Error("gitstore: history not written, it will be tried again", "session", se.name, "in", pause, "error", err)
		s.rest(pause)
	}
}

// rest waits before another attempt; not for long once Close has begun.
func (s *Store) rest(pause time.Duration) {
	long, short := time.NewTimer(pause), time.NewTimer(firstPause)
	defer long.Stop()
	defer short.Stop()
	select {
	case <-long.C:
	case <-s.closing:
		<-short.C
	}
}

// retire reports whether the historian is to end: nothing is left to do, or it
// must not try again.
func (s *Store) retire(se *session, err error, last bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &se.history
	h.err = err
	if err == nil && len(h.queue) == 0 {
		h.synced = true
	} else if err == nil || !last {
		return false
	}
	h.active = false
	return true
}

func (s *Store) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// behind says which histories were not brought up to date.
func (s *Store) behind() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, se := range s.sessions {
		if len(se.history.queue) > 0 {
			errs = append(errs, fmt.Errorf("gitstore: the history of session %q lags behind, the next Open will bring it up to date: %w",
				se.name, se.history.err))
		}
	}
	return errors.Join(errs...)
}

// burst commits what is in se's queue, and what comes to it meanwhile.
func (s *Store) burst(se *session) error {
	if _, err := os.Stat(s.path(se)); errors.Is(err, os.ErrNotExist) {
		s.forget(se) // the host has deleted the conversation
		return nil
	}
	if s.inDoubt(se) {
		se.history.known = false
	}
	tip, err := s.branch(se)
	if err != nil {
		return err
	}
	if err := s.reconcile(se, tip); err != nil {
		return err
	}
	first, ok := s.pop(se, false)
	if !ok {
		return nil
	}
	imp, err := s.startImport(se, tip.exists)
	if err != nil {
		s.push(se, []entry{first})
		return err
	}
	sent := []entry{first}
	err = s.feed(imp, first)
	for err == nil && len(sent) < burstSize && time.Since(imp.began) < burstTime {
		e, ok := s.pop(se, true)
		if !ok {
			break
		}
		sent = append(sent, e)
		err = s.feed(imp, e)
	}
	if err = imp.finish(err); err != nil {
		s.push(se, sent)
		se.history.sent = len(sent)
	}
	se.history.known = err == nil // else what it did is looked at
	return err
}

// inDoubt reports whether the branch has to be looked at before the oldest
// entry is committed.
func (s *Store) inDoubt(se *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := se.history.queue
	return len(queue) > 0 && queue[0].reconcile
}

// forget drops what was to be committed to a folder that is gone.
func (s *Store) forget(se *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &se.history
	h.queue, h.texts, h.known, h.sent = nil, 0, false, 0
}

// pop takes the oldest entry out of the queue. If there is none and wait is
// set it lingers for one, unless others want to use the place of this burst.
func (s *Store) pop(se *session, wait bool) (entry, bool) {
	var timer *time.Timer
	for {
		s.mu.Lock()
		if h := &se.history; len(h.queue) > 0 {
			e := h.queue[0]
			if e.state == nil { // it is for the next burst, which finds out
				s.mu.Unlock()
				return entry{}, false
			}
			h.queue[0] = entry{} // it must not pin its state
			h.queue = h.queue[1:]
			for _, t := range e.texts {
				h.texts -= len(t.text)
			}
			s.mu.Unlock()
			return e, true
		}
		s.mu.Unlock()
		if !wait || s.waiting.Load() > 0 || s.isClosing() {
			return entry{}, false
		}
		if timer == nil {
			timer = time.NewTimer(linger)
			defer timer.Stop()
		}
		select {
		case <-se.history.more: // it may be an old signal: look again
		case <-timer.C:
			return entry{}, false
		case <-s.closing:
		}
	}
}

// push puts entries back to where they were popped.
func (s *Store) push(se *session, entries []entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &se.history
	h.queue = append(entries, h.queue...)
	for _, e := range entries {
		for _, t := range e.texts {
			h.texts += len(t.text)
		}
	}
}

// reconcile settles what stands at the head of the queue and may be on the
// branch already: a reconcile, or a burst that was done and is said to have
// failed.
func (s *Store) reconcile(se *session, tip tip) error {
	h := &se.history
	sent := h.sent
	h.sent = 0
	s.mu.Lock()
	queue := h.queue
	s.mu.Unlock()
	if len(queue) == 0 {
		return nil
	}
	if sent > 0 && sent <= len(queue) && tip.isOf(&queue[sent-1]) {
		for range sent {
			s.pop(se, false)
		}
		return nil
	}
	if !queue[0].reconcile {
		return nil
	}
	stored, _, err := s.load(context.Background(), se)
	if err != nil {
		return err
	}
	s.mu.Lock()
	first := &h.queue[0]
	if first.state == nil { // nothing was stored since it was queued
		first.state = stored
	}
	st := first.state
	s.mu.Unlock()
	if st.is(tip.tasks) && tip.exists || !tip.exists && len(st.rows) == 0 {
		s.pop(se, false)
	}
	return nil
}
