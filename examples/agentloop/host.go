package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

const (
	leadSession  = "lead"          // a real host has one for each conversation
	maxDepth     = 3               // a sub-agent's sub-agents may have sub-agents
	agentTimeout = 5 * time.Minute // run time of a sub-agent
	stopTimeout  = 10 * time.Second
)

// host is what holds a conversation together: the model, the Runner with the
// sub-agents, their tools, and the history.
type host struct {
	model   *model
	folder  *folder
	history *history
	runner  *subagent.Runner
	normal  *agenttool.Toolset // four tools
	plan    *agenttool.Toolset // and await_tasks
	lead    *talk
	screen  *screen
	file    string // that the history goes to
}

func newHost(ctx context.Context, m *model, f *folder, o options, out io.Writer) (*host, error) {
	h := &host{model: m, folder: f, history: new(history), screen: &screen{out: out}, file: o.save}
	runner, err := subagent.New(ctx, subagent.Config{
		Func:        h.subagent,
		Workers:     o.slots,
		MaxDepth:    maxDepth,
		Timeout:     agentTimeout,
		CancelGrace: stopTimeout,
		Cards:       h.history,
	})
	if err != nil {
		return nil, err
	}
	h.runner = runner
	h.normal = agenttool.New(runner, agenttool.Options{Agents: choices()})
	h.plan = agenttool.New(runner, agenttool.Options{Agents: choices(), PlanTools: true})
	// The cards of the lead's tasks go into its conversation: it must be there
	// before the first of them is.
	h.lead = h.history.begin(leadSession, lead.id, nil, nil)
	h.history.add(h.lead, entry{chatMessage: chatMessage{Role: roleSystem, Content: lead.instructions}})
	return h, nil
}

// ask puts a question to the lead and shows the conversation until its answer,
// and the cards that came into it. Then it saves the history: what is not yet
// attributed in it will be by whoever reads it next.
func (h *host) ask(ctx context.Context, question string, tools *agenttool.Toolset) error {
	id := h.history.add(h.lead, entry{chatMessage: chatMessage{Role: roleUser, Content: question}})
	h.screen.asked(question)
	_, err := h.converse(ctx, agent{h.lead, tools, h.screen})
	if err == nil {
		h.showCards(leadSession, id)
	}
	return errors.Join(err, h.history.save(h.file))
}

// showCards prints the cards of a conversation, each with those of its task's
// own conversation below it.
func (h *host) showCards(session, behind string) {
	if len(h.history.cards(session, behind)) == 0 {
		return // no sub-agent was started
	}
	h.screen.line("")
	h.screen.line("cards")
	h.showFamily(session, behind, "  ")
}

func (h *host) showFamily(session, behind, indent string) {
	for _, c := range h.history.cards(session, behind) {
		h.screen.card(indent, c)
		h.showFamily(c.TaskID.String(), "", indent+"  ")
	}
}

// close stops what is still at work, however the conversation came to an end,
// takes in what that cost, and ends the Runner. Its ctx is not the one that an
// interrupt ends: the ends of the tasks are still to be stored and told.
func (h *host) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	_, err := h.runner.CancelSession(ctx, leadSession, subagent.CancelOptions{Message: "the conversation is over"})
	for _, t := range h.history.all() {
		_, unheard := h.unheard(ctx, agent{talk: t, tools: h.normal})
		err = errors.Join(err, unheard)
	}
	return errors.Join(err, h.runner.Shutdown(ctx))
}

// report saves the history, with every token where it belongs, and prints the
// table of tokens.
func (h *host) report() error {
	h.history.attribute()
	if err := h.history.save(h.file); err != nil {
		return err
	}
	h.screen.line("")
	h.history.printCosts(h.screen.out)
	if err := h.history.audit(); err != nil {
		return err
	}
	h.screen.line("")
	h.screen.line(fmt.Sprintf("saved  %s", h.file))
	return nil
}
