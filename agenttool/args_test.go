package agenttool_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

// good are the least arguments that a tool takes.
func good(id uuid.UUID) map[string]args {
	return map[string]args{
		"agent":       {"prompt": "p", "description": "d"},
		"task_output": {"task_id": id.String()},
		"task_stop":   {"task_id": id.String()},
		"list_tasks":  {},
		"await_tasks": {"task_ids": []string{id.String()}},
	}
}

func with(a args, key string, value any) args {
	b := args{}
	for k, v := range a {
		b[k] = v
	}
	if b[key] = value; value == missing {
		delete(b, key)
	}
	return b
}

const missing = "\x00missing"

// badCall is a call that must be refused, and what its answer must say.
type badCall struct {
	tool string
	args any
	says []string
}

// keys are the arguments of a tool, with values of a wrong type for each.
var keys = map[string]map[string][]any{
	"agent": {
		"prompt": {5, true, []int{}, args{}}, "description": {5, false, []int{1}, args{"a": 1}},
		"agent_id": {5, true, []string{"a"}}, "context": {1, "CLEAN", "", "dirty"}, "run_in_background": {"true", 1, 0, "", []bool{true}},
	},
	"task_output": {"task_id": {5, true, []string{"a"}}, "block": {"false", 0}, "timeout": badNumbers(-1)},
	"task_stop":   {"task_id": {5, nil, args{}}, "reason": {5, true, args{}}},
	"list_tasks":  {"status": {5, "done", "Running", ""}, "limit": badNumbers(0, 201, 1e300)},
	"await_tasks": {"task_ids": {5, "x", args{}, true, nil, []string{}, make([]string, 101)}, "mode": {1, "some", "ALL", ""}, "timeout": badNumbers(-1)},
}

func badNumbers(more ...any) []any {
	return append(more, "30000", "", "soon", true, 1.5, -0.1, []int{1}, args{"ms": 1},
		json.RawMessage("-1e300"), json.RawMessage("-99999999999999999999"), json.RawMessage("0.1e0"),
		json.RawMessage("1e-400"), json.RawMessage("-1e-400"), json.RawMessage("1e-99999999999999999999"),
		json.RawMessage("0.99999999999999999999"), json.RawMessage("10.00000000000000000001"), json.RawMessage("15e-1"))
}

func badCalls(id uuid.UUID) (calls []badCall) {
	for tool, least := range good(id) {
		for key, values := range keys[tool] {
			for _, value := range values {
				calls = append(calls, badCall{tool, with(least, key, value), []string{tool + ": ", key + " "}})
			}
			if _, required := least[key]; required {
				calls = append(calls,
					badCall{tool, with(least, key, missing), []string{key + " is missing; it must be "}},
					badCall{tool, with(least, key, nil), []string{key + " is missing; it must be "}})
			}
		}
		allowed := []string{"prompt, description, agent_id, context, run_in_background", "task_id, block, timeout", "task_id, reason", "status, limit", "task_ids, mode, timeout"}
		is := map[string]int{"agent": 0, "task_output": 1, "task_stop": 2, "list_tasks": 3, "await_tasks": 4}[tool]
		for _, extra := range []string{"x", "", "Task_ID", "PROMPT", strings.Repeat("long ", 1<<17)} {
			calls = append(calls, badCall{tool, with(least, extra, 1), []string{"there is no argument ", allowed[is]}})
		}
		for _, raw := range []string{"{", "}", "nonsense", "{}{}", `{"a":1,}`, "{'a':1}", "\x00", `{"prompt":"p" "description":"d"}`, strings.Repeat("[", 1<<17)} {
			calls = append(calls, badCall{tool, raw, []string{"not valid JSON", allowed[is]}})
		}
		for raw, kind := range map[string]string{
			"null": "null", "[]": "an array", " [{}]": "an array", "5": "5", "true": "true", `"{}"`: `the string "{}"`, `""`: `the string ""`,
			`"` + strings.Repeat("x", 1<<20) + `"`: "the string ",
		} {
			calls = append(calls, badCall{tool, raw, []string{"the arguments are " + kind, allowed[is]}})
		}
	}
	twice := `{"task_id":"` + id.String() + `","task_id":"` + id.String() + `"}`
	return append(calls,
		badCall{"task_stop", twice, []string{"task_id is given twice"}},
		badCall{"agent", `{"prompt":"p","description":"d","prompt":null}`, []string{"prompt is given twice"}},
		badCall{"agent", args{"prompt": " \n\t", "description": "d"}, []string{"prompt is empty"}},
		badCall{"agent", args{"prompt": "p", "description": " "}, []string{"description is empty"}},
		badCall{"agent", args{"prompt": strings.Repeat("p", 1<<20+1), "description": "d"}, []string{"prompt has 1048577 bytes; at most 1048576 are allowed"}},
		badCall{"agent", args{"prompt": strings.Repeat("\x00", 1<<19), "description": "d"}, []string{"prompt has 1572864 bytes; at most 1048576 are allowed"}},
		badCall{"agent", args{"prompt": "p", "description": "d", "agent_id": "nobody"}, []string{`no agent_id "nobody"`, `"reviewer" "`}},
		badCall{"task_output", args{"task_id": ""}, []string{"task_id is empty"}},
		badCall{"", "{}", []string{`no tool ""`, "agent, task_output, task_stop, list_tasks, await_tasks"}},
		badCall{"Agent", "{}", []string{`no tool "Agent"`}},
		badCall{strings.Repeat("agent", 1000), "{}", []string{"no tool "}},
	)
}

