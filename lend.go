package subagent

import "fmt"

// lender is the slot of a Func that waits for other tasks. While at least one
// of its goroutines waits the slot is lent to the line, so that nested tasks
// finish at any limit; the last one back lines up for it, ahead of the line,
// and goes on when it is granted. A Func whose ctx, or whose wait's ctx, has
// ended takes it back at once, over the limit if need be: it must be able to
// clean up. All is guarded by waits.
type lender struct {
	e       *execution
	state   lendState
	blocked int     // waits whose end is not settled yet
	asks    []*wait // all waits that are not over
	back    []*wait // satisfied ones that go on with the slot
	place   ticket  // while returning
	early   int     // grants that were taken before granted was called for them
}

type lendState uint8

const (
	slotHeld lendState = iota
	slotLent
	slotReturning // lined up for it
)

// lendLocked makes w a wait for which its Func's slot is lent, and lends it if
// it is the first. It returns who gets the slot. A Func that has ended, or must
// stop, lends nothing.
func (w *wait) lendLocked() (next grantee) {
	by := w.by
	by.mu.Lock()
	lends := by.slot && by.phase == phaseRunning && by.cause == nil
	if lends && by.lend == nil {
		by.lend = &lender{e: by}
	}
	l := by.lend
	by.mu.Unlock()
	if !lends {
		return nil
	}
	w.lends = true
	l.blocked++
	l.asks = append(l.asks, w)
	switch l.state {
	case slotHeld:
		l.state = slotLent
		by.runner.lent.Add(1)
		return by.runner.capacity.release()
	case slotReturning:
		// Somebody of this Func waits again: the others go on without it.
		// If it was granted already, granted will find us blocked.
		if by.runner.capacity.leaveReturning(l.place) {
			l.state = slotLent
		}
		l.letGoLocked()
	}
	return nil
}

// unblockLocked says that one wait less keeps the Func from going on. After
// the last one it lines up for its slot.
func (l *lender) unblockLocked() {
	l.blocked--
	if l.blocked > 0 || l.state != slotLent {
		return
	}
	var granted bool
	if l.place, granted = l.e.runner.capacity.enterReturning(l); granted {
		l.holdLocked()
	} else {
		l.state = slotReturning
	}
}

// granted is called when the slot has come back.
func (l *lender) granted() grantee {
	waits.Lock()
	defer waits.Unlock()
	if l.early > 0 {
		l.early--
		return nil
	}
	if l.blocked > 0 { // a new wait has started meanwhile
		l.state = slotLent
		return l.e.runner.capacity.release()
	}
	l.holdLocked()
	return nil
}

// comeBackLocked lets the satisfied w go on, now or with the slot.
func (l *lender) comeBackLocked(w *wait) {
	l.forgetLocked(w)
	if l.state == slotHeld || l.blocked > 0 {
		close(w.ready)
		return
	}
	l.back = append(l.back, w)
}

// forsakeLocked gives up the wait of a goroutine that goes on now, whatever the
// line looks like.
func (l *lender) forsakeLocked(w *wait, blocked bool) {
	l.forgetLocked(w)
	if blocked {
		l.blocked--
	}
	if l.blocked == 0 {
		l.takeBackLocked()
	}
}

// takeBack takes the slot back at once, because e must stop.
func (e *execution) takeBack() {
	e.mu.Lock()
	l := e.lend
	e.mu.Unlock()
	if l == nil {
		return
	}
	waits.Lock()
	defer waits.Unlock()
	l.takeBackLocked()
}

func (l *lender) takeBackLocked() {
	switch {
	case l.state == slotHeld:
		return
	case l.unlineLocked():
		l.e.runner.capacity.force()
	}
	l.holdLocked()
}

// unlineLocked leaves the line, if l is in one. It reports false if the slot
// was granted already: then it is ours, and granted still to be called.
func (l *lender) unlineLocked() bool {
	if l.state == slotReturning && !l.e.runner.capacity.leaveReturning(l.place) {
		l.early++
		return false
	}
	return true
}

// end is the end of the task: it returns who gets the slot, if l holds it.
// Goroutines that the Func has left behind wait on without one.
func (l *lender) end() (next grantee) {
	waits.Lock()
	defer waits.Unlock()
	held := l.state == slotHeld || !l.unlineLocked()
	l.holdLocked()
	if held {
		return l.e.runner.capacity.release()
	}
	return nil
}

func (l *lender) holdLocked() {
	if l.state != slotHeld {
		l.e.runner.lent.Add(-1)
	}
	l.state = slotHeld
	l.letGoLocked()
}

func (l *lender) letGoLocked() {
	for _, w := range l.back {
		close(w.ready)
	}
	l.back = nil
}

func (l *lender) forgetLocked(w *wait) {
	for i, other := range l.asks {
		if other == w {
			l.asks = append(l.asks[:i], l.asks[i+1:]...)
			return
		}
	}
}

// hopelessLocked is ErrWaitCycle if w could never be satisfied. A task can end
// if each wait of its Func can be satisfied; a wait can be, if all, or any, of
// its targets can end. What follows from that, starting from those who wait
// for nothing, is all that can end: the rest waits in a circle. A time limit
// of a wait does not make it hopeful.
func (w *wait) hopelessLocked() error {
	if w.by == nil || w.by.ended() {
		return nil
	}
	g := waitGraph{w: w, ends: map[*execution]bool{}}
	g.collect(w.on)
	for changed := true; changed; {
		changed = false
		for _, e := range g.order {
			if !g.ends[e] && g.canEnd(e) {
				g.ends[e], changed = true, true
			}
		}
	}
	if g.satisfiable(w) {
		return nil
	}
	return fmt.Errorf("%w: of task %s", ErrWaitCycle, w.by.id)
}

// waitGraph is who waits for whom, as far as it can be reached from w.
type waitGraph struct {
	w     *wait
	ends  map[*execution]bool
	order []*execution // of ends, those that others wait for first: then one round is mostly enough
}

func (g *waitGraph) collect(on []*execution) {
	for _, e := range on {
		if _, seen := g.ends[e]; seen {
			continue
		}
		g.ends[e] = false
		for _, w := range g.asks(e) {
			g.collect(w.on)
		}
		g.order = append(g.order, e)
	}
}

func (g *waitGraph) asks(e *execution) []*wait {
	e.mu.Lock()
	l, ended := e.lend, e.phase == phaseEnded
	e.mu.Unlock()
	var asks []*wait
	if l != nil && !ended {
		asks = append(asks, l.asks...)
	}
	if e == g.w.by {
		asks = append(asks, g.w)
	}
	return asks
}

func (g *waitGraph) canEnd(e *execution) bool {
	for _, w := range g.asks(e) {
		if !g.satisfiable(w) {
			return false
		}
	}
	return true
}

// satisfiable says so of one wait. Nobody may begin to wait for his own
// ancestor, which may have to wait for him. A wait for any that names one stands
// all the same, and ends if the ancestor does.
func (g *waitGraph) satisfiable(w *wait) bool {
	for _, e := range w.on {
		if ok := e.ended() || (g.ends[e] && !(w == g.w && w.by.descendsFrom(e))); ok == w.any {
			return ok
		}
	}
	// All of them can end; of any, none, but perhaps one that is not ours.
	return !w.any || w.foreign+w.over > 0
}

// descendsFrom reports whether e is a, or a is an ancestor of e.
func (e *execution) descendsFrom(a *execution) bool {
	for ; e != nil; e = e.parent {
		if e == a {
			return true
		}
	}
	return false
}
