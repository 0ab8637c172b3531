package agenttool

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-subagent/subagent"
)

const (
	defaultListed = 50
	maxListed     = 200
)

// listTasks shows the tasks in scope, live ones first, then newest first.
func (s *Toolset) listTasks(_ context.Context, c *call) (Answer, error) {
	status := c.args.choice("status", "all",
		string(subagent.StatusPending), string(subagent.StatusQueued), string(subagent.StatusRunning),
		string(subagent.StatusCompleted), string(subagent.StatusCancelled), string(subagent.StatusErrored))
	want := fmt.Sprintf("a whole number, 1 to %d", maxListed)
	limit := c.args.whole("limit", defaultListed, 1, want)
	if limit > maxListed {
		c.args.wrong("limit", c.args.values["limit"], want)
	}
	if c.args.err != nil {
		return Answer{}, c.args.err
	}
	if err := c.scope.check(); err != nil {
		return Answer{}, err
	}
	var f subagent.Filter
	if status != "all" {
		f.Statuses = []subagent.Status{subagent.Status(status)}
	}
	tasks, err := c.scope.list(f)
	if err != nil {
		return Answer{}, err
	}
	newestFirst(tasks)
	slices.SortStableFunc(tasks, func(a, b subagent.Task) int { return rank(a) - rank(b) })
	return s.listed(tasks, limit), nil
}

func rank(t subagent.Task) int {
	if t.Status.Terminal() {
		return 1
	}
	return 0
}

// listed shows at most limit of tasks, and of these as many whole lines as
// there is room for.
func (s *Toolset) listed(tasks []subagent.Task, limit int) Answer {
	total := len(tasks)
	tasks = tasks[:min(total, limit)]
	data := taskList{make([]record, len(tasks))}
	lines := make([]string, len(tasks))
	length := 0
	for i, t := range tasks {
		t.ResultTruncated = false // that was said of a preview, which is not in it
		data.Tasks[i] = recordOf(t, nil)
		status := string(t.Status)
		if t.StopReason != "" {
			status += " stop_reason=" + line(t.StopReason)
		}
		lines[i] = fmt.Sprintf("%s %s %s, %s old", t.ID, status, line(t.Subject), since(t.CreatedAt))
		length += len(lines[i]) + len("\n")
	}
	for len(lines) > 0 && (length > s.maxText || len(lines) < total && length+len(cutList(len(lines), total)) > s.maxText) {
		length -= len(lines[len(lines)-1]) + len("\n")
		lines = lines[:len(lines)-1]
	}
	text := strings.Join(lines, "\n")
	switch {
	case total == 0:
		text = "There are no such tasks."
	case len(lines) < total:
		text += cutList(len(lines), total)
	}
	return Answer{Text: fit([]part{fixed(strings.TrimSpace(text))}, s.maxText), Data: marshal(data)}
}

func cutList(shown, total int) string {
	return fmt.Sprintf("\n[cut: the first %d of %d tasks]", shown, total)
}
