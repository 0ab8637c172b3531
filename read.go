package subagent

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Get returns the task as it is now, with its whole ResultText; while it runs,
// with its usage, progress and partial text so far. It does not wait for the
// task and never counts as the delivery of its notice. An unknown id is
// ErrNotFound. ctx governs the reading of the store, which is asked about tasks
// that are no longer in memory and in the moment in which an end is stored.
func (r *Runner) Get(ctx context.Context, id uuid.UUID) (Task, error) {
	e := r.find(id)
	if e != nil {
		if t := e.answer(true); t != nil {
			return t.copy(), nil
		}
	}
	row, err := r.load(ctx, id)
	switch {
	case e == nil && err != nil:
		return Task{}, err
	case e == nil:
		return row.copy(), nil
	case err == nil:
		e.observe(row)
	case !e.exists():
		return Task{}, err
	}
	return e.view(true).copy(), nil
}

// exists reports whether a reader can find e. While its Create is under way the
// store may have it already.
func (r *Runner) exists(ctx context.Context, e *execution) bool {
	if e.exists() {
		return true
	}
	_, err := r.load(ctx, e.id)
	return err == nil
}

// List returns the tasks that match f, ordered by ID, as they are now, with at
// most 2000 bytes of ResultText (ResultTruncated says so). It reads the store
// and puts on top what memory knows better. It never counts as delivery. ctx
// governs the reading, which takes StoreTimeout at most.
func (r *Runner) List(ctx context.Context, f Filter) ([]Task, error) {
	if f.Limit < 0 {
		return nil, invalid("Filter.Limit", "is %d; it must not be negative", f.Limit)
	}
	tasks := r.unsavedTasks(&f)
	known := make(map[uuid.UUID]bool, len(tasks))
	for _, t := range tasks {
		known[t.ID] = true
	}
	for page, n := f, 0; ; {
		rows, err := r.rows(ctx, page)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			if t := r.overlay(row); !known[t.ID] && f.match(t) {
				tasks = append(tasks, *t)
				n++
			}
		}
		// What memory knew better may not match: a short page is filled up.
		if f.Limit == 0 || n >= f.Limit || len(rows) < f.Limit {
			break
		}
		page.After = rows[len(rows)-1].ID
	}
	sortTasks(tasks, f)
	if f.Limit > 0 && len(tasks) > f.Limit {
		tasks = tasks[:f.Limit]
	}
	return tasks, nil
}

// unsavedTasks are those that match f and whose end the store does not know:
// it would sort them wrongly.
func (r *Runner) unsavedTasks(f *Filter) (tasks []Task) {
	for _, e := range r.unsavedEnds() {
		if t := e.view(false); e.exists() && f.match(t) && f.past(t.ID) {
			tasks = append(tasks, *t)
		}
	}
	return tasks
}

func (r *Runner) unsavedEnds() []*execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.unsaved))
}

// overlay is row as a reader may see it.
func (r *Runner) overlay(row *Task) *Task {
	e := r.find(row.ID)
	if e == nil {
		t := snapshot(row)
		preview(t)
		return t
	}
	e.observe(row)
	return e.view(false)
}

func sortTasks(tasks []Task, f Filter) {
	slices.SortFunc(tasks, func(a, b Task) int { return f.compare(a.ID, b.ID) })
}

// Forget deletes the records of terminal tasks, owed notices too. If one of
// them has not ended it is ErrNotTerminal and nothing is deleted; unknown ids
// are ignored. ctx governs the call to the store.
func (r *Runner) Forget(ctx context.Context, ids ...uuid.UUID) error {
	var known []*execution
	for _, id := range ids {
		e := r.find(id)
		if e == nil || !e.exists() {
			continue
		}
		if !r.current(e).Status.Terminal() {
			return fmt.Errorf("%w: %s", ErrNotTerminal, id)
		}
		known = append(known, e)
		e.saveNow()
	}
	_, err := guard(withoutRun(ctx), r.within(r.cfg.StoreTimeout), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, r.store.Delete(ctx, ids...)
	}, nil)
	if err != nil {
		return err
	}
	for _, e := range known {
		e.forget()
	}
	return nil
}

// forget has nothing of e stored, put or delivered any more.
func (e *execution) forget() {
	e.mu.Lock()
	e.forgotten = true
	if rest := e.rest; rest != nil {
		if rest.saving.state == workScheduled {
			stopTimer(rest.saving.timer)
			rest.saving.state = workIdle
		}
		if rest.card.state == workScheduled {
			stopTimer(rest.card.timer)
			rest.card.state = workIdle
		}
		if rest.saving.state == workIdle {
			rest.want = nil
		}
		rest.dirty = false
	}
	inside := e.inside
	e.mu.Unlock()
	e.runner.saved(e)
	if !inside { // else it is served until its worker returns
		e.runner.drop(e, false, true)
	}
	e.retire()
}

// Prune forgets the terminal tasks that match f and ended before the given
// time, and returns how many. It spares those whose notice is owed. If it
// fails, those that it has counted are gone and the others are not.
func (r *Runner) Prune(ctx context.Context, f Filter, before time.Time) (int, error) {
	if f.Limit < 0 {
		return 0, invalid("Filter.Limit", "is %d; it must not be negative", f.Limit)
	}
	all := f
	all.Limit = 0 // it counts what is forgotten
	rows, err := r.rows(ctx, all)
	if err != nil {
		return 0, err
	}
	rows = slices.DeleteFunc(rows, func(t *Task) bool {
		return !t.Status.Terminal() || t.owesNotice() || !t.CompletedAt.Before(before)
	})
	if f.Limit > 0 {
		rows = rows[:min(f.Limit, len(rows))]
	}
	n := 0
	for batch := range slices.Chunk(rows, 256) {
		ids := make([]uuid.UUID, len(batch))
		for i, t := range batch {
			ids[i] = t.ID
		}
		if err := r.Forget(ctx, ids...); err != nil {
			return n, err
		}
		n += len(ids)
	}
	return n, nil
}

// UsageTree is what a task and all its descendants have used so far, each
// counted once. An unknown id is ErrNotFound.
func (r *Runner) UsageTree(ctx context.Context, id uuid.UUID) (Usage, error) {
	t, err := r.Get(ctx, id)
	if err != nil {
		return Usage{}, err
	}
	sum := t.Usage
	seen := map[uuid.UUID]bool{id: true}
	for open := []uuid.UUID{id}; len(open) > 0; open = open[1:] {
		kids, err := r.List(ctx, Filter{ParentTaskID: open[0]})
		if err != nil {
			return Usage{}, err
		}
		for _, kid := range kids {
			if !seen[kid.ID] {
				seen[kid.ID] = true
				sum = sum.Add(kid.Usage)
				open = append(open, kid.ID)
			}
		}
	}
	return sum, nil
}

// collect reads a listing to its end.
func collect(list iter.Seq2[Task, error]) (rows []*Task, err error) {
	for t, err := range list {
		if err != nil {
			return nil, err
		}
		rows = append(rows, &t)
	}
	return rows, nil
}

// inOrder is what of es matches, in the order of their IDs.
func inOrder(es []*execution, match func(*execution) bool) []*execution {
	if match != nil {
		es = slices.DeleteFunc(es, func(e *execution) bool { return !match(e) })
	}
	slices.SortFunc(es, func(a, b *execution) int { return compareIDs(a.id, b.id) })
	return es
}
