package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

const (
	defaultLimit = 100  // of a list
	maxLimit     = 1000 // of a list
	maxStopped   = 5000 // tasks in the answer to cancel_session
)

// request is what a client asks for, whatever the action and the transport.
// Each action looks at its own fields only.
type request struct {
	SessionID      string          `json:"session_id"`
	TaskID         string          `json:"task_id"`
	Prompt         string          `json:"prompt"`
	Description    string          `json:"description"`
	AgentID        string          `json:"agent_id"`
	Context        string          `json:"context"`
	ParentMsgID    string          `json:"parent_msg_id"`
	ExternalTaskID string          `json:"external_task_id"`
	Wait           bool            `json:"wait"`
	StatusFilter   json.RawMessage `json:"status_filter"` // a string or a list of strings
	Limit          int             `json:"limit"`
	After          string          `json:"after"`
	Reason         string          `json:"reason"`
}

// spawned answers spawn_task.
type spawned struct {
	TaskID      uuid.UUID       `json:"task_id"`
	Status      subagent.Status `json:"status"`
	ParentMsgID string          `json:"parent_msg_id"`
}

func spawnedOf(t subagent.Task) spawned { return spawned{t.ID, t.Status, t.ParentMsgID} }

// stopped answers cancel_task, and is one task in the answer to cancel_session.
type stopped struct {
	TaskID uuid.UUID       `json:"task_id"`
	Status subagent.Status `json:"status"`
}

type stoppedSession struct {
	SessionID string    `json:"session_id"`
	Tasks     []stopped `json:"tasks"`
	More      bool      `json:"more,omitempty"` // there were more than the answer holds
}

// listed answers list_tasks.
type listed struct {
	Tasks json.RawMessage `json:"tasks"`
	Next  string          `json:"next,omitempty"` // the after of the next page; "": there is none
}

// spawn starts a task. With q.Wait it also returns a subscription that was
// there before it: the caller closes it.
func (h *handler) spawn(ctx context.Context, v view, q request) (subagent.Task, *subagent.Subscription, error) {
	if h.ReadOnly {
		return subagent.Task{}, nil, readOnly
	}
	req, err := q.spawn()
	if err != nil {
		return subagent.Task{}, nil, err
	}
	if !v.may(q.SessionID) {
		return subagent.Task{}, nil, notFound
	}
	var sub *subagent.Subscription
	if q.Wait {
		sub = h.runner.Subscribe(subagent.Filter{SessionID: q.SessionID})
	}
	t, err := h.runner.Spawn(ctx, req)
	if err != nil && t.ID == uuid.Nil {
		if sub != nil {
			sub.Close()
		}
		return t, nil, problemOf(err)
	}
	return t, sub, nil // if the store refused it later, the task itself says so
}

func (q *request) spawn() (subagent.Request, error) {
	mode := subagent.ContextMode(q.Context)
	switch {
	case q.SessionID == "":
		return subagent.Request{}, invalid("session_id is required")
	case q.Prompt == "":
		return subagent.Request{}, invalid("prompt is required")
	case mode != "" && mode != subagent.ContextClean && mode != subagent.ContextInherit:
		return subagent.Request{}, invalid("context is %q; allowed are %q and %q", cut(q.Context, 256), subagent.ContextClean, subagent.ContextInherit)
	case mode == subagent.ContextInherit && q.ParentMsgID == "":
		return subagent.Request{}, invalid("context %q needs parent_msg_id: the message whose conversation is inherited", mode)
	}
	return subagent.Request{
		ParentSessionID: q.SessionID,
		Description:     q.Prompt,
		Subject:         q.Description,
		AgentID:         q.AgentID,
		ContextMode:     mode,
		ParentMsgID:     q.ParentMsgID,
		ExternalTaskID:  q.ExternalTaskID,
	}, nil
}

func (h *handler) listTasks(ctx context.Context, v view, q request) (any, error) {
	v, p := v.in(q.SessionID)
	if p != nil {
		return nil, p
	}
	f, err := q.filter()
	if err != nil {
		return nil, err
	}
	limit := f.Limit
	f.Limit++ // one more, to see whether there is a next page
	tasks, err := h.list(ctx, v, f)
	if err != nil {
		return nil, problemOf(err)
	}
	list, n := chunk(h.previews(ctx, v, tasks[:min(limit, len(tasks))]))
	out := listed{Tasks: list}
	if n < len(tasks) {
		out.Next = tasks[n-1].ID.String()
	}
	return out, nil
}

func (q *request) filter() (f subagent.Filter, err error) {
	switch f.Limit = q.Limit; {
	case q.Limit == 0:
		f.Limit = defaultLimit
	case q.Limit < 0 || q.Limit > maxLimit:
		return f, invalid("limit is %d; allowed are 1 to %d", q.Limit, maxLimit)
	}
	if q.After != "" {
		if f.After, err = uuid.Parse(q.After); err != nil {
			return f, invalid("after is %q; it must be the next of the page before", cut(q.After, 256))
		}
	}
	f.Statuses, err = statuses(q.StatusFilter)
	return f, err
}

