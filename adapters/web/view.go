package web

import (
	"context"
	"net/http"
	"slices"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// view is what one client may see, and looks at. Whether a task is in it is
// decided by the session of the record, before Redact. The session of a task
// never changes, so neither does the answer.
type view struct {
	all      bool
	sessions map[string]bool // if not all
	only     string          // the one session that the client looks at; "": every one that it may
}

// view asks the host what the request may see.
func (h *handler) view(r *http.Request) (view, *problem) {
	if h.Sessions == nil {
		return view{all: true}, nil
	}
	scope, err := h.Sessions(r)
	if err != nil {
		return view{}, forbidden
	}
	v := view{all: scope.All, sessions: make(map[string]bool, len(scope.IDs))}
	for _, id := range scope.IDs {
		v.sessions[id] = id != "" // no task is of session ""
	}
	return v, nil
}

func (v view) may(session string) bool { return v.all || v.sessions[session] }

// has reports whether tasks of the session are in the view.
func (v view) has(session string) bool {
	return v.may(session) && (v.only == "" || v.only == session)
}

// in is the view of one session, or of all if it is "". A session outside is
// not found, whether or not it has tasks.
func (v view) in(session string) (view, *problem) {
	if session != "" && !v.may(session) {
		return view{}, notFound
	}
	v.only = session
	return v, nil
}

// list returns the tasks of the view that match f, at most f.Limit, newest
// first. A Filter knows one session only, so several are asked for one by one:
// the work is that of as many listings as there are sessions in the view.
func (h *handler) list(ctx context.Context, v view, f subagent.Filter) ([]subagent.Task, error) {
	f.NewestFirst = true
	if v.all || v.only != "" {
		f.SessionID = v.only
		return h.runner.List(ctx, f)
	}
	var found []subagent.Task
	for session, in := range v.sessions {
		if !in {
			continue
		}
		f.SessionID = session
		tasks, err := h.runner.List(ctx, f)
		if err != nil {
			return nil, err
		}
		found = append(found, tasks...)
	}
	slices.SortFunc(found, func(a, b subagent.Task) int { return slices.Compare(b.ID[:], a.ID[:]) })
	if f.Limit > 0 && len(found) > f.Limit {
		found = found[:f.Limit]
	}
	return found, nil
}

// live returns the tasks of the view that have not ended.
func (h *handler) live(ctx context.Context, v view) ([]subagent.Task, error) {
	return h.list(ctx, v, subagent.Filter{
		Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning},
	})
}

// get returns the task if it is in the view. One that is not and one that does
// not exist are the same to the client.
func (h *handler) get(ctx context.Context, v view, taskID string) (subagent.Task, *problem) {
	id, err := uuid.Parse(taskID)
	if err != nil || id == uuid.Nil {
		return subagent.Task{}, notFound
	}
	t, err := h.runner.Get(ctx, id)
	if err != nil {
		return subagent.Task{}, problemOf(err)
	}
	if !v.may(t.ParentSessionID) {
		return subagent.Task{}, notFound
	}
	return t, nil
}

// kinship is what a client may be told of a task's ancestors.
type kinship uint8

const (
	kinOpen    kinship = iota // everything: it sees all sessions, or there are none
	kinInside                 // its parent; what lies above that may be of another session
	kinOutside                // nothing: its parent is of a session that the client does not see, or is gone
	kinships
)

// kin is what the client may be told of a task with that parent. session tells
// the parent's session; "" if it is not known any more.
func (v view) kin(parent uuid.UUID, session func() string) kinship {
	switch {
	case v.all || parent == uuid.Nil:
		return kinOpen
	case v.may(session()):
		return kinInside
	}
	return kinOutside
}

// sessionOf is the session of a task that is known to exist, or to have
// existed; "" if it cannot be found.
func (h *handler) sessionOf(ctx context.Context, id uuid.UUID) string {
	t, err := h.runner.Get(ctx, id)
	if err != nil {
		return ""
	}
	return t.ParentSessionID
}
