package gitstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
)

// faults are files that fail at one step, or after it stop for good, as a
// process does that is killed. They know what was not synced yet, and can take
// it away, as a power cut does.
type faults struct {
	gitstore.OSFiles

	mu      sync.Mutex // guards what follows
	n       int        // steps so far
	at      int        // the step at which it happens; 0: never
	mode    faultMode
	stopped bool
	names   map[string][]undo // by folder: what has happened to names and is not synced
	content map[string]bool   // files whose content is not synced
}

type faultMode string

const (
	failOnce   faultMode = "fails once"          // the step is not done
	failsDone  faultMode = "fails when done"     // the step is done, and said to have failed
	stopBefore faultMode = "stops before"        // the process is killed
	stopAfter  faultMode = "stops after"         //
	powerCut   faultMode = "power cut after"     // and what is not synced is gone
	powerCut2  faultMode = "names survive alone" // and content that is not synced is gone, but no name
)

var errFault = errors.New("a fault of the disk")

// undo takes back what happened to a name.
type undo func() error

// step counts one, and says whether to do it and what to return.
func (f *faults) step(do func() error, note func() (undo, string)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return errFault
	}
	f.n++
	hit := f.n == f.at
	if hit && (f.mode == stopBefore || f.mode == failOnce) {
		f.stopped = f.mode == stopBefore
		return errFault
	}
	var back undo
	var dir string
	if note != nil {
		back, dir = note()
	}
	err := do()
	if err == nil && back != nil {
		f.names[dir] = append(f.names[dir], back)
	}
	if hit {
		f.stopped = f.mode != failsDone
		return errors.Join(errFault, err)
	}
	return err
}

// cut does what a power cut does.
func (f *faults) cut(t *testing.T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for path := range f.content {
		if f.mode == powerCut || f.mode == powerCut2 {
			if err := os.Truncate(path, 0); !errors.Is(err, os.ErrNotExist) {
				require.NoError(t, err)
			}
		}
	}
	for _, undos := range f.names {
		for i := len(undos) - 1; i >= 0 && f.mode == powerCut; i-- {
			if err := undos[i](); !errors.Is(err, os.ErrNotExist) { // undone with its folder
				require.NoError(t, err)
			}
		}
	}
}

func (f *faults) Create(path string) (gitstore.File, error) {
	var real gitstore.File
	err := f.step(func() (err error) {
		real, err = f.OSFiles.Create(path)
		f.content[path] = true
		return err
	}, func() (undo, string) {
		if _, err := os.Lstat(path); err == nil {
			return nil, ""
		}
		return func() error { return os.Remove(path) }, filepath.Dir(path)
	})
	return &faultFile{f, path, real}, err
}

func (f *faults) Rename(from, to string) error {
	return f.step(func() error {
		if f.content[from] {
			f.content[to] = true
			delete(f.content, from)
		}
		return f.OSFiles.Rename(from, to)
	}, func() (undo, string) {
		old, err := os.ReadFile(to)
		there := err == nil
		return func() error {
			if err := os.Rename(to, from); err != nil || !there {
				return err
			}
			return os.WriteFile(to, old, 0o644)
		}, filepath.Dir(to)
	})
}

func (f *faults) Mkdir(path string) error {
	return f.step(func() error { return f.OSFiles.Mkdir(path) }, func() (undo, string) {
		return func() error { return os.RemoveAll(path) }, filepath.Dir(path)
	})
}

func (f *faults) Remove(path string) error {
	return f.step(func() error { return f.OSFiles.Remove(path) }, func() (undo, string) {
		old, err := os.ReadFile(path)
		if err != nil {
			return nil, ""
		}
		return func() error { return os.WriteFile(path, old, 0o644) }, filepath.Dir(path)
	})
}

func (f *faults) SyncDir(path string) error {
	return f.step(func() error {
		delete(f.names, path)
		return f.OSFiles.SyncDir(path)
	}, nil)
}

