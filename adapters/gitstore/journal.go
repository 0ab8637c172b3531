package gitstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// How several sessions are changed at once. Each gets its new content beside
// its tasks.json, synced. Then a journal with their names is put into the
// store's folder: that is the moment at which all of it is decided. Then each
// file gets its name, and the journal goes. Whoever finds a journal, in the
// next Open or after a failure, gives those files that still are beside the old
// ones their names; the others have theirs.

// together stores changes of several sessions: all of them or none. blocking
// is as for admitLocked: its writer may need a turn that is held here.
func (s *Store) together(ctx context.Context, changes []*change) (blocking *group, err error) {
	select {
	case s.batch <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.batch }()
	slices.SortFunc(changes, func(a, b *change) int { return strings.Compare(a.se.name, b.se.name) })
	for _, c := range changes {
		if err := c.se.take(ctx); err != nil {
			return nil, err
		}
		defer c.se.give()
	}
	if err := s.redo(nil); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if blocking, err = s.admitLocked(changes); blocking != nil || err != nil {
		s.mu.Unlock()
		return blocking, err
	}
	writes := make([]write, len(changes))
	for i, c := range changes {
		writes[i].se = c.se
		writes[i].group, writes[i].state = c.se.startLocked()
	}
	s.mu.Unlock()
	changed, err := s.writeAll(writes)
	if errors.Is(err, errChanged) {
		err = s.adopt(changed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range writes {
		s.settleLocked(w.se, w.group, w.state, err)
	}
	return nil, err
}

// write is one session's part.
type write struct {
	se    *session
	group *group
	state *state
}

// writeAll carries out the writes. After an error none of them is stored, or
// it is not known: all will be then, or none. If the error is errChanged, it is
// about the session that is returned.
func (s *Store) writeAll(writes []write) (changed *session, err error) {
	names := make([]string, len(writes))
	for i, w := range writes {
		names[i] = w.se.name
		if err = s.prepare(w.se, w.state, w.group, s.path(w.se, tasksFile)+newSuffix); err != nil {
			s.withdraw(writes)
			return w.se, fmt.Errorf("gitstore: session %q: %w", w.se.name, err)
		}
		// The new file's name must survive if the journal's does.
		if err = s.files.SyncDir(s.path(w.se)); err != nil {
			s.withdraw(writes)
			return nil, fmt.Errorf("gitstore: session %q: %w", w.se.name, err)
		}
	}
	data, err := json.Marshal(names)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(s.dir, journalFile)
	if err = replace(s.files, s.dir, path, data); err != nil {
		if !s.revoke(path) {
			// It may be decided or not, and nobody can tell: from here on it is.
			// Whoever writes to one of the sessions next has to carry it out
			// first, and finds the new state then.
			s.decide(names)
		} else {
			s.withdraw(writes)
		}
		return nil, fmt.Errorf("gitstore: %w", err)
	}
	s.decide(names)
	if err := s.redo(nil); err != nil {
		s.log.Error("gitstore: a change of several sessions is decided, and waits for the disk", "error", err)
		return nil, nil
	}
	for _, w := range writes {
		s.written(w.se, w.group)
	}
	return nil, nil
}

// revoke takes back a journal that may have got its name, and reports whether
// it is certain that there is none.
func (s *Store) revoke(path string) bool {
	if err := s.files.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false
	}
	return s.files.SyncDir(s.dir) == nil
}

// withdraw removes files that no journal names. One that stays is overwritten
// by the next.
func (s *Store) withdraw(writes []write) {
	for _, w := range writes {
		_ = s.files.Remove(s.path(w.se, tasksFile) + newSuffix)
	}
}

func (s *Store) decide(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.journal = names
}

// redo carries out the journal if it is about se, or about anything if se is
// nil. Each step may be repeated.
func (s *Store) redo(se *session) error {
	s.redoing.Lock()
	defer s.redoing.Unlock()
	s.mu.Lock()
	names := s.journal
	s.mu.Unlock()
	if len(names) == 0 || se != nil && !slices.Contains(names, se.name) {
		return nil
	}
	for _, name := range names {
		folder := filepath.Join(s.dir, name)
		path := filepath.Join(folder, tasksFile)
		err := s.files.Rename(path+newSuffix, path)
		if err == nil || errors.Is(err, os.ErrNotExist) { // it has its name, or the folder is gone
			err = s.files.SyncDir(folder)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("gitstore: session %q: %w", name, err)
		}
	}
	// Another journal must not be written while this one might come back: it
	// would give names to files that are not finished.
	if err := s.files.Remove(filepath.Join(s.dir, journalFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("gitstore: %w", err)
	}
	if err := s.files.SyncDir(s.dir); err != nil {
		return fmt.Errorf("gitstore: %w", err)
	}
	s.decide(nil)
	return nil
}

// readJournal takes up what the last process has decided and not finished.
func (s *Store) readJournal() error {
	path := filepath.Join(s.dir, journalFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("gitstore: %w", err)
	}
	var names []string
	if err := json.Unmarshal(data, &names); err != nil {
		return damaged(path, data, 0, err)
	}
	for _, name := range names {
		if err := checkName(name); err != nil {
			return damaged(path, data, 0, err)
		}
	}
	s.decide(names)
	return s.redo(nil)
}
