package web_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
)

func TestSubscribe(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 1}, web.Options{})
	before := g.spawn(subagent.Request{})
	g.gate.WaitEntered(t, before.ID)
	obey := make(chan struct{}) // when the later task does as it is told
	s := g.dial("/ws")
	live := s.call("subscribe", nil)
	require.Equal(t, "live_tasks", live["type"])
	require.Len(t, live["tasks"], 1)
	require.Equal(t, before.ID.String(), taskID(live["tasks"].([]any)[0].(object)))

	task := g.spawn(subagent.Request{Subject: "later", Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		_, err := g.gate.Func()(ctx, run)
		<-obey
		return subagent.Result{}, err
	}})
	created := s.event("task_created", task.ID.String())
	require.Equal(t, "later", created["task"].(object)["subject"])
	require.Equal(t, fmt.Sprintf("%s-%.0f", g.runner.ID(), created["seq"]), created["event_id"])
	require.NotEmpty(t, created["time"])
	g.finish(before, "")
	run := g.gate.WaitEntered(t, task.ID)
	s.event("running_task", task.ID.String())
	run.Progress("half way")
	progress := s.event("task_progress", task.ID.String())
	require.Equal(t, "half way", progress["task"].(object)["progress"].(object)["message"])
	_, err := g.runner.Cancel(t.Context(), task.ID, subagent.CancelOptions{})
	require.NoError(t, err)
	stopping := s.want(func(f object) bool {
		task, _ := f["task"].(object)
		return f["type"] == "task_status" && task["cancel_requested_at"] != nil
	})
	require.Equal(t, task.ID.String(), taskID(stopping))
	require.Equal(t, "running", stopping["task"].(object)["status"])
	close(obey)
	s.status(task.ID.String(), subagent.StatusCancelled)
}

// A later subscribe takes the place of an earlier one, and may look at one
// session only.
func TestSubscribeAgain(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	s := g.dial("/ws")
	s.call("subscribe", nil)
	require.Empty(t, s.call("subscribe", object{"session_id": "b"})["tasks"])
	a := g.spawn(subagent.Request{ParentSessionID: "a"})
	b := g.spawn(subagent.Request{ParentSessionID: "b"})
	s.event("running_task", b.ID.String())
	require.NotContains(t, s.raw.String(), a.ID.String())
	// Answers come in some order, but each request has one.
	for i := range 20 {
		s.send(object{"action": "subscribe", "id": fmt.Sprint("s", i)})
	}
	for i := range 20 {
		f := s.want(func(f object) bool { return f["id"] == fmt.Sprint("s", i) })
		require.True(t, f["type"] == "live_tasks" || codeOf(f) == "replaced", f)
	}
}

func TestServerSentEvents(t *testing.T) {
	g := newRig(t, subagent.Config{ShutdownGrace: time.Millisecond}, web.Options{})
	e := g.events("/events?session_id=s")
	live := e.kind("live_tasks")
	require.Equal(t, g.runner.ID()+"-0", live.id)
	require.Equal(t, []any{}, live.data["tasks"])
	other := g.spawn(subagent.Request{ParentSessionID: "other"})
	task := g.spawn(subagent.Request{})
	created := e.kind("task_created")
	require.Equal(t, task.ID.String(), taskID(created.data))
	require.Equal(t, created.data["event_id"], created.id)
	running := e.kind("running_task")
	require.Equal(t, task.ID.String(), running.data["task_id"])
	require.Empty(t, running.id)
	g.finish(task, "done")
	end := e.status(task.ID.String(), subagent.StatusCompleted)
	require.Equal(t, "done", end.data["task"].(object)["result_text"])
	require.NotContains(t, e.raw.String(), other.ID.String())
	g.finish(other, "")
	require.NoError(t, g.runner.Shutdown(t.Context()))
	_, more := e.next()
	require.False(t, more, "the stream ends with the Runner")
}

