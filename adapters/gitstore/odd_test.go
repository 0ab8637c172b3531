package gitstore_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
)

// oddHosts are repositories in states in which a host may well be. Each makes
// the session's folder.
var oddHosts = map[string]func(t *testing.T, folder string){
	"without a commit": func(t *testing.T, folder string) {
		git(t, filepath.Dir(folder), "init", "-q", "-b", "trunk", folder)
	},
	"detached": func(t *testing.T, folder string) {
		hostRepository(t, folder)
		git(t, folder, "stash", "-q")
		git(t, folder, "checkout", "-q", "--detach", "HEAD~1")
	},
	"sha256": func(t *testing.T, folder string) {
		git(t, filepath.Dir(folder), "init", "-q", "--object-format=sha256", folder)
		git(t, folder, "commit", "-q", "--allow-empty", "-m", "first")
	},
	"shallow": func(t *testing.T, folder string) {
		origin := filepath.Join(tempDir(t), "origin")
		hostRepository(t, origin)
		require.NoError(t, os.RemoveAll(filepath.Join(origin, ".git", "hooks")))
		git(t, filepath.Dir(folder), "clone", "-q", "--depth=1", "file://"+origin, folder)
	},
	"submodule": func(t *testing.T, folder string) {
		origin := filepath.Join(tempDir(t), "origin")
		git(t, filepath.Dir(folder), "init", "-q", origin)
		git(t, origin, "commit", "-q", "--allow-empty", "-m", "first")
		git(t, filepath.Dir(folder), "init", "-q")
		git(t, filepath.Dir(folder), "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", origin, filepath.Base(folder))
	},
	"linked": func(t *testing.T, folder string) {
		hostRepository(t, folder)
		apart := filepath.Join(tempDir(t), "repository")
		require.NoError(t, os.Rename(filepath.Join(folder, ".git"), apart))
		require.NoError(t, os.Symlink(apart, filepath.Join(folder, ".git")))
	},
	"with settings": func(t *testing.T, folder string) {
		hostRepository(t, folder)
		for _, setting := range []string{
			"commit.gpgSign=true", "gpg.program=/nonexistent", "user.useConfigOnly=true", "core.hooksPath=.git/hooks", "core.sharedRepository=group",
			"core.logAllRefUpdates=always", "i18n.commitEncoding=latin1", "core.ignoreCase=true", "fastimport.unpackLimit=1", "core.autocrlf=true",
		} {
			key, value, _ := strings.Cut(setting, "=")
			git(t, folder, "config", key, value)
		}
	},
	"of somebody else": func(t *testing.T, folder string) {
		hostRepository(t, folder)
		if os.Getuid() != 0 {
			t.Skip("takes root")
		}
		require.NoError(t, os.Chown(folder, 65534, 65534))
		require.NoError(t, os.Chown(filepath.Join(folder, ".git"), 65534, 65534))
		t.Cleanup(func() { require.NoError(t, os.Chown(folder, 0, 0)) })
	},
	"with packed refs": func(t *testing.T, folder string) {
		hostRepository(t, folder)
		git(t, folder, "pack-refs", "--all")
	},
	"in a merge": func(t *testing.T, folder string) {
		hostRepository(t, folder)
		git(t, folder, "stash", "-q")
		git(t, folder, "checkout", "-q", "-b", "side", "HEAD~1")
		git(t, folder, "commit", "-q", "--allow-empty", "-m", "side")
		git(t, folder, "merge", "--no-commit", "--no-ff", "main")
	},
}

// TestOddHosts has tasks live beside repositories in odd states: each gets its
// history, and all else stays as it was, byte for byte.
func TestOddHosts(t *testing.T) {
	for name, prepare := range oddHosts {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			folder := filepath.Join(dir, "a")
			prepare(t, folder)
			before := hosts(t, folder)
			s := openStore(t, dir, gitstore.Options{})
			ended := live(t, s, newTask("a"), strings.Repeat("long ", 2000))
			require.NoError(t, s.Close())
			require.Equal(t, before, hosts(t, folder))
			if os.Getuid() == 0 {
				require.NoError(t, os.Chown(folder, 0, 0)) // for the git of the test
				_ = os.Chown(filepath.Join(folder, ".git"), 0, 0)
			}
			require.Len(t, subjects(t, folder), 4)
			requireReconciled(t, folder)
			require.NotContains(t, git(t, folder, "status", "--porcelain"), "tasks.json")
			s = openStore(t, dir, gitstore.Options{})
			require.Equal(t, ended, get(t, s, ended.ID))
		})
	}
}

