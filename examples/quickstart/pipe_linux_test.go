package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// patience is how long a test waits for what it has named.
const patience = 30 * time.Second

// pipe makes a named pipe among the Go files: whoever reads it waits until the
// test has written it, so that a sub-agent is where the test wants it.
func pipe(t *testing.T, root, name string) string {
	t.Helper()
	path := filepath.Join(root, filepath.FromSlash(name))
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, syscall.Mkfifo(path, 0o644))
	return path
}

// reached waits until somebody reads the pipe, and returns its writing end.
func reached(t *testing.T, path string) *os.File {
	t.Helper()
	opened := make(chan *os.File, 1)
	go func() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		assert.NoError(t, err)
		opened <- f
	}()
	select {
	case f := <-opened:
		return f
	case <-time.After(patience):
		require.FailNow(t, "nobody reads "+path)
		return nil
	}
}

// feed lets the reader of a pipe go on.
func feed(t *testing.T, f *os.File) {
	t.Helper()
	_, err := f.WriteString(goodFile)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// transcript is an output that can be waited on.
type transcript struct {
	mu   sync.Mutex // guards what follows
	text bytes.Buffer
	news chan struct{} // closed and replaced at each write
}

func (o *transcript) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.news != nil {
		close(o.news)
		o.news = nil
	}
	return o.text.Write(p)
}

func (o *transcript) now() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.news == nil {
		o.news = make(chan struct{})
	}
	return o.text.String(), o.news
}

func (o *transcript) wait(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(patience)
	for range 100_000 {
		have, news := o.now()
		if strings.Contains(have, text) {
			return
		}
		select {
		case <-news:
		case <-deadline:
			require.FailNow(t, "never said: "+text, have)
		}
	}
}

// begin starts the program inside the test.
func begin(t *testing.T, args ...string) (out, errs *transcript, interrupt func(), code func() int) {
	t.Helper()
	out, errs = &transcript{}, &transcript{}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, args, out, errs) }()
	return out, errs, cancel, func() int {
		select {
		case c := <-ended:
			return c
		case <-time.After(patience):
			require.FailNow(t, "the program does not end")
			return -1
		}
	}
}

func TestAnInterruptShowsWhatWasFound(t *testing.T) {
	root := tree(t, map[string]string{"a/a.go": loudFile, "a/c.go": goodFile, "b/b.go": goodFile})
	path := pipe(t, root, "a/b.go")
	out, errs, interrupt, code := begin(t, "-workers", "1", root)
	held := reached(t, path) // so a.go was read
	out.wait(t, "started    a\n")
	interrupt()
	out.wait(t, "stopping; Ctrl-C again quits at once\n")
	feed(t, held)

	assert.Equal(t, exitInterrupted, code())
	said, _ := out.now()
	assert.Contains(t, timeless(said), "cancelled  a    0.0s  at 2/3 b.go\n")
	assert.Regexp(t, `cancelled  b +never started\n`, said)
	assert.NotContains(t, said, "started    b")
	assert.Contains(t, said, ": 2 cancelled\n")
	assert.Contains(t, said, "a  cancelled, session\n  read         2 files, 12 lines, 1 without doc, 1 TODO\n")
	assert.Contains(t, said, "  TODO         a.go:5  be quiet\n")
	said, _ = errs.now()
	assert.Empty(t, said)
}

func TestAnInterruptWithJSONStillTellsEveryTask(t *testing.T) {
	root := tree(t, map[string]string{"a/a.go": loudFile, "b/b.go": goodFile})
	path := pipe(t, root, "a/b.go")
	out, errs, interrupt, code := begin(t, "-json", "-workers", "1", root)
	held := reached(t, path)
	interrupt()
	errs.wait(t, "stopping")
	feed(t, held)

	assert.Equal(t, exitInterrupted, code())
	said, _ := out.now()
	tasks := decode(t, said)
	require.Len(t, tasks, 2)
	assert.Equal(t, subagent.ReasonSession, tasks[0].Reason)
	assert.Equal(t, "interrupted", tasks[0].CancelMessage)
	assert.Equal(t, 2, readReport(tasks[0].ResultText).files)
	assert.Equal(t, subagent.StatusCancelled, tasks[1].Status)
}

func TestAHangingReadTimesOutAndHoldsUpNobody(t *testing.T) {
	root := tree(t, map[string]string{"a/a.go": loudFile, "b/b.go": goodFile})
	path := pipe(t, root, "a/b.go")
	out, errs, _, code := begin(t, "-workers", "1", "-timeout", "10ms", root)
	held := reached(t, path)

	assert.Equal(t, exitErrored, code())
	feed(t, held) // or its goroutine would outlive the test
	said, _ := out.now()
	assert.Contains(t, said, "timed out after 10ms; worker may be stuck\n")
	assert.Contains(t, said, "started    b\n")
	assert.Contains(t, said, ": 1 completed, 1 errored\n")
	assert.Contains(t, said, "a  errored, timeout\n  read         1 file, 6 lines, 1 without doc, 1 TODO\n", "the partial report is kept")
	said, _ = errs.now()
	assert.Equal(t, "quickstart: 1 sub-agent did not return: a read hangs\n", said)
}

func TestAFolderThatVanishesIsItsTasksError(t *testing.T) {
	root := tree(t, map[string]string{"b/b.go": goodFile, "c/c.go": goodFile})
	path := pipe(t, root, "a/a.go")
	out, _, _, code := begin(t, "-workers", "1", root)
	held := reached(t, path)
	require.NoError(t, os.RemoveAll(filepath.Join(root, "b")))
	feed(t, held)

	assert.Equal(t, exitErrored, code())
	said, _ := out.now()
	assert.Contains(t, timeless(said), "errored    b    0.0s  cannot read the folder: no such file or directory\n")
	assert.Contains(t, said, ": 2 completed, 1 errored\n")
}

// asNobody runs the program as a user whom file modes hold off.
func asNobody(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t), args...)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Skipf("cannot become another user: %v", err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestUnreadableFolders(t *testing.T) {
	root := tree(t, map[string]string{"a/a.go": goodFile, "b/b.go": goodFile, "c/c.go": goodFile, "c/secret.go": goodFile})
	require.NoError(t, os.Chmod(filepath.Dir(root), 0o755))
	require.NoError(t, os.Chmod(filepath.Join(root, "c", "secret.go"), 0))
	require.NoError(t, os.Chmod(filepath.Join(root, "b"), 0))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "b"), 0o755) })

	code, stdout, stderr := asNobody(t, root)
	assert.Equal(t, exitErrored, code)
	assert.Empty(t, stderr)
	assert.Contains(t, stdout, ": 1 completed, 2 errored\n")
	assert.Contains(t, stdout, "b  errored, error\n  error        cannot read the folder: permission denied\n")
	assert.Contains(t, stdout, "  error        secret.go: permission denied\n")

	code, stdout, stderr = asNobody(t, filepath.Join(root, "b"))
	assert.Equal(t, exitUsage, code)
	assert.Empty(t, stdout)
	assert.Equal(t, "quickstart: cannot read "+filepath.Join(root, "b")+": permission denied\n", stderr)
}
