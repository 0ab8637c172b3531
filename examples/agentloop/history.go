package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/go-subagent/subagent"
)

// history is what a host keeps of its conversations: the lead's first, then the
// sub-agents', in the order in which they began. It is a subagent.CardSink.
type history struct {
	mu    sync.Mutex // guards all below, in the talks too; nothing is called under it that takes a lock
	Talks []*talk    `json:"conversations"`
}

// talk is one conversation with a model.
type talk struct {
	Session string        `json:"session"` // "lead", or the task's ID
	Agent   string        `json:"agent"`
	From    *dispatch     `json:"from,omitempty"`      // a sub-agent's: the call that it was started by
	Before  []chatMessage `json:"inherited,omitempty"` // what it was told of its parent's conversation: text alone, so that no count comes with it
	Entries []entry       `json:"messages"`
}

// dispatch is one tool call. It takes all three to find it: this program's
// scripted model, as some providers do, uses the same call ids in every message.
type dispatch struct {
	Session   string `json:"session"`
	MessageID string `json:"message_id"`
	CallID    string `json:"tool_call_id"`
}

// entry is a message of a conversation, as it is saved.
type entry struct {
	ID string `json:"id"`
	chatMessage

	// An assistant's: what the model said that this message cost, and that
	// together with what the sub-agents cost which it started.
	ModelUsage subagent.Usage `json:"model_usage,omitzero"`
	Usage      subagent.Usage `json:"usage,omitzero"`

	// A tool result's: what the sub-agent cost which the call started, and
	// whether that is in the Usage of the message that the call is from. The
	// two change together, and are saved together.
	SubagentUsage   json.RawMessage `json:"subagent_token_usage,omitempty"`
	UsageAttributed bool            `json:"subagent_token_usage_attributed,omitempty"`

	Card *subagent.Card `json:"card,omitempty"` // the whole of an entry with the role roleCard
}

// roleCard marks entries for people to see. The model is not told of them.
const roleCard = "card"

// begin opens a conversation.
func (h *history) begin(session, agent string, from *dispatch, inherited []chatMessage) *talk {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := &talk{Session: session, Agent: agent, From: from, Before: inherited}
	h.Talks = append(h.Talks, t)
	return t
}

// add appends an entry and returns the id that it got: one that no other entry
// of any conversation has.
func (h *history) add(t *talk, e entry) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return t.add(e)
}

func (t *talk) add(e entry) string {
	e.ID = fmt.Sprintf("%s/%d", t.Session, len(t.Entries)+1)
	t.Entries = append(t.Entries, e)
	return e.ID
}

// messages are what the model is to read of a conversation.
func (h *history) messages(t *talk) []chatMessage {
	h.mu.Lock()
	defer h.mu.Unlock()
	return t.upTo("")
}

// inherited is the conversation up to the message that started a sub-agent, for
// the sub-agent to start from, without the system message of its parent.
func (h *history) inherited(from dispatch) []chatMessage {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.find(from.Session)
	if t == nil {
		return nil
	}
	return slices.DeleteFunc(t.upTo(from.MessageID), func(m chatMessage) bool { return m.Role == roleSystem })
}

// upTo are the messages before the one with the given id. What the parent told
// stands behind the system message.
func (t *talk) upTo(id string) []chatMessage {
	var told []chatMessage
	for _, e := range t.Entries {
		if e.ID == id {
			break
		}
		if e.Role != roleCard {
			told = append(told, e.chatMessage)
		}
		if e.Role == roleSystem {
			told = append(told, t.Before...)
		}
	}
	return told
}

func (h *history) find(session string) *talk {
	i := slices.IndexFunc(h.Talks, func(t *talk) bool { return t.Session == session })
	if i < 0 {
		return nil
	}
	return h.Talks[i]
}

// PutCard shows a task in the conversation that it was started in: a new card
// at the end, and whatever becomes of the task in the card's place.
func (h *history) PutCard(_ context.Context, c subagent.Card) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.find(c.Attach.SessionID)
	if t == nil {
		return fmt.Errorf("no conversation %q", c.Attach.SessionID)
	}
	for i, e := range t.Entries {
		if e.Card != nil && e.Card.TaskID == c.TaskID {
			t.Entries[i].Card = &c
			return nil
		}
	}
	t.add(entry{chatMessage: chatMessage{Role: roleCard}, Card: &c})
	return nil
}

// charge stores what a task cost on the result of the tool call that started
// it, which for a background task is an older one. It is not attributed yet.
// What is stored already stays: another task's cost would be lost.
func (h *history) charge(d delivery) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.result(dispatch{d.Session, d.MessageID, d.CallID})
	switch {
	case e == nil:
		return fmt.Errorf("message %q has no answer to its tool call %q, so there is no place for what its sub-agent cost", d.MessageID, d.CallID)
	case len(e.SubagentUsage) > 0:
		return fmt.Errorf("the answer to the tool call %q of message %q has a sub-agent's cost already", d.CallID, d.MessageID)
	}
	e.SubagentUsage = d.Usage
	return nil
}

// result is the entry that answers a tool call: the first answer with its id
// after its message.
func (h *history) result(d dispatch) *entry {
	t := h.find(d.Session)
	if t == nil {
		return nil
	}
	from := slices.IndexFunc(t.Entries, func(e entry) bool { return e.ID == d.MessageID })
	for i := from + 1; from >= 0 && i < len(t.Entries) && t.Entries[i].Role != roleAssistant; i++ {
		if t.Entries[i].ToolCallID == d.CallID {
			return &t.Entries[i]
		}
	}
	return nil
}

// cards are the cards of a conversation that stand behind an entry; of "", all.
func (h *history) cards(session, behind string) []subagent.Card {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.find(session)
	if t == nil {
		return nil // its task never started
	}
	since := 1 + slices.IndexFunc(t.Entries, func(e entry) bool { return e.ID == behind })
	var cards []subagent.Card
	for _, e := range t.Entries[since:] {
		if e.Card != nil {
			cards = append(cards, *e.Card)
		}
	}
	return cards
}

// all are the conversations that there are now.
func (h *history) all() []*talk {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.Talks)
}
