package gitstore_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
)

func slogTo(h slog.Handler) *slog.Logger { return slog.New(h) }

// hostRepository is a session folder in use: with commits, staged and unstaged
// changes, an untracked file, and hooks that would leave traces.
func hostRepository(t *testing.T, folder string) {
	require.NoError(t, os.MkdirAll(folder, 0o755))
	git(t, folder, "init", "-q", "-b", "main")
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
	}
	write("meta.json", "{}")
	write("messages/1.json", "one")
	write("tasks/notes.md", "the host's own")
	git(t, folder, "add", ".")
	git(t, folder, "commit", "-q", "-m", "first")
	write("messages/2.json", "two")
	git(t, folder, "add", ".")
	git(t, folder, "commit", "-q", "-m", "second")
	write("meta.json", "staged")
	git(t, folder, "add", "meta.json")
	write("meta.json", "unstaged")
	write("messages/1.json", "unstaged, too")
	write("draft.txt", "untracked")
	write(".git/info/exclude", "*.bak") // no newline at its end
	for _, hook := range []string{"reference-transaction", "post-commit", "pre-auto-gc"} {
		path := filepath.Join(folder, ".git", "hooks", hook)
		write(".git/hooks/"+hook, "#!/bin/sh\ntouch ../hook-was-here hook-was-here\n")
		require.NoError(t, os.Chmod(path, 0o755))
	}
}

// ours are the paths in a host's session folder that the store may write.
var ours = regexp.MustCompile(`^(tasks\.json|tasks/[0-9a-f-]{36}\.txt|\.git/objects/.*|\.git/refs/heads/tasks|\.git/logs/refs/heads/tasks|\.git/info/exclude)$`)

// hosts is every file of a host but ours, byte for byte.
func hosts(t *testing.T, folder string) map[string]string {
	files := make(map[string]string)
	require.NoError(t, filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(folder, path)
		if err != nil || ours.MatchString(filepath.ToSlash(rel)) {
			return err
		}
		data, err := os.ReadFile(path)
		info, _ := d.Info()
		files[rel] = fmt.Sprintf("%v %s", info.Mode(), data)
		return err
	}))
	return files
}

func TestHostRepository(t *testing.T) {
	dir := tempDir(t)
	folder := filepath.Join(dir, "a")
	hostRepository(t, folder)
	before := hosts(t, folder)
	status := git(t, folder, "status", "--porcelain", "--branch")
	objects := git(t, folder, "rev-parse", "HEAD", "main", "HEAD^{tree}")

	spoilt := []string{"GIT_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"}
	for _, v := range spoilt {
		t.Setenv(v, "/nonexistent")
	}
	t.Setenv("HOME", t.TempDir()) // nobody has told git who they are
	s := openStore(t, dir, gitstore.Options{})
	long := strings.Repeat("long ", 2000)
	ended := live(t, s, newTask("a"), long)
	gone := live(t, s, newTask("a"), long)
	require.NoError(t, s.Delete(t.Context(), gone.ID))
	require.NoError(t, s.Close())
	for _, v := range spoilt {
		require.NoError(t, os.Unsetenv(v)) // for the host's own git
	}

	require.Equal(t, before, hosts(t, folder))
	require.Equal(t, status, git(t, folder, "status", "--porcelain", "--branch"))
	require.Equal(t, objects, git(t, folder, "rev-parse", "HEAD", "main", "HEAD^{tree}"))
	exclude, err := os.ReadFile(filepath.Join(folder, ".git", "info", "exclude"))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(exclude), "*.bak\n/tasks.json\n"))
	requireReconciled(t, folder)
	require.Equal(t, []string{"tasks.json", "tasks/" + ended.ID.String() + ".txt"},
		strings.Fields(git(t, folder, "ls-tree", "-r", "--name-only", "tasks")))

	// The host goes on, and never takes ours along.
	git(t, folder, "add", "-A")
	git(t, folder, "commit", "-q", "-m", "third")
	require.NotContains(t, git(t, folder, "ls-tree", "-r", "--name-only", "HEAD"), "tasks.json")
	s = openStore(t, dir, gitstore.Options{})
	require.Equal(t, ended, get(t, s, ended.ID))
	create(t, s, newTask("a"))
	require.NoError(t, s.Close())
	again, err := os.ReadFile(filepath.Join(folder, ".git", "info", "exclude"))
	require.NoError(t, err)
	require.Equal(t, string(exclude), string(again))
	requireReconciled(t, folder)
}

