package gitstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// How a change is stored. A call builds its change on the head of a session,
// which may be ahead of what is stored, and adds it to the group that the next
// write takes: a compare-and-set on records under mu. The session's writer, a
// goroutine that lives while there is something to write, takes the whole group
// each time it comes round, so that calls that come while the disk is busy
// share the next write and nobody waits for company. When the group is stored
// its calls return. If it fails the head falls back to what is stored: the
// calls of the group get the error, and those that have built on it since start
// over.

// change is what one call does to one session.
type change struct {
	se    *session
	seen  *state // the head that it was built on
	fails int    // se.fails then

	put   []*record
	old   []*record // what each of put replaces, nil if it is new
	drop  []*record
	texts []textFile // to be written before put is stored
	lines []string   // what the history says of it
}

// textFile is a long result on its way to its file.
type textFile struct{ name, text string }

// group is what one write stores.
type group struct {
	texts   []textFile
	gone    []string // files that nobody refers to once it is stored
	created []uuid.UUID
	entries []entry // for the history

	done chan struct{} // closed when it is stored, or has failed
	err  error         // set before done is closed
}

// errRetry is for a change that was built on what turned out not to be so.
var errRetry = errors.New("gitstore: built on a state that is gone")

func (c *change) add(r, old *record, text, line string) {
	c.put, c.old = append(c.put, r), append(c.old, old)
	c.lines = append(c.lines, line)
	if text != "" {
		c.texts = append(c.texts, textFile{r.text.Name, text})
	}
}

func (c *change) remove(r *record) {
	c.drop = append(c.drop, r)
	c.lines = append(c.lines, fmt.Sprintf("task: %s deleted", r.task.ID))
}

// transition is how the history words a change of t.
func transition(t *subagent.Task, from, to subagent.Status) string {
	if from == to {
		return fmt.Sprintf("task: %s changed, %s", t.ID, to)
	}
	return fmt.Sprintf("task: %s %s→%s", t.ID, from, to)
}

// lookUp returns an empty change of the session that has a task, built on its
// head.
func (s *Store) lookUp(ctx context.Context, id uuid.UUID) (*change, error) {
	s.mu.Lock()
	se := s.ids[id]
	c := s.seenLocked(se)
	s.mu.Unlock()
	switch {
	case se == nil:
		return nil, notFound(id)
	case c == nil:
		return s.look(ctx, se)
	}
	return c, nil
}

// look is lookUp for a session.
func (s *Store) look(ctx context.Context, se *session) (*change, error) {
	for {
		s.mu.Lock()
		c := s.seenLocked(se)
		s.mu.Unlock()
		if c != nil {
			return c, nil
		}
		if _, _, err := s.load(ctx, se); err != nil {
			return nil, err
		}
	}
}

// seenLocked is nil if se is not in memory.
func (s *Store) seenLocked(se *session) *change {
	if se == nil || se.head == nil {
		return nil
	}
	s.cached.MoveToFront(se.element)
	return &change{se: se, seen: se.head, fails: se.fails}
}

