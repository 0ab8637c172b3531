package subagent

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent/internal/runes"
)

// cardFunction is the one value of Card.Function.
const cardFunction = "attach"

// Card is the chat's placeholder for a task. It is always derived from a Task
// and never edited: whoever keeps cards replaces the whole card. Its JSON is
//
//	{"function": "attach", "content": …, "extra": {"attach": {…}}}
type Card struct {
	TaskID   uuid.UUID `json:"-"`
	Function string    `json:"function"` // "attach"
	Content  string    `json:"content"`  // what a reader sees; at most 2000 bytes, cut between runes
	Attach   Attach    `json:"-"`        // marshals under extra.attach
}

// Attach is what a card says about its task to programs. Status is the true
// one, also before the task runs, where Content does not tell pending from
// queued.
type Attach struct {
	TaskID         string `json:"task_id"`
	Status         string `json:"status"`
	Reason         string `json:"reason"`
	StopReason     string `json:"stop_reason,omitempty"` // the Func's own word for a capped end: Content does not show it
	SessionID      string `json:"session_id"`
	HeadID         string `json:"head_id"`
	SourceCommitID string `json:"source_commit_id"`
	Label          string `json:"label"`  // the task's Subject
	Prompt         string `json:"prompt"` // the task's Description, cut between runes to at most 2000 bytes
	ExternalTaskID string `json:"external_task_id"`
}

// Card returns how t shows in the chat. Content is "(queued)" for a pending or
// queued task, "(running)", the result of a completed one, "Error: …" of an
// errored one, and the partial text of a cancelled one or "(cancelled)".
func (t Task) Card() Card {
	return Card{
		TaskID:   t.ID,
		Function: cardFunction,
		Content:  brief(t.cardContent()),
		Attach: Attach{
			TaskID:         t.ID.String(),
			Status:         string(t.Status),
			Reason:         string(t.Reason),
			StopReason:     t.StopReason,
			SessionID:      t.ParentSessionID,
			HeadID:         t.HeadID,
			SourceCommitID: t.SourceCommitID,
			Label:          t.Subject,
			Prompt:         brief(t.Description),
			ExternalTaskID: t.ExternalTaskID,
		},
	}
}

func (t *Task) cardContent() string {
	switch t.Status {
	case StatusPending, StatusQueued:
		return "(queued)"
	case StatusCompleted:
		return t.ResultText
	case StatusErrored:
		return "Error: " + firstNonEmpty(t.Error, string(t.Reason))
	case StatusCancelled:
		return firstNonEmpty(t.ResultText, "(cancelled)")
	}
	return "(" + string(t.Status) + ")"
}

// Expand reports whether a context generator may put the task's conversation
// in the card's place: only when the task completed.
func (c Card) Expand() bool { return c.Attach.Status == string(StatusCompleted) }

// cardJSON is the shape of a Card on the wire and in stored messages.
type cardJSON struct {
	Function string `json:"function"`
	Content  string `json:"content"`
	Extra    struct {
		Attach Attach `json:"attach"`
	} `json:"extra"`
}

// MarshalJSON writes the chat's shape, with Attach under extra.attach.
func (c Card) MarshalJSON() ([]byte, error) {
	wire := cardJSON{Function: c.Function, Content: c.Content}
	wire.Extra.Attach = c.Attach
	return json.Marshal(wire)
}

// UnmarshalJSON reads what MarshalJSON wrote; TaskID comes from
// extra.attach.task_id. JSON of another function, or with a malformed task id,
// is an error and leaves c as it was.
func (c *Card) UnmarshalJSON(data []byte) error {
	var wire cardJSON
	if err := json.Unmarshal(data, &wire); err != nil {
		return fmt.Errorf("subagent: card: %w", err)
	}
	if wire.Function != cardFunction {
		return fmt.Errorf("subagent: card: function is %q, not %q", runes.Cut(wire.Function, maxID), cardFunction)
	}
	id, err := uuid.Parse(wire.Extra.Attach.TaskID)
	if err != nil {
		return fmt.Errorf("subagent: card: task_id: %w", err)
	}
	*c = Card{TaskID: id, Function: wire.Function, Content: wire.Content, Attach: wire.Extra.Attach}
	return nil
}

// CardSink puts cards where the chat keeps them.
type CardSink interface {
	// PutCard inserts c or replaces the card with the same TaskID. It is called
	// before Spawn returns and at every transition, for one task one at a time
	// and in order, and bounded by Config.StoreTimeout, which ends ctx. After
	// an error it is called again, later and with the newest state only. It may
	// call the Runner.
	PutCard(ctx context.Context, c Card) error
}
