package web_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// glance is what the busy readers look at: decoding all of 10 000 events would
// be most of the test.
type glance struct {
	Type string  `json:"type"`
	Seq  float64 `json:"seq"`
	Task struct {
		ID     string          `json:"task_id"`
		Status subagent.Status `json:"status"`
	} `json:"task"`
	Resumed bool `json:"resumed"`
}

// ends reads events until so many tasks have completed. It reports what must
// not be: a lag, an event out of order, an end that is told twice.
func ends(want int, last float64, next func() ([]byte, error)) (events int, seq float64, err error) {
	for seen := map[string]bool{}; len(seen) < want; {
		data, err := next()
		if err != nil {
			return events, last, err
		}
		var f glance
		if err := json.Unmarshal(data, &f); err != nil {
			return events, last, err
		}
		switch {
		case f.Type == "live_tasks":
			return events, last, errors.New("a client that reads has lagged")
		case f.Type == "running_task":
			continue
		case f.Seq <= last, f.Task.Status == subagent.StatusCompleted && seen[f.Task.ID]:
			return events, last, fmt.Errorf("event %v came after %v, or twice", f, last)
		}
		events++
		last = f.Seq
		if f.Task.Status == subagent.StatusCompleted {
			seen[f.Task.ID] = true
		}
	}
	return events, last, nil
}

// Clients that stop reading, one over each transport, while 10 000 events pass
// and tasks run. Three that read get them all, and nobody waits for the deaf
// ones: no time passes. When one of them listens again it is told what is live.
func TestB216_OneDeafClientFreezesNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		want := 10_000
		if bubble.Race {
			want = 5000 // still more than are kept
		}
		p := newPiped(t, subagent.Config{MaxQueued: -1}, web.Options{}, nil)
		p.deaf(t)
		late := p.subscribed(t) // from now on it is deaf
		synctest.Wait()         // what they have asked for was done
		sse, err := p.http.Get("http://x/events")
		require.NoError(t, err)
		defer sse.Body.Close()
		readers := []func() ([]byte, error){(&events{lines: bufio.NewScanner(sse.Body)}).line}
		_, err = readers[0]() // what is live
		require.NoError(t, err)
		for range 2 {
			conn := p.subscribed(t)
			readers = append(readers, func() ([]byte, error) { _, data, err := conn.Read(t.Context()); return data, err })
		}
		const batch = 100
		before, began := p.runner.Stats().Completed, time.Now()
		seen, tasks, last := 0, 0, make([]float64, len(readers))
		for ; seen < want; tasks += batch {
			for range batch {
				_, err := p.runner.Spawn(t.Context(), subagent.Request{ParentSessionID: "s", Description: "work"})
				require.NoError(t, err)
			}
			var all sync.WaitGroup
			counts := make([]int, len(readers))
			for i, next := range readers {
				all.Go(func() { // ends with the batch, which is waited for
					var err error
					counts[i], last[i], err = ends(batch, last[i], next)
					assert.NoError(t, err, "reader %d", i)
				})
			}
			all.Wait()
			require.False(t, t.Failed())
			require.Equal(t, []int{counts[0], counts[0], counts[0]}, counts)
			seen += counts[0]
		}
		require.Zero(t, time.Since(began))
		require.EqualValues(t, tasks, p.runner.Stats().Completed-before)
		for {
			_, data, err := late.Read(t.Context())
			require.NoError(t, err)
			var f glance
			require.NoError(t, json.Unmarshal(data, &f))
			if f.Type == "live_tasks" {
				require.False(t, f.Resumed)
				return
			}
		}
	})
}

// watchers look at everything that a client can be sent without asking again:
// one over WebSocket, one over server-sent events.
type watchers struct {
	ws  *socket
	sse *events
}

func (g *rig) watch(header ...string) watchers {
	w := watchers{g.dial("/ws", header...), g.events("/events", header...)}
	w.ws.call("subscribe", nil)
	w.sse.kind("live_tasks")
	return w
}

// upTo reads until both have seen the task in the state, and returns all that
// each has told of any task since the last time: the events' tasks, in order.
func (w watchers) upTo(id uuid.UUID, status subagent.Status) (told [2][]object) {
	w.ws.t.Helper()
	reached := func(i int, f object) bool {
		task, ok := f["task"].(object)
		if ok {
			told[i] = append(told[i], task)
		}
		return task["task_id"] == id.String() && task["status"] == string(status)
	}
	for {
		f, err := w.ws.read()
		require.NoError(w.ws.t, err)
		if reached(0, f) {
			break
		}
	}
	w.sse.want(func(ev sseEvent) bool { return reached(1, ev.data) })
	return told
}

