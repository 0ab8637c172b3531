package agenttool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// taskOutput reads one task, and waits for its end if asked to.
func (s *Toolset) taskOutput(ctx context.Context, c *call) (Answer, error) {
	id := c.args.required("task_id", "a task_id, a string")
	block := c.args.flag("block", true)
	timeout, clamped := c.args.timeout()
	if c.args.err != nil {
		return Answer{}, c.args.err
	}
	found, err := c.scope.find(id)
	if err != nil {
		return Answer{}, err
	}
	t := found[0]
	began := time.Now()
	if !block {
		timeout = 0
	}
	if block || t.Status.Terminal() { // reading an end is its delivery, so it must go through Wait
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		t, err = s.runner.Wait(ctx, t.ID)
		if t.ID == uuid.Nil {
			return Answer{}, notAwaited(err)
		}
	}
	var text []part
	if t.Status.Terminal() {
		text = withHeadline(t)
	} else {
		text = []part{fixed(fmt.Sprintf("The task has not ended yet: %s\n%s", headline(&t), s.state(&t)))}
		if block {
			text = append(text, fixed("\nWaited "+since(began)+"; it goes on, read it again later."))
		}
	}
	return s.about(t, delivered(t), append(text, clampNote(clamped)...)...), nil
}

func notAwaited(err error) error {
	if errors.Is(err, subagent.ErrWaitCycle) {
		return fmt.Errorf("waiting would never end, because what is waited for waits for this agent (%w)", err)
	}
	return err
}

func clampNote(clamped bool) []part {
	if !clamped {
		return nil
	}
	return []part{fixed(fmt.Sprintf("\nThe timeout was cut to the longest that is allowed, %d ms.", longestWait.Milliseconds()))}
}

const maxAwaited = 100

// awaitTasks waits for all or any of several tasks.
func (s *Toolset) awaitTasks(ctx context.Context, c *call) (Answer, error) {
	ids := c.args.ids("task_ids")
	mode := subagent.AwaitMode(c.args.choice("mode", string(subagent.AwaitAll), string(subagent.AwaitAny)))
	timeout, clamped := c.args.timeout()
	if c.args.err != nil {
		return Answer{}, c.args.err
	}
	found, err := c.scope.find(ids...)
	if err != nil {
		return Answer{}, err
	}
	keys := make([]uuid.UUID, len(found))
	for i, t := range found {
		keys[i] = t.ID
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tasks, err := s.runner.Await(ctx, mode, keys...)
	if len(tasks) == 0 {
		return Answer{}, notAwaited(err)
	}
	return s.awaited(tasks, mode, time.Since(began), clamped), nil
}

// ids is a list of 1 to 100 strings. What is no string is passed on as it was
// written, so that it is named among the bad ids.
func (a *arguments) ids(key string) (ids []string) {
	want := fmt.Sprintf("an array of 1 to %d task_ids", maxAwaited)
	var values []json.RawMessage
	if !a.get(key, &values, want) {
		if a.err == nil {
			a.err = fmt.Errorf("%s is missing; it must be %s", key, want)
		}
		return nil
	}
	if n := len(values); n < 1 || n > maxAwaited {
		a.err = fmt.Errorf("%s has %d items; it must be %s", key, n, want)
	}
	for _, value := range values {
		var id string
		if string(value) == "null" || json.Unmarshal(value, &id) != nil {
			id = string(value)
		}
		ids = append(ids, id)
	}
	return ids
}

// awaited is the answer of a wait: the ends first as a number, then each task
// in the order asked.
func (s *Toolset) awaited(tasks []subagent.Task, mode subagent.AwaitMode, waited time.Duration, clamped bool) Answer {
	data := awaited{taskList: taskList{make([]record, len(tasks))}}
	ended := 0
	var blocks []part
	for i, t := range tasks {
		data.Tasks[i] = recordOf(t, delivered(t))
		blocks = append(blocks, fixed("\n\n"+headline(&t)+"\n"))
		if t.Status.Terminal() {
			ended++
			blocks = append(blocks, ending(&t)...)
		} else {
			blocks = append(blocks, fixed("still "+s.state(&t)))
		}
	}
	data.Done = ended == len(tasks) || mode == subagent.AwaitAny && ended > 0
	summary := fmt.Sprintf("%d of %d tasks have ended.", ended, len(tasks))
	if !data.Done {
		summary += " Waited " + span(waited) + "; the others go on."
	}
	text := append([]part{fixed(summary)}, clampNote(clamped)...)
	a := Answer{Text: fit(append(text, blocks...), s.maxText), Data: marshal(data)}
	if len(tasks) == 1 {
		a.TaskID, a.Usage = tasks[0].ID, data.Tasks[0].Usage
		a.IsError = tasks[0].Status == subagent.StatusErrored
	}
	return a
}
