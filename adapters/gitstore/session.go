package gitstore

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// session is one folder. Of most sessions only the digest is in memory.
type session struct {
	name string

	// turn has one place, taken while tasks.json is read or written. The stamp
	// and ready belong to whoever has it.
	turn  chan struct{}
	stamp stamp // of the tasks.json that stored says, or the digest is of
	ready bool  // the folder is there, and git's exclude file knows our names

	// Guarded by Store.mu.
	stored   *state        // what tasks.json says; nil: not in memory
	size     int           // of stored, in bytes
	head     *state        // stored, and the changes that are to be written
	next     *group        // the changes that the next write takes
	current  *group        // those that are being written
	fails    int           // how often head was taken back to stored
	writing  bool          // its writer is at work
	digest   digest        // of stored
	outdated bool          // it is counted in Store.unsaved
	element  *list.Element // in Store.cached, while stored is in memory
	history  history
}

// maxCached is about how many bytes of tasks.json are kept in memory.
const maxCached = 64 << 20

// maxName is the longest session name in bytes: file systems allow 255.
const maxName = 200

// checkName refuses names of sessions that cannot be the name of a folder, or
// would be one elsewhere.
func checkName(name string) error {
	switch {
	case name == "", len(name) > maxName, !utf8.ValidString(name), name[0] == '.',
		strings.Contains(name, ".."), strings.ContainsAny(name, "/\\\x00"):
		return fmt.Errorf("%w: %.250q cannot be the name of a session's folder: "+
			"1 to %d bytes, no leading dot, no .., no separator", subagent.ErrInvalidRequest, name, maxName)
	}
	return nil
}

func compareIDs(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

func notFound(id uuid.UUID) error { return fmt.Errorf("%w: %s", subagent.ErrNotFound, id) }

func (s *Store) path(se *session, elem ...string) string {
	return filepath.Join(append([]string{s.dir, se.name}, elem...)...)
}

// session returns the session of a valid name.
func (s *Store) session(name string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessionLocked(name)
}

func (s *Store) sessionLocked(name string) *session {
	se := s.sessions[name]
	if se == nil {
		se = &session{name: name, turn: make(chan struct{}, 1)}
		se.history.more = make(chan struct{}, 1)
		s.sessions[name] = se
	}
	return se
}

// place returns the session of a task, nil if there is no such task.
func (s *Store) place(id uuid.UUID) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

// take waits for se's turn; give gives it back.
func (se *session) take(ctx context.Context) error {
	select {
	case se.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (se *session) give() { <-se.turn }

// load returns what is stored of se and what its head is, and reads them if
// they are not in memory.
func (s *Store) load(ctx context.Context, se *session) (stored, head *state, err error) {
	if stored, head = s.inMemory(se); stored != nil {
		return stored, head, ctx.Err()
	}
	if err := se.take(ctx); err != nil {
		return nil, nil, err
	}
	defer se.give()
	if stored, head = s.inMemory(se); stored != nil { // somebody was faster
		return stored, head, nil
	}
	if err := s.redo(se); err != nil {
		return nil, nil, err
	}
	if stored, err = s.readSession(ctx, se); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.showLocked(se, stored)
	return se.stored, se.head, nil
}

func (s *Store) inMemory(se *session) (stored, head *state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if se.element != nil {
		s.cached.MoveToFront(se.element)
	}
	return se.stored, se.head
}

// readSession reads se's tasks.json, whose turn the caller has, and mends it if
// it has to. A folder without one has no tasks.
func (s *Store) readSession(ctx context.Context, se *session) (*state, error) {
	if err := s.checkFolder(se); err != nil {
		return nil, err
	}
	path := s.path(se, tasksFile)
	at, err := stampOf(path)
	if err != nil {
		return nil, fmt.Errorf("gitstore: %w", err)
	}
	var data []byte
	var st *state
	if at.odd {
		err = fmt.Errorf("%w: %s is no file", ErrDamaged, path)
	} else if data, err = os.ReadFile(path); err == nil {
		st, err = parseState(se.name, path, data)
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		st, at, err = s.restore(ctx, se)
	case errors.Is(err, ErrDamaged):
		st, at, err = s.repair(ctx, se, data, err)
	}
	if err != nil {
		return nil, fmt.Errorf("gitstore: session %q: %w", se.name, err)
	}
	se.stamp = at // if the file was changed after it was taken the next write sees that
	s.report(se, st)
	return st, nil
}

// checkFolder refuses a session whose folder is something else.
func (s *Store) checkFolder(se *session) error {
	folder := s.path(se)
	switch info, err := os.Lstat(folder); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("gitstore: %w", err)
	case !info.IsDir():
		return fmt.Errorf("%w: session %q: %s is no folder", subagent.ErrInvalidRequest, se.name, folder)
	}
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if _, err := os.Lstat(filepath.Join(folder, name)); err != nil {
			return nil
		}
	}
	return fmt.Errorf("%w: session %q: %s is a bare repository", subagent.ErrInvalidRequest, se.name, folder)
}

// report says what is odd about a session that was read, and is no error.
func (s *Store) report(se *session, st *state) {
	for _, r := range st.rows {
		if r.foreign {
			s.log.Warn("gitstore: task of another session is left alone", "session", se.name, "task", r.task.ID,
				"parent_session_id", r.task.ParentSessionID)
		} else if !r.task.Status.Valid() {
			s.log.Warn("gitstore: task of an unknown status is left alone", "session", se.name, "task", r.task.ID,
				"status", r.task.Status)
		}
	}
}

// showLocked makes st what is stored of se, and the head too: nothing of se is
// to be written.
func (s *Store) showLocked(se *session, st *state) {
	s.keepLocked(se, st)
	se.head = st
}

// keepLocked makes st what is stored of se, in memory and in the indexes.
func (s *Store) keepLocked(se *session, st *state) {
	s.digestLocked(se, st.digest())
	if se.element == nil {
		se.element = s.cached.PushFront(se)
	} else {
		s.cached.MoveToFront(se.element)
		s.bytes -= se.size
	}
	se.stored, se.size = st, st.size()
	s.bytes += se.size
	s.evictLocked(se)
}

// digestLocked brings the indexes up to date.
func (s *Store) digestLocked(se *session, d digest) {
	if slices.Equal(d.ids, se.digest.ids) {
		se.digest = d
		return
	}
	for _, id := range se.digest.ids {
		if s.ids[id] == se {
			delete(s.ids, id)
		}
	}
	for _, id := range d.ids {
		s.ids[id] = se
	}
	se.digest = d
}

// evictLocked forgets states that were not used for long, until the others
// fit. Sessions at work stay.
func (s *Store) evictLocked(spare *session) {
	for e := s.cached.Back(); e != nil && s.bytes > maxCached; {
		se := e.Value.(*session)
		e = e.Prev()
		if se != spare && !se.writing && se.current == nil && se.next == nil {
			s.dropLocked(se)
		}
	}
}

func (s *Store) dropLocked(se *session) {
	if se.element == nil {
		return
	}
	s.bytes -= se.size
	s.cached.Remove(se.element)
	se.stored, se.head, se.element = nil, nil, nil
}

// replaced reports whether r is not what is stored any more.
func (s *Store) replaced(se *session, r *record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return se.stored == nil || se.stored.find(r.task.ID) != r
}
