package agenttool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/runes"
)

// scope is what a call may see: the tasks of a session, or what descends from
// the task within whose Func it was made. Everything else does not exist for
// it. It reads with a ctx that does not end: the answer of a call whose ctx
// has ended is the state of its task.
type scope struct {
	ctx     context.Context
	runner  *subagent.Runner
	session string
	room    int       // bytes that a refusal may take
	within  uuid.UUID // the task whose Func calls; uuid.Nil: none

	// What descends from within, once a call had to read all of it.
	kin    []subagent.Task
	walked bool
}

func scopeOf(ctx context.Context, r *subagent.Runner, session string, room int) scope {
	s := scope{ctx: context.WithoutCancel(ctx), runner: r, session: session, room: room}
	if run, ok := subagent.RunFromContext(ctx); ok {
		s.within = run.Task().ID
	}
	return s
}

// check refuses a call that belongs nowhere: an empty session in a filter
// would be every session.
func (s *scope) check() error {
	if s.within == uuid.Nil && strings.TrimSpace(s.session) == "" {
		return errors.New("the host made this call without a session, so it can see and start no task")
	}
	return nil
}

// sees reports whether t is in scope.
func (s *scope) sees(t subagent.Task) (bool, error) {
	if s.within == uuid.Nil {
		return t.ParentSessionID == s.session, nil
	}
	if s.walked {
		return slices.ContainsFunc(s.kin, func(k subagent.Task) bool { return k.ID == t.ID }), nil
	}
	seen := make(map[uuid.UUID]bool)
	for t.ParentTaskID != uuid.Nil && !seen[t.ID] {
		if t.ParentTaskID == s.within {
			return true, nil
		}
		seen[t.ID] = true
		var err error
		if t, err = s.runner.Get(s.ctx, t.ParentTaskID); err != nil {
			return false, ignoreUnknown(err)
		}
	}
	return false, nil
}

// ignoreUnknown is err as a failure to read: that there is no such task is
// none.
func ignoreUnknown(err error) error {
	if errors.Is(err, subagent.ErrNotFound) {
		return nil
	}
	return unread(err)
}

func unread(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the tasks could not be read: %s", reason(err))
}

// list returns the tasks in scope that f matches besides. What descends from
// a task takes a read of the store for each of them, so a call does that once.
func (s *scope) list(f subagent.Filter) ([]subagent.Task, error) {
	if s.within == uuid.Nil {
		f.SessionID = s.session
		tasks, err := s.runner.List(s.ctx, f)
		return tasks, unread(err)
	}
	if !s.walked {
		kin, err := descendants(s.ctx, s.runner, s.within)
		if err != nil {
			return nil, err
		}
		s.kin, s.walked = kin, true
	}
	return slices.DeleteFunc(slices.Clone(s.kin), func(t subagent.Task) bool { return !f.Match(t) }), nil
}

// descendants returns what descends from a task, parents before children.
func descendants(ctx context.Context, r *subagent.Runner, id uuid.UUID) (kin []subagent.Task, err error) {
	seen := map[uuid.UUID]bool{id: true}
	for open := []uuid.UUID{id}; len(open) > 0; open = open[1:] {
		kids, err := r.List(ctx, subagent.Filter{ParentTaskID: open[0]})
		if err != nil {
			return nil, unread(err)
		}
		for _, kid := range kids {
			if !seen[kid.ID] {
				seen[kid.ID] = true
				kin = append(kin, kid)
				open = append(open, kid.ID)
			}
		}
	}
	return kin, nil
}

// find returns the tasks with these ids, each once and in the order given. If
// one of them cannot be found the error names each that cannot.
func (s *scope) find(ids ...string) ([]subagent.Task, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	var (
		tasks []subagent.Task
		bad   []string
		seen  = make(map[string]bool)
		known = make(map[uuid.UUID]bool)
	)
	for _, raw := range ids {
		t, why, err := s.lookUp(strings.TrimSpace(raw), s.room/2/len(ids))
		switch {
		case err != nil:
			return nil, err
		case why == "" && !known[t.ID]:
			known[t.ID] = true
			tasks = append(tasks, t)
		case why != "" && !seen[why]:
			seen[why] = true
			bad = append(bad, why)
		}
	}
	if len(bad) == 0 {
		return tasks, nil
	}
	all := strings.Join(bad, "; ") + "; "
	live, err := s.live(s.room - len(all))
	if err != nil {
		return nil, err
	}
	return nil, errors.New(all + live)
}

// lookUp returns the task of an id, or why there is none, with as many other
// ids as room has bytes for.
func (s *scope) lookUp(id string, room int) (t subagent.Task, why string, err error) {
	key, isUUID := parseID(id)
	if isUUID {
		t, err := s.runner.Get(s.ctx, key)
		if err == nil {
			ok, err := s.sees(t)
			if ok || err != nil {
				return t, "", err
			}
		} else if err := ignoreUnknown(err); err != nil {
			return subagent.Task{}, "", err
		}
	}
	if id != "" {
		started, err := s.list(subagent.Filter{ExternalTaskID: id})
		if err != nil {
			return subagent.Task{}, "", err
		}
		if len(started) > 0 {
			return subagent.Task{}, fmt.Sprintf("%q is the id of a tool call, not a task_id; the task_id of what it started is %s", id, idList(started, room)), nil
		}
	}
	if !isUUID {
		return subagent.Task{}, fmt.Sprintf("%q is no task_id, which is a UUID", runes.Clean(brief(id))), nil
	}
	return subagent.Task{}, fmt.Sprintf("there is no task %s", key), nil
}

// parseID takes the usual form of a UUID, in any case. uuid.Parse alone takes
// others too, and more than UUIDs.
func parseID(s string) (uuid.UUID, bool) {
	if len(s) != 36 {
		return uuid.Nil, false
	}
	id, err := uuid.Parse(s)
	return id, err == nil
}

// live says which tasks in scope are live, in about room bytes.
func (s *scope) live(room int) (string, error) {
	tasks, err := s.list(subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}})
	if err != nil {
		return "", err
	}
	if len(tasks) == 0 {
		return "no task is live now", nil
	}
	const intro = "live now: "
	return intro + idList(tasks, room-len(intro)), nil
}

// idList names the newest tasks, as many as room has bytes for but at least
// one, and says how many more there are.
func idList(tasks []subagent.Task, room int) string {
	newestFirst(tasks)
	const comma = ", "
	each := len(uuid.Nil.String()) + len(comma)
	more := func(named int) string { return fmt.Sprintf(" and %d more", len(tasks)-named) }
	named := len(tasks)
	if named*each-len(comma) > room {
		named = max(1, (room+len(comma)-len(more(0)))/each)
	}
	ids := make([]string, named)
	for i := range ids {
		ids[i] = tasks[i].ID.String()
	}
	if named == len(tasks) {
		return strings.Join(ids, comma)
	}
	return strings.Join(ids, comma) + more(named)
}

func newestFirst(tasks []subagent.Task) {
	slices.SortFunc(tasks, func(a, b subagent.Task) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(b.ID.String(), a.ID.String())
	})
}
