package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite testdata/run.txt")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const library = "testdata/library"

// call runs the program to its end, without a provider unless env names one.
func call(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, func(name string) string { return env[name] }, &out, &errs)
	return code, out.String(), errs.String()
}

// saved returns a file with the history of a run: of the same one each time.
func saved(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "history.json")
	once.Do(func() {
		code, _, stderr := call(t, nil, "-save", file, "Who writes about whales?", library)
		require.Equal(t, exitDone, code, stderr)
		var err error
		once.history, err = os.ReadFile(file)
		require.NoError(t, err)
	})
	require.NoError(t, os.WriteFile(file, once.history, 0o600))
	return file
}

var once struct {
	sync.Once
	history []byte
}

func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "history.json")
	code, stdout, stderr := call(t, nil, "-save", file, "Who writes about whales?", library)
	require.Equal(t, exitDone, code, stderr)
	assert.Empty(t, stderr)
	got := settled(strings.ReplaceAll(stdout, file, "FILE"))
	if *update {
		require.NoError(t, os.WriteFile("testdata/run.txt", []byte(got), 0o644))
	}
	want, err := os.ReadFile("testdata/run.txt")
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

// settled is an output with what differs from run to run replaced: ids by
// numbers, the port, and times. A stop is answered before or after the end.
func settled(s string) string {
	ids := map[string]string{}
	s = uuids.ReplaceAllStringFunc(s, func(id string) string {
		if ids[id] == "" {
			ids[id] = fmt.Sprintf("ID-%d", len(ids)+1)
		}
		return ids[id]
	})
	for _, r := range []struct{ from, to string }{
		{`[0-9a-f]{8}-[0-9a-f-]*…`, "ID…"},
		{`127\.0\.0\.1:\d+`, "127.0.0.1:PORT"},
		{`\b\d+(\.\d+)?(µs|ms|s)\b`, "0s"},
		{`The task was (asked to stop and will end soon|stopped): .*`, "The task was stopped, or will end soon"},
	} {
		s = regexp.MustCompile(r.from).ReplaceAllString(s, r.to)
	}
	return s
}

func TestMoreSlotsLeadToTheSameAnswer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "history.json")
	code, stdout, stderr := call(t, nil, "-slots", "4", "-save", file, "Who writes about whales?", library)
	require.Equal(t, exitDone, code, stderr)
	want, err := os.ReadFile("testdata/run.txt")
	require.NoError(t, err)
	_, cards, _ := strings.Cut(string(want), "cards\n")
	assert.Contains(t, settled(stdout), cards[:strings.Index(cards, "\n\n")])
	assert.Contains(t, stdout, "all, each once")
}

func TestNothingIsFound(t *testing.T) {
	code, stdout, _ := call(t, nil, "-save", filepath.Join(t.TempDir(), "h"), "Any unicorns?", t.TempDir())
	assert.Equal(t, exitDone, code)
	assert.Contains(t, stdout, "It is empty.\n")
	assert.Contains(t, stdout, `lead   "unicorns" is not mentioned.`)
}

