package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

// agent is one party to a conversation with the model: the lead, or a
// sub-agent. The loop is the same for all; they differ in what they were told,
// in the tools that they have, and in who looks on.
type agent struct {
	talk     *talk
	tools    *agenttool.Toolset
	audience audience
}

// audience looks on while an agent works: the screen at the lead, and the
// Runner, through a Run, at a sub-agent.
type audience interface {
	begins(turn int)
	says(text string) // a piece of it, as it streams in
	spent(turn int, u subagent.Usage)
	calls(call toolCall)
	hears(answer string)
}

const maxTurns = 30

var errTurnCap = fmt.Errorf("no answer after %d turns", maxTurns)

// converse is the loop: ask the model, do what it calls for, tell it what came
// of that, until it answers without calling for anything. The answer is the
// text of that last message.
func (h *host) converse(ctx context.Context, a agent) (string, error) {
	for turn := 1; turn <= maxTurns; turn++ {
		a.audience.begins(turn)
		said, err := h.model.complete(ctx, h.history.messages(a.talk), offers(a.tools), a.audience.says)
		if err != nil {
			return "", err
		}
		a.audience.spent(turn, said.usage)
		id := h.history.add(a.talk, entry{chatMessage: said.message, ModelUsage: said.usage, Usage: said.usage})
		if len(said.message.ToolCalls) > 0 {
			if err := h.use(ctx, a, id, said.message.ToolCalls); err != nil {
				return "", err
			}
			continue
		}
		// It takes itself for done. If sub-agents of its are still at work, or
		// ended unheard, it gets their results and may think again.
		news, err := h.unheard(ctx, a)
		if err != nil || news == "" {
			return said.message.Content, err
		}
		h.history.add(a.talk, entry{chatMessage: chatMessage{Role: roleUser, Content: news}})
		a.audience.hears(news)
	}
	return "", errTurnCap
}

// offers lists the tools that an agent has, in the words of the wire format.
func offers(tools *agenttool.Toolset) []toolOffer {
	all := folderTools
	for _, t := range tools.Tools() {
		all = append(all[:len(all):len(all)], toolOffer{"function", function{t.Name, t.Description, t.Schema}})
	}
	return all
}

// use answers the tool calls of a message, each with one tool result, one after
// another: the order in which a model starts sub-agents is that in which they
// stand in line. What is to happen at the same time it starts in the background.
func (h *host) use(ctx context.Context, a agent, messageID string, calls []toolCall) error {
	for _, call := range calls {
		a.audience.calls(call)
		text, own := h.folder.call(ctx, call.Function)
		var answer agenttool.Answer
		if !own {
			answer = a.tools.Call(ctx, agenttool.Call{
				ID:        call.ID,
				Name:      call.Function.Name,
				Arguments: json.RawMessage(call.Function.Arguments),
				SessionID: a.talk.Session,
				MessageID: messageID,
			})
			text = answer.Text
		}
		h.history.add(a.talk, entry{chatMessage: chatMessage{Role: roleTool, Content: text, ToolCallID: call.ID}})
		a.audience.hears(text)
		if err := h.charge(answer); err != nil {
			return err
		}
	}
	return nil
}

// charge stores the usage that came with an answer where it belongs: on the
// result of the call that started the sub-agent, whichever call brought it. An
// answer is about one task or several, and each has its usage in it only once.
func (h *host) charge(answer agenttool.Answer) error {
	var data struct {
		delivery
		Tasks []delivery `json:"tasks"`
	}
	if answer.Data == nil { // a refused call
		return nil
	}
	if err := json.Unmarshal(answer.Data, &data); err != nil {
		return err
	}
	for _, d := range append(data.Tasks, data.delivery) {
		if d.Usage == nil {
			continue
		}
		if err := h.history.charge(d); err != nil {
			return err
		}
	}
	return nil
}

// delivery is what a task cost, and the tool call that started it.
type delivery struct {
	Session   string          `json:"parent_session_id"`
	MessageID string          `json:"parent_msg_id"`
	CallID    string          `json:"external_task_id"`
	Usage     json.RawMessage `json:"usage"`
}

// unheard waits for the sub-agents that an agent has started and whose end it
// was not told, and returns their results, "" if there are none. A host that is
// not a loop would use a Notifier for this.
func (h *host) unheard(ctx context.Context, a agent) (string, error) {
	tasks, err := h.runner.List(ctx, subagent.Filter{SessionID: a.talk.Session})
	if err != nil {
		return "", err
	}
	var news []string
	for _, t := range tasks {
		if !t.NotifiedAt.IsZero() {
			continue
		}
		answer := a.tools.Call(ctx, agenttool.Call{
			Name:      "task_output",
			Arguments: json.RawMessage(fmt.Sprintf(`{"task_id": %q, "timeout": 600000}`, t.ID)),
			SessionID: a.talk.Session,
		})
		news = append(news, fmt.Sprintf("[task notice] %s: %s", t.Subject, answer.Text))
		if err := h.charge(answer); err != nil {
			return "", err
		}
	}
	return strings.Join(news, "\n\n"), nil
}

// subagent is the Runner's Func: one sub-agent, from its prompt to its answer.
func (h *host) subagent(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
	task := run.Task()
	from := dispatch{task.ParentSessionID, task.ParentMsgID, task.ExternalTaskID}
	var inherited []chatMessage
	if task.ContextMode == subagent.ContextInherit {
		inherited = h.history.inherited(from)
	}
	p := profileOf(task.AgentID)
	t := h.history.begin(task.ID.String(), p.id, &from, inherited)
	h.history.add(t, entry{chatMessage: chatMessage{Role: roleSystem, Content: p.instructions}})
	h.history.add(t, entry{chatMessage: chatMessage{Role: roleUser, Content: task.Description}})
	// ctx carries the Run: sub-agents that this one starts are its children, and
	// while it waits for them they have its slot.
	text, err := h.converse(ctx, agent{t, h.normal, &worker{run: run}})
	if errors.Is(err, errTurnCap) {
		return subagent.Result{StopReason: "turn_capped"}, nil // with what it said so far
	}
	return subagent.Result{Text: text}, err
}

// worker shows a sub-agent to the Runner.
type worker struct {
	run *subagent.Run
	gap string // between what it said in the turn before and what comes
}

func (w *worker) begins(turn int) {
	w.run.Progress(fmt.Sprintf("turn %d", turn))
	if turn > 1 {
		w.gap = "\n"
	}
}

// says adds to the partial text, which is kept also if the task is stopped.
func (w *worker) says(text string) {
	fmt.Fprint(w.run, w.gap, text)
	w.gap = ""
}

func (w *worker) calls(c toolCall) { w.run.ToolUse(c.Function.Name) }
func (w *worker) hears(string)     {}

// spent goes by the turn and not by an id of the provider's: those may repeat,
// and the later report would replace the earlier one.
func (w *worker) spent(turn int, u subagent.Usage) {
	w.run.ReportUsage(fmt.Sprintf("turn %d", turn), u)
}
