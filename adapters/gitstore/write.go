package gitstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// look returns an empty change of se, built on its head.
func (s *Store) look(ctx context.Context, se *session) (*change, error) {
	for {
		if _, _, err := s.load(ctx, se); err != nil {
			return nil, err
		}
		s.mu.Lock()
		c := &change{se: se, seen: se.head, fails: se.fails}
		s.mu.Unlock()
		if c.seen != nil { // else it was evicted in between
			return c, nil
		}
	}
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
		if g = c.se.next; !c.se.writing {
			c.se.writing = true
			// It ends when there is nothing left to write; Close waits for it.
			s.writers.Go(func() { s.writer(c.se) })
		}
	}
	s.mu.Unlock()
	if g == nil {
		return blocking, err
	}
	return nil, g.wait(ctx)
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

// writer writes se's groups, one after the other, until there is none.
func (s *Store) writer(se *session) {
	for s.writeNext(se) {
	}
}

func (s *Store) writeNext(se *session) (more bool) {
	se.turn <- struct{}{}
	defer se.give()
	s.mu.Lock()
	g, st := se.startLocked()
	if g == nil {
		se.writing = false
		s.mu.Unlock()
		return false
	}
	s.mu.Unlock()
	err := s.write(se, st, g)
	if errors.Is(err, errChanged) {
		err = s.adopt(se)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settleLocked(se, g, st, err)
	return true
}

// startLocked takes the group that is next, and the state that it makes.
func (se *session) startLocked() (*group, *state) {
	se.current, se.next = se.next, nil
	return se.current, se.head
}

// settleLocked is the end of a group: st is stored, or everything that was
// built on it is void.
func (s *Store) settleLocked(se *session, g *group, st *state, err error) {
	se.current = nil
	if err == nil {
		before := se.stored
		s.keepLocked(se, st)
		s.recordLocked(se, before, g.entries)
		close(g.done)
		return
	}
	g.err = err
	void := []*group{g}
	if se.next != nil {
		se.next.err = errRetry
		void, se.next = append(void, se.next), nil
	}
	se.head = se.stored
	se.fails++
	for _, g := range void {
		for _, id := range g.created {
			if s.ids[id] == se && se.stored.find(id) == nil {
				delete(s.ids, id)
			}
		}
		close(g.done)
	}
}

// write makes st what tasks.json says. The caller has se's turn.
func (s *Store) write(se *session, st *state, g *group) error {
	path := s.path(se, tasksFile)
	err := s.prepare(se, st, g, path+tempSuffix)
	if err == nil {
		err = s.files.Rename(path+tempSuffix, path)
	}
	if err == nil {
		// The content was synced by prepare. This makes the name survive: only
		// now the change is stored.
		err = s.files.SyncDir(s.path(se))
	}
	if err != nil {
		if !errors.Is(err, errChanged) {
			_ = s.files.Remove(path + tempSuffix) // or the next write overwrites it
			err = fmt.Errorf("gitstore: session %q: %w", se.name, err)
		}
		return err
	}
	s.written(se, g)
	return nil
}

// prepare writes st to a file that is not tasks.json yet, and before that what
// it refers to.
func (s *Store) prepare(se *session, st *state, g *group, path string) error {
	if err := s.redo(se); err != nil {
		return err
	}
	if at, err := stampOf(s.path(se, tasksFile)); err != nil || at != se.stamp {
		return errors.Join(err, errChanged)
	}
	if err := s.makeReady(se); err != nil {
		return err
	}
	if err := s.writeTexts(se, g.texts); err != nil {
		return err
	}
	return writeSynced(s.files, path, st.bytes())
}

// makeReady sees to se's folder, once. Its name is synced before there is
// anything in it that must not be lost.
func (s *Store) makeReady(se *session) error {
	if se.ready {
		return nil
	}
	if err := s.checkFolder(se); err != nil {
		return err
	}
	if err := makeDir(s.files, s.dir, s.path(se)); err != nil {
		return err
	}
	if err := excludeOurs(s.path(se)); err != nil {
		return err
	}
	se.ready = true
	return nil
}

// writeTexts writes long results, which must not be missing when a tasks.json
// that refers to them gets its name.
func (s *Store) writeTexts(se *session, texts []textFile) error {
	if len(texts) == 0 {
		return nil
	}
	folder := s.path(se, textFolder)
	if err := makeDir(s.files, s.path(se), folder); err != nil {
		return err
	}
	for _, t := range texts {
		path := s.path(se, filepath.FromSlash(t.name))
		if err := writeSynced(s.files, path+tempSuffix, []byte(t.text)); err != nil {
			return err
		}
		if err := s.files.Rename(path+tempSuffix, path); err != nil {
			return err
		}
	}
	return s.files.SyncDir(folder)
}

// written notes what tasks.json looks like now, and takes away texts that it
// does not refer to any more. One that stays is never read.
func (s *Store) written(se *session, g *group) {
	se.stamp, _ = stampOf(s.path(se, tasksFile)) // a wrong one only means that it is read again
	for _, name := range g.gone {
		_ = s.files.Remove(s.path(se, filepath.FromSlash(name)))
	}
}

// errChanged says that tasks.json is not the file that was read or written
// last.
var errChanged = errors.New("gitstore: tasks.json was changed by somebody else")

// adopt reads what somebody else has put in the place of tasks.json, or what a
// write that failed at its last step has left there. It returns errRetry.
func (s *Store) adopt(se *session) error {
	s.log.Warn("gitstore: tasks.json is not as it was left, and is read again", "session", se.name)
	se.ready = false
	// Whoever gave the file its name may not have synced that.
	if err := s.files.SyncDir(s.path(se)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.git.timeout)
	defer cancel()
	st, err := s.readSession(ctx, se)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepLocked(se, st)
	s.recordLocked(se, st, []entry{{at: time.Now(), state: st, reconcile: true}})
	return errRetry
}

// whole returns r's task with its text, however long.
func (s *Store) whole(ctx context.Context, se *session, r *record) (subagent.Task, error) {
	t := r.task
	if err := normalise(&t); err != nil { // for a Metadata of its own
		return t, err
	}
	if r.text == nil {
		return t, nil
	}
	text, err := s.readText(ctx, se, r.text)
	if err != nil {
		return t, err
	}
	t.ResultText = text
	return t, nil
}