type faultFile struct {
	f    *faults
	path string
	real gitstore.File
}

func (w *faultFile) Write(p []byte) (n int, err error) {
	err = w.f.step(func() error { n, err = w.real.Write(p); return err }, nil)
	return n, err
}

func (w *faultFile) Sync() error {
	return w.f.step(func() error {
		delete(w.f.content, w.path)
		return w.real.Sync()
	}, nil)
}

func (w *faultFile) Close() error { return w.real.Close() }

// script is a series of operations on two sessions, and what is known of them.
type script struct {
	s     subagent.Store
	ids   [6]uuid.UUID
	known map[uuid.UUID]subagent.Task // what was acknowledged
	doubt map[uuid.UUID]subagent.Task // what an operation that failed was about to store; Version 0: to delete
	group []uuid.UUID                 // of one that was about several: all or none
}

func newScript(s subagent.Store) *script {
	c := &script{s: s, known: make(map[uuid.UUID]subagent.Task)}
	for i := range c.ids {
		c.ids[i] = uuid.Must(uuid.NewV7())
	}
	return c
}

func (c *script) task(i int, session string) subagent.Task {
	t := newTask(session)
	t.ID = c.ids[i]
	return t
}

// operations are in the order of the script. Each may be repeated.
func (c *script) operations() []func() error {
	long := strings.Repeat("long ", 1000)
	return []func() error{
		func() error { return c.create(c.task(0, "a")) },
		func() error { return c.move(0, subagent.StatusQueued, "") },
		func() error { return c.move(0, subagent.StatusRunning, "") },
		func() error { return c.create(c.task(1, "a"), c.task(2, "b"), c.task(3, "b")) },
		func() error { return c.move(0, subagent.StatusCompleted, long) },
		func() error { return c.move(1, subagent.StatusCancelled, long+"2") },
		func() error { return c.move(2, subagent.StatusErrored, "") },
		func() error { return c.remove(0, 2) },
		func() error { return c.create(c.task(4, "a")) },
		func() error { return c.remove(1) },
	}
}

func (c *script) attempt(will map[uuid.UUID]subagent.Task, do func() error) error {
	err := do()
	if err != nil {
		c.doubt, c.group = will, nil
		for id := range will {
			c.group = append(c.group, id)
		}
		return err
	}
	c.doubt = nil
	for id, t := range will {
		if c.known[id] = t; t.Version == 0 {
			delete(c.known, id)
		}
	}
	return nil
}

func (c *script) create(tasks ...subagent.Task) error {
	will := make(map[uuid.UUID]subagent.Task)
	for _, t := range tasks {
		will[t.ID] = t
	}
	return c.attempt(will, func() error {
		err := c.s.Create(context.Background(), tasks...)
		if errors.Is(err, subagent.ErrTaskExists) && c.doubt[tasks[0].ID].Version > 0 {
			return nil // the attempt before was reported as failed
		}
		return err
	})
}

func (c *script) move(i int, to subagent.Status, result string) error {
	t := c.known[c.ids[i]]
	if err := moveTo(to, result)(&t); err != nil {
		return err
	}
	t.Version++
	return c.attempt(map[uuid.UUID]subagent.Task{t.ID: t}, func() error {
		got, err := c.s.Update(context.Background(), t.ID, func(t *subagent.Task) error {
			if t.Status == to {
				return nil // as a Runner's edit does
			}
			return moveTo(to, result)(t)
		})
		if err == nil && got.Version != t.Version {
			return fmt.Errorf("version %d, not %d", got.Version, t.Version)
		}
		return err
	})
}

func (c *script) remove(tasks ...int) error {
	will := make(map[uuid.UUID]subagent.Task)
	var ids []uuid.UUID
	for _, i := range tasks {
		ids, will[c.ids[i]] = append(ids, c.ids[i]), subagent.Task{}
	}
	return c.attempt(will, func() error { return c.s.Delete(context.Background(), ids...) })
}

