package gitstore_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
	"github.com/go-subagent/subagent/subagenttest"
)

func TestConformance(t *testing.T) {
	subagenttest.TestStore(t, func(t *testing.T) subagent.Store {
		return openStore(t, tempDir(t), gitstore.Options{})
	})
}

// TestReopened stores tasks of all kinds and reads them with another Store.
func TestReopened(t *testing.T) {
	dir := tempDir(t)
	s := openStore(t, dir, gitstore.Options{})
	long := strings.Repeat("0123456789 äöü 🜁\r\n\x00", 1000)
	ended := live(t, s, newTask("a"), long)
	short := live(t, s, newTask("a"), strings.Repeat("s", 4096))
	open := newTask("b c \n d")
	open.Metadata = map[string]string{"k<>&": "v\u2028\x00"}
	create(t, s, open)
	require.NoError(t, s.Close())

	text, err := os.ReadFile(filepath.Join(dir, "a", "tasks", ended.ID.String()+".txt"))
	require.NoError(t, err)
	require.Equal(t, long, string(text))
	require.NoFileExists(t, filepath.Join(dir, "a", "tasks", short.ID.String()+".txt"))

	for _, index := range []bool{true, false} {
		if !index {
			require.NoError(t, os.Remove(filepath.Join(dir, ".index")))
		}
		s = openStore(t, dir, gitstore.Options{})
		require.Equal(t, ended, get(t, s, ended.ID))
		require.Equal(t, []subagent.Task{ended, short}, list(t, s, subagent.Filter{SessionID: "a"}))
		require.Equal(t, []subagent.Task{open}, list(t, s, subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending}}))
		require.Equal(t, []subagent.Task{short, ended}, list(t, s, subagent.Filter{Undelivered: true, NewestFirst: true}))
		require.NoError(t, s.Close())
	}
	requireReconciled(t, filepath.Join(dir, "a"))
	requireReconciled(t, filepath.Join(dir, "b c \n d"))
}

// TestFormat is what other programs read.
func TestFormat(t *testing.T) {
	dir := tempDir(t)
	s := openStore(t, dir, gitstore.Options{})
	task := newTask("a")
	task.ID = uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	create(t, s, task)
	require.NoError(t, s.Close())
	data, err := os.ReadFile(filepath.Join(dir, "a", "tasks.json"))
	require.NoError(t, err)
	require.Equal(t, `{
  "01890a5d-ac96-774b-bcce-b302099a8057": {
    "attempt": 0,
    "background": true,
    "checksum": "crc32c:2d248604",
    "context_mode": "clean",
    "created_at": "2024-02-29T23:59:58.123456Z",
    "description": "do <this> & that",
    "parent_session_id": "a",
    "status": "pending",
    "subject": "subject",
    "task_id": "01890a5d-ac96-774b-bcce-b302099a8057",
    "version": 1
  }
}
`, string(data))
}