// TestHistory reads what a person reads: every transition in order, and the
// state at each.
func TestHistory(t *testing.T) {
	dir := tempDir(t)
	s := openStore(t, dir, gitstore.Options{})
	a, b := newTask("a"), newTask("a")
	create(t, s, a)
	move(t, s, a.ID, subagent.StatusQueued, "")
	create(t, s, b)
	move(t, s, a.ID, subagent.StatusRunning, "")
	_, err := s.Update(t.Context(), a.ID, func(t *subagent.Task) error { t.Progress.Message = "half"; return nil })
	require.NoError(t, err)
	move(t, s, b.ID, subagent.StatusCancelled, "")
	move(t, s, a.ID, subagent.StatusCompleted, strings.Repeat("x", 5000))
	require.NoError(t, s.Delete(t.Context(), b.ID))
	c, d := newTask("a"), newTask("a")
	create(t, s, c, d)
	require.NoError(t, s.Close())

	folder := filepath.Join(dir, "a")
	want := []struct{ subject, a, b string }{
		{"task: " + a.ID.String() + " →pending", "pending", ""},
		{"task: " + a.ID.String() + " pending→queued", "queued", ""},
		{"task: " + b.ID.String() + " →pending", "queued", "pending"},
		{"task: " + a.ID.String() + " queued→running", "running", "pending"},
		{"task: " + a.ID.String() + " changed, running", "running", "pending"},
		{"task: " + b.ID.String() + " pending→cancelled", "running", "cancelled"},
		{"task: " + a.ID.String() + " running→completed", "completed", "cancelled"},
		{"task: " + b.ID.String() + " deleted", "completed", ""},
		{"task: 2 at once", "completed", ""},
	}
	commits := strings.Fields(git(t, folder, "log", "--reverse", "--format=%H", "tasks", "--"))
	require.Len(t, commits, len(want))
	for i, commit := range commits {
		require.Equal(t, want[i].subject, subjects(t, folder)[i])
		var then map[string]subagent.Task
		require.NoError(t, json.Unmarshal([]byte(git(t, folder, "show", commit+":tasks.json")), &then))
		require.EqualValues(t, want[i].a, then[a.ID.String()].Status)
		require.EqualValues(t, want[i].b, then[b.ID.String()].Status)
	}
	require.Contains(t, git(t, folder, "log", "-1", "--format=%b", "tasks", "--"), "task: "+d.ID.String()+" →pending\n")
	requireReconciled(t, folder)
}

// TestLinkedRepository has a session folder whose repository is elsewhere.
func TestLinkedRepository(t *testing.T) {
	dir, main := tempDir(t), filepath.Join(t.TempDir(), "main")
	hostRepository(t, main)
	folder := filepath.Join(dir, "a")
	require.NoError(t, os.RemoveAll(filepath.Join(main, ".git", "hooks"))) // the host's git would run them here
	git(t, main, "worktree", "add", "-q", folder)
	s := openStore(t, dir, gitstore.Options{})
	live(t, s, newTask("a"), "")
	require.NoError(t, s.Close())
	require.Empty(t, git(t, folder, "status", "--porcelain"))
	requireReconciled(t, folder)
}

// TestNotOurBranch has hosts for whom the branch is not ours to write: no
// history then, and everything else works.
func TestNotOurBranch(t *testing.T) {
	for name, prepare := range map[string]func(folder string){
		"has other files": func(folder string) { git(t, folder, "branch", "tasks") },
		"is checked out":  func(folder string) { git(t, folder, "checkout", "-q", "--orphan", "tasks") },
	} {
		t.Run(name, func(t *testing.T) {
			dir, log := tempDir(t), newSaid()
			folder := filepath.Join(dir, "a")
			hostRepository(t, folder)
			prepare(folder)
			before := hosts(t, folder)
			refs := git(t, folder, "for-each-ref")
			s, err := gitstore.Open(dir, gitstore.Options{Logger: slogTo(log)})
			require.NoError(t, err)
			ended := live(t, s, newTask("a"), "")
			log.wait(t, "give Options.Branch another name")
			require.Equal(t, ended, get(t, s, ended.ID))
			require.ErrorContains(t, s.Close(), "give Options.Branch another name")
			require.Equal(t, refs, git(t, folder, "for-each-ref"))
			require.Equal(t, before, hosts(t, folder))

			s = openStore(t, dir, gitstore.Options{Branch: "agents/tasks"})
			require.NoError(t, s.Close())
			require.Equal(t, "task: reconcile\n", git(t, folder, "log", "--format=%s", "agents/tasks"))
		})
	}
	_, err := gitstore.Open(tempDir(t), gitstore.Options{Branch: "not..a branch"})
	require.ErrorContains(t, err, "cannot be the name of a branch")
}

// TestHostDeletes has the host throw conversations away under a store.
func TestHostDeletes(t *testing.T) {
	dir := tempDir(t)
	s := openStore(t, dir, gitstore.Options{})
	a, b := newTask("a"), newTask("b")
	create(t, s, a, b)
	require.NoError(t, s.Close())
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "a")))
	s = openStore(t, dir, gitstore.Options{})
	_, err := s.Get(t.Context(), a.ID)
	require.ErrorIs(t, err, subagent.ErrNotFound)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "b")))
	_, err = s.Update(t.Context(), b.ID, moveTo(subagent.StatusQueued, ""))
	require.ErrorIs(t, err, subagent.ErrNotFound)
	create(t, s, newTask("b"))
	require.NoError(t, s.Close())
	requireReconciled(t, filepath.Join(dir, "b"))
}

// TestEditedByHand has a person change tasks.json under a store: it is the
// truth, and nothing of it is overwritten.
func TestEditedByHand(t *testing.T) {
	dir, log := tempDir(t), newSaid()
	s := openStore(t, dir, gitstore.Options{Logger: slogTo(log)})
	a, b := newTask("a"), newTask("a")
	create(t, s, a)
	path := filepath.Join(dir, "a", "tasks.json")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	edited := regexp.MustCompile(`(?m)^    "checksum".*\n`).ReplaceAllString(string(data), "")
	edited = strings.Replace(edited, `"subject": "subject"`, `"subject": "by hand"`, 1)
	require.NoError(t, os.WriteFile(path, []byte(edited), 0o644))
	create(t, s, b)
	require.Contains(t, log.all(), "not as it was left")
	require.Equal(t, "by hand", get(t, s, a.ID).Subject)
	require.Equal(t, b, get(t, s, b.ID))
	require.NoError(t, s.Close())
	require.Equal(t, []string{"task: " + a.ID.String() + " →pending", "task: reconcile", "task: " + b.ID.String() + " →pending"}, subjects(t, filepath.Join(dir, "a")))
	requireReconciled(t, filepath.Join(dir, "a"))
}
