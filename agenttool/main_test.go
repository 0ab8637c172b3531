package agenttool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// golden compares got with testdata/name, or writes it there with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update to make it")
	require.Equal(t, string(want), got, "%s", path)
}

// host is a Runner whose tasks wait at a gate, and its tools.
type host struct {
	*subagent.Runner

	t     *testing.T
	gate  *subagenttest.Gate
	store *subagenttest.FaultyStore
	tools *agenttool.Toolset
	calls int
}

const session = "chat-1"

// inHost runs f in a bubble with a host of all five tools and one slot.
func inHost(t *testing.T, f func(t *testing.T, h *host)) {
	t.Helper()
	inHostOf(t, subagent.Config{}, agenttool.Options{}, f)
}

func inHostOf(t *testing.T, cfg subagent.Config, o agenttool.Options, f func(t *testing.T, h *host)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		h := newHost(t, cfg, o)
		defer func() { // also after a failure, so that the bubble can end
			h.store.On(subagenttest.OpGet, nil)
			h.store.On(subagenttest.OpList, nil)
			h.store.On(subagenttest.OpUpdate, nil)
			h.gate.ReleaseAll()
			_ = h.Shutdown(context.Background())
		}()
		f(t, h)
	})
}

func newHost(t *testing.T, cfg subagent.Config, o agenttool.Options) *host {
	t.Helper()
	h := &host{t: t, gate: subagenttest.NewGate(), store: subagenttest.NewFaultyStore(subagent.NewMemoryStore())}
	if cfg.Func == nil {
		cfg.Func = h.gate.Func()
	}
	if cfg.Workers == 0 {
		cfg.Workers = 1
	}
	cfg.Store = h.store.Store()
	var err error
	h.Runner, err = subagent.New(t.Context(), cfg)
	require.NoError(t, err)
	o.PlanTools = true
	h.tools = agenttool.New(h.Runner, o)
	return h
}

type args = map[string]any

// call makes a call of the session, each with an id of its own.
func (h *host) call(name string, a any) agenttool.Answer {
	h.t.Helper()
	h.calls++
	return h.callAs(h.t.Context(), agenttool.Call{ID: fmt.Sprintf("call_%d", h.calls), Name: name, SessionID: session, MessageID: "msg_1"}, a)
}

// callAs makes the call c with the arguments a: a string is sent as it is.
func (h *host) callAs(ctx context.Context, c agenttool.Call, a any) agenttool.Answer {
	h.t.Helper()
	if raw, ok := a.(string); ok {
		c.Arguments = json.RawMessage(raw)
	} else {
		data, err := json.Marshal(a)
		require.NoError(h.t, err)
		c.Arguments = data
	}
	answer := h.tools.Call(ctx, c)
	if answer.Data != nil {
		require.True(h.t, json.Valid(answer.Data))
	}
	return answer
}

// start has a model start a task in the background.
func (h *host) start(prompt string) uuid.UUID {
	h.t.Helper()
	a := h.call("agent", args{"prompt": prompt, "description": prompt, "run_in_background": true})
	require.False(h.t, a.IsError, a.Text)
	return a.TaskID
}

// runs is start, and the task has reached the gate.
func (h *host) runs(prompt string) (uuid.UUID, *subagent.Run) {
	h.t.Helper()
	id := h.start(prompt)
	return id, h.gate.WaitEntered(h.t, id)
}

// finish has a task at the gate return, and waits until nothing moves.
func (h *host) finish(id uuid.UUID, text string) {
	h.gate.Release(id, subagent.Result{Text: text}, nil)
	synctest.Wait()
}

// spawn starts a task without a model.
func (h *host) spawn(ctx context.Context, change ...func(*subagent.Request)) uuid.UUID {
	h.t.Helper()
	q := subagent.Request{Description: "host's own", ParentSessionID: session}
	for _, c := range change {
		c(&q)
	}
	t, err := h.Spawn(ctx, q)
	require.NoError(h.t, err)
	return t.ID
}

func (h *host) get(id uuid.UUID) subagent.Task {
	h.t.Helper()
	t, err := h.Get(context.Background(), id)
	require.NoError(h.t, err)
	return t
}

// data decodes an answer's Data.
func data[T any](t *testing.T, a agenttool.Answer) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(a.Data, &v), a.Text)
	return v
}

// taskData is a task in Data, as a host reads it.
type taskData struct {
	subagent.Task
	Usage *subagent.Usage `json:"usage"`
}

type tasksData struct {
	Done  bool       `json:"done"`
	Tasks []taskData `json:"tasks"`
}

type stopData struct {
	OK      bool            `json:"ok"`
	Status  subagent.Status `json:"status"`
	TaskID  uuid.UUID       `json:"task_id"`
	Stopped []uuid.UUID     `json:"stopped"`
}

// refused checks that a call was refused in one sentence that says all of it.
func refused(t *testing.T, a agenttool.Answer, says ...string) {
	t.Helper()
	require.True(t, a.IsError, a.Text)
	require.Empty(t, a.Data)
	require.Nil(t, a.Usage)
	require.Equal(t, uuid.Nil, a.TaskID)
	require.NotContains(t, a.Text, "\n", "one sentence")
	require.True(t, strings.HasSuffix(a.Text, "."), a.Text)
	for _, s := range says {
		require.Contains(t, a.Text, s)
	}
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)

// transcript is calls and answers as a golden file shows them: each id has the
// number in which it first appears.
type transcript struct {
	out bytes.Buffer
	ids map[string]string
}

func (p *transcript) add(call string, a agenttool.Answer) {
	fmt.Fprintf(&p.out, "=== %s\n%s\n", call, a.Text)
	if a.IsError {
		p.out.WriteString("--- error\n")
	}
	if a.Usage != nil {
		fmt.Fprintf(&p.out, "--- usage %+v of %s\n", *a.Usage, a.TaskID)
	}
	if a.Data != nil {
		p.out.WriteString("--- ")
		_ = json.Indent(&p.out, a.Data, "", "  ")
		p.out.WriteString("\n")
	}
	p.out.WriteString("\n")
}

func (p *transcript) String() string {
	return uuids.ReplaceAllStringFunc(p.out.String(), func(id string) string {
		if p.ids == nil {
			p.ids = make(map[string]string)
		}
		if p.ids[id] == "" {
			p.ids[id] = fmt.Sprintf("ID-%d", len(p.ids)+1)
		}
		return p.ids[id]
	})
}
