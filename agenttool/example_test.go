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

// deliver stores the usage that an answer brings on the result of the agent
// call that started the task, and charges the message that made that call.
func deliver(history []message, answer agenttool.Answer) {
	type task struct {
		ExternalTaskID string          `json:"external_task_id"`
		ParentMsgID    string          `json:"parent_msg_id"`
		Usage          *subagent.Usage `json:"usage"`
	}
	var data struct {
		task
		Tasks []task `json:"tasks"` // of await_tasks
	}
	if json.Unmarshal(answer.Data, &data) != nil {
		return // a call that was refused has no data
	}
	for _, t := range append(data.Tasks, data.task) {
		for i := range history {
			m := &history[i]
			if t.Usage != nil && m.ToolCallID != "" && m.ToolCallID == t.ExternalTaskID && m.Answers == t.ParentMsgID {
				m.SubagentUsage = t.Usage
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
