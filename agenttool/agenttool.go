// Package agenttool turns a subagent.Runner into the tools that a model uses
// to start, read, stop and list sub-agents. Any agent loop can offer and
// dispatch them, whatever the provider: Tools are definitions with JSON
// Schemas, Call takes the arguments as the model wrote them, and an Answer is
// text for the model beside data for the host.
//
// The tools are agent, task_output, task_stop and list_tasks, and with
// Options.PlanTools also await_tasks, which waits for several tasks at once.
// A call sees the tasks of its session; made from inside a Func, with that
// Func's ctx, it sees the descendants of that task and nothing else. What it
// may not see looks to it as if it did not exist.
//
// # Usage
//
// The tokens of a task are handed out once, with the first delivery of its
// end: the answer of the foreground agent call, the notice, or the first
// answer of task_output or await_tasks. The host stores them on the tool
// result of the agent call that started the task, which it finds by the task's
// ParentMsgID and ExternalTaskID, and has subagent.AttributeUsage charge the
// message that dispatched it. Usage is the task's own: that of its descendants
// is charged in its own conversation. docs/integrate.md leads through it.
package agenttool

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/runes"
)

// Options say what a Toolset offers. The zero Options are four tools, whose
// agent_id is free text.
type Options struct {
	Agents    []Agent // the profiles that a model may choose from; empty: agent_id is free text
	MaxText   int     // bytes of text in one answer; 0: 32000
	PlanTools bool    // also offer await_tasks
}

// Agent is one profile of a sub-agent. Its ID becomes the task's AgentID;
// what it means is for the host's Func to know.
type Agent struct {
	ID          string // at most 256 bytes
	Description string // for the model: what it is good for
}

const (
	defaultMaxText = 32000
	maxAgentID     = 256 // as the Runner's
)

// Toolset is the tools of one Runner. It never changes and holds no
// goroutine, and all its methods may be called from many goroutines at once.
type Toolset struct {
	runner  *subagent.Runner
	agents  []Agent
	maxText int
	tools   []Tool
}

// Tool is a definition as providers take it. A host passes on one of the two
// schemas.
type Tool struct {
	Name        string
	Description string

	// Schema is plain JSON Schema: Anthropic's input_schema, OpenAI's
	// parameters, MCP's inputSchema.
	Schema json.RawMessage

	// StrictSchema is the same for strict modes as OpenAI's: every key is
	// required, those that were optional may be null, additionalProperties is
	// false, and ranges are told in the descriptions only.
	StrictSchema json.RawMessage
}

// Call is one tool call of a model.
type Call struct {
	ID        string          // the provider's tool_call_id; becomes ExternalTaskID
	Name      string          // of the tool
	Arguments json.RawMessage // as the model wrote them; empty: an object without keys
	SessionID string          // whose tasks it sees; becomes ParentSessionID. Inside a Func it may be empty
	MessageID string          // of the message that made the call; becomes ParentMsgID
}

// Answer is what a Call leads to.
type Answer struct {
	// Text is for the model: valid UTF-8 without NUL, at most Options.MaxText
	// bytes. What had to be cut says so, with its size, or the answer says it
	// once of all that was cut; only a MaxText that is shorter than such a
	// note leaves it out.
	Text string

	// Data is JSON for the host, nil if the call was refused. A task in it has
	// the keys of subagent.Task without description and result_text, and has
	// usage only where the answer is the first delivery of its end. Of agent
	// and task_output it is a task, of task_stop {ok, status, task_id, stopped},
	// of list_tasks {tasks}, of await_tasks {done, tasks}.
	Data json.RawMessage

	// IsError says that the call was refused or failed, or that the one task
	// that it is about has errored. A cancelled task is no error.
	IsError bool

	// TaskID is the one task that the answer is about, else uuid.Nil.
	TaskID uuid.UUID

	// Usage is what that task has used, with the first delivery of its end and
	// only then; zero usage is not nil. Of several tasks Data has each one's.
	Usage *subagent.Usage
}

