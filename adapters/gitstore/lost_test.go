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
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
)

// TestMissingFileOfPackedHistory loses both tasks.json and the index, where
// the branch is not a file of its own.
func TestMissingFileOfPackedHistory(t *testing.T) {
	for name, pack := range map[string]func(t *testing.T, dir, folder string){
		"packed": func(t *testing.T, _, folder string) { git(t, folder, "gc", "-q") },
		"linked": func(t *testing.T, _, folder string) {
			apart := filepath.Join(tempDir(t), "repository")
			require.NoError(t, os.Rename(filepath.Join(folder, ".git"), apart))
			require.NoError(t, os.WriteFile(filepath.Join(folder, ".git"), []byte("gitdir: "+apart+"\n"), 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, path, _, tasks := damagedFolder(t)
			pack(t, dir, filepath.Dir(path))
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Remove(filepath.Join(dir, ".index")))
			s := openStore(t, dir, gitstore.Options{})
			require.Equal(t, tasks, list(t, s, subagent.Filter{}))
		})
	}
}

// TestBrokenHost has a session whose repository is gone or none: calls work,
// nothing is made elsewhere, and it is reported.
func TestBrokenHost(t *testing.T) {
	for name, link := range map[string]func(t *testing.T, folder, gone string){
		"link to nowhere": func(t *testing.T, folder, gone string) {
			write(t, filepath.Join(folder, ".git"), []byte("gitdir: "+gone+"\n"))
		},
		"link to a file": func(t *testing.T, folder, gone string) {
			write(t, gone, nil)
			write(t, filepath.Join(folder, ".git"), []byte("gitdir: "+gone+"\n"))
		},
		"no link": func(t *testing.T, folder, _ string) { write(t, filepath.Join(folder, ".git"), []byte("nonsense")) },
		"symlink to nowhere": func(t *testing.T, folder, gone string) {
			require.NoError(t, os.Symlink(gone, filepath.Join(folder, ".git")))
		},
		"symlink to itself": func(t *testing.T, folder, gone string) {
			require.NoError(t, os.Symlink(".git", filepath.Join(folder, ".git")))
		},
		"exclude is a folder": func(t *testing.T, folder, _ string) {
			git(t, folder, "init", "-q")
			require.NoError(t, os.RemoveAll(filepath.Join(folder, ".git", "info", "exclude")))
			require.NoError(t, os.MkdirAll(filepath.Join(folder, ".git", "info", "exclude"), 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, beside, log := t.TempDir(), t.TempDir(), newSaid() // not tempDir: some are no repositories
			folder, gone := filepath.Join(dir, "a"), filepath.Join(beside, "gone")
			require.NoError(t, os.Mkdir(folder, 0o755))
			link(t, folder, gone)
			before := hosts(t, beside)
			s, err := gitstore.Open(dir, gitstore.Options{Logger: slogTo(log)})
			require.NoError(t, err)
			defer func() { require.ErrorContains(t, s.Close(), "lags behind") }()
			ended := live(t, s, newTask("a"), "")
			require.Equal(t, ended, get(t, s, ended.ID))
			log.wait(t, "history not written")
			require.Equal(t, before, hosts(t, beside))
			if len(before) == 0 {
				require.NoDirExists(t, gone)
			}
		})
	}
}

// TestNotAFile has something else than a file in the place of tasks.json of a
// session without a history.
func TestNotAFile(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"symlink to nowhere": func(path string) error { return os.Symlink("nowhere", path) },
		"symlink to itself":  func(path string) error { return os.Symlink("tasks.json", path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			folder := filepath.Join(dir, "a")
			require.NoError(t, os.Mkdir(folder, 0o755))
			path := filepath.Join(folder, "tasks.json")
			require.NoError(t, put(path))
			_, err := gitstore.Open(dir, gitstore.Options{})
			require.ErrorIs(t, err, gitstore.ErrDamaged)
			require.ErrorContains(t, err, path)
			require.NoError(t, os.Remove(path))
			s := openStore(t, dir, gitstore.Options{})
			create(t, s, newTask("a"))
		})
	}
}

