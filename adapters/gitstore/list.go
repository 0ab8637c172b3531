package gitstore

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// List implements subagent.Store. It reads the sessions that may have tasks
// for f, as it comes to them: one for a SessionID, those with such tasks for
// Statuses, Undelivered or ParentTaskID, else all. A task that is created,
// changed or deleted meanwhile may be seen as it was or as it is.
func (s *Store) List(ctx context.Context, f subagent.Filter) iter.Seq2[subagent.Task, error] {
	f.Statuses = slices.Clone(f.Statuses)
	return func(yield func(subagent.Task, error) bool) {
		left := f.Limit
		for _, c := range s.candidates(&f) {
			t, ok, err := s.listed(ctx, c, &f)
			switch {
			case err != nil:
				yield(subagent.Task{}, err)
				return
			case !ok:
				continue
			case !yield(t, nil):
				return
			}
			if left--; left == 0 {
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(subagent.Task{}, err)
		}
	}
}

// candidate is a task that a Filter may select.
type candidate struct {
	id uuid.UUID
	se *session
}

// candidates returns, in f's order and behind its cursor, the tasks of the
// sessions that may have some for f.
func (s *Store) candidates(f *subagent.Filter) (found []candidate) {
	type list struct {
		se  *session
		ids []uuid.UUID // never written to once it is in a digest
	}
	var lists []list
	s.mu.Lock()
	if f.SessionID != "" {
		if se := s.sessions[f.SessionID]; se != nil && se.digest.mayMatch(f) {
			lists = append(lists, list{se, se.digest.ids})
		}
	} else {
		for _, se := range s.sessions {
			if se.digest.mayMatch(f) {
				lists = append(lists, list{se, se.digest.ids})
			}
		}
	}
	s.mu.Unlock()
	order := 1
	if f.NewestFirst {
		order = -1
	}
	for _, l := range lists {
		for _, id := range l.ids {
			if f.After == uuid.Nil || order*compareIDs(id, f.After) > 0 {
				found = append(found, candidate{id, l.se})
			}
		}
	}
	slices.SortFunc(found, func(a, b candidate) int { return order * compareIDs(a.id, b.id) })
	return found
}

// listed returns c if it is there and f selects it. A long result is read only
// then.
func (s *Store) listed(ctx context.Context, c candidate, f *subagent.Filter) (t subagent.Task, ok bool, err error) {
	if err := s.begin(ctx); err != nil {
		return t, false, err
	}
	defer s.end()
	stored, _, err := s.load(ctx, c.se)
	if err != nil {
		return t, false, err
	}
	if r := stored.find(c.id); r == nil || !f.Match(r.task) {
		return t, false, nil
	}
	t, err = s.read(ctx, c.se, c.id)
	if errors.Is(err, subagent.ErrNotFound) {
		return t, false, nil
	}
	return t, err == nil && f.Match(t), err
}