// New returns the tools of r. It panics on Options that no model could work
// with: a negative MaxText, or profiles without ID, with an ID longer than 256
// bytes, or with the same ID.
func New(r *subagent.Runner, o Options) *Toolset {
	if r == nil {
		panic("agenttool: nil Runner")
	}
	if o.MaxText < 0 {
		panic(fmt.Sprintf("agenttool: Options.MaxText is %d; it must not be negative", o.MaxText))
	}
	if o.MaxText == 0 {
		o.MaxText = defaultMaxText
	}
	seen := make(map[string]bool)
	for _, a := range o.Agents {
		if a.ID == "" || len(a.ID) > maxAgentID || a.ID != runes.Clean(a.ID) || seen[a.ID] {
			panic(fmt.Sprintf("agenttool: Options.Agents has the ID %q; it must be valid UTF-8 of 1 to %d bytes without NUL, and unique", a.ID, maxAgentID))
		}
		seen[a.ID] = true
	}
	s := &Toolset{runner: r, agents: slices.Clone(o.Agents), maxText: o.MaxText}
	s.tools = define(s.agents, o.PlanTools)
	return s
}

// Tools returns the definitions, in an order that does not change. The caller
// owns what is returned.
func (s *Toolset) Tools() []Tool {
	tools := slices.Clone(s.tools)
	for i := range tools {
		tools[i].Schema = slices.Clone(tools[i].Schema)
		tools[i].StrictSchema = slices.Clone(tools[i].StrictSchema)
	}
	return tools
}

// Call does what a model asked for. It never panics and returns no Go error:
// whatever goes wrong is an Answer that the model can read, and bad arguments
// have changed nothing.
//
// It blocks while a foreground agent works and while task_output or
// await_tasks wait, at most for their timeout. ctx ends each of these: a wait
// then answers with the status, as if its time had run out, and the task goes
// on; a foreground agent's task is stopped, and its partial text is the
// answer. The store is read and a stop is stored even if ctx has ended, which
// takes the Runner's StoreTimeout a call at most. Waiting with the ctx of a
// Func lends its slot, as Runner.Wait does.
func (s *Toolset) Call(ctx context.Context, c Call) (a Answer) {
	defer func() {
		if v := recover(); v != nil { // of a ctx or a store of the host
			a = s.refused(fmt.Errorf("%s: internal error: %v", brief(c.Name), v))
		}
	}()
	run, ok := runs[c.Name]
	if !ok || !s.offers(c.Name) {
		return s.refused(fmt.Errorf("there is no tool %q; the tools are %s", brief(c.Name), s.names()))
	}
	args, err := parseArguments(c.Arguments, run.keys)
	if err == nil {
		a, err = run.call(s, ctx, &call{Call: c, args: args, scope: scopeOf(ctx, s.runner, c.SessionID, s.maxText-len(c.Name+": ."))})
	}
	if err != nil {
		return s.refused(fmt.Errorf("%s: %s", c.Name, reason(err)))
	}
	return a
}

// call is a Call whose arguments are an object with known keys.
type call struct {
	Call
	args  *arguments
	scope scope
}

// runs are what the tools do. An error refuses the call: its text completes
// the sentence "tool: …".
var runs = map[string]struct {
	keys []string
	call func(*Toolset, context.Context, *call) (Answer, error)
}{
	"agent":       {[]string{"prompt", "description", "agent_id", "context", "run_in_background"}, (*Toolset).agent},
	"task_output": {[]string{"task_id", "block", "timeout"}, (*Toolset).taskOutput},
	"task_stop":   {[]string{"task_id", "reason"}, (*Toolset).taskStop},
	"list_tasks":  {[]string{"status", "limit"}, (*Toolset).listTasks},
	"await_tasks": {[]string{"task_ids", "mode", "timeout"}, (*Toolset).awaitTasks},
}

func (s *Toolset) offers(name string) bool {
	return slices.ContainsFunc(s.tools, func(t Tool) bool { return t.Name == name })
}

func (s *Toolset) names() string {
	names := make([]string, len(s.tools))
	for i, t := range s.tools {
		names[i] = t.Name
	}
	return strings.Join(names, ", ")
}

// refused is the answer to a call that did nothing: one sentence.
func (s *Toolset) refused(err error) Answer {
	return Answer{Text: fit([]part{cuttable(runes.Clean(err.Error())), fixed(".")}, s.maxText), IsError: true}
}
