package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/go-subagent/subagent"
)

// state is how a task's state is shown.
type state struct {
	word  string
	mark  string // "": the spinner
	style string
}

// stateOf names a task's state. "stopping" is none of the library's: it is a
// running task that was asked to stop.
func stateOf(t subagent.Task) state {
	switch t.Status {
	case subagent.StatusRunning:
		if !t.CancelRequestedAt.IsZero() {
			return state{"stopping", "", yellow}
		}
		return state{"running", "", cyan}
	case subagent.StatusCompleted:
		return state{"completed", "✓", green}
	case subagent.StatusCancelled:
		return state{"cancelled", "■", yellow}
	case subagent.StatusErrored:
		return state{"errored", "✗", red}
	}
	return state{string(t.Status), "·", dim}
}

// detail says in a few words what there is to say about a task. position is its
// place in line, 0 when it stands in none.
func detail(t subagent.Task, position int) string {
	switch {
	case position == 1:
		return "next in line"
	case position > 1:
		return fmt.Sprintf("#%s in line", grouped(position))
	case t.Status == subagent.StatusErrored:
		return printable(cmp.Or(t.Error, string(t.Reason)))
	case t.Status == subagent.StatusCancelled && t.StartedAt.IsZero():
		return "never started"
	case t.Status == subagent.StatusCancelled:
		return strings.TrimSuffix("at "+t.Progress.Message+", "+printable(t.Error), ", ")
	}
	return t.Progress.Message
}

// elapsed is how long a task has run; false before it started.
func elapsed(t subagent.Task, now time.Time) (time.Duration, bool) {
	switch {
	case t.StartedAt.IsZero():
		return 0, false
	case t.Status.Terminal():
		return t.CompletedAt.Sub(t.StartedAt), true
	}
	return now.Sub(t.StartedAt), true
}

// tally counts tasks by state: "2 running, 14 completed".
func tally(tasks []subagent.Task) string {
	counts := map[subagent.Status]int{}
	for _, t := range tasks {
		counts[t.Status]++
	}
	var parts []string
	for _, s := range []subagent.Status{
		subagent.StatusRunning, subagent.StatusPending, subagent.StatusQueued,
		subagent.StatusCompleted, subagent.StatusErrored, subagent.StatusCancelled,
	} {
		if counts[s] > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", grouped(counts[s]), s))
		}
	}
	return strings.Join(parts, ", ")
}

func countEnded(tasks []subagent.Task) int {
	n := 0
	for _, t := range tasks {
		if t.Status.Terminal() {
			n++
		}
	}
	return n
}
