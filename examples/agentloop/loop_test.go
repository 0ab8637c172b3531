package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// isLead reports whether a request is the lead's.
func isLead(req chatRequest) bool {
	return strings.HasPrefix(req.Messages[0].Content, "You are the lead")
}

// chat runs the program with a model of the test's.
func chat(t *testing.T, env map[string]string) (code int, stdout, stderr string) {
	t.Helper()
	return call(t, env, "-save", filepath.Join(t.TempDir(), "history.json"), "Who?", library)
}

func start(description string, background bool) speech {
	return say("").call("agent", args{"prompt": "do it", "description": description, "run_in_background": background})
}

func TestBadToolCallsAreAnsweredInWords(t *testing.T) {
	bad := func(tool, arguments string) speech {
		return speech{calls: []toolCall{{"call_0", "function", functionCall{tool, arguments}}}}
	}
	for name, c := range map[string]struct {
		says speech
		want string
	}{
		"half an object":       {bad("agent", `{"prompt": "do`), "agent: the arguments are not valid JSON"},
		"of a directory tool":  {bad("read_file", `{"path": `), "[tool error] the arguments of read_file are no good"},
		"an unknown tool":      {bad("fly", `{}`), `there is no tool "fly"`},
		"an unknown profile":   {bad("agent", `{"prompt": "p", "description": "d", "agent_id": "pilot"}`), `there is no agent_id "pilot"`},
		"an unknown key":       {bad("list_files", `{"dir": "."}`), `unknown field "dir"`},
		"no arguments at all":  {bad("list_files", ``), "README.md\nlogs/\nwhales.md"},
		"await without a plan": {bad("await_tasks", `{"task_ids": ["x"]}`), `there is no tool "await_tasks"`},
		"a path to elsewhere":  {bad("read_file", `{"path": "../../main.go"}`), "leads out of the directory"},
	} {
		t.Run(name, func(t *testing.T) {
			var answers heard
			env := fake(t, func(req chatRequest) speech {
				conversation := read(req)
				if conversation.turn == 0 && !conversation.offered["await_tasks"] {
					return c.says
				}
				answers.add(conversation.last())
				return say("done")
			})
			code, _, stderr := chat(t, env)
			assert.Equal(t, exitDone, code, stderr)
			require.NotEmpty(t, answers.all)
			assert.Contains(t, answers.all[0], c.want)
		})
	}
}

// What a sub-agent fails of is its end and no more: the lead reads of it.
func TestASubAgentsFailureIsItsOwn(t *testing.T) {
	env := serve(t, func(w http.ResponseWriter, r *http.Request) {
		req := decode(t, r)
		switch c := read(req); {
		case !isLead(req):
			http.Error(w, "overloaded", http.StatusServiceUnavailable)
		case c.turn == 0:
			line{w: w}.stream(start("fail", false), wireUsage{})
		default:
			line{w: w}.stream(say("It says: "+c.last()), wireUsage{})
		}
	})
	code, stdout, stderr := chat(t, env)
	assert.Equal(t, exitDone, code, stderr)
	assert.Contains(t, stdout, "lead   It says: [task error] model: 503 Service Unavailable: overloaded")
	assert.Contains(t, stdout, "[fail] errored (error): Error: model: 503 Service Unavailable: overloaded")
}

// A lead that forgets its sub-agents is told how they ended, and each end is
// charged to the message that started it.
func TestForgottenSubAgentsAreHeard(t *testing.T) {
	env := fake(t, func(req chatRequest) speech {
		switch c := read(req); {
		case !isLead(req):
			return say("my result")
		case strings.HasPrefix(c.prompt, "[task notice]"):
			return say("Now I know: " + c.prompt)
		case c.offered["await_tasks"]:
			return say("no plan")
		case c.turn == 0:
			return start("first", true)
		case c.turn == 1:
			return start("second", true)
		}
		return say("done, I think")
	})
	code, stdout, stderr := chat(t, env)
	assert.Equal(t, exitDone, code, stderr)
	assert.Contains(t, stdout, "lead   Now I know: [task notice] first: my result")
	assert.Contains(t, stdout, "[task notice] second: my result")
}

