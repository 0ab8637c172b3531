package gitstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
)

var epoch = time.Date(2024, 2, 29, 23, 59, 58, 123_456_000, time.UTC)

// newTask returns a pending task of a session.
func newTask(session string) subagent.Task {
	id := uuid.Must(uuid.NewV7())
	return subagent.Task{
		ID: id, Subject: "subject", Description: "do <this> & that", ContextMode: subagent.ContextClean,
		Status: subagent.StatusPending, CreatedAt: epoch, ParentSessionID: session, Version: 1, Background: true,
	}
}

// openStore opens a store that is closed, without error, when the test ends.
func openStore(t testing.TB, dir string, o gitstore.Options) *gitstore.Store {
	t.Helper()
	s, err := gitstore.Open(dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func create(t testing.TB, s subagent.Store, tasks ...subagent.Task) {
	t.Helper()
	require.NoError(t, s.Create(context.Background(), tasks...))
}

// move makes a transition.
func move(t testing.TB, s subagent.Store, id uuid.UUID, to subagent.Status, result string) subagent.Task {
	t.Helper()
	task, err := s.Update(context.Background(), id, moveTo(to, result))
	require.NoError(t, err)
	return task
}

func moveTo(to subagent.Status, result string) func(*subagent.Task) error {
	return func(t *subagent.Task) error {
		t.Status, t.ResultText = to, result
		switch {
		case to == subagent.StatusQueued:
			t.QueuedAt = epoch.Add(time.Second)
		case to == subagent.StatusRunning:
			t.StartedAt = epoch.Add(2 * time.Second)
		case to.Terminal():
			t.CompletedAt = epoch.Add(3 * time.Second)
		}
		return nil
	}
}

// live takes a new task through its life and returns its end.
func live(t testing.TB, s subagent.Store, task subagent.Task, result string) subagent.Task {
	t.Helper()
	create(t, s, task)
	move(t, s, task.ID, subagent.StatusQueued, "")
	move(t, s, task.ID, subagent.StatusRunning, "")
	return move(t, s, task.ID, subagent.StatusCompleted, result)
}

func get(t testing.TB, s subagent.Store, id uuid.UUID) subagent.Task {
	t.Helper()
	task, err := s.Get(context.Background(), id)
	require.NoError(t, err)
	return task
}

func list(t testing.TB, s subagent.Store, f subagent.Filter) (tasks []subagent.Task) {
	t.Helper()
	for task, err := range s.List(context.Background(), f) {
		require.NoError(t, err)
		tasks = append(tasks, task)
	}
	return tasks
}

// git runs git as a host does, in a folder of its own.
func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=host", "-c", "user.email=host@localhost"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "git %v: %s", args, out)
	return string(out)
}

// subjects are the history's, the oldest first.
func subjects(t testing.TB, folder string) []string {
	t.Helper()
	return strings.Split(strings.TrimSpace(git(t, folder, "log", "--reverse", "--format=%s", "tasks", "--")), "\n")
}

// requireReconciled checks that the branch says what tasks.json says, long
// results included, and that the repository is sound.
func requireReconciled(t testing.TB, folder string) {
	t.Helper()
	fsck(t, folder)
	stored, err := os.ReadFile(filepath.Join(folder, "tasks.json"))
	require.NoError(t, err)
	require.Equal(t, string(stored), git(t, folder, "show", "tasks:tasks.json"))
	names := strings.Fields(git(t, folder, "ls-tree", "-r", "--name-only", "tasks"))
	for _, name := range names {
		want, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		require.Equal(t, string(want), git(t, folder, "show", "tasks:"+name), name)
	}
}

func fsck(t testing.TB, folder string) {
	t.Helper()
	out := git(t, folder, "fsck", "--strict", "--no-dangling")
	for line := range strings.Lines(out) { // HEAD is the host's, who may not have committed yet
		require.True(t, strings.HasPrefix(line, "notice: "), line)
	}
}

// tempDir is a folder for stores. Whatever the test did in it, git must find
// every repository in it sound at the end.
func tempDir(t testing.TB) string {
	dir := t.TempDir()
	t.Cleanup(func() { fsckAll(t, dir) })
	return dir
}

// fsckAll checks every repository below dir.
func fsckAll(t testing.TB, dir string) {
	t.Helper()
	for _, pattern := range []string{"*/.git", "*/*/.git"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		for _, path := range found {
			fsck(t, filepath.Dir(path))
		}
	}
}

// memoryDir is a folder in memory where there is one: for tests in which syncs
// are counted, not waited for.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gitstore")
	if err != nil {
		return tempDir(t)
	}
	t.Cleanup(func() {
		fsckAll(t, dir)
		removeAll(t, dir)
	})
	return dir
}

// removeAll waits for the git of a process that was killed, which may still be
// writing.
func removeAll(t testing.TB, dir string) {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	late := time.After(30 * time.Second)
	for err := os.RemoveAll(dir); err != nil; err = os.RemoveAll(dir) {
		select {
		case <-again.C:
		case <-late:
			t.Fatal(err)
		}
	}
}

// said collects what a store logs.
type said struct {
	mu    sync.Mutex // guards lines
	lines []string
	heard chan struct{} // has one place: there is a new line
}

func newSaid() *said { return &said{heard: make(chan struct{}, 1)} }

func (l *said) Enabled(context.Context, slog.Level) bool { return true }
func (l *said) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *said) WithGroup(string) slog.Handler            { return l }

func (l *said) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		return true
	})
	l.mu.Lock()
	l.lines = append(l.lines, line)
	l.mu.Unlock()
	select {
	case l.heard <- struct{}{}:
	default:
	}
	return nil
}

func (l *said) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// wait blocks until something with this text was logged.
func (l *said) wait(t testing.TB, text string) {
	t.Helper()
	late := time.After(30 * time.Second)
	for !strings.Contains(l.all(), text) {
		select {
		case <-l.heard:
		case <-late:
			t.Fatalf("nobody has said %q, but:\n%s", text, l.all())
		}
	}
}