// Whatever is wrong with a call, its answer is one bounded sentence and the
// tasks are as before.
func TestBadArgumentsAreRefusedInASentence(t *testing.T) {
	inHostOf(t, subagent.Config{}, agenttool.Options{Agents: profiles}, func(t *testing.T, h *host) {
		id, _ := h.runs("the only task")
		before := h.get(id)
		for _, c := range badCalls(id) {
			a := h.call(c.tool, c.args)
			refused(t, a, c.says...)
			require.Less(t, len(a.Text), 700, "what a model wrote is not repeated at length")
		}
		require.Equal(t, before, h.get(id))
		all, err := h.List(t.Context(), subagent.Filter{})
		require.NoError(t, err)
		require.Len(t, all, 1)
	})
}

// What is optional may be null, and a call without arguments may be empty.
func TestNullIsTheDefault(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id, _ := h.runs("work")
		for _, raw := range []string{"", " \n", "{}", `{"status":null,"limit":null}`, `{"limit":1e0}`, `{"limit":200.0}`, `{"limit":0.2e+1}`, `{"limit":2000E-2}`} {
			require.False(t, h.call("list_tasks", raw).IsError, raw)
		}
		a := h.call("agent", `{"prompt":"p","description":"d","agent_id":null,"context":null,"run_in_background":true}`)
		require.False(t, a.IsError, a.Text)
		require.Equal(t, subagent.ContextClean, h.get(a.TaskID).ContextMode)
		require.Empty(t, h.get(a.TaskID).AgentID)
		require.False(t, h.call("task_output", args{"task_id": id, "block": false, "timeout": nil}).IsError)
		require.False(t, h.call("await_tasks", args{"task_ids": []any{id}, "mode": nil, "timeout": 0}).IsError)
		require.False(t, h.call("task_stop", args{"task_id": id, "reason": nil}).IsError)
	})
}

func TestWholeNumbersHoweverWritten(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id, _ := h.runs("work")
		for _, n := range []string{"30000", "30000.0", "3e4", "3E+4", "0.3e5", "300000e-1", "0", "0.0", "-0", "0e-400", "0.0e99999999999999999999"} {
			a := h.call("task_output", `{"task_id":"`+id.String()+`","block":false,"timeout":`+n+`}`)
			require.False(t, a.IsError, "%s: %s", n, a.Text)
		}
	})
}

// Text that no store takes is made valid in the record, in the answer and in
// Data alike.
func TestTextIsMadeValid(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		a := h.call("agent", `{"prompt":"a\u0000b\ud800c","description":"x`+"\xff"+`y","run_in_background":true}`)
		require.False(t, a.IsError, a.Text)
		require.Equal(t, "a\ufffdb\ufffdc", h.get(a.TaskID).Description)
		require.Equal(t, "x\ufffdy", h.get(a.TaskID).Subject)
		h.finish(a.TaskID, "r\x00s\xfft")
		require.True(t, strings.HasPrefix(h.call("task_output", args{"task_id": a.TaskID}).Text, "r\ufffds\ufffdt\n"))
		refused(t, h.call("agent\x00\xff", "{}"), "no tool")
	})
}

// A ctx that panics stands in for anything that could: Call does not.
type panicky struct{ context.Context }

func (panicky) Value(any) any { panic("no values today") }

func TestCallNeverPanics(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		for tool, least := range good(uuid.New()) {
			refused(t, h.callAs(panicky{t.Context()}, agenttool.Call{Name: tool, SessionID: session}, least), tool+": internal error: no values today")
		}
	})
}

func FuzzCall(f *testing.F) {
	for _, c := range badCalls(uuid.New()) {
		if raw, ok := c.args.(string); ok && len(raw) < 100 {
			f.Add(c.tool, []byte(raw))
		}
	}
	f.Add("task_output", []byte(`{"task_id":"00000000-0000-0000-0000-000000000000","timeout":0}`))
	f.Add("await_tasks", []byte(`{"task_ids":["a",null,5],"mode":"any","timeout":1e9}`))
	r, err := subagent.New(context.Background(), subagent.Config{Func: func(context.Context, *subagent.Run) (subagent.Result, error) {
		return subagent.Result{Text: "done"}, nil
	}})
	require.NoError(f, err)
	f.Cleanup(func() { _ = r.Shutdown(context.Background()) })
	s := agenttool.New(r, agenttool.Options{PlanTools: true, MaxText: 1000})
	f.Fuzz(func(t *testing.T, tool string, raw []byte) {
		a := s.Call(t.Context(), agenttool.Call{ID: "call", Name: tool, Arguments: raw, SessionID: session})
		require.NotEmpty(t, a.Text)
		require.LessOrEqual(t, len(a.Text), 1000)
		require.Equal(t, strings.ToValidUTF8(a.Text, "?"), a.Text)
		require.NotContains(t, a.Text, "internal error")
		if a.Data != nil {
			require.True(t, json.Valid(a.Data))
		}
	})
}
