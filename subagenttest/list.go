package subagenttest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// condition is a Filter of one field together with what it means, said anew.
type condition struct {
	name  string
	set   func(*subagent.Filter)
	holds func(subagent.Task) bool
}

func testList(t *testing.T, open opener) {
	t.Run("empty store", func(t *testing.T) {
		requireListed(t, open(t), subagent.Filter{}, nil)
		requireListed(t, open(t), subagent.Filter{NewestFirst: true, SessionID: "s", After: newID(), Limit: 3}, nil)
	})
	s := open(t)
	tasks := mixedTasks()
	put(t, s, shuffled(tasks)...)
	t.Run("order", func(t *testing.T) {
		requireListed(t, s, subagent.Filter{}, tasks)
		requireListed(t, s, subagent.Filter{NewestFirst: true}, reversed(tasks))
	})
	t.Run("filter", func(t *testing.T) { testFilters(t, s, tasks) })
	t.Run("cursor", func(t *testing.T) { testCursor(t, s, tasks) })
	t.Run("limit", func(t *testing.T) {
		for _, limit := range []int{1, 2, len(tasks) - 1, len(tasks), len(tasks) + 5} {
			n := min(limit, len(tasks))
			requireListed(t, s, subagent.Filter{Limit: limit}, tasks[:n])
			requireListed(t, s, subagent.Filter{Limit: limit, NewestFirst: true}, reversed(tasks)[:n])
		}
	})
	t.Run("pages", func(t *testing.T) { testPages(t, s, tasks) })
	t.Run("after an update", func(t *testing.T) { testListFollows(t, open(t)) })
	t.Run("loop left early", func(t *testing.T) {
		for range 20 {
			for _, err := range s.List(t.Context(), subagent.Filter{}) {
				require.NoError(t, err)
				break
			}
		}
		requireListed(t, s, subagent.Filter{}, tasks)
	})
	t.Run("ranged over twice", func(t *testing.T) {
		seq := s.List(t.Context(), subagent.Filter{Limit: 7})
		for range 2 {
			n := 0
			for _, err := range seq {
				require.NoError(t, err)
				n++
			}
			require.Equal(t, 7, n)
		}
	})
	t.Run("store used in the loop", func(t *testing.T) { testLoopCallsBack(t, open(t)) })
	t.Run("more than fits a batch", func(t *testing.T) { testLongList(t, open(t)) })
}

func testFilters(t *testing.T, s subagent.Store, tasks []subagent.Task) {
	all := conditions(tasks)
	for i, a := range all {
		for _, b := range all[i:] { // a alone when they are the same
			var f subagent.Filter
			a.set(&f)
			b.set(&f)
			var want []subagent.Task
			for _, task := range tasks {
				if a.holds(task) && b.holds(task) {
					want = append(want, task)
				}
			}
			if a.name == b.name && a.name != "no such session" {
				require.NotEmpty(t, want, "the suite has no task for %s", a.name)
			}
			requireListed(t, s, f, want)
			f.NewestFirst = true
			requireListed(t, s, f, reversed(want))
			if len(want) > 1 {
				f.Limit, f.After = 1, want[len(want)-1].ID
				requireListed(t, s, f, reversed(want)[1:2])
			}
		}
	}
}

