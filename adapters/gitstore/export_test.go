package gitstore

import (
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

type (
	Files   = files
	File    = file
	OSFiles = osFiles
)

// OpenOn is Open on other files.
func OpenOn(dir string, o Options, on Files) (*Store, error) { return open(dir, o, on) }

// Parse returns the tasks that a tasks.json has.
func Parse(session string, data []byte) (tasks []subagent.Task, err error) {
	st, err := parseState(session, tasksFile, data)
	if err != nil {
		return nil, err
	}
	return st.tasks(), nil
}

// Salvage returns those of a damaged one that are whole.
func Salvage(session string, data []byte) []subagent.Task { return salvage(session, data).tasks() }

func (st *state) tasks() (tasks []subagent.Task) {
	for _, r := range st.rows {
		tasks = append(tasks, r.task)
	}
	return tasks
}

// Lag is how many commits of a session are still to be made.
func (s *Store) Lag(session string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.sessions[session].history
	if h.active {
		return max(1, len(h.queue))
	}
	return len(h.queue)
}

// WriteFolder makes, without the syncs and the repositories, the folder of a
// store that was closed with these tasks. Its files must be older than racy
// when it returns.
func WriteFolder(dir string, sessions map[string][]subagent.Task) error {
	index := []byte(indexMagic)
	for name, tasks := range sessions {
		var rows []*record
		for _, t := range tasks {
			r, _ := newRecord(t, nil)
			rows = append(rows, r)
		}
		sortRows(rows)
		st := newState(rows)
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
		path := filepath.Join(dir, name, tasksFile)
		if err := os.WriteFile(path, st.bytes(), 0o644); err != nil {
			return err
		}
		old := time.Now().Add(-time.Minute)
		if err := os.Chtimes(path, old, old); err != nil {
			return err
		}
		at, err := stampOf(path)
		if err != nil {
			return err
		}
		index = appendSession(index, name, &indexed{at, true, st.digest()})
	}
	return os.WriteFile(filepath.Join(dir, indexFile), sealIndex(index), 0o644)
}

// IDs are the tasks that the index knows.
func (s *Store) IDs() (ids []uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.ids {
		ids = append(ids, id)
	}
	return ids
}

// PopsReconcile reports whether a burst would take a reconcile whose state
// nobody has looked up.
func (s *Store) PopsReconcile() bool {
	se := &session{history: history{queue: []entry{{reconcile: true}}}}
	_, ok := s.pop(se, false)
	return ok
}

// SetGitTimeout is for a store of which no session has been touched yet.
func (s *Store) SetGitTimeout(limit time.Duration) { s.git.timeout = limit }
