package gitstore_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
)

// damagedFolder is a closed store with an ended task, one with a long result
// and an open one; data is its tasks.json.
func damagedFolder(t *testing.T) (dir, path string, data []byte, tasks []subagent.Task) {
	t.Helper()
	dir = tempDir(t)
	s := openStore(t, dir, gitstore.Options{})
	tasks = append(tasks, live(t, s, newTask("a"), "result"), live(t, s, newTask("a"), strings.Repeat("long", 2000)))
	open := newTask("a")
	create(t, s, open)
	tasks = append(tasks, move(t, s, open.ID, subagent.StatusQueued, ""))
	require.NoError(t, s.Close())
	path = filepath.Join(dir, "a", "tasks.json")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return dir, path, data, tasks
}

// TestEveryCutAndEveryBit damages tasks.json in every place: either nothing
// that matters is damaged, or it is noticed, and what is salvaged is right.
func TestEveryCutAndEveryBit(t *testing.T) {
	_, _, data, _ := damagedFolder(t)
	want, err := gitstore.Parse("a", data)
	require.NoError(t, err)
	require.Len(t, want, 3)
	require.Equal(t, want, gitstore.Salvage("a", data))
	check := func(data []byte, what string, at int) {
		if got, err := gitstore.Parse("a", data); err == nil {
			require.Equal(t, want, got, "%s at %d", what, at)
		} else {
			require.ErrorIs(t, err, gitstore.ErrDamaged)
			require.Regexp(t, `tasks\.json:\d+:\d+: `, err.Error())
		}
		for _, got := range gitstore.Salvage("a", data) {
			require.Contains(t, want, got, "%s at %d", what, at)
		}
	}
	for i := range len(data) - 1 { // the last byte is a line end
		_, err := gitstore.Parse("a", data[:i])
		require.ErrorIs(t, err, gitstore.ErrDamaged, "cut at %d", i)
		check(data[:i], "cut", i)
	}
	for i := range data {
		for bit := range 8 {
			if testing.Short() && bit != i%8 {
				continue
			}
			flipped := append([]byte(nil), data...)
			flipped[i] ^= 1 << bit
			check(flipped, "flip", i)
		}
	}
}

// damages are what can happen to a tasks.json, each with whether it has to be
// kept.
var damages = map[string]func(t *testing.T, path string, data []byte){
	"empty":    func(t *testing.T, path string, _ []byte) { write(t, path, nil) },
	"zeros":    func(t *testing.T, path string, data []byte) { write(t, path, make([]byte, len(data))) },
	"cut":      func(t *testing.T, path string, data []byte) { write(t, path, data[:len(data)/2]) },
	"cut late": func(t *testing.T, path string, data []byte) { write(t, path, data[:len(data)-3]) },
	"flipped": func(t *testing.T, path string, data []byte) {
		flipped := append([]byte(nil), data...)
		flipped[len(flipped)/2] ^= 4
		write(t, path, flipped)
	},
	"twice": func(t *testing.T, path string, data []byte) { write(t, path, append(data, data...)) },
	"a folder": func(t *testing.T, path string, _ []byte) {
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.Mkdir(path, 0o755))
		write(t, filepath.Join(path, "x"), nil)
	},
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, data, 0o644))
}

func TestDamagedWithHistory(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			dir, path, data, tasks := damagedFolder(t)
			damage(t, path, data)
			log := newSaid()
			s := openStore(t, dir, gitstore.Options{Logger: slogTo(log)})
			require.Contains(t, log.all(), "was mended")
			require.Equal(t, tasks, list(t, s, subagent.Filter{}))
			kept, err := filepath.Glob(path + ".damaged-*")
			require.NoError(t, err)
			require.Len(t, kept, 1)
			live(t, s, newTask("a"), "")
			require.NoError(t, s.Close())
			requireReconciled(t, filepath.Dir(path))
		})
	}
	t.Run("missing", func(t *testing.T) {
		dir, path, _, tasks := damagedFolder(t)
		for _, index := range []bool{true, false} {
			require.NoError(t, os.Remove(path))
			if !index {
				require.NoError(t, os.Remove(filepath.Join(dir, ".index")))
			}
			s := openStore(t, dir, gitstore.Options{})
			require.Equal(t, tasks, list(t, s, subagent.Filter{}))
			require.NoError(t, s.Close())
		}
	})
}