// A sub-agent that forgets its own is told too, and waits for them with one slot.
func TestForgottenGrandchildrenAreHeard(t *testing.T) {
	env := fake(t, func(req chatRequest) speech {
		c := read(req)
		switch {
		case strings.HasPrefix(c.prompt, "[task notice]"):
			return say("heard of it")
		case c.prompt == "deep":
			return say("deep result")
		case c.offered["await_tasks"]:
			return say("no plan")
		case c.turn > 0 && isLead(req):
			return say("It says: " + c.last())
		case c.turn > 0:
			return say("done, I think")
		case isLead(req):
			return start("parent", false)
		}
		return say("").call("agent", args{"prompt": "deep", "description": "child", "run_in_background": true})
	})
	code, stdout, stderr := chat(t, env)
	assert.Equal(t, exitDone, code, stderr)
	assert.Contains(t, stdout, "lead   It says: heard of it")
	assert.Contains(t, stdout, "  [parent] completed: heard of it\n    [child] completed: deep result\n")
}

func TestALoopThatDoesNotEnd(t *testing.T) {
	t.Run("the lead's", func(t *testing.T) {
		env := fake(t, func(chatRequest) speech { return say("").call("list_files", args{}) })
		code, stdout, stderr := chat(t, env)
		assert.Equal(t, exitFailed, code)
		assert.Equal(t, "agentloop: no answer after 30 turns\n", stderr)
		assert.Regexp(t, `(?m)^ +30 .* lead$`, stdout)
	})
	t.Run("a sub-agent's", func(t *testing.T) {
		env := fake(t, func(req chatRequest) speech {
			switch c := read(req); {
			case !isLead(req):
				return say(fmt.Sprint("looking ", c.turn)).call("list_files", args{})
			case c.turn == 0 && !c.offered["await_tasks"]:
				return start("endless", false)
			default:
				return say("It says: " + c.last())
			}
		})
		code, stdout, stderr := chat(t, env)
		assert.Equal(t, exitDone, code, stderr)
		assert.Contains(t, stdout, "looking 29", "what it said so far is its result")
		assert.Contains(t, stdout, "status=completed stop_reason=turn_capped")
	})
}

func TestSubAgentsOfSubAgentsHaveABound(t *testing.T) {
	env := fake(t, func(req chatRequest) speech {
		c := read(req)
		if c.turn == 0 && !c.offered["await_tasks"] {
			return start("deeper", false)
		}
		return say("I hear: " + c.last())
	})
	code, stdout, stderr := chat(t, env)
	assert.Equal(t, exitDone, code, stderr)
	assert.Contains(t, stdout, "do the work yourself")
	assert.Contains(t, stdout, "  [deeper] completed: ")
	assert.Contains(t, stdout, "      [deeper] completed: ")
	assert.NotContains(t, stdout, "        [deeper]")
}

func TestTheModelFails(t *testing.T) {
	env := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, `{"error": {"message": "the \u001b[2Jdog ate it", "type": "server_error"}}`)
	})
	code, stdout, stderr := chat(t, env)
	assert.Equal(t, exitFailed, code)
	assert.Equal(t, "agentloop: model: 500 Internal Server Error: the \uFFFD[2Jdog ate it\n", stderr)
	assert.Contains(t, stdout, "saved  ", "the history is kept")
}

// Both calls of the message have the same id; still both sub-agents are paid for.
func TestCallsWithTheSameIDAreChargedEach(t *testing.T) {
	env := serve(t, func(w http.ResponseWriter, r *http.Request) {
		req := decode(t, r)
		says := say("done")
		if c := read(req); isLead(req) && c.turn == 0 && !c.offered["await_tasks"] {
			says = start("one", false)
			says.calls = append(says.calls, says.calls[0])
		}
		line{w: w, usage: true}.stream(says, wireUsage{PromptTokens: 10, CompletionTokens: 1, TotalTokens: 11})
	})
	code, stdout, stderr := chat(t, env)
	assert.Equal(t, exitDone, code, stderr)
	// The lead's three calls, and one of each sub-agent.
	assert.Regexp(t, `(?m)^ +3 .* 33 +55 +lead$`, stdout)
}
