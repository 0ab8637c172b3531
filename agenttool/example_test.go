package agenttool_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

// research stands in for the loop of a sub-agent.
func research(_ context.Context, run *subagent.Run) (subagent.Result, error) {
	run.ReportUsage("call-1", subagent.Usage{InputTokens: 90, OutputTokens: 10, TotalTokens: 100})
	return subagent.Result{Text: "found: " + run.Task().Description}, nil
}

// A host offers the definitions to its model and dispatches what the model
// calls.
func Example() {
	ctx := context.Background()
	runner, _ := subagent.New(ctx, subagent.Config{Func: research})
	defer runner.Shutdown(ctx)

	tools := agenttool.New(runner, agenttool.Options{})
	for _, tool := range tools.Tools() {
		fmt.Println("offer", tool.Name) // with tool.Description, and tool.Schema or tool.StrictSchema
	}
	answer := tools.Call(ctx, agenttool.Call{
		ID:        "toolu_1", // what the provider calls this call
		Name:      "agent",
		Arguments: json.RawMessage(`{"prompt": "whales", "description": "look whales up"}`),
		SessionID: "chat-1",
		MessageID: "msg-7", // the assistant message that made the call
	})
	text, _, _ := strings.Cut(answer.Text, "\n") // the last line has the task's id
	fmt.Println(text, answer.IsError, answer.Usage.TotalTokens)
	// Output:
	// offer agent
	// offer task_output
	// offer task_stop
	// offer list_tasks
	// found: whales false 100
}

// message is one of a host's messages, as it saves them.
type message struct {
	ID      string
	Answers string // of a tool result: the ID of the message that made the call
	Text    string
	subagent.Message
}

// delivery is the end of a task as an answer or a notice brings it.
type delivery struct {
	ExternalTaskID string          `json:"external_task_id"`
	ParentMsgID    string          `json:"parent_msg_id"`
	Usage          *subagent.Usage `json:"usage"` // nil: it was delivered before, or goes on
}

// deliver charges what an answer brings. The answer's own message is in the
// history by then: what finds no result there is charged to nobody.
func deliver(history []message, answer agenttool.Answer) {
	var data struct {
		delivery
		Tasks []delivery `json:"tasks"` // of await_tasks
	}
	if json.Unmarshal(answer.Data, &data) == nil { // a call that was refused has no data
		charge(history, append(data.Tasks, data.delivery)...)
	}
}

// charge stores usage on the result of the agent call that started the task,
// and has the message that made that call charged.
func charge(history []message, ends ...delivery) {
	for _, end := range ends {
		for i := range history {
			m := &history[i]
			if end.Usage != nil && m.ToolCallID != "" && m.ToolCallID == end.ExternalTaskID && m.Answers == end.ParentMsgID {
				m.SubagentUsage = end.Usage
			}
		}
	}
	view := make([]subagent.Message, len(history))
	for i, m := range history {
		view[i] = m.Message
	}
	for _, i := range subagent.AttributeUsage(view) {
		history[i].Message = view[i] // save these together
	}
}

// A plan: each step in the background, then one wait for all of them. The
// usage that the wait brings is charged to the message that started the steps.
func Example_plan() {
	ctx := context.Background()
	runner, _ := subagent.New(ctx, subagent.Config{Func: research})
	defer runner.Shutdown(ctx)
	tools := agenttool.New(runner, agenttool.Options{PlanTools: true})

	history := []message{{ID: "msg-1", Message: subagent.Message{ToolCalls: []string{"call_0", "call_1"}}}}
	var ids []uuid.UUID
	for i, step := range []string{"whales", "krill"} {
		call := fmt.Sprintf("call_%d", i)
		answer := tools.Call(ctx, agenttool.Call{
			ID: call, Name: "agent", SessionID: "chat-1", MessageID: "msg-1",
			Arguments: json.RawMessage(`{"prompt": "` + step + `", "description": "a step", "run_in_background": true}`),
		})
		ids = append(ids, answer.TaskID) // a model reads it in answer.Text
		history = append(history, message{Answers: "msg-1", Text: answer.Text, Message: subagent.Message{ToolCallID: call}})
	}

	all, _ := json.Marshal(map[string]any{"task_ids": ids, "mode": "all"})
	answer := tools.Call(ctx, agenttool.Call{ID: "call_0", Name: "await_tasks", Arguments: all, SessionID: "chat-1", MessageID: "msg-4"})
	deliver(history, answer)
	summary, _, _ := strings.Cut(answer.Text, "\n")
	fmt.Println(summary, history[0].Usage.TotalTokens)
	// Output: 2 of 2 tasks have ended. 200
}

// inbox keeps notices for the loop.
type inbox chan subagent.Task

func (in inbox) Notify(_ context.Context, t subagent.Task) error {
	in <- t
	return nil
}

// A task in the background that nobody waits for comes back as a notice.
func Example_notice() {
	ctx := context.Background()
	notices := make(inbox, 1)
	runner, _ := subagent.New(ctx, subagent.Config{Func: research, Notifier: notices})
	defer runner.Shutdown(ctx)
	tools := agenttool.New(runner, agenttool.Options{})

	answer := tools.Call(ctx, agenttool.Call{
		ID: "call_0", Name: "agent", SessionID: "chat-1", MessageID: "msg-1",
		Arguments: json.RawMessage(`{"prompt": "whales", "description": "look whales up", "run_in_background": true}`),
	})
	history := []message{
		{ID: "msg-1", Message: subagent.Message{ToolCalls: []string{"call_0"}}},
		{Answers: "msg-1", Text: answer.Text, Message: subagent.Message{ToolCallID: "call_0"}},
	}
	t := <-notices
	charge(history, delivery{t.ExternalTaskID, t.ParentMsgID, &t.Usage})
	fmt.Println(t.Status, t.ResultText, history[0].Usage.TotalTokens)
	// Output: completed found: whales 100
}

// keyed is a framework that runs tools without telling them the id of their
// call: the host makes one up. It is unique, so it needs no MessageID.
type keyed struct {
	tools *agenttool.Toolset

	mu    sync.Mutex // guards calls
	calls []string   // what this turn has dispatched, for its message's ToolCalls
}

func (k *keyed) invoke(ctx context.Context, name string, arguments json.RawMessage) agenttool.Answer {
	id := uuid.NewString()
	k.mu.Lock()
	k.calls = append(k.calls, id)
	k.mu.Unlock()
	return k.tools.Call(ctx, agenttool.Call{ID: id, Name: name, Arguments: arguments, SessionID: "chat-1"})
}

func Example_withoutCallID() {
	ctx := context.Background()
	runner, _ := subagent.New(ctx, subagent.Config{Func: research})
	defer runner.Shutdown(ctx)

	k := keyed{tools: agenttool.New(runner, agenttool.Options{})}
	answer := k.invoke(ctx, "agent", json.RawMessage(`{"prompt": "whales", "description": "look whales up"}`))
	task, _ := runner.Get(ctx, answer.TaskID)
	fmt.Println(task.ExternalTaskID == k.calls[0])
	// Output: true
}