// TestDamagedAheadOfHistory damages a record of a file that is ahead of its
// history: the others stay as far as they were.
func TestDamagedAheadOfHistory(t *testing.T) {
	dir, path, _, tasks := damagedFolder(t)
	noGit := failingGit(t, "fast-import")
	s, err := gitstore.Open(dir, gitstore.Options{Git: noGit})
	require.NoError(t, err)
	ahead := move(t, s, tasks[2].ID, subagent.StatusRunning, "")
	late := newTask("a")
	create(t, s, late)
	require.Error(t, s.Close())
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	at := strings.Index(string(data), `"result_text": "result"`)
	data[at+20] ^= 1
	write(t, path, data)
	s = openStore(t, dir, gitstore.Options{})
	require.Equal(t, []subagent.Task{tasks[0], tasks[1], ahead, late}, list(t, s, subagent.Filter{}))
}

func TestDamagedWithoutHistory(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			dir, path, data, tasks := damagedFolder(t)
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "a", ".git")))
			damage(t, path, data)
			before := hosts(t, dir)
			_, err := gitstore.Open(dir, gitstore.Options{})
			require.ErrorIs(t, err, gitstore.ErrDamaged)
			require.ErrorContains(t, err, path)
			delete(before, ".lock")
			after := hosts(t, dir)
			delete(after, ".lock")
			require.Equal(t, before, after, "nothing was changed")

			require.NoError(t, os.RemoveAll(path)) // a person has found a copy
			write(t, path, data)
			s := openStore(t, dir, gitstore.Options{})
			require.Equal(t, tasks, list(t, s, subagent.Filter{}))
		})
	}
}

func TestDamagedText(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"missing": func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) },
		"cut":     func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 100)) },
		"flipped": func(t *testing.T, path string) { write(t, path, []byte(strings.Repeat("lonh", 2000))) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, _, _, tasks := damagedFolder(t)
			path := filepath.Join(dir, "a", "tasks", tasks[1].ID.String()+".txt")
			damage(t, path)
			log := newSaid()
			s := openStore(t, dir, gitstore.Options{Logger: slogTo(log)})
			require.Equal(t, tasks[1], get(t, s, tasks[1].ID))
			require.Contains(t, log.all(), "read from its history")
			require.NoError(t, s.Close())
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "a", ".git")))
			s = openStore(t, dir, gitstore.Options{})
			_, err := s.Get(t.Context(), tasks[1].ID)
			require.ErrorContains(t, err, path)
			require.Equal(t, tasks[0], get(t, s, tasks[0].ID))
		})
	}
}

// TestDamagedIndex has an index that is missing, cut anywhere or flipped
// anywhere: it is never believed, and nothing depends on it.
func TestDamagedIndex(t *testing.T) {
	dir, _, _, tasks := damagedFolder(t)
	path := filepath.Join(dir, ".index")
	index, err := os.ReadFile(path)
	require.NoError(t, err)
	for i := 0; i < len(index); i += 17 {
		flipped := append([]byte(nil), index...)
		flipped[i] ^= 1
		for _, data := range [][]byte{index[:i], flipped} {
			write(t, path, data)
			s, err := gitstore.Open(dir, gitstore.Options{})
			require.NoError(t, err)
			require.Equal(t, tasks, list(t, s, subagent.Filter{}))
			require.NoError(t, s.Close())
		}
	}
	// One that is of another time: the file has changed since.
	s := openStore(t, dir, gitstore.Options{})
	late := newTask("a")
	create(t, s, late)
	require.NoError(t, s.Close())
	write(t, path, index)
	s = openStore(t, dir, gitstore.Options{})
	require.Equal(t, late, get(t, s, late.ID))
}