// of are the states of a task that were told.
func of(told []object, id uuid.UUID) (states []string) {
	for _, task := range told {
		if task["task_id"] == id.String() {
			states = append(states, task["status"].(string))
		}
	}
	return states
}

// What a worker says after the end of its task is told to nobody and changes
// nothing: not after it returned, and not if it was left behind by a forced end.
func TestB219_NothingComesAfterTheEnd(t *testing.T) {
	g := newRig(t, subagent.Config{CancelGrace: time.Millisecond}, web.Options{})
	w := g.watch()
	loose := make(chan struct{})
	deaf := g.spawn(subagent.Request{Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		_, _ = g.gate.Func()(ctx, run)
		<-loose
		work(run)
		return subagent.Result{Text: "too late"}, nil
	}})
	done := g.spawn(subagent.Request{})
	runs := []*subagent.Run{g.gate.WaitEntered(t, deaf.ID), g.gate.WaitEntered(t, done.ID)}
	for _, run := range runs {
		work(run)
	}
	_, err := g.runner.Cancel(t.Context(), deaf.ID, subagent.CancelOptions{})
	require.NoError(t, err)
	require.True(t, g.ended(deaf).Detached)
	g.finish(done, "on time")
	marker := g.finish(g.spawn(subagent.Request{}), "")
	for i, told := range w.upTo(marker.ID, subagent.StatusCompleted) {
		for _, id := range []uuid.UUID{deaf.ID, done.ID} {
			states := of(told, id)
			require.True(t, subagent.Status(states[len(states)-1]).Terminal(), "watcher %d: %v", i, states)
		}
	}
	card := func(id uuid.UUID) string { return g.get("/tasks/"+id.String()).raw + g.get("/tasks").raw }
	before := []string{card(deaf.ID), card(done.ID)}
	for _, run := range runs {
		work(run)
		run.ReportUsage("late", subagent.Usage{InputTokens: 7, TotalTokens: 7})
	}
	g.until(func() bool { return g.runner.Stats().Detached == 1 })
	require.Equal(t, before, []string{card(deaf.ID), card(done.ID)})
	close(loose)
	g.until(func() bool { return g.runner.Stats().Detached == 0 })
	marker = g.finish(g.spawn(subagent.Request{}), "")
	for i, told := range w.upTo(marker.ID, subagent.StatusCompleted) {
		require.Empty(t, of(told, done.ID), "watcher %d", i)
		for _, state := range of(told, deaf.ID) { // that its worker has come back may be told
			require.Equal(t, "cancelled", state, "watcher %d", i)
		}
	}
	require.NotContains(t, w.ws.raw.String()+w.sse.raw.String()+card(deaf.ID), "too late")
}

// A stop whose end cannot be stored is not told before it is settled, and what
// is told then is what the record says.
func TestB220_NoStopIsToldBeforeItIsSettled(t *testing.T) {
	store := subagenttest.NewFaultyStore(subagent.NewMemoryStore())
	g := newRig(t, subagent.Config{Store: store.Store(), Workers: 1}, web.Options{})
	w := g.watch()
	running := g.spawn(subagent.Request{ParentSessionID: "a"})
	g.gate.WaitEntered(t, running.ID)
	queued := g.spawn(subagent.Request{ParentSessionID: "a"})
	let, trying := make(chan struct{}), make(chan uuid.UUID, 64)
	var failures atomic.Int32
	stops := func(c subagenttest.Call) bool {
		return len(c.Tasks) > 0 && c.Tasks[0].Status == subagent.StatusCancelled
	}
	store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
		if !stops(c) {
			return subagenttest.Fault{}
		}
		trying <- c.Tasks[0].ID
		return subagenttest.Fault{Block: let}
	})
	stop := make(chan reply)
	for _, task := range []subagent.Task{queued, running} {
		go func() { stop <- g.post("/tasks/"+task.ID.String()+"/cancel", "{}") }() // ends with the answer
		require.Equal(t, task.ID, <-trying)
	}
	require.Equal(t, "running", (<-stop).body["status"], "the worker's stop is on its way")
	marker := g.spawn(subagent.Request{ParentSessionID: "b"})
	states := func(told [2][]object) []string {
		return append(append(of(told[0], running.ID), of(told[1], running.ID)...), append(of(told[0], queued.ID), of(told[1], queued.ID)...)...)
	}
	require.NotContains(t, states(w.upTo(marker.ID, subagent.StatusQueued)), "cancelled")
	for _, task := range []subagent.Task{running, queued} {
		require.NotEqual(t, "cancelled", g.get("/tasks/" + task.ID.String()).body["status"])
	}
	require.NotContains(t, g.get("/tasks?session_id=a").raw, `"cancelled"`)

	// Now the store refuses a few times, and then gives in.
	store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
		if stops(c) && failures.Add(1) < 6 {
			return subagenttest.Fault{Err: errors.New("the disk is full")}
		}
		return subagenttest.Fault{}
	})
	close(let)
	require.Equal(t, "cancelled", (<-stop).body["status"])
	g.ended(running)
	g.finish(marker, "")
	told := w.upTo(marker.ID, subagent.StatusCompleted)
	g.until(func() bool { return g.runner.Stats().Unsaved == 0 })
	for _, task := range []subagent.Task{running, queued} {
		record, err := store.Store().Get(t.Context(), task.ID)
		require.NoError(t, err)
		for i := range told {
			states := of(told[i], task.ID)
			require.Equal(t, string(record.Status), states[len(states)-1], "watcher %d", i)
		}
		require.Equal(t, string(record.Status), g.get("/tasks/" + task.ID.String()).body["status"])
	}
}

