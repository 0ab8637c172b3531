package agenttool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// taskStop asks a task and its descendants to stop. It does not wait for them.
func (s *Toolset) taskStop(_ context.Context, c *call) (Answer, error) {
	id := c.args.required("task_id", "a task_id, a string")
	reason := c.args.text("reason")
	if c.args.err != nil {
		return Answer{}, c.args.err
	}
	found, err := c.scope.find(id)
	if err != nil {
		return Answer{}, err
	}
	before := found[0]
	ctx := c.scope.ctx // a stop is carried out even if the turn that asked for it has ended
	kin, err := descendants(ctx, s.runner, before.ID)
	if err != nil {
		return Answer{}, err
	}
	t, err := s.runner.Cancel(ctx, before.ID, subagent.CancelOptions{Reason: subagent.ReasonAgent, Message: reason})
	if t.ID == uuid.Nil || errors.Is(err, subagent.ErrInvalidTransition) { // of a status that this version does not know
		return Answer{}, err
	}
	with, lerr := s.stoppedSince(ctx, before.ID, kin)
	return s.stopAnswer(before, t, with, cmp.Or(err, lerr)), nil
}

// stoppedSince are the descendants of a task that were asked to stop since kin
// was read, descendants first.
func (s *Toolset) stoppedSince(ctx context.Context, id uuid.UUID, kin []subagent.Task) ([]subagent.Task, error) {
	over := make(map[uuid.UUID]bool)
	for _, t := range kin {
		over[t.ID] = t.Status.Terminal() || !t.CancelRequestedAt.IsZero()
	}
	now, err := descendants(ctx, s.runner, id)
	now = slices.DeleteFunc(now, func(t subagent.Task) bool { return over[t.ID] || t.CancelRequestedAt.IsZero() })
	slices.Reverse(now)
	return now, err
}

func (s *Toolset) stopAnswer(before, t subagent.Task, with []subagent.Task, err error) Answer {
	data := stopped{OK: err == nil, Status: t.Status, TaskID: t.ID, Stopped: make([]uuid.UUID, len(with))}
	var what string
	switch {
	case before.Status.Terminal():
		what = "The task had ended before; nothing was stopped: "
	case t.Status == subagent.StatusCancelled:
		what = "The task was stopped: "
	case t.Status.Terminal():
		what = "The task has ended by itself: "
	default:
		what = "The task was asked to stop and will end soon: "
	}
	parts := []part{fixed(what + headline(&t))}
	if err != nil {
		parts = append(parts, fixed("\nThe store failed: "), cuttable(reason(err)))
	}
	if len(with) > 0 {
		parts = append(parts, fixed(fmt.Sprintf("\nStopped with it: %d", len(with))))
	}
	for i, kid := range with {
		data.Stopped[i] = kid.ID
		parts = append(parts, fixed(fmt.Sprintf("\n%s %s", headline(&kid), line(kid.Subject))))
	}
	return Answer{Text: fit(parts, s.maxText), Data: marshal(data), IsError: err != nil, TaskID: t.ID}
}