// statuses reads a status_filter: one state or a list of them.
func statuses(filter json.RawMessage) ([]subagent.Status, error) {
	if len(filter) == 0 || string(filter) == "null" {
		return nil, nil
	}
	var list []subagent.Status
	var one subagent.Status
	switch {
	case json.Unmarshal(filter, &list) == nil:
	case json.Unmarshal(filter, &one) != nil:
		return nil, invalid("status_filter must be a string or a list of strings")
	case one == "" || one == "all":
		return nil, nil
	default:
		list = []subagent.Status{one}
	}
	for _, s := range list {
		if !s.Valid() {
			return nil, invalid("status_filter has %q; allowed are pending, queued, running, completed, cancelled, errored, and all by itself", cut(string(s), 256))
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(list))), nil
}

// getTask returns the task with all its text.
func (h *handler) getTask(ctx context.Context, v view, q request) (*wireTask, error) {
	t, p := h.get(ctx, v, q.TaskID)
	if p != nil {
		return nil, p
	}
	return h.whole(ctx, v, t), nil
}

func (h *handler) whole(ctx context.Context, v view, t subagent.Task) *wireTask {
	w := h.wire(t, v.kin(t.ParentTaskID, func() string { return h.sessionOf(ctx, t.ParentTaskID) }))
	return &w
}

func (h *handler) cancelTask(ctx context.Context, v view, q request) (any, error) {
	if h.ReadOnly {
		return nil, readOnly
	}
	t, p := h.get(ctx, v, q.TaskID)
	if p != nil {
		return nil, p
	}
	t, err := h.runner.Cancel(ctx, t.ID, subagent.CancelOptions{Message: q.Reason})
	if err != nil && t.ID == uuid.Nil {
		return nil, problemOf(err)
	}
	return stopped{t.ID, t.Status}, nil // the request counts, even if the store has yet to take it
}

// cancelSession stops the session's tasks. Their descendants in other sessions
// stop with them; the answer names those that the client may see.
func (h *handler) cancelSession(ctx context.Context, v view, q request) (any, error) {
	if h.ReadOnly {
		return nil, readOnly
	}
	if q.SessionID == "" {
		return nil, invalid("session_id is required")
	}
	if !v.may(q.SessionID) {
		return nil, notFound
	}
	tasks, err := h.runner.CancelSession(ctx, q.SessionID, subagent.CancelOptions{Message: q.Reason})
	if err != nil && len(tasks) == 0 {
		return nil, problemOf(err)
	}
	out := stoppedSession{SessionID: q.SessionID, Tasks: []stopped{}}
	for _, t := range tasks {
		if !v.may(t.ParentSessionID) {
			continue
		}
		if out.More = len(out.Tasks) == maxStopped; out.More {
			break
		}
		out.Tasks = append(out.Tasks, stopped{t.ID, t.Status})
	}
	return out, nil
}

// badge is how much goes on in a view.
type badge struct {
	Running int `json:"running"`
	Queued  int `json:"queued"`
}

func (h *handler) badge(ctx context.Context, v view) (b badge, err error) {
	tasks, err := h.live(ctx, v)
	if err != nil {
		return b, problemOf(err)
	}
	for _, t := range tasks {
		switch t.Status {
		case subagent.StatusRunning:
			b.Running++
		case subagent.StatusQueued:
			b.Queued++
		}
	}
	return b, nil
}

// gauge is how much of the capacity is used. Who does not see all sessions gets
// the numbers of his own tasks and none of those that count everybody's.
type gauge struct {
	Limit    int  `json:"limit"`
	Running  int  `json:"running"`
	Queued   int  `json:"queued"`
	Lent     *int `json:"lent,omitempty"`
	Detached *int `json:"detached,omitempty"`
}

func (h *handler) gauge(ctx context.Context, v view) (any, error) {
	s := h.runner.Stats()
	g := gauge{s.Capacity.Limit, s.Capacity.Running, s.Capacity.Queued, &s.Lent, &s.Detached}
	if v.all {
		return g, nil
	}
	b, err := h.badge(ctx, v)
	if err != nil {
		return nil, err
	}
	return gauge{Limit: s.Capacity.Limit, Running: b.Running, Queued: b.Queued}, nil
}

// decode reads a request from JSON: an object of our fields and perhaps others.
// What could be read is there also together with an error.
func decode(data []byte, into any) error {
	if !utf8.Valid(data) || !bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		return badJSON
	}
	err := json.Unmarshal(data, into)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		field := wrong.Field[strings.LastIndex(wrong.Field, ".")+1:] // without the names of our own types
		return invalid("%s must not be a JSON %s", field, cut(wrong.Value, 64))
	}
	if err != nil {
		return badJSON
	}
	return nil
}