// TestNewerVersion has a record that a newer version wrote: with keys that are
// not known, also in known objects, and one with a status that is not known.
func TestNewerVersion(t *testing.T) {
	dir := tempDir(t)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "a"), 0o755))
	odd, known := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	path := filepath.Join(dir, "a", "tasks.json")
	require.NoError(t, os.WriteFile(path, []byte(`{
		"`+known.String()+`": {"task_id": "`+known.String()+`", "status": "running", "parent_session_id": "a", "created_at": "2024-02-29T23:59:58Z",
			"Subject": "not the subject", "subject": "s", "novel": [1, {"b": 2, "a": 1.50}], "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "carbon": "7g"},
			"progress": {"mood": "good"}, "description": "d", "attempt": 0, "version": 5},
		"`+odd.String()+`": {"task_id": "`+odd.String()+`", "status": "paused", "parent_session_id": "a", "created_at": "2024-02-29T23:59:58Z",
			"subject": "s", "description": "d", "attempt": 0, "version": 2}}`), 0o644))
	log := newSaid()
	s := openStore(t, dir, gitstore.Options{Logger: slogTo(log)})
	require.Contains(t, log.all(), "unknown status")
	require.Contains(t, log.all(), odd.String())

	require.Equal(t, "s", get(t, s, known).Subject)
	move(t, s, known, subagent.StatusCompleted, "done")
	var stored map[string]map[string]json.RawMessage
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &stored))
	require.JSONEq(t, `[1, {"b": 2, "a": 1.50}]`, string(stored[known.String()]["novel"]))
	require.JSONEq(t, `"not the subject"`, string(stored[known.String()]["Subject"]))
	require.JSONEq(t, `{"mood": "good"}`, string(stored[known.String()]["progress"]))
	require.JSONEq(t, `{"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "carbon": "7g"}`, string(stored[known.String()]["usage"]))
	require.JSONEq(t, `"paused"`, string(stored[odd.String()]["status"]))

	require.Empty(t, list(t, s, subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}}))
	require.Equal(t, subagent.Status("paused"), get(t, s, odd).Status)
	_, err = s.Update(t.Context(), odd, moveTo(subagent.StatusCompleted, ""))
	require.ErrorIs(t, err, subagent.ErrInvalidTransition)
	require.ErrorIs(t, s.Delete(t.Context(), odd), subagent.ErrNotTerminal)

	runner, err := subagent.New(t.Context(), subagent.Config{Store: s})
	require.NoError(t, err)
	require.NoError(t, runner.Shutdown(t.Context()))
	require.Equal(t, subagent.Status("paused"), get(t, s, odd).Status, "neither run nor recovered")
}

// TestTextOfARunningTask changes a long text over and over: the file that is
// referred to stays whole, and the others go.
func TestTextOfARunningTask(t *testing.T) {
	dir := tempDir(t)
	s := openStore(t, dir, gitstore.Options{})
	task := newTask("a")
	task.Status = subagent.StatusRunning
	create(t, s, task)
	var last string
	for _, text := range []string{strings.Repeat("a", 5000), strings.Repeat("b", 5000), strings.Repeat("b", 5000), "short", strings.Repeat("c", 9000)} {
		last = text
		got, err := s.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.ResultText = text; return nil })
		require.NoError(t, err)
		require.Equal(t, text, got.ResultText)
		require.Equal(t, text, get(t, s, task.ID).ResultText)
	}
	require.NoError(t, s.Close())
	files, err := os.ReadDir(filepath.Join(dir, "a", "tasks"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	requireReconciled(t, filepath.Join(dir, "a"))
	s = openStore(t, dir, gitstore.Options{})
	require.Equal(t, last, get(t, s, task.ID).ResultText)
	end := move(t, s, task.ID, subagent.StatusCompleted, last)
	require.Equal(t, last, end.ResultText)
	require.NoError(t, s.Delete(t.Context(), task.ID))
	require.NoError(t, s.Close())
	files, err = os.ReadDir(filepath.Join(dir, "a", "tasks"))
	require.NoError(t, err)
	require.Empty(t, files)
	requireReconciled(t, filepath.Join(dir, "a"))
}

func TestInvalidText(t *testing.T) {
	s := openStore(t, tempDir(t), gitstore.Options{})
	task := newTask("a")
	for _, spoil := range []func(*subagent.Task){
		func(t *subagent.Task) { t.Description = "\xff" },
		func(t *subagent.Task) { t.Reason = "\xff" },
		func(t *subagent.Task) { t.Progress.Message = "\xff" },
		func(t *subagent.Task) { t.Metadata = map[string]string{"\xff": ""} },
		func(t *subagent.Task) { t.ResultText = strings.Repeat("\xff", 5000) },
		func(t *subagent.Task) { t.CreatedAt = t.CreatedAt.AddDate(9000, 0, 0) },
	} {
		bad := task
		spoil(&bad)
		require.ErrorIs(t, s.Create(t.Context(), bad), subagent.ErrInvalidRequest)
	}
	create(t, s, task)
	_, err := s.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.Error = "\xff"; return nil })
	require.ErrorIs(t, err, subagent.ErrInvalidRequest)
	require.Equal(t, task, get(t, s, task.ID))
}

