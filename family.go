package subagent

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// family is the lock of one tree of tasks: it guards the kids of every
// execution in it. Under it execution locks are taken, one at a time. A
// top-level task has one only once it has had a child.
//
// A cascade marks the whole tree in one critical section, and a spawn looks at
// its ancestors and links itself in one. So a child is either linked before
// its ancestor was told to stop, and is told too, or it sees that and is
// refused: none slips through.
type family struct{ mu sync.Mutex }

// ErrParentCancelled refuses a spawn by a task that is being stopped or was.
var ErrParentCancelled = errors.New("subagent: parent is cancelled")

// parentCancelled is ErrParentCancelled together with why.
type parentCancelled struct{ why error }

func (e *parentCancelled) Error() string   { return fmt.Sprintf("%v: %v", ErrParentCancelled, e.why) }
func (e *parentCancelled) Unwrap() []error { return []error{ErrParentCancelled, e.why} }

// familyOf returns the lock of e's tree, which it makes if there is none.
func familyOf(e *execution) *family {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.family == nil {
		e.family = new(family)
	}
	return e.family
}

// admitsKids is nil unless e or an ancestor up to the nearest Independent one
// was told to stop.
func (e *execution) admitsKids() error {
	for a := e; a != nil; a = a.above() {
		if c := a.why(); c != nil {
			return &parentCancelled{c.err()}
		}
	}
	return nil
}

// above is the task with which e is cancelled, if any.
func (e *execution) above() *execution {
	if e.independent {
		return nil
	}
	return e.parent
}

// join links e to its parent, or is the error of a parent that admits none.
// An Independent child is not linked: nothing reaches it from above.
func (e *execution) join() error {
	if e.parent == nil {
		return nil
	}
	f := familyOf(e.parent)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := e.parent.admitsKids(); err != nil || e.independent {
		return err
	}
	e.mu.Lock()
	e.family = f
	e.mu.Unlock()
	// A parent that ended may have been unlinked for want of kids: the way
	// down from its own ancestors has to lead through it again.
	for kid := e; kid.above() != nil; kid = kid.parent {
		p := kid.parent
		if p.kids == nil {
			p.kids = make(map[*execution]struct{})
		}
		p.kids[kid] = struct{}{}
	}
	return nil
}

// part unlinks e from its parent, when it has ended and has no kids or will
// never be, and then the ended ancestors that are left without any.
func (e *execution) part(never bool) {
	e.mu.Lock()
	f := e.family
	e.mu.Unlock()
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for a := e; a.above() != nil && len(a.kids) == 0 && (never || a.ended()); a = a.parent {
		delete(a.parent.kids, a)
		never = false
	}
}

// mark gives c to e and its descendants, where they have no cause yet, and
// appends to marked those that took it, descendants first. A descendant gets
// the cause that is meant for descendants, unless own says that it is one of
// those who get c itself.
func (e *execution) mark(c *cause, own func(*execution) bool, marked []*execution) []*execution {
	e.mu.Lock()
	f := e.family
	if f == nil {
		// The look at family and the mark are one critical section, so a
		// first child is linked before both or refused after both.
		if e.takeLocked(c) {
			marked = append(marked, e)
		}
		e.mu.Unlock()
		return marked
	}
	e.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	took := e.take(c)
	if !took && e.ended() {
		return marked // it merely ended: its children go on
	}
	below := c.forDescendant()
	return e.markTreeLocked(took, func(kid *execution) *cause {
		if own != nil && own(kid) {
			return c
		}
		return below
	}, marked)
}

func (e *execution) markTreeLocked(took bool, forKid func(*execution) *cause, marked []*execution) []*execution {
	for _, kid := range e.kidsInOrderLocked() {
		// One that has ended, or took another cause, is passed through.
		marked = kid.markTreeLocked(kid.take(forKid(kid)), forKid, marked)
	}
	if took {
		marked = append(marked, e)
	}
	return marked
}

func (e *execution) kidsInOrderLocked() []*execution {
	kids := make([]*execution, 0, len(e.kids))
	for kid := range e.kids {
		kids = append(kids, kid)
	}
	slices.SortFunc(kids, func(a, b *execution) int { return compareIDs(a.id, b.id) })
	return kids
}
