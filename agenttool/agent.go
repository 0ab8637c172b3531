package agenttool

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/runes"
)

const maxPrompt = 1 << 20 // bytes, as the Runner's

// agent starts a sub-agent, and in the foreground waits for it.
func (s *Toolset) agent(ctx context.Context, c *call) (Answer, error) {
	if err := c.scope.check(); err != nil {
		return Answer{}, err
	}
	q, background, err := s.request(c)
	if err != nil {
		return Answer{}, err
	}
	if background {
		t, err := s.runner.Spawn(ctx, q)
		return s.started(t, err)
	}
	t, err := s.runner.Run(ctx, q)
	return s.finished(t, err)
}

// request reads the arguments. What the Runner would refuse is refused here,
// in the words of the tool.
func (s *Toolset) request(c *call) (q subagent.Request, background bool, err error) {
	a := c.args
	q = subagent.Request{
		ExternalTaskID:  c.ID,
		Description:     a.required("prompt", "the task in full, a string"),
		Subject:         a.required("description", "a few words, a string"),
		AgentID:         a.text("agent_id"),
		ContextMode:     subagent.ContextMode(a.choice("context", string(subagent.ContextClean), string(subagent.ContextInherit))),
		ParentSessionID: c.SessionID,
		ParentMsgID:     c.MessageID,
	}
	background = a.flag("run_in_background", false)
	switch n := len(runes.Clean(q.Description)); {
	case a.err != nil:
	case n > maxPrompt:
		a.err = fmt.Errorf("prompt has %d bytes; at most %d are allowed", n, maxPrompt)
	case q.AgentID == "":
	case len(s.agents) == 0 && (len(q.AgentID) > maxAgentID || q.AgentID != runes.Clean(q.AgentID)):
		a.err = fmt.Errorf("agent_id is %q; at most %d bytes without NUL are allowed", runes.Clean(brief(q.AgentID)), maxAgentID)
	case len(s.agents) > 0 && !slices.ContainsFunc(s.agents, func(p Agent) bool { return p.ID == q.AgentID }):
		a.err = fmt.Errorf("there is no agent_id %q; allowed are %q", runes.Clean(brief(q.AgentID)), agentIDs(s.agents))
	}
	return q, background, a.err
}

func agentIDs(agents []Agent) []string {
	ids := make([]string, len(agents))
	for i, a := range agents {
		ids[i] = a.ID
	}
	return ids
}

// started is the answer to a call in the background.
func (s *Toolset) started(t subagent.Task, err error) (Answer, error) {
	if t.ID == uuid.Nil {
		return s.notStarted(err), nil
	}
	if t.Status.Terminal() { // it was stopped, or failed, on its way into the queue
		return s.about(t, nil, withHeadline(t)...), nil
	}
	return s.about(t, nil, fixed(fmt.Sprintf(
		"The task has started in the background: task_id=%s status=%s\nRead its result with task_output and this task_id.", t.ID, t.Status))), nil
}

// finished is the answer to a call in the foreground.
func (s *Toolset) finished(t subagent.Task, err error) (Answer, error) {
	switch {
	case t.ID == uuid.Nil:
		return s.notStarted(err), nil
	case t.Status.Terminal():
		return s.about(t, delivered(t), withHeadline(t)...), nil
	case errors.Is(err, subagent.ErrWaitCycle):
		a := s.about(t, nil, fixed(fmt.Sprintf("[task error] The task waits for the one that waits for it, so it goes on in the background.\n\n%s", headline(&t))))
		a.IsError = true
		return a, nil
	}
	// Its caller is being stopped and did not stay for the end.
	parts := []part{fixed("[cancelled] The task was asked to stop.")}
	if t.ResultText != "" {
		parts = append(parts, fixed("\n\n"), cuttable(t.ResultText))
	}
	return s.about(t, nil, append(parts, fixed("\n\n"+headline(&t)))...), nil
}

// withHeadline is the end of a task as the answer about it alone shows it.
func withHeadline(t subagent.Task) []part {
	return append(ending(&t), fixed("\n\n"+headline(&t)))
}

// notStarted is the answer if there is no task.
func (s *Toolset) notStarted(err error) Answer {
	mark := "[task error]"
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, subagent.ErrParentCancelled) {
		mark = "[cancelled]"
	}
	hint := ""
	switch {
	case errors.Is(err, subagent.ErrQueueFull), errors.Is(err, subagent.ErrNoCapacity):
		hint = "; wait until a task has ended, or do the work yourself"
	case errors.Is(err, subagent.ErrDepth):
		hint = "; do the work yourself"
	}
	return Answer{
		Text:    fit([]part{fixed(mark + " No task was started: "), cuttable(reason(err)), fixed(hint + ".")}, s.maxText),
		IsError: true,
	}
}