// TestTextElsewhere has a tasks.json that says that a long result is in a file
// which cannot be one of the store's: that is neither read, removed, nor told
// to git.
func TestTextElsewhere(t *testing.T) {
	for _, name := range []string{"meta.json", "../b/tasks.json", "tasks/../meta.json", "tasks/x.txt", "tasks/%s.txt\nreset refs/heads/main", "/etc/passwd", ""} {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			task := newTask("a")
			if strings.Contains(name, "%s") {
				name = fmt.Sprintf(name, task.ID)
			}
			require.NoError(t, os.Mkdir(filepath.Join(dir, "a"), 0o755))
			path := filepath.Join(dir, "a", "tasks.json")
			write(t, path, fmt.Appendf(nil, `{%q: {"task_id": %[1]q, "status": "running", "parent_session_id": "a", "created_at": "2024-02-29T23:59:58Z",
				"subject": "s", "description": "d", "attempt": 0, "version": 2, "result_text_file": {"name": %q, "size": 0, "checksum": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}}`, task.ID, name))
			_, err := gitstore.Open(dir, gitstore.Options{})
			require.ErrorIs(t, err, gitstore.ErrDamaged)
			require.ErrorContains(t, err, "result_text_file")
		})
	}
}

// TestFirstCall has a host's repository and a git that hangs: a first call does
// not need it.
func TestFirstCall(t *testing.T) {
	dir := tempDir(t)
	folder := filepath.Join(dir, "a")
	hostRepository(t, folder)
	s, err := gitstore.Open(dir, gitstore.Options{Git: failingGit(t, "cat-file")})
	require.NoError(t, err)
	create(t, s, newTask("a"))
	require.ErrorContains(t, s.Close(), "no such luck")
}

// TestFailedOpen has a session that keeps a store from opening, and one whose
// history lags behind: nothing is at work when Open has returned.
func TestFailedOpen(t *testing.T) {
	dir, path, _, _ := damagedFolder(t)
	task := newTask("b")
	s, err := gitstore.Open(dir, gitstore.Options{Git: failingGit(t, "fast-import")})
	require.NoError(t, err)
	live(t, s, task, "")
	require.Error(t, s.Close())
	require.NoError(t, os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "z")))
	path = filepath.Join(dir, "z", filepath.Base(path))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "z", ".git")))
	write(t, path, nil)
	hanging := failingGit(t, "cat-file")
	write(t, hanging+".hang", nil)
	_, err = gitstore.Open(dir, gitstore.Options{Git: hanging})
	require.ErrorIs(t, err, gitstore.ErrDamaged)
	goleak.VerifyNone(t)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "z")))
	s = openStore(t, dir, gitstore.Options{})
	require.NoError(t, s.Close())
	require.Equal(t, []string{"task: reconcile"}, subjects(t, filepath.Join(dir, "b")))
}

// TestRelative opens a folder, and names a git, as seen from the folder of the
// process, which then goes elsewhere.
func TestRelative(t *testing.T) {
	dir := tempDir(t)
	program := failingGit(t, "none")
	require.NoError(t, os.Rename(program, filepath.Join(dir, "mygit")))
	t.Chdir(dir)
	_, err := gitstore.Open("", gitstore.Options{})
	require.ErrorContains(t, err, "a folder is needed")
	s := openStore(t, "sessions", gitstore.Options{Git: "./mygit"})
	t.Chdir(tempDir(t))
	ended := live(t, s, newTask("a"), strings.Repeat("long", 2000))
	require.NoError(t, s.Close())
	s = openStore(t, filepath.Join(dir, "sessions"), gitstore.Options{})
	require.Equal(t, ended, get(t, s, ended.ID))
	require.NoError(t, s.Close())
	require.Len(t, subjects(t, filepath.Join(dir, "sessions", "a")), 4)
}

// TestLostWhileOpen has tasks.json go, or break, under a store whose history
// lags behind: what was acknowledged is still in memory.
func TestLostWhileOpen(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, path string){
		"gone":  func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) },
		"empty": func(t *testing.T, path string) { write(t, path, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, path, _, tasks := damagedFolder(t)
			s, err := gitstore.Open(dir, gitstore.Options{Git: failingGit(t, "fast-import")})
			require.NoError(t, err)
			ahead := move(t, s, tasks[2].ID, subagent.StatusRunning, "")
			require.NoError(t, s.Delete(t.Context(), tasks[0].ID))
			lose(t, path)
			late := newTask("a")
			create(t, s, late)
			require.Equal(t, []subagent.Task{tasks[1], ahead, late}, list(t, s, subagent.Filter{}))
			require.Error(t, s.Close())
			s = openStore(t, dir, gitstore.Options{})
			require.Equal(t, []subagent.Task{tasks[1], ahead, late}, list(t, s, subagent.Filter{}))
			require.NoError(t, s.Close())
			requireReconciled(t, filepath.Dir(path))
		})
	}
}