// check compares a store with what is known: each task is as it was
// acknowledged, or as the operation in doubt would have it, all of it or none.
func (c *script) check(t *testing.T, s subagent.Store) {
	t.Helper()
	got := make(map[uuid.UUID]subagent.Task)
	for _, task := range list(t, s, subagent.Filter{}) {
		got[task.ID] = task
	}
	done := make(map[bool]bool)
	for _, id := range c.group {
		if will, ok := c.doubt[id]; ok {
			done[got[id].Version == will.Version && got[id].Status == will.Status] = true
		}
	}
	require.LessOrEqual(t, len(done), 1, "half of an operation was stored")
	want := c.known
	if done[true] {
		want = make(map[uuid.UUID]subagent.Task)
		for id, task := range c.known {
			want[id] = task
		}
		for id, task := range c.doubt {
			if want[id] = task; task.Version == 0 {
				delete(want, id)
			}
		}
	}
	require.Equal(t, want, got)
}

// TestEveryFault runs the script with a fault at its first step, at its second,
// and so on.
func TestEveryFault(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 3 // each mode has other ones
	}
	// Made before the first process is started: a file that one of them has open
	// for writing, as its forks do for a moment, is not executed.
	fake := filepath.Join(t.TempDir(), "git")
	require.NoError(t, os.WriteFile(fake, []byte(noGit), 0o755))
	for i, mode := range []faultMode{failOnce, failsDone, stopBefore, stopAfter, powerCut, powerCut2} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			for at := 1 + i%step; ; at += step {
				if at > 1000 {
					t.Fatal("the script does not end")
				}
				if hit := withFault(t, at, mode, fake); !hit {
					require.Greater(t, at, 80, "fewer steps than there must be")
					return
				}
			}
		})
	}
}

// noGit takes everything and keeps nothing.
const noGit = `#!/bin/sh
case "$*" in
*version) echo git version 2.99 ;;
*init*) mkdir .git ;;
*cat-file*) while read -r name; do echo "$name missing"; done ;;
*fast-import*) exec cat >/dev/null ;;
esac
`

func withFault(t *testing.T, at int, mode faultMode, fake string) (hit bool) {
	dir := memoryDir(t)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	f := &faults{at: at, mode: mode, names: make(map[string][]undo), content: make(map[string]bool)}
	what := fmt.Sprintf("%s step %d", mode, at)
	// Most runs do without a history: git would take most of the time.
	var o gitstore.Options
	withGit := at%7 == 0
	if !withGit {
		o.Git = fake
	}
	s, err := gitstore.OpenOn(filepath.Join(dir, "store"), o, f)
	if err != nil {
		require.ErrorIs(t, err, errFault, what)
	}
	c := newScript(s)
	if err == nil {
		for _, operation := range c.operations() {
			if err = operation(); err != nil && !f.stopped {
				require.ErrorIs(t, err, errFault, what)
				err = operation() // a disk that failed once
			}
			if err != nil {
				break
			}
		}
		if !f.stopped {
			require.NoError(t, err, what)
			c.check(t, s)
		}
		f.mu.Lock()
		f.stopped = f.stopped || f.mode != failOnce && f.mode != failsDone && f.n >= f.at
		f.mu.Unlock()
		if err := s.Close(); err != nil { // its index is what it could not write
			require.ErrorIs(t, err, errFault, what)
		}
	}
	f.cut(t)
	if _, err := os.Stat(filepath.Join(dir, "store")); err == nil || at > 2 {
		s, err = gitstore.Open(filepath.Join(dir, "store"), o)
		require.NoError(t, err, what)
		c.check(t, s)
		require.NoError(t, s.Close(), what)
		for _, session := range []string{"a", "b"} {
			if _, err := os.Stat(filepath.Join(dir, "store", session, "tasks.json")); err == nil && withGit {
				requireReconciled(t, filepath.Join(dir, "store", session))
			}
		}
	}
	return f.n >= f.at
}
