// Package gitstore keeps the tasks of each session beside its conversation, in
// a git repository: tasks.json says how things are, and a branch of its own
// says how they came to be so.
//
//	store, err := gitstore.Open("sessions", gitstore.Options{})
//	runner, err := subagent.New(ctx, subagent.Config{Store: store})
//	…
//	runner.Shutdown(ctx)
//	store.Close()
//
// What a call has acknowledged is in a file that was synced, and so were the
// names of it and of its folder. A commit follows behind the acknowledgement;
// no failure of git fails or delays a call.
//
// Lock order: redoing → turns of sessions, in the order of their names → mu.
// No file is touched, no git runs and no foreign code runs under mu.
package gitstore

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// Options of a Store. The zero value is ready for use.
type Options struct {
	// Branch has the history: "" is "tasks". It is the store's alone. Where a
	// repository has a branch of that name without a tasks.json of the store's,
	// or has it checked out in a work tree, no history is written and that is
	// reported.
	Branch string
	// Git is the git program: "" is the one in $PATH.
	Git string
	// GitTimeout is how long one git process may take: 0 is 30 s. It is killed
	// then, and what it was to do is tried again.
	GitTimeout time.Duration
	// Logger hears of failing git, of repairs and of tasks of a state that this
	// version does not know. nil: nobody does.
	Logger *slog.Logger
}

// Store is a subagent.Store in folders and git repositories. It belongs to one
// process, and to one Runner at a time. Its methods may be called from many
// goroutines; a call that changes something blocks until the change would
// survive a power cut. ctx governs a call until its write is under way: that is
// seen through, for as long as the disk takes, and what the call returns then is
// what has become of it. A write that returned ctx's error has changed nothing.
type Store struct {
	dir   string
	ref   string // of the branch with the history
	files files
	git   git
	log   *slog.Logger
	lock  *flock.Flock

	calls      atomic.Int64   // under way: begin and end; closedBit is added by Close
	idle       chan struct{}  // closed when Close has begun and no call is under way
	idleOnce   sync.Once      // guards the close of idle
	writers    sync.WaitGroup // one for each session that is being written
	historians sync.WaitGroup // one for each session whose history lags behind
	closing    chan struct{}  // closed by Close: nobody lingers or pauses
	bursts     chan struct{}  // one place for each git process that may write history
	waiting    atomic.Int32   // historians that wait for such a place

	// redoing is held while the journal is carried out. It is taken by whoever
	// holds a session's turn, and nothing but mu is taken under it.
	redoing sync.Mutex
	// batch is held by the one call that changes several sessions at a time.
	batch chan struct{}

	// mu guards what follows, and in every session what is marked so. It is a
	// leaf, held for steps in memory only.
	mu       sync.Mutex
	sessions map[string]*session
	ids      map[uuid.UUID]*session // of every task, also of one whose first or last write is under way
	cached   *list.List             // sessions that are in memory, the last used first
	bytes    int                    // what they have in memory, about
	journal  []string               // sessions of a change that is decided and not carried out
	unsaved  int                    // sessions of which the index is not true any more
	saving   bool                   // somebody saves it
	opening  bool                   // no historian is started yet: Open may still fail
}

var _ subagent.Store = (*Store)(nil)

// Create implements subagent.Store. Tasks of several sessions are stored
// together, too. A session's name is that of its folder: ErrInvalidRequest if
// it cannot be.
func (s *Store) Create(ctx context.Context, tasks ...subagent.Task) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	bySession := make(map[string]*change)
	given := make(map[uuid.UUID]bool, len(tasks))
	for _, t := range tasks {
		if given[t.ID] {
			return fmt.Errorf("%w: %s is given twice", subagent.ErrTaskExists, t.ID)
		}
		given[t.ID] = true
		if err := addCreation(bySession, t); err != nil {
			return err
		}
	}
	return s.commit(ctx, func() ([]*change, error) {
		var changes []*change
		for name, c := range bySession {
			seen, err := s.look(ctx, s.session(name))
			if err != nil {
				return nil, err
			}
			c.se, c.seen, c.fails = seen.se, seen.seen, seen.fails
			changes = append(changes, c)
		}
		return changes, nil
	})
}

