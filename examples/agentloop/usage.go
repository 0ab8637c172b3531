package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
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
		c := t.costs()
		if sum := c.own.Add(c.passed); sum != c.all {
			wrong = append(wrong, fmt.Errorf("%s %s: its messages carry %d tokens; its own and its sub-agents' are %d", t.Agent, t.Session, c.all.TotalTokens, sum.TotalTokens))
		}
		if t.From == nil {
			continue
		}
		if started[*t.From] {
			wrong = append(wrong, fmt.Errorf("%s %s: the tool call %q of message %q started another sub-agent too", t.Agent, t.Session, t.From.CallID, t.From.MessageID))
		}
		started[*t.From] = true
		e := h.result(*t.From)
		if e == nil || len(e.SubagentUsage) == 0 {
			continue // nobody has been handed its end
		}
		if u, err := subagent.ParseUsage(e.SubagentUsage); err != nil {
			wrong = append(wrong, fmt.Errorf("%s %s: %w", t.Agent, t.Session, err))
		} else if *u != c.own {
			wrong = append(wrong, fmt.Errorf("%s %s: %d tokens were stored for it; its model calls cost %d", t.Agent, t.Session, u.TotalTokens, c.own.TotalTokens))
		}
	}
	return errors.Join(wrong...)
}

// printCosts prints the table of tokens: one agent a line, below the one that
// started it. Only own tokens add up; "with its own" has a sub-agent's twice,
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

// loadHistory reads what save wrote.
func loadHistory(name string) (*history, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the history %s: %w", name, cause(err))
	}
	h := new(history)
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(h); err != nil {
		return nil, fmt.Errorf("%s is no history that this program saved: %w", name, err)
	}
	if err := h.check(); err != nil {
		return nil, fmt.Errorf("%s is no history that this program saved: %w", name, err)
	}
	return h, nil
}

// check refuses a history whose conversations are no family: what goes through
// them from parent to child would miss some, or never come to an end.
func (h *history) check() error {
	known := map[string]bool{"": true}
	for i, t := range h.Talks {
		switch {
		case t == nil || known[t.Session]:
			return fmt.Errorf("conversation %d has no session of its own", i+1)
		case !known[t.parent()]:
			return fmt.Errorf("conversation %d comes before the one that started it, %q", i+1, t.parent())
		}
		known[t.Session] = true
	}
	if len(h.Talks) == 0 {
		return errors.New("it has no conversations")
	}
	return nil
}

// replay attributes a saved history, once more if that was done before, and
// saves what it changed.
func replay(name string, out io.Writer) error {
	h, err := loadHistory(name)
	if err != nil {
		return usageError{err}
	}
	changed := h.attribute()
	fmt.Fprintf(out, "attributed        %s changed\n", plural(changed, "message"))
	if changed > 0 {
		if err := h.save(name); err != nil {
			return err
		}
	}
	h.printCosts(out)
	again := h.attribute()
	fmt.Fprintf(out, "attributed again  %s changed\n", plural(again, "message"))
	if err := h.audit(); err != nil {
		return err
	}
	fmt.Fprintln(out, "every token is counted once")
	return nil
}