func TestNames(t *testing.T) {
	dir := tempDir(t)
	s := openStore(t, dir, gitstore.Options{})
	for _, name := range []string{"", ".", "..", ".hidden", "a/b", `a\b`, "/a", "a..b", "a\x00", "\xff", strings.Repeat("a", 201)} {
		require.ErrorIs(t, s.Create(t.Context(), newTask(name)), subagent.ErrInvalidRequest, "%q", name)
	}
	git(t, dir, "init", "-q", "--bare", "bare")
	require.ErrorIs(t, s.Create(t.Context(), newTask("bare")), subagent.ErrInvalidRequest)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	require.ErrorIs(t, s.Create(t.Context(), newTask("file")), subagent.ErrInvalidRequest)
	require.NoError(t, os.Symlink(tempDir(t), filepath.Join(dir, "link")))
	require.ErrorIs(t, s.Create(t.Context(), newTask("link")), subagent.ErrInvalidRequest)
	for _, name := range []string{"a:b", "-rf", "a b", "[a]*", "ä🜁", strings.Repeat("a", 200), "new\nline", "'\"$HOME"} {
		create(t, s, newTask(name))
	}
	require.NoError(t, s.Close())
	for _, e := range []string{"a:b", "-rf", "[a]*", "new\nline", "'\"$HOME"} {
		requireReconciled(t, filepath.Join(dir, e))
	}
}

func TestClosed(t *testing.T) {
	s := openStore(t, tempDir(t), gitstore.Options{})
	task := newTask("a")
	create(t, s, task)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Create(t.Context(), newTask("a")), subagent.ErrClosed)
	_, err := s.Get(t.Context(), task.ID)
	require.ErrorIs(t, err, subagent.ErrClosed)
	_, err = s.Update(t.Context(), task.ID, func(*subagent.Task) error { return nil })
	require.ErrorIs(t, err, subagent.ErrClosed)
	require.ErrorIs(t, s.Delete(t.Context(), task.ID), subagent.ErrClosed)
	for _, err := range s.List(context.Background(), subagent.Filter{}) {
		require.ErrorIs(t, err, subagent.ErrClosed)
	}
}

// TestCloseStoresWhatIsUnderWay closes while calls are under way whose ctx has
// ended: what they were to store is stored or not, and no goroutine is left.
func TestCloseStoresWhatIsUnderWay(t *testing.T) {
	dir := tempDir(t)
	s := openStore(t, dir, gitstore.Options{})
	task := newTask("a")
	create(t, s, task)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Update(ctx, task.ID, func(t *subagent.Task) error { cancel(); t.AgentID = "x"; return nil })
	if err != nil {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, s.Close())
	s = openStore(t, dir, gitstore.Options{})
	require.Contains(t, []string{"", "x"}, get(t, s, task.ID).AgentID)
}

// held are files on which tasks.json gets its name when the test lets it.
type held struct {
	gitstore.OSFiles
	reached chan struct{} // closed when it is about to
	release chan struct{}
	once    sync.Once
}

func (h *held) Rename(from, to string) error {
	if filepath.Base(to) == "tasks.json" {
		h.once.Do(func() { close(h.reached) })
		<-h.release
	}
	return h.OSFiles.Rename(from, to)
}

// TestWriteUnderWayIsSeenThrough ends the ctx of a call whose write is under
// way: what the call says in the end is what is stored, for who is told that it
// failed, and finds nothing, will not look again.
func TestWriteUnderWayIsSeenThrough(t *testing.T) {
	files := &held{reached: make(chan struct{}), release: make(chan struct{})}
	s, err := gitstore.OpenOn(tempDir(t), gitstore.Options{}, files)
	require.NoError(t, err)
	defer s.Close()
	task := newTask("a")
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan error, 1)
	go func() { told <- s.Create(ctx, task) }() // ends with the write, which release lets go
	<-files.reached
	cancel()
	select {
	case err := <-told:
		t.Errorf("the write is under way, and Create has returned: %v", err)
	case <-time.After(50 * time.Millisecond): // it has had the time to
	}
	close(files.release)
	if !t.Failed() {
		require.NoError(t, <-told)
	}
	require.Equal(t, task.ID, get(t, s, task.ID).ID)
}
