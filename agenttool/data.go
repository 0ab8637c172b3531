package agenttool

import (
	"encoding/json"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// record is a task in an answer's Data: its JSON without prompt and result,
// and with usage only if this is the first delivery of its end.
type record struct {
	subagent.Task

	// These take the place of the fields of the same name; nil leaves them out.

	Description *string         `json:"description,omitempty"`
	ResultText  *string         `json:"result_text,omitempty"`
	Usage       *subagent.Usage `json:"usage,omitempty"`
}

func recordOf(t subagent.Task, usage *subagent.Usage) record {
	return record{Task: t, Usage: usage}
}

// delivered is the usage of a task that was handed over, if it has ended and
// nobody was handed its end before: the Runner shows that by NotifiedAt.
func delivered(t subagent.Task) *subagent.Usage {
	if !t.Status.Terminal() || !t.NotifiedAt.IsZero() {
		return nil
	}
	return &t.Usage
}

type taskList struct {
	Tasks []record `json:"tasks"`
}

type awaited struct {
	Done bool `json:"done"`
	taskList
}

type stopped struct {
	OK      bool            `json:"ok"`
	Status  subagent.Status `json:"status"`
	TaskID  uuid.UUID       `json:"task_id"`
	Stopped []uuid.UUID     `json:"stopped"` // descendants, before their ancestors
}

func marshal(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // only a time beyond the year 9999 is no JSON
	}
	return data
}

// about is an answer about one task.
func (s *Toolset) about(t subagent.Task, usage *subagent.Usage, text ...part) Answer {
	return Answer{
		Text:    fit(text, s.maxText),
		Data:    marshal(recordOf(t, usage)),
		IsError: t.Status == subagent.StatusErrored,
		TaskID:  t.ID,
		Usage:   usage,
	}
}