// conditions has no two that set the same field to different values, so that
// any two can be combined.
func conditions(tasks []subagent.Task) []condition {
	parent := tasks[0].ID
	return []condition{
		{"nothing", func(*subagent.Filter) {}, func(subagent.Task) bool { return true }},
		{"SessionID", func(f *subagent.Filter) { f.SessionID = "s0" }, func(t subagent.Task) bool { return t.ParentSessionID == "s0" }},
		{"ExternalTaskID", func(f *subagent.Filter) { f.ExternalTaskID = "x1" }, func(t subagent.Task) bool { return t.ExternalTaskID == "x1" }},
		{"AgentID", func(f *subagent.Filter) { f.AgentID = "a1" }, func(t subagent.Task) bool { return t.AgentID == "a1" }},
		{"ParentMsgID", func(f *subagent.Filter) { f.ParentMsgID = "m1" }, func(t subagent.Task) bool { return t.ParentMsgID == "m1" }},
		{"ParentTaskID", func(f *subagent.Filter) { f.ParentTaskID = parent }, func(t subagent.Task) bool { return t.ParentTaskID == parent }},
		{"Statuses", func(f *subagent.Filter) {
			f.Statuses = []subagent.Status{subagent.StatusErrored, subagent.StatusQueued, subagent.StatusErrored}
		}, func(t subagent.Task) bool {
			return t.Status == subagent.StatusErrored || t.Status == subagent.StatusQueued
		}},
		{"Undelivered", func(f *subagent.Filter) { f.Undelivered = true }, func(t subagent.Task) bool {
			return t.Status.Terminal() && t.Background && t.NotifiedAt.IsZero()
		}},
	}
}

// mixedTasks are in the order of their IDs. Their values repeat with periods
// that have no common divisor, so that most combinations occur.
func mixedTasks() []subagent.Task {
	tasks := make([]subagent.Task, 210)
	for i := range tasks {
		task := inStatus(statuses[i%len(statuses)])
		task.ParentSessionID = "s" + strconv.Itoa(i%3)
		task.ExternalTaskID = []string{"", "x1", "x2", "X1"}[i/2%4]
		task.AgentID = []string{"a1", "a2", ""}[i/3%3]
		task.ParentMsgID = []string{"m1", "", "m2"}[i/5%3]
		task.Background = i/7%2 == 0
		if task.Status.Terminal() && i%11 == 0 {
			task.NotifiedAt = epoch
		}
		if i > 10 && i%2 == 1 {
			task.ParentTaskID = tasks[i/4%2].ID
		}
		tasks[i] = task
	}
	return tasks
}

func testCursor(t *testing.T, s subagent.Store, tasks []subagent.Task) {
	for i, task := range tasks {
		if i%13 != 0 && i < len(tasks)-2 {
			continue
		}
		requireListed(t, s, subagent.Filter{After: task.ID}, tasks[i+1:])
		requireListed(t, s, subagent.Filter{After: task.ID, NewestFirst: true}, reversed(tasks[:i]))

		between := task.ID // follows task and precedes the next, and is not stored
		between[15]++
		requireListed(t, s, subagent.Filter{After: between, Limit: 3}, tasks[i+1:min(i+4, len(tasks))])
		requireListed(t, s, subagent.Filter{After: between, NewestFirst: true}, reversed(tasks[:i+1]))
	}
	first, last := uuid.UUID{15: 1}, uuid.Max
	requireListed(t, s, subagent.Filter{After: first}, tasks)
	requireListed(t, s, subagent.Filter{After: last}, nil)
	requireListed(t, s, subagent.Filter{After: first, NewestFirst: true}, nil)
	requireListed(t, s, subagent.Filter{After: last, NewestFirst: true}, reversed(tasks))
}

func testPages(t *testing.T, s subagent.Store, tasks []subagent.Task) {
	for _, f := range []subagent.Filter{
		{Limit: 7}, {Limit: 70, NewestFirst: true}, {Limit: 4, SessionID: "s1"},
		{Limit: 5, ParentTaskID: tasks[0].ID, NewestFirst: true},
	} {
		var paged []subagent.Task
		whole := f
		whole.Limit = 0
		for range len(tasks) {
			n := len(paged)
			for task, err := range s.List(t.Context(), f) {
				require.NoError(t, err)
				paged = append(paged, task)
			}
			if len(paged) == n {
				break
			}
			f.After = paged[len(paged)-1].ID
		}
		requireListed(t, s, whole, paged)
	}
}

