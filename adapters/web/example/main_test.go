package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs the program over a small tree and returns its address.
func start(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range map[string]string{
		"a.go":          "package a\n\nfunc A() {}\n",
		"b/b.go":        "package b\n\ntype B struct{}\n",
		"b/c.go":        "package b\n",
		"testdata/x.go": "not Go",
		"broken/x.go":   "package",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644))
	}
	o, err := parse(append(args, "-addr", "127.0.0.1:0", "-pause", "1ms", dir), io.Discard)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- run(ctx, o, w) }()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		http.DefaultClient.CloseIdleConnections()
	})
	return strings.Fields(line)[1]
}

func fetch(t *testing.T, method, url string, into any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("{}"))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	if into != nil && resp.StatusCode < 300 {
		require.NoError(t, json.NewDecoder(resp.Body).Decode(into))
	}
	return resp.StatusCode
}

func ended(t *testing.T, base string, task subagent.Task) subagent.Task {
	t.Helper()
	return until(t, base, task, func(now subagent.Task) bool { return now.Status.Terminal() })
}

func started(t *testing.T, base string, task subagent.Task) {
	t.Helper()
	until(t, base, task, func(now subagent.Task) bool { return now.Progress.Message != "" })
}

// until reads the event stream until the task is as it should be.
func until(t *testing.T, base string, task subagent.Task, right func(subagent.Task) bool) subagent.Task {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", base+"subagents/events", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 2<<20)
	for {
		require.True(t, lines.Scan(), "the stream ended")
		if !strings.HasPrefix(lines.Text(), "data: ") {
			continue
		}
		var now subagent.Task // asked for after the stream was there: nothing is missed
		require.Equal(t, 200, fetch(t, "GET", base+"subagents/tasks/"+task.ID.String(), &now))
		if right(now) {
			return now
		}
	}
}

func TestReadsTheFolders(t *testing.T) {
	base := start(t)
	var task subagent.Task
	require.Equal(t, 200, fetch(t, "POST", base+"spawn/tree", &task))
	end := ended(t, base, task)
	require.Equal(t, subagent.StatusCompleted, end.Status)
	require.Equal(t, ".: completed\nb: completed\nbroken: errored\n", end.ResultText)
	var list struct{ Tasks []subagent.Task }
	require.Equal(t, 200, fetch(t, "GET", base+"subagents/tasks?session_id=reading-1", &list))
	require.Len(t, list.Tasks, 4)
	require.Equal(t, "b.go: package b, 0 functions, 1 types\nc.go: package b, 0 functions, 0 types\n", list.Tasks[1].ResultText)
	require.Equal(t, task.ID, list.Tasks[1].ParentTaskID)
	require.Positive(t, list.Tasks[1].Usage.InputTokens)
}

func TestTrouble(t *testing.T) {
	base := start(t)
	var failing, deaf subagent.Task
	require.Equal(t, 200, fetch(t, "POST", base+"spawn/failing", &failing))
	require.Equal(t, subagent.StatusErrored, ended(t, base, failing).Status)
	require.Equal(t, 200, fetch(t, "POST", base+"spawn/deaf", &deaf))
	started(t, base, deaf)
	require.Equal(t, 200, fetch(t, "POST", base+"subagents/tasks/"+deaf.ID.String()+"/cancel", nil))
	end := ended(t, base, deaf)
	require.Equal(t, subagent.StatusCancelled, end.Status)
	require.True(t, end.Detached, "its end was forced")
	require.Equal(t, 404, fetch(t, "POST", base+"spawn/other", nil))
}

func TestPageAndHost(t *testing.T) {
	base := start(t, "-read-only")
	for path, want := range map[string]int{"": 200, "host.js": 200, "host.css": 200, "subagents/": 200, "subagents/badge": 200, "nothing": 404} {
		require.Equal(t, want, fetch(t, "GET", base+path, nil), path)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", base, nil)
	require.NoError(t, err)
	req.Host = "rebound.example"
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, 403, resp.StatusCode)
	require.Equal(t, 403, fetch(t, "POST", base+"subagents/sessions/x/cancel", nil))
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-workers", "0"}, {"a", "b"}, {"/no/such/dir"}, {"-nothing"}} {
		_, err := parse(args, io.Discard)
		require.Error(t, err, args)
	}
	err := run(t.Context(), options{addr: "0.0.0.0:0", dir: ".", workers: 1}, io.Discard)
	require.ErrorContains(t, err, "no loopback address")
}