// TestBrokenBeforeHistory has tasks.json break under a store before there is a
// history.
func TestBrokenBeforeHistory(t *testing.T) {
	dir := tempDir(t)
	s, err := gitstore.Open(dir, gitstore.Options{Git: failingGit(t, "init")})
	require.NoError(t, err)
	first, late := newTask("a"), newTask("a")
	create(t, s, first)
	write(t, filepath.Join(dir, "a", "tasks.json"), nil)
	create(t, s, late)
	require.Equal(t, []subagent.Task{first, late}, list(t, s, subagent.Filter{}))
	require.Error(t, s.Close())
	s = openStore(t, dir, gitstore.Options{})
	require.Equal(t, []subagent.Task{first, late}, list(t, s, subagent.Filter{}))
}

// TestBranchDeleted has the host delete the branch, or the repository, under a
// store: the next commit has everything, long results included.
func TestBranchDeleted(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, folder string){
		"the branch":     func(t *testing.T, folder string) { git(t, folder, "branch", "-D", "-q", "tasks") },
		"the repository": func(t *testing.T, folder string) { require.NoError(t, os.RemoveAll(filepath.Join(folder, ".git"))) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			folder := filepath.Join(dir, "a")
			s := openStore(t, dir, gitstore.Options{})
			ended := live(t, s, newTask("a"), strings.Repeat("long ", 2000))
			settle(t, s, "a")
			lose(t, folder)
			create(t, s, newTask("a"))
			require.NoError(t, s.Close())
			requireReconciled(t, folder)
			require.Equal(t, ended.ResultText, git(t, folder, "show", "tasks:tasks/"+ended.ID.String()+".txt"))
		})
	}
}

// TestCloseAmongCalls closes while many calls come: each was refused, or what it
// has acknowledged is stored.
func TestCloseAmongCalls(t *testing.T) {
	dir := tempDir(t)
	s := openStore(t, dir, gitstore.Options{})
	task := newTask("a")
	task.Status = subagent.StatusRunning
	create(t, s, task)
	var calls sync.WaitGroup
	var mu sync.Mutex // guards acked
	acked := int64(1)
	begun := make(chan struct{}, 16)
	for range 16 {
		calls.Go(func() { // until the store is closed
			for n := 0; ; n++ {
				got, err := s.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.Progress.ToolUses++; return nil })
				if err != nil {
					if !errors.Is(err, subagent.ErrClosed) {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				acked = max(acked, got.Version)
				mu.Unlock()
				if n == 0 {
					begun <- struct{}{}
				}
			}
		})
	}
	for range 16 {
		<-begun
	}
	require.NoError(t, s.Close())
	calls.Wait()
	s = openStore(t, dir, gitstore.Options{})
	require.Equal(t, acked, get(t, s, task.ID).Version)
}

// TestSpoiltAmongCalls has somebody empty a tasks.json again and again while
// calls on one and on several sessions come, some of which give up: what was
// acknowledged is stored.
func TestSpoiltAmongCalls(t *testing.T) {
	dir := memoryDir(t)
	s := openStore(t, dir, gitstore.Options{})
	create(t, s, newTask("s0"), newTask("s1"), newTask("s2"))
	var calls sync.WaitGroup
	var mu sync.Mutex // guards acked
	var acked []subagent.Task
	for w := range 8 {
		calls.Go(func() {
			for n := range 16 {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if n%4 == 0 { // somewhere on its way
					ctx, cancel = context.WithTimeout(ctx, time.Duration(w*n)*50*time.Microsecond)
					defer cancel()
				}
				if w == 0 {
					_ = os.Truncate(filepath.Join(dir, "s1", "tasks.json"), 0)
				}
				tasks := []subagent.Task{newTask(fmt.Sprintf("s%d", n%3)), newTask(fmt.Sprintf("s%d", (n+w)%3))}
				err := s.Create(ctx, tasks...)
				if err == nil {
					tasks[0], err = s.Update(ctx, tasks[0].ID, moveTo(subagent.StatusCancelled, strings.Repeat("x", 500*n)))
				}
				if err == nil {
					mu.Lock()
					acked = append(acked, tasks...)
					mu.Unlock()
				} else if ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	calls.Wait()
	require.NoError(t, s.Close())
	s = openStore(t, dir, gitstore.Options{})
	for _, task := range acked {
		require.Equal(t, task, get(t, s, task.ID))
	}
	require.NoError(t, s.Close())
	for _, name := range []string{"s0", "s1", "s2"} {
		requireReconciled(t, filepath.Join(dir, name))
	}
}

// TestOverflow has a queue that becomes one reconcile while a burst is about to
// take its first entry: what has no state yet is not taken.
func TestOverflow(t *testing.T) {
	s := openStore(t, tempDir(t), gitstore.Options{})
	require.False(t, s.PopsReconcile())
}