// failingGit is a git program that fails at one command, or hangs.
func failingGit(t *testing.T, command string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell script for git")
	}
	path := filepath.Join(t.TempDir(), "git")
	script := fmt.Sprintf("#!/bin/sh\nfor a in \"$@\"; do if [ \"$a\" = %q ]; then\n[ -e %q ] && exec sleep 60\necho no such luck >&2; exit 77\nfi; done\nexec git \"$@\"\n",
		command, path+".hang")
	require.NoError(t, os.WriteFile(path, []byte(script), 0o755))
	return path
}

func TestGitMissing(t *testing.T) {
	_, err := gitstore.Open(tempDir(t), gitstore.Options{Git: "/nonexistent/git"})
	require.ErrorContains(t, err, "the git program is needed")
	t.Setenv("PATH", t.TempDir())
	_, err = gitstore.Open(tempDir(t), gitstore.Options{})
	require.ErrorContains(t, err, "the git program is needed")
}

func TestGitTooOld(t *testing.T) {
	old := filepath.Join(t.TempDir(), "git")
	require.NoError(t, os.WriteFile(old, []byte("#!/bin/sh\necho git version 2.29.9\n"), 0o755))
	_, err := gitstore.Open(tempDir(t), gitstore.Options{Git: old})
	require.ErrorContains(t, err, "git 2.30 or newer is needed")
	require.ErrorContains(t, err, "2.29.9")
}

// TestGitFails has git fail at each of its jobs, and hang: no call notices, it
// is reported, and the next Open brings the history up to date.
func TestGitFails(t *testing.T) {
	for _, command := range []string{"init", "cat-file", "worktree", "fast-import", "hang"} {
		t.Run(command, func(t *testing.T) {
			dir, log := tempDir(t), newSaid()
			o := gitstore.Options{Logger: slogTo(log), Git: failingGit(t, command)}
			if command == "hang" {
				o.Git = failingGit(t, "cat-file")
				require.NoError(t, os.WriteFile(o.Git+".hang", nil, 0o644))
			}
			s, err := gitstore.Open(dir, o)
			require.NoError(t, err)
			if command == "hang" { // Open has its own patience: a machine may be slow
				s.SetGitTimeout(100 * time.Millisecond)
			}
			ended := live(t, s, newTask("a"), "")
			log.wait(t, "history not written")
			require.Equal(t, ended, get(t, s, ended.ID))
			err = s.Close()
			require.ErrorContains(t, err, `the history of session "a" lags behind`)
			if command != "hang" {
				require.ErrorContains(t, err, "no such luck")
			}
			s = openStore(t, dir, gitstore.Options{})
			require.Equal(t, ended, get(t, s, ended.ID))
			require.NoError(t, s.Close())
			require.Equal(t, []string{"task: reconcile"}, subjects(t, filepath.Join(dir, "a")))
			requireReconciled(t, filepath.Join(dir, "a"))
		})
	}
}

// TestGitRecovers has git work again while the store is open: every transition
// is there then.
func TestGitRecovers(t *testing.T) {
	dir, log := tempDir(t), newSaid()
	program := failingGit(t, "fast-import")
	s := openStore(t, dir, gitstore.Options{Logger: slogTo(log), Git: program})
	live(t, s, newTask("a"), "")
	log.wait(t, "no such luck")
	mend(t, program)
	require.NoError(t, s.Close())
	require.Len(t, subjects(t, filepath.Join(dir, "a")), 4)
	requireReconciled(t, filepath.Join(dir, "a"))
}

// TestLagging opens a folder whose history lags behind, and goes on before git
// has said so: what was missing is one commit, before those that are new.
func TestLagging(t *testing.T) {
	dir, log := tempDir(t), newSaid()
	program := failingGit(t, "cat-file")
	s, err := gitstore.Open(dir, gitstore.Options{Git: program})
	require.NoError(t, err)
	task := newTask("a")
	create(t, s, task)
	move(t, s, task.ID, subagent.StatusQueued, "")
	move(t, s, task.ID, subagent.StatusRunning, "")
	require.Error(t, s.Close())
	before, err := os.ReadFile(filepath.Join(dir, "a", "tasks.json"))
	require.NoError(t, err)
	s = openStore(t, dir, gitstore.Options{Git: program, Logger: slogTo(log)})
	move(t, s, task.ID, subagent.StatusCompleted, "")
	log.wait(t, "no such luck")
	mend(t, program)
	require.NoError(t, s.Close())
	folder := filepath.Join(dir, "a")
	require.Equal(t, []string{"task: reconcile", "task: " + task.ID.String() + " running→completed"}, subjects(t, folder))
	require.Equal(t, string(before), git(t, folder, "show", "tasks~1:tasks.json"))
	requireReconciled(t, folder)
}

