package gitstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/go-subagent/subagent"
)

// writer writes se's groups, one after the other, until there is none.
func (s *Store) writer(se *session) {
	for s.writeNext(se) {
	}
}

func (s *Store) writeNext(se *session) (more bool) {
	se.turn <- struct{}{}
	defer se.give()
	// Calls that are ready to run come first: with a free processor this costs
	// nothing, and else they would have to wait for a write of their own.
	runtime.Gosched()
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
	_ = excludeOurs(s.path(se)) // if that fails the historian tries again, and reports it
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
	t.Metadata = maps.Clone(t.Metadata)
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