func TestArguments(t *testing.T) {
	const question = "Who?"
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		want string
	}{
		"none":             {nil, nil, "give a question and a directory, and the flags before them; these are 0 arguments"},
		"no directory":     {nil, []string{question}, "these are 1 argument"},
		"flags behind":     {nil, []string{question, library, "-slots", "2"}, "these are 4 arguments"},
		"empty question":   {nil, []string{" ", library}, "the question is empty"},
		"no slots":         {nil, []string{"-slots", "0", question, library}, "-slots must be at least 1, not 0"},
		"unknown flag":     {nil, []string{"-fast", question, library}, "flag provided but not defined: -fast"},
		"no such dir":      {nil, []string{question, "no/such\x1bdir"}, "cannot open the directory no/such\uFFFDdir: no such file or directory"},
		"a file":           {nil, []string{question, "main.go"}, "cannot open the directory main.go: not a directory"},
		"no place":         {nil, []string{"-save", "no/such/file", question, library}, "cannot save the history"},
		"model alone":      {map[string]string{"OPENAI_MODEL": "m"}, []string{question, library}, "OPENAI_MODEL is set and OPENAI_BASE_URL is not"},
		"url alone":        {map[string]string{"OPENAI_BASE_URL": "http://x/v1"}, []string{question, library}, "OPENAI_BASE_URL is set and OPENAI_MODEL is not"},
		"no url":           {map[string]string{"OPENAI_BASE_URL": "x:80/v1", "OPENAI_MODEL": "m"}, []string{question, library}, `OPENAI_BASE_URL is "x:80/v1"; it must be an http or https URL`},
		"replay and more":  {nil, []string{"-replay", "f", question}, `-replay takes no further arguments, not "Who?"`},
		"replay of none":   {nil, []string{"-replay", "no/such"}, "cannot read the history no/such"},
		"replay of source": {nil, []string{"-replay", "main.go"}, "main.go is no history that this program saved"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, c.env, c.args...)
			assert.Equal(t, exitUsage, code)
			assert.Empty(t, stdout)
			assert.Contains(t, stderr, c.want)
		})
	}
}

func TestHelp(t *testing.T) {
	code, _, stderr := call(t, nil, "-h")
	assert.Equal(t, exitDone, code)
	assert.Contains(t, stderr, "usage: agentloop")
}

func TestHistoryGoesToATemporaryFile(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("TMP", os.Getenv("TMPDIR"))
	code, stdout, _ := call(t, nil, "Who?", library)
	assert.Equal(t, exitDone, code)
	_, file, _ := strings.Cut(strings.TrimSpace(stdout), "saved  ")
	assert.FileExists(t, file)
	assert.Equal(t, os.Getenv("TMPDIR"), filepath.Dir(file))
}

// A key alone would be one that the user has for something else.
func TestAKeyAloneCallsNobody(t *testing.T) {
	code, stdout, _ := call(t, map[string]string{"OPENAI_API_KEY": "secret"}, "-save", filepath.Join(t.TempDir(), "h"), "Who?", library)
	assert.Equal(t, exitDone, code)
	assert.Contains(t, stdout, "model  scripted at http://127.0.0.1:")
}

// interrupter ends a ctx once a text was printed.
type interrupter struct {
	bytes.Buffer
	at     string
	cancel func()
}

func (i *interrupter) Write(p []byte) (int, error) {
	n, err := i.Buffer.Write(p)
	if strings.Contains(i.String(), i.at) {
		i.cancel()
	}
	return n, err
}

func TestInterruptStopsAllAndSaves(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	file := filepath.Join(t.TempDir(), "history.json")
	out := &interrupter{at: "last progress: turn 2", cancel: cancel} // the reader is at work
	var stderr bytes.Buffer
	code := run(ctx, []string{"-save", file, "Who?", library}, func(string) string { return "" }, out, &stderr)
	assert.Equal(t, exitInterrupted, code)
	assert.Equal(t, "agentloop: interrupted; all sub-agents are told to stop\n", stderr.String())
	assert.Contains(t, out.String(), "[Read everything] cancelled (session): All of it, then; from the top.")

	code, stdout, errs := call(t, nil, "-replay", file)
	assert.Equal(t, exitDone, code, errs)
	assert.Regexp(t, `(?m)^ +1 .* reader$`, stdout, "what it had spent is counted")
	assert.Contains(t, stdout, "every token is counted once")
}

// fake is a model that says what decide tells it to, in the wire format.
func fake(t *testing.T, decide func(chatRequest) speech) map[string]string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		var req chatRequest
		if !assert.NoError(t, json.NewDecoder(r.Body).Decode(&req)) || !assert.NoError(t, check(req)) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		says := decide(req)
		line{w: w, usage: true}.stream(says, cost(req, says))
	})
}

// serve returns an environment whose provider is the handler.
func serve(t *testing.T, handler http.HandlerFunc) map[string]string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return map[string]string{"OPENAI_BASE_URL": server.URL + "/v1/", "OPENAI_MODEL": "fake", "OPENAI_API_KEY": "secret"}
}

// heard collects what a fake model was sent.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) add(s string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, s)
}