// TestSharedRepository has two sessions that are work trees of one repository,
// which has one branch: one of them has the history, the other's tasks are
// never mixed into it, nor taken from it.
func TestSharedRepository(t *testing.T) {
	dir, main, log := tempDir(t), filepath.Join(t.TempDir(), "main"), newSaid()
	git(t, filepath.Dir(main), "init", "-q", main)
	git(t, main, "commit", "-q", "--allow-empty", "-m", "first")
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	git(t, main, "worktree", "add", "-q", "-b", "a", a)
	git(t, main, "worktree", "add", "-q", "-b", "b", b)
	s := openStore(t, dir, gitstore.Options{})
	first := live(t, s, newTask("a"), "")
	require.NoError(t, s.Close())
	s, err := gitstore.Open(dir, gitstore.Options{Logger: slogTo(log)})
	require.NoError(t, err)
	second := live(t, s, newTask("b"), "")
	log.wait(t, `is the history of session "a"`)
	require.ErrorContains(t, s.Close(), `the history of session "b" lags behind`)
	requireReconciled(t, a)

	require.NoError(t, os.Remove(filepath.Join(b, "tasks.json")))
	require.NoError(t, os.Remove(filepath.Join(a, "tasks.json")))
	s, err = gitstore.Open(dir, gitstore.Options{})
	require.NoError(t, err)
	require.Equal(t, first, get(t, s, first.ID))
	_, err = s.Get(t.Context(), second.ID)
	require.ErrorIs(t, err, subagent.ErrNotFound)
	require.ErrorContains(t, s.Close(), `session "b" lags behind`)
	require.NoFileExists(t, filepath.Join(b, "tasks.json"))
}

// TestBranchNames has branches whose names are in the way of others.
func TestBranchNames(t *testing.T) {
	dir := tempDir(t)
	s := openStore(t, dir, gitstore.Options{Branch: "main/tasks"})
	create(t, s, newTask("a"))
	require.NoError(t, s.Close())
	folder := filepath.Join(dir, "a")
	git(t, folder, "commit", "-q", "--allow-empty", "-m", "the host's first")
	require.Contains(t, git(t, folder, "log", "--format=%s", "main/tasks"), "→pending")

	log := newSaid()
	git(t, folder, "branch", "tasks/mine")
	s, err := gitstore.Open(dir, gitstore.Options{Logger: slogTo(log)})
	require.NoError(t, err)
	ended := live(t, s, newTask("a"), "")
	log.wait(t, "history not written")
	require.Equal(t, ended, get(t, s, ended.ID))
	require.ErrorContains(t, s.Close(), "tasks/mine")
}

// TestCheckedOut has a host that looks at the branch in a work tree, elsewhere
// or, while the store is open, in the session's folder itself.
func TestCheckedOut(t *testing.T) {
	for name, checkOut := range map[string]func(t *testing.T, folder string){
		"here": func(t *testing.T, folder string) { git(t, folder, "checkout", "-q", "tasks", "--") },
		"elsewhere": func(t *testing.T, folder string) {
			git(t, folder, "worktree", "add", "-q", filepath.Join(tempDir(t), "look"), "tasks")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, log := tempDir(t), newSaid()
			folder := filepath.Join(dir, "a")
			hostRepository(t, folder)
			git(t, folder, "stash", "-q")
			require.NoError(t, os.RemoveAll(filepath.Join(folder, ".git", "hooks")))
			s, err := gitstore.Open(dir, gitstore.Options{Logger: slogTo(log)})
			require.NoError(t, err)
			task := newTask("a")
			create(t, s, task)
			settle(t, s, "a")
			if name == "elsewhere" { // it is seen by the next Open
				require.NoError(t, s.Close())
				s, err = gitstore.Open(dir, gitstore.Options{Logger: slogTo(log)})
				require.NoError(t, err)
			}
			checkOut(t, folder)
			before := git(t, folder, "rev-parse", "tasks")
			move(t, s, task.ID, subagent.StatusQueued, "")
			log.wait(t, "is checked out")
			require.ErrorContains(t, s.Close(), "is checked out")
			require.Equal(t, before, git(t, folder, "rev-parse", "tasks"))
		})
	}
}

// settle waits until the history of a session is written.
func settle(t *testing.T, s *gitstore.Store, session string) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	late := time.After(30 * time.Second)
	for s.Lag(session) > 0 {
		select {
		case <-again.C:
		case <-late:
			t.Fatal("the history is not written")
		}
	}
}

// TestHostsOwnTasksFile has a host with a branch tasks, on which there is a
// tasks.json that is not ours.
func TestHostsOwnTasksFile(t *testing.T) {
	dir, log := tempDir(t), newSaid()
	folder := filepath.Join(dir, "a")
	hostRepository(t, folder)
	s := openStore(t, dir, gitstore.Options{Branch: "other"})
	first := newTask("a")
	create(t, s, first)
	require.NoError(t, s.Close())
	git(t, folder, "stash", "-q")
	stored, err := os.ReadFile(filepath.Join(folder, "tasks.json"))
	require.NoError(t, err)
	git(t, folder, "checkout", "-q", "-b", "tasks")
	write(t, filepath.Join(folder, "tasks.json"), []byte(`{"version": "2.0.0", "tasks": []}`))
	git(t, folder, "add", "-f", "tasks.json")
	git(t, folder, "commit", "-q", "-m", "the host's tasks")
	git(t, folder, "checkout", "-q", "main")
	write(t, filepath.Join(folder, "tasks.json"), stored)
	before := git(t, folder, "for-each-ref")
	s, err = gitstore.Open(dir, gitstore.Options{Logger: slogTo(log)})
	require.NoError(t, err)
	move(t, s, first.ID, subagent.StatusQueued, "")
	log.wait(t, "give Options.Branch another name")
	require.ErrorContains(t, s.Close(), "it is the host's")
	require.Equal(t, before, git(t, folder, "for-each-ref"))
}
