package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

var openStatuses = []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}

// until waits for what nothing announces, and reports whether it came about.
func until(condition func() (bool, error)) (bool, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience / 2); ; <-tick.C {
		ok, err := condition()
		if ok || err != nil || time.Now().After(deadline) {
			return ok, err
		}
	}
}

// calm waits until what was stopped has ended, and notes what has not.
func (h *host) calm() error {
	f := fact{Says: saysCalm}
	_, err := until(func() (bool, error) {
		var err error
		f.Since = h.j.now()
		f.Tasks, err = h.runner.List(context.Background(), subagent.Filter{Statuses: openStatuses})
		stopping := slices.ContainsFunc(f.Tasks, func(t subagent.Task) bool { return !t.CancelRequestedAt.IsZero() })
		return !stopping, err
	})
	h.j.note(f)
	return err
}

// rest stops everything, waits until nothing goes on any more, and notes how
// each surface shows each task then.
func (h *host) rest() error {
	ctx := context.Background()
	tasks, err := h.runner.List(ctx, subagent.Filter{Statuses: openStatuses})
	if err != nil {
		return err
	}
	for _, t := range tasks {
		if _, err := h.runner.CancelSession(ctx, t.ParentSessionID, subagent.CancelOptions{}); err != nil {
			return err
		}
	}
	var left string
	ok, err := until(func() (bool, error) {
		var n [2]int
		for i, f := range []subagent.Filter{{Statuses: openStatuses}, {Undelivered: true}} {
			tasks, err := h.runner.List(ctx, f)
			if err != nil {
				return false, err
			}
			n[i] = len(tasks)
		}
		s := h.runner.Stats()
		cards := h.sinks.owing()
		left = fmt.Sprintf("%d open tasks, %d owed notices, %d owed cards, %+v", n[0], n[1], cards, s)
		return n[0]+n[1]+cards+s.Pending+s.Queued+s.Running+s.Detached+s.Lent+s.Unsaved+s.Capacity.Running+s.Capacity.Queued == 0, nil
	})
	if err != nil {
		return err
	}
	if !ok {
		h.j.fault(uuid.Nil, "does not come to rest: %s", left)
		return nil
	}
	return h.show(ctx)
}

// free waits until nobody holds a slot.
func (h *host) free() error {
	ok, err := until(func() (bool, error) { return h.capacity.Stats().Running == 0, nil })
	if !ok {
		h.j.fault(uuid.Nil, "Shutdown has left Funcs alone, and they do not come back: %+v", h.capacity.Stats())
	}
	return err
}

// slots notes whether all of them can be had.
func (h *host) slots() {
	var back []func()
	for release, ok := h.capacity.TryAcquire(); ok && len(back) < 2*workers; release, ok = h.capacity.TryAcquire() {
		back = append(back, release)
	}
	if len(back) != workers {
		h.j.fault(uuid.Nil, "nothing runs, and %d of %d slots can be had", len(back), workers)
	}
	for _, release := range back {
		release()
	}
}

// show notes how each surface shows each task.
func (h *host) show(ctx context.Context) error {
	var stored []subagent.Task
	sessions := make(map[string]bool)
	for t, err := range h.store.List(ctx, subagent.Filter{}) {
		if err != nil {
			return err
		}
		if t, err = h.store.Get(ctx, t.ID); err != nil {
			return err
		}
		stored = append(stored, t)
		sessions[t.ParentSessionID] = true
	}
	h.j.note(fact{Says: saysRest, Op: "record", Tasks: stored})
	listed, err := h.runner.List(ctx, subagent.Filter{NewestFirst: true})
	if err != nil {
		return err
	}
	h.j.note(fact{Says: saysRest, Op: "list", Tasks: listed})
	var got, output []subagent.Task
	for _, s := range stored {
		t, err := h.runner.Get(ctx, s.ID)
		if err != nil {
			return err
		}
		got = append(got, t)
		was := h.tool(ctx, "task_output", t.ParentSessionID, given(t.ID), map[string]any{"task_id": t.ID})
		output = append(output, was.tasks...)
	}
	h.j.note(fact{Says: saysRest, Op: "get", Tasks: got})
	h.j.note(fact{Says: saysRest, Op: "task_output", Tasks: output, Bare: true})
	for s := range sessions {
		was := h.tool(ctx, "list_tasks", s, nil, map[string]any{"limit": 200})
		h.j.note(fact{Says: saysRest, Op: "list_tasks", Tasks: was.tasks, Bare: true})
	}
	return nil
}

// sameEnd is "" if a and b show the same end, or what they differ in. Bare ones
// come from tools, without prompt, result and usage. What an end may gain
// afterwards is left out.
func sameEnd(a, b subagent.Task, bare bool) string {
	for _, t := range []*subagent.Task{&a, &b} {
		t.NotifiedAt, t.Version, t.Owner = time.Time{}, 0, ""
	}
	if n := min(len(a.ResultText), len(b.ResultText)); a.ResultTruncated || b.ResultTruncated {
		a.ResultText, b.ResultText = a.ResultText[:n], b.ResultText[:n]
	}
	a.ResultTruncated, b.ResultTruncated = false, false
	if bare {
		for _, t := range []*subagent.Task{&a, &b} {
			t.ResultText, t.Description, t.Usage = "", "", subagent.Usage{}
		}
	}
	x, y := encode(a), encode(b)
	if x == y {
		return ""
	}
	return x + " and " + y
}

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}