// After a break everything that followed comes, once, and then the live set.
func TestResume(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	all := g.dial("/ws")
	all.call("subscribe", nil)
	first := g.spawn(subagent.Request{})
	g.gate.WaitEntered(t, first.ID)
	mark := all.status(first.ID.String(), subagent.StatusRunning)["event_id"].(string)
	all.kept = nil // what came before, if it was not merged with that

	g.finish(first, "one")
	second := g.spawn(subagent.Request{})
	g.gate.WaitEntered(t, second.ID)
	var want []string // the ids of what happens after mark, as somebody saw it who was there
	for done := false; !done; {
		f := all.want(func(f object) bool { return f["event_id"] != nil })
		want = append(want, f["event_id"].(string))
		done = taskID(f) == second.ID.String() && f["task"].(object)["status"] == "running"
	}

	var got []string
	s := g.dial("/ws")
	s.send(object{"action": "subscribe", "id": 1, "after": mark})
	for {
		f, err := s.read()
		require.NoError(t, err)
		if f["type"] == "live_tasks" {
			require.Equal(t, true, f["resumed"])
			require.EqualValues(t, 1, f["id"])
			require.Len(t, f["tasks"], 1)
			break
		}
		if id, ok := f["event_id"].(string); ok {
			got = append(got, id)
		}
	}
	require.Equal(t, want, got)

	got = nil
	e := g.events("/events?after=nonsense", "Last-Event-ID", mark)
	for {
		ev, ok := e.next()
		require.True(t, ok)
		if ev.kind == "live_tasks" {
			require.Equal(t, true, ev.data["resumed"])
			break
		}
		if ev.id != "" {
			got = append(got, ev.id)
		}
	}
	require.Equal(t, want, got)

	last := want[len(want)-1]
	for _, unknown := range []string{"nonsense", g.runner.ID() + "-999999", uuid.NewString() + "-1", g.runner.ID() + "--1", g.runner.ID()} {
		ev, ok := g.events("/events?after=" + unknown).next()
		require.True(t, ok)
		require.Equal(t, "live_tasks", ev.kind, unknown)
		require.NotContains(t, ev.data, "resumed", unknown)
		require.Equal(t, last, ev.id)
	}
}

// Breaks at many places: what a client sees over all its connections has no
// hole and nothing twice.
func TestResumeLosesNothing(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	whole, s := g.events("/events"), g.dial("/ws")
	after := whole.kind("live_tasks").id
	s.call("subscribe", nil)
	var got, want []string
	frames := 0
	for range 40 {
		task := g.spawn(subagent.Request{}).ID
		g.gate.Release(task, subagent.Result{}, nil)
		for done := false; !done; frames++ {
			if frames%3 == 2 {
				require.NoError(t, s.conn.CloseNow())
				s = g.dial("/ws")
				s.send(object{"action": "subscribe", "after": after})
			}
			f, err := s.read()
			require.NoError(t, err)
			if id, ok := f["event_id"].(string); ok && f["type"] != "live_tasks" {
				after, got = id, append(got, id)
				done = f["task"].(object)["status"] == "completed"
			}
		}
		for done := false; !done; {
			ev := whole.want(func(ev sseEvent) bool { return ev.id != "" })
			want = append(want, ev.id)
			done = ev.data["task"].(object)["status"] == "completed"
		}
	}
	require.Equal(t, want, got)
}

// Resuming is refused once more than 4096 events have followed.
func TestResumeTooLate(t *testing.T) {
	g := newRig(t, subagent.Config{MaxQueued: -1}, web.Options{})
	e := g.events("/events")
	e.kind("live_tasks")
	g.gate.ReleaseAll()
	var ids []string
	for len(ids) < 4300 {
		var last subagent.Task
		for range 50 {
			last = g.spawn(subagent.Request{})
		}
		for done := false; !done; {
			ev := e.want(func(ev sseEvent) bool { return ev.id != "" })
			ids = append(ids, ev.id)
			done = taskID(ev.data) == last.ID.String() && ev.data["task"].(object)["status"] == "completed"
		}
	}
	// Tasks that end beside the last one add a few that are not in ids.
	for i, resumed := range map[int]bool{0: false, 100: false, len(ids) - 4000: true} {
		e := g.events("/events", "Last-Event-ID", ids[i])
		missed := 0
		ev := e.want(func(ev sseEvent) bool { missed++; return ev.kind == "live_tasks" })
		require.Equal(t, resumed, ev.data["resumed"] == true, i)
		require.Equal(t, resumed, missed > 1, i)
	}
}