// However a task ends, in the foreground or in the background, and even if it is
// forgotten at once: the last that a subscriber hears of it is its end.
func TestB222_TheLastEventIsTheEnd(t *testing.T) {
	store := subagent.NewMemoryStore()
	store.SetRetention(0)
	g := newRig(t, subagent.Config{Store: store, Workers: 1}, web.Options{})
	w := g.watch()
	ends := map[uuid.UUID]subagent.Status{}
	spawn := func() subagent.Task {
		task := g.spawn(subagent.Request{})
		g.gate.WaitEntered(t, task.ID)
		return task
	}
	done := spawn()
	ends[g.finish(done, "done").ID] = subagent.StatusCompleted
	failed := spawn()
	g.gate.Release(failed.ID, subagent.Result{}, errors.New("no"))
	ends[g.ended(failed).ID] = subagent.StatusErrored
	stopped := spawn()
	queued := g.spawn(subagent.Request{})
	for _, task := range []subagent.Task{queued, stopped} {
		_, err := g.runner.Cancel(t.Context(), task.ID, subagent.CancelOptions{})
		require.NoError(t, err)
		ends[g.ended(task).ID] = subagent.StatusCancelled
	}
	ctx, cancel := context.WithCancel(t.Context())
	id := uuid.Must(uuid.NewV7())
	go func() { g.gate.WaitEntered(t, id); cancel() }() // ends when the task has begun
	gone, _ := g.runner.Run(ctx, subagent.Request{ID: id, ParentSessionID: "s", Description: "p"})
	ends[gone.ID] = subagent.StatusCancelled
	id = uuid.Must(uuid.NewV7())
	g.gate.Release(id, subagent.Result{Text: "here"}, nil)
	ran, err := g.runner.Run(t.Context(), subagent.Request{ID: id, ParentSessionID: "s", Description: "p"})
	require.NoError(t, err)
	ends[ran.ID] = subagent.StatusCompleted
	require.NoError(t, g.runner.Forget(t.Context(), done.ID, failed.ID))
	waiter := g.dial("/ws")
	waiter.send(object{"action": "spawn_task", "id": "w", "session_id": "s", "prompt": "p", "wait": true})
	run, err := g.gate.Entered(t.Context())
	for err == nil && run.Task().ExternalTaskID == "" && ends[run.Task().ID] != "" { // of the tasks above
		run, err = g.gate.Entered(t.Context())
	}
	require.NoError(t, err)
	last := run.Task()
	ends[g.finish(last, "waited for").ID] = subagent.StatusCompleted
	require.Equal(t, "completed", waiter.want(func(f object) bool { return f["id"] == "w" })["status"])
	for i, told := range w.upTo(last.ID, subagent.StatusCompleted) {
		for id, want := range ends {
			states := of(told, id)
			require.Equal(t, string(want), states[len(states)-1], "watcher %d", i)
		}
	}
	for _, task := range g.get("/tasks").body["tasks"].([]any) {
		require.Contains(t, []any{"completed", "cancelled", "errored"}, task.(object)["status"])
	}
}
