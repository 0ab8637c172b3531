package gitstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A tasks.json that is not what was written is mended with the state that is in
// memory, else the last one that the branch has, and with every task of the damaged file that is whole and
// further on. The damaged file is kept beside it.

// damagedName is where a damaged file is kept.
func damagedName(path string) string {
	return path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000000")
}

// repair returns what can be had of a damaged tasks.json and makes it the file.
// data is nil if there is nothing to be read. With nothing to mend it with it
// returns cause, and nothing was changed.
func (s *Store) repair(ctx context.Context, se *session, data []byte, cause error) (*state, stamp, error) {
	past, _ := s.inMemory(se) // the branch may lag behind it
	var err error
	if past == nil {
		past, err = s.last(ctx, se)
	}
	if past == nil {
		return nil, stamp{}, errors.Join(cause, err)
	}
	st := past.newest(salvage(se.name, data))
	path := s.path(se, tasksFile)
	kept := damagedName(path)
	if data != nil {
		err = writeSynced(s.files, kept, data)
	} else {
		err = s.files.Rename(path, kept)
	}
	if err == nil {
		err = s.files.SyncDir(s.path(se)) // its new name survives before the old one is another's
	}
	if err == nil {
		err = replace(s.files, s.path(se), path, st.bytes())
	}
	if err != nil {
		return nil, stamp{}, errors.Join(cause, err)
	}
	s.log.Error("gitstore: a damaged tasks.json was mended", "session", se.name, "kept", kept,
		"tasks", len(st.rows), "cause", cause)
	s.reconcileLater(se)
	at, err := stampOf(path)
	return st, at, err
}

// restore returns the tasks of a session that has no tasks.json: none, unless
// there is a history, which says that the file was lost.
func (s *Store) restore(ctx context.Context, se *session) (*state, stamp, error) {
	past, err := s.last(ctx, se)
	if past == nil {
		return empty, stamp{}, err
	}
	if stored, _ := s.inMemory(se); stored != nil { // the branch may lag behind it
		past = stored
	}
	path := s.path(se, tasksFile)
	if err := replace(s.files, s.path(se), path, past.bytes()); err != nil {
		return nil, stamp{}, err
	}
	s.log.Error("gitstore: a missing tasks.json was restored from its history", "session", se.name, "tasks", len(past.rows))
	s.reconcileLater(se)
	at, err := stampOf(path)
	return past, at, err
}

// last is the state that the branch ends with, nil if there is no history.
func (s *Store) last(ctx context.Context, se *session) (*state, error) {
	data, err := s.blob(ctx, se, tasksFile)
	if data == nil {
		return nil, err
	}
	past, err := parseState(se.name, s.ref+":"+tasksFile, data)
	if err == nil && s.checkSharing(se, past) != nil {
		return nil, nil
	}
	return past, err
}

// reconcileLater has a historian compare se's branch with its tasks.json.
func (s *Store) reconcileLater(se *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := &se.history; len(h.queue) == 0 || h.queue[len(h.queue)-1].state != nil {
		h.synced = false
		h.queue = append(h.queue, entry{at: time.Now(), reconcile: true})
		s.wakeLocked(se)
	}
}

// readTextFile reads a long result and makes sure that it is the one.
func readTextFile(folder string, ref *textRef) ([]byte, error) {
	path := filepath.Join(folder, filepath.FromSlash(ref.Name))
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return text, ref.check(path, text)
}

func (ref *textRef) check(path string, text []byte) error {
	if len(text) != ref.Size {
		return fmt.Errorf("%w: %s has %d bytes, which should be %d", ErrDamaged, path, len(text), ref.Size)
	}
	if sum := textSum(text); sum != ref.Checksum {
		return fmt.Errorf("%w: %s: its checksum is %s, which should be %s", ErrDamaged, path, sum, ref.Checksum)
	}
	return nil
}

// readText returns a long result, from the history if its file is damaged or
// missing.
func (s *Store) readText(ctx context.Context, se *session, ref *textRef) (string, error) {
	text, err := readTextFile(s.path(se), ref)
	if err == nil {
		return string(text), nil
	}
	past, gitErr := s.blob(ctx, se, ref.Name)
	if past == nil || ref.check(ref.Name, past) != nil {
		return "", errors.Join(fmt.Errorf("gitstore: session %q: %w", se.name, err), gitErr)
	}
	s.log.Error("gitstore: a long result was read from its history", "session", se.name, "cause", err)
	return string(past), nil
}