// A live set that does not fit into one frame comes in parts.
func TestLiveSetInParts(t *testing.T) {
	g := newRig(t, subagent.Config{MaxQueued: -1, Workers: 1}, web.Options{})
	const tasks = 1200
	for range tasks {
		g.spawn(subagent.Request{Description: strings.Repeat("words ", 300)})
	}
	s := g.dial("/ws")
	s.send(object{"action": "subscribe", "id": "x"})
	seen := map[string]bool{}
	parts := 0
	for more := true; more; parts++ {
		f := s.want(func(f object) bool { return f["id"] == "x" })
		for _, task := range f["tasks"].([]any) {
			seen[taskID(task.(object))] = true
		}
		more = f["more"] == true
	}
	require.Len(t, seen, tasks)
	require.Greater(t, parts, 1)

	page := g.get("/tasks?limit=1000").body
	require.Less(t, len(page["tasks"].([]any)), 1000, "a page ends where the frame is full")
	require.NotEmpty(t, page["next"])
}

// 200 clients, half of them over each transport, all see every end.
func TestManyClients(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	const clients, tasks = 200, 25
	watch := make([]func() string, clients) // the id of the next task that ends
	for i := range clients {
		if i%2 == 0 {
			s := g.dial("/ws")
			s.call("subscribe", nil)
			watch[i] = func() string {
				for {
					f, err := s.read()
					if err != nil {
						return err.Error()
					}
					if task, ok := f["task"].(object); ok && task["status"] == "completed" {
						return taskID(f)
					}
				}
			}
			continue
		}
		e := g.events("/events")
		e.kind("live_tasks")
		watch[i] = func() string {
			for {
				ev, ok := e.next()
				if !ok {
					return "the stream ended"
				}
				if task, ok := ev.data["task"].(object); ok && task["status"] == "completed" {
					return taskID(ev.data)
				}
			}
		}
	}
	seen := make([]map[string]int, clients)
	var wg sync.WaitGroup
	for i, next := range watch {
		seen[i] = map[string]int{}
		wg.Go(func() {
			for range tasks {
				seen[i][next()]++
			}
		})
	}
	want := map[string]int{}
	for range tasks {
		task := g.spawn(subagent.Request{})
		want[task.ID.String()] = 1
		g.gate.Release(task.ID, subagent.Result{}, nil)
	}
	wg.Wait()
	for i := range clients {
		require.Equal(t, want, seen[i], "client %d", i)
	}
}

// When the Runner is shut down, those who watch see the ends and then the end.
func TestShutdownEndsStreams(t *testing.T) {
	g := newRig(t, subagent.Config{ShutdownGrace: time.Millisecond}, web.Options{})
	s := g.dial("/ws")
	s.call("subscribe", nil)
	task := g.spawn(subagent.Request{})
	g.gate.WaitEntered(t, task.ID)
	require.NoError(t, g.runner.Shutdown(t.Context()))
	s.status(task.ID.String(), subagent.StatusErrored)
	_, err := s.read()
	require.Equal(t, websocket.StatusGoingAway, websocket.CloseStatus(err))
	ev, ok := g.events("/events").next()
	require.True(t, ok)
	require.Equal(t, "live_tasks", ev.kind)
}

// A response writer without deadlines, flushing or hijacking still serves what
// needs none of them.
func TestPlainResponseWriter(t *testing.T) {
	runner, err := subagent.New(t.Context(), subagent.Config{})
	require.NoError(t, err)
	defer runner.Shutdown(t.Context())
	h := web.Handler(runner, web.Options{})
	w := httptest.NewRecorder()
	h.ServeHTTP(struct{ http.ResponseWriter }{w}, httptest.NewRequest("GET", "/tasks", nil))
	require.JSONEq(t, `{"tasks":[]}`, w.Body.String())
}