func addCreation(to map[string]*change, t subagent.Task) error {
	if err := errors.Join(checkName(t.ParentSessionID), normalise(&t)); err != nil {
		return err
	}
	t.Version = 1
	r, text := newRecord(t, nil)
	c := to[t.ParentSessionID]
	if c == nil {
		c = new(change)
		to[t.ParentSessionID] = c
	}
	c.add(r, nil, text, transition(&t, "", t.Status))
	return nil
}

// Get implements subagent.Store. It reads tasks.json if the session has not
// been used lately, and the file of a long result.
func (s *Store) Get(ctx context.Context, id uuid.UUID) (subagent.Task, error) {
	if err := s.begin(ctx); err != nil {
		return subagent.Task{}, err
	}
	defer s.end()
	se := s.place(id)
	if se == nil {
		return subagent.Task{}, notFound(id)
	}
	return s.read(ctx, se, id)
}

// read returns a task as it is stored.
func (s *Store) read(ctx context.Context, se *session, id uuid.UUID) (subagent.Task, error) {
	for {
		stored, _, err := s.load(ctx, se)
		if err != nil {
			return subagent.Task{}, err
		}
		r := stored.find(id)
		if r == nil {
			return subagent.Task{}, notFound(id)
		}
		t, err := s.whole(ctx, se, r)
		if err == nil || !s.replaced(se, r) {
			return t, err
		}
		// Its text has gone with the record: look at what is there now.
	}
}

// Update implements subagent.Store. edit sees the newest state, which may be
// one that is still being written; what is returned, an error of edit included,
// never rests on a state that was not stored in the end.
func (s *Store) Update(ctx context.Context, id uuid.UUID, edit func(*subagent.Task) error) (subagent.Task, error) {
	if err := s.begin(ctx); err != nil {
		return subagent.Task{}, err
	}
	defer s.end()
	var result subagent.Task
	err := s.commit(ctx, func() ([]*change, error) {
		c, err := s.lookUp(ctx, id)
		if err != nil {
			return nil, err
		}
		old := c.seen.find(id)
		if old == nil {
			return []*change{c}, notFound(id)
		}
		before, err := s.whole(ctx, c.se, old)
		if err != nil {
			return []*change{c}, err
		}
		result = before
		return []*change{c}, c.edit(old, &before, &result, edit)
	})
	if err != nil {
		return subagent.Task{}, err
	}
	return result, nil
}

// edit applies a caller's edit to t, which is a copy of before, the task of
// old.
func (c *change) edit(old *record, before, t *subagent.Task, edit func(*subagent.Task) error) error {
	edited := *t
	edited.Metadata = maps.Clone(t.Metadata)
	if err := edit(&edited); err != nil {
		return err
	}
	*t = edited // edit may have kept the pointer
	if err := normalise(t); err != nil {
		return err
	}
	t.Version = before.Version
	if changed, err := subagent.CheckUpdate(*before, *t); err != nil || !changed {
		return err
	}
	t.Version++
	r, text := newRecord(*t, old)
	t.Metadata = maps.Clone(t.Metadata) // the caller's own
	c.add(r, old, text, transition(t, before.Status, t.Status))
	return nil
}

// Delete implements subagent.Store. Tasks of several sessions are deleted
// together, too.
func (s *Store) Delete(ctx context.Context, ids ...uuid.UUID) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	ids = slices.Compact(slices.SortedFunc(slices.Values(ids), compareIDs))
	return s.commit(ctx, func() ([]*change, error) {
		by := make(map[*session]*change)
		var changes []*change
		for _, id := range ids {
			se := s.place(id)
			if se == nil {
				continue
			}
			if by[se] == nil {
				c, err := s.look(ctx, se)
				if err != nil {
					return nil, err
				}
				by[se] = c
				changes = append(changes, by[se])
			}
			old := by[se].seen.find(id)
			if old == nil {
				continue
			}
			if !old.task.Status.Terminal() {
				return changes, fmt.Errorf("%w: %s is %s", subagent.ErrNotTerminal, id, old.task.Status)
			}
			by[se].remove(old)
		}
		return changes, nil
	})
}