// commit stores what build builds, and builds it again if that turns out to
// rest on a state that is gone: each time somebody else's change was stored, or
// failed. An error of build is returned once what it rests on is stored.
func (s *Store) commit(ctx context.Context, build func() ([]*change, error)) error {
	for {
		var blocking *group
		changes, err := build()
		seen := changes
		if err == nil {
			changes = slices.DeleteFunc(slices.Clone(changes), func(c *change) bool { return len(c.lines) == 0 })
		}
		switch {
		case err != nil, len(changes) == 0:
			sure, waited := s.settled(ctx, seen)
			if waited != nil {
				return waited
			}
			if sure {
				return err
			}
			continue
		case len(changes) == 1:
			blocking, err = s.submit(ctx, changes[0])
		default:
			blocking, err = s.together(ctx, changes)
		}
		if blocking != nil { // then it is certain whether an ID is taken
			_, err = blocking.wait(ctx), errRetry
		}
		if !errors.Is(err, errRetry) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// settled waits until the heads that changes have seen are stored, and reports
// false if one of them never will be.
func (s *Store) settled(ctx context.Context, changes []*change) (bool, error) {
	for _, c := range changes {
		s.mu.Lock()
		fails, g := c.se.fails, c.se.lastLocked()
		s.mu.Unlock()
		if fails != c.fails {
			return false, nil
		}
		if g != nil {
			if err := g.wait(ctx); err != nil {
				return false, ctx.Err()
			}
		}
	}
	return true, nil
}

// lastLocked is the group whose end settles everything that is under way.
func (se *session) lastLocked() *group {
	if se.next != nil {
		return se.next
	}
	return se.current
}

func (g *group) wait(ctx context.Context) error {
	select {
	case <-g.done:
		return g.err
	default:
	}
	select {
	case <-g.done:
		return g.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// submit hands c to its session's writer and waits until it is stored.
func (s *Store) submit(ctx context.Context, c *change) (blocking *group, err error) {
	s.mu.Lock()
	var g *group
	if blocking, err = s.admitLocked([]*change{c}); blocking == nil && err == nil {
		se := c.se // c may be built again before the writer runs
		if g = se.next; !se.writing {
			se.writing = true
			// It ends when there is nothing left to write; Close waits for it.
			s.writers.Go(func() { s.writer(se) })
		}
	}
	s.mu.Unlock()
	if g == nil {
		return blocking, err
	}
	for _, r := range c.put {
		r.raw() // while the write before is at the disk
	}
	// The write goes on whatever becomes of ctx. Who is told that it failed may
	// look for it, find nothing, and not look again.
	return nil, g.wait(context.WithoutCancel(ctx))
}

// admitLocked adds changes to the heads of their sessions and to the groups
// that are next: all of them or none. If it is not certain yet whether one of
// the IDs is taken, it returns the group that will tell.
func (s *Store) admitLocked(changes []*change) (blocking *group, err error) {
	for _, c := range changes {
		if c.se.head == nil {
			return nil, errRetry
		}
		for i, r := range c.put {
			if c.old[i] != nil {
				if c.se.head.find(r.task.ID) != c.old[i] {
					return nil, errRetry
				}
			} else if blocking, err = s.vacantLocked(c.se, r.task.ID); blocking != nil || err != nil {
				return blocking, err
			}
		}
		for _, r := range c.drop {
			if c.se.head.find(r.task.ID) != r {
				return nil, errRetry
			}
		}
	}
	for _, c := range changes {
		s.joinLocked(c)
	}
	return nil, nil
}

// vacantLocked refuses an ID that is taken; for one that is being created or
// deleted it returns the group that does it.
func (s *Store) vacantLocked(se *session, id uuid.UUID) (*group, error) {
	owner := s.ids[id]
	if owner == nil && se.head.find(id) == nil {
		return nil, nil
	}
	if owner == nil {
		owner = se // it keeps a task of that ID for another session
	}
	stored := owner.stored == nil || owner.stored.find(id) != nil && owner.head.find(id) != nil
	if g := owner.lastLocked(); g != nil && !stored {
		return g, nil
	}
	return nil, fmt.Errorf("%w: %s", subagent.ErrTaskExists, id)
}

func (s *Store) joinLocked(c *change) {
	se, g := c.se, c.se.next
	if g == nil {
		g = &group{done: make(chan struct{})}
		se.next = g
	}
	se.head = se.head.with(c.put, c.drop)
	e := entry{at: time.Now(), state: se.head, texts: c.texts, subject: c.lines[0]}
	if len(c.lines) > 1 {
		e.subject = fmt.Sprintf("task: %d at once\n\n%s", len(c.lines), strings.Join(c.lines, "\n"))
	}
	for i, r := range c.put {
		old := c.old[i]
		if old == nil {
			s.ids[r.task.ID] = se
			g.created = append(g.created, r.task.ID)
		} else if old.text != nil && (r.text == nil || r.text.Name != old.text.Name) {
			e.gone = append(e.gone, old.text.Name)
		}
	}
	for _, r := range c.drop {
		if r.text != nil {
			e.gone = append(e.gone, r.text.Name)
		}
	}
	g.texts, g.gone, g.entries = append(g.texts, c.texts...), append(g.gone, e.gone...), append(g.entries, e)
}