// testListFollows checks that a changed row is found by what it says now.
func testListFollows(t *testing.T, s subagent.Store) {
	parent, task := newTask(), newTask()
	task.AgentID = "old"
	put(t, s, parent, task)
	task = update(t, s, task.ID, func(t *subagent.Task) { t.AgentID, t.ParentTaskID = "new", parent.ID })
	requireListed(t, s, subagent.Filter{AgentID: "old"}, nil)
	requireListed(t, s, subagent.Filter{AgentID: "new"}, []subagent.Task{task})
	requireListed(t, s, subagent.Filter{ParentTaskID: parent.ID}, []subagent.Task{task})
	queued := subagent.Filter{Statuses: []subagent.Status{subagent.StatusQueued}}
	requireListed(t, s, queued, nil)
	task = update(t, s, task.ID, func(t *subagent.Task) { moveTo(t, subagent.StatusQueued) })
	requireListed(t, s, queued, []subagent.Task{task})
	task = update(t, s, task.ID, func(t *subagent.Task) { moveTo(t, subagent.StatusCancelled); t.Background = true })
	requireListed(t, s, queued, nil)
	requireListed(t, s, subagent.Filter{Undelivered: true}, []subagent.Task{task})
	update(t, s, task.ID, func(t *subagent.Task) { t.NotifiedAt = epoch.Add(5e9) })
	requireListed(t, s, subagent.Filter{Undelivered: true}, nil)
	require.NoError(t, s.Delete(t.Context(), task.ID))
	requireListed(t, s, subagent.Filter{ParentTaskID: parent.ID}, nil)
	requireListed(t, s, subagent.Filter{SessionID: parent.ParentSessionID}, []subagent.Task{parent})
}

// testLoopCallsBack uses every method in the body of a loop. What the listing
// yields of what happens meanwhile is open, but it ends, and in order.
func testLoopCallsBack(t *testing.T, s subagent.Store) {
	var tasks []subagent.Task
	for range 20 {
		tasks = append(tasks, inStatus(subagent.StatusCompleted), newTask())
	}
	put(t, s, tasks...)
	within(t, func(ctx context.Context) error {
		var last uuid.UUID
		n := 0
		for task, err := range s.List(ctx, subagent.Filter{Limit: len(tasks)}) {
			if err != nil {
				return err
			}
			if n++; slices.Compare(last[:], task.ID[:]) >= 0 {
				return fmt.Errorf("%s yielded after %s", task.ID, last)
			}
			last = task.ID
			if err := useAll(ctx, s, task); err != nil {
				return err
			}
		}
		if n != len(tasks) {
			return fmt.Errorf("%d tasks yielded, not %d", n, len(tasks))
		}
		return nil
	})
}

func useAll(ctx context.Context, s subagent.Store, task subagent.Task) error {
	if err := s.Create(ctx, newTask()); err != nil {
		return err
	}
	if _, err := s.Get(ctx, task.ID); err != nil {
		return err
	}
	for _, err := range s.List(ctx, subagent.Filter{Limit: 2}) {
		if err != nil {
			return err
		}
	}
	if task.Status.Terminal() {
		return s.Delete(ctx, task.ID)
	}
	_, err := s.Update(ctx, task.ID, func(t *subagent.Task) error { t.AgentID = "seen"; return nil })
	return err
}

func testLongList(t *testing.T, s subagent.Store) {
	tasks := make([]subagent.Task, 1100)
	for i := range tasks {
		tasks[i] = newTask()
	}
	put(t, s, shuffled(tasks)...)
	requireListed(t, s, subagent.Filter{}, tasks)
	requireListed(t, s, subagent.Filter{NewestFirst: true, SessionID: "session"}, reversed(tasks))
	requireListed(t, s, subagent.Filter{Limit: 600, After: tasks[299].ID}, tasks[300:900])
}

func reversed(tasks []subagent.Task) []subagent.Task {
	tasks = slices.Clone(tasks)
	slices.Reverse(tasks)
	return tasks
}

// shuffled is the same order every time, and far from that of the IDs.
func shuffled(tasks []subagent.Task) []subagent.Task {
	mixed := make([]subagent.Task, len(tasks))
	for i := range tasks {
		mixed[i*7919%len(tasks)] = tasks[i] // a prime that divides no length used here
	}
	return mixed
}