// mend has a failing git work from now on.
func mend(t *testing.T, program string) {
	t.Helper()
	good := program + ".good"
	require.NoError(t, os.WriteFile(good, []byte("#!/bin/sh\nexec git \"$@\"\n"), 0o755))
	require.NoError(t, os.Rename(good, program))
}

// TestStaleLocks has what a git that was killed leaves behind.
func TestStaleLocks(t *testing.T) {
	dir, path, _, _ := damagedFolder(t)
	repository := filepath.Join(filepath.Dir(path), ".git")
	index := filepath.Join(repository, "index.lock")
	write(t, index, nil)
	s := openStore(t, dir, gitstore.Options{})
	create(t, s, newTask("a"))
	require.NoError(t, s.Close())
	require.FileExists(t, index, "it is the host's, and none of our business")
	requireReconciled(t, filepath.Dir(path))

	ours := filepath.Join(repository, "refs", "heads", "tasks.lock")
	write(t, ours, nil) // somebody may be at it
	s, err := gitstore.Open(dir, gitstore.Options{})
	require.NoError(t, err)
	create(t, s, newTask("a"))
	require.ErrorContains(t, s.Close(), "lags behind")
	old := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(ours, old, old))
	report := filepath.Join(repository, "fast_import_crash_1")
	write(t, report, []byte("fast-import crash report:\n  refs/heads/tasks\n"))
	s = openStore(t, dir, gitstore.Options{})
	require.NoError(t, s.Close())
	requireReconciled(t, filepath.Dir(path))
	require.NoFileExists(t, report)
}

func TestLocked(t *testing.T) {
	dir := tempDir(t)
	s := openStore(t, dir, gitstore.Options{})
	_, err := gitstore.Open(dir, gitstore.Options{})
	require.ErrorIs(t, err, gitstore.ErrLocked)
	require.ErrorContains(t, err, fmt.Sprintf("process %d", os.Getpid()))
	require.NoError(t, s.Close())
	openStore(t, dir, gitstore.Options{})
}

// TestForeignRows has a session's folder that somebody copied to start another
// conversation from: its tasks are the first one's, and are served there alone.
func TestForeignRows(t *testing.T) {
	dir, _, _, tasks := damagedFolder(t)
	require.NoError(t, os.CopyFS(filepath.Join(dir, "copy"), os.DirFS(filepath.Join(dir, "a"))))
	s := openStore(t, dir, gitstore.Options{})
	require.Equal(t, tasks, list(t, s, subagent.Filter{}))
	mine := newTask("copy")
	create(t, s, mine)
	again := tasks[0]
	again.ParentSessionID = "copy"
	require.ErrorIs(t, s.Create(t.Context(), again), subagent.ErrTaskExists)
	require.Equal(t, []subagent.Task{mine}, list(t, s, subagent.Filter{SessionID: "copy"}))
	move(t, s, tasks[2].ID, subagent.StatusRunning, "")
	require.NoError(t, s.Delete(t.Context(), tasks[0].ID))
	require.NoError(t, s.Close())
	s = openStore(t, dir, gitstore.Options{})
	_, err := s.Get(t.Context(), tasks[0].ID)
	require.ErrorIs(t, err, subagent.ErrNotFound)
	require.Equal(t, []subagent.Task{mine}, list(t, s, subagent.Filter{SessionID: "copy"}))
	_, err = s.Get(t.Context(), uuid.New())
	require.ErrorIs(t, err, subagent.ErrNotFound)
}
