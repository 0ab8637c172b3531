package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/go-subagent/subagent"
)

// attribute adds what sub-agents cost to the messages that started them, and
// returns how many messages that changed. Running it again changes nothing: what
// has been added is marked. Whoever saves the history saves both together.
func (h *history) attribute() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := 0
	for _, t := range h.Talks {
		view := make([]subagent.Message, len(t.Entries))
		for i, e := range t.Entries {
			view[i] = e.view()
		}
		for _, i := range subagent.AttributeUsage(view) {
			t.Entries[i].Usage = view[i].Usage
			t.Entries[i].UsageAttributed = view[i].UsageAttributed
			changed++
		}
	}
	return changed
}

// view is what attribution needs to see of an entry. Counts that cannot be read
// are left out, and stay unmarked: a guess would be added up for good.
func (e entry) view() subagent.Message {
	m := subagent.Message{ToolCallID: e.ToolCallID, Usage: e.Usage, UsageAttributed: e.UsageAttributed}
	for _, call := range e.ToolCalls {
		m.ToolCalls = append(m.ToolCalls, call.ID)
	}
	if used, err := subagent.ParseUsage(e.SubagentUsage); err == nil {
		m.SubagentUsage = used
	}
	return m
}

// costs are what one conversation adds up to.
type costs struct {
	own    subagent.Usage // its agent's model calls
	passed subagent.Usage // what was attributed of the sub-agents that it started
	all    subagent.Usage // what stands in the usage of its messages
}

func (t *talk) costs() costs {
	var c costs
	for _, e := range t.Entries {
		c.own = c.own.Add(e.ModelUsage)
		c.all = c.all.Add(e.Usage)
		if m := e.view(); m.UsageAttributed && m.SubagentUsage != nil {
			c.passed = c.passed.Add(*m.SubagentUsage)
		}
	}
	return c
}

// audit shows that nothing was counted twice, and nothing left out: the
// messages of each conversation carry its agent's tokens and those of the
// sub-agents that it started, and no more; and what was stored for a sub-agent
// is what its own conversation cost.
func (h *history) audit() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var wrong []error
	started := map[dispatch]bool{}
	for _, t := range h.Talks {
		errs := t.audit()
		if t.From != nil {
			errs = append(errs, h.auditStart(t))
			if started[*t.From] {
				errs = append(errs, fmt.Errorf("the tool call %q of message %q started another sub-agent too", t.From.CallID, t.From.MessageID))
			}
			started[*t.From] = true
		}
		for _, err := range errs {
			if err != nil {
				wrong = append(wrong, fmt.Errorf("%s %s: %w", t.Agent, t.Session, err))
			}
		}
	}
	return errors.Join(wrong...)
}

// audit looks at one conversation for itself.
func (t *talk) audit() []error {
	var wrong []error
	for _, e := range t.Entries {
		if negative(e.ModelUsage) || negative(e.Usage) {
			wrong = append(wrong, fmt.Errorf("message %q has a negative count", e.ID))
		}
		if len(e.SubagentUsage) > 0 {
			if _, err := subagent.ParseUsage(e.SubagentUsage); err != nil {
				wrong = append(wrong, fmt.Errorf("message %q: %w", e.ID, err))
			}
		}
	}
	c := t.costs()
	if sum := c.own.Add(c.passed); sum != c.all {
		wrong = append(wrong, fmt.Errorf("its messages carry %d tokens; its own and its sub-agents' are %d", c.all.TotalTokens, sum.TotalTokens))
	}
	return wrong
}

func negative(u subagent.Usage) bool {
	return min(u.InputTokens, u.OutputTokens, u.TotalTokens, u.CacheReadTokens, u.CacheWriteTokens, u.ReasoningTokens, u.Calls) < 0
}

// auditStart looks for the call that started a conversation, and at what is
// stored on its result.
func (h *history) auditStart(t *talk) error {
	if !h.made(*t.From) {
		return fmt.Errorf("no message %q of %q made the tool call %q that it was started by", t.From.MessageID, t.From.Session, t.From.CallID)
	}
	e := h.result(*t.From)
	if e == nil || len(e.SubagentUsage) == 0 {
		return nil // nobody has been handed its end
	}
	u, err := subagent.ParseUsage(e.SubagentUsage)
	if own := t.costs().own; err == nil && *u != own { // what cannot be read is told of where it is
		return fmt.Errorf("%d tokens were stored for it; its model calls cost %d", u.TotalTokens, own.TotalTokens)
	}
	return nil
}

// made reports whether there is such a call.
func (h *history) made(d dispatch) bool {
	t := h.find(d.Session)
	return t != nil && slices.ContainsFunc(t.Entries, func(e entry) bool {
		return e.ID == d.MessageID && slices.ContainsFunc(e.ToolCalls, func(c toolCall) bool { return c.ID == d.CallID })
	})
}

// printCosts prints the table of tokens: one agent a line, below the one that
// started it. Only own tokens add up; "with sub-agents" has a sub-agent's twice,
// once in its own line and once in that of the agent that pays for it.
func (h *history) printCosts(out io.Writer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "calls\tinput\tcached\toutput\treasoning\ttotal\twith sub-agents\t  agent")
	var sum subagent.Usage
	h.walk("", "", func(t *talk, indent string) {
		c := t.costs()
		sum = sum.Add(c.own)
		printCost(w, c.own, fmt.Sprint(c.all.TotalTokens), indent+t.Agent)
	})
	printCost(w, sum, "", "all, each once")
	_ = w.Flush() // nobody is left to tell when the output has gone
}

func printCost(w io.Writer, u subagent.Usage, with, name string) {
	fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%s\t  %s\n",
		u.Calls, u.InputTokens, u.CacheReadTokens, u.OutputTokens, u.ReasoningTokens, u.TotalTokens, with, printable(name))
}

// walk visits the conversations that a session's tasks had, and theirs.
func (h *history) walk(session, indent string, visit func(*talk, string)) {
	for _, t := range h.Talks {
		if t.parent() == session {
			visit(t, indent)
			h.walk(t.Session, indent+"  ", visit)
		}
	}
}

func (t *talk) parent() string {
	if t.From == nil {
		return ""
	}
	return t.From.Session
}
