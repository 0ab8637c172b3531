package web_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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

// noise is a text that takes twice its size on the wire.
var noise = strings.Repeat(`"`, 2000)

// noisy makes events that a client which does not read cannot hold in any
// buffer.
func noisy(_ context.Context, run *subagent.Run) (subagent.Result, error) {
	run.Progress(noise)
	return subagent.Result{Text: noise}, nil
}

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

// One client stops reading while 10 000 events pass. The others get them all
// and the tasks go on. When it reads again it is told what is live, or finds
// that it was dropped.
func TestClientThatDoesNotRead(t *testing.T) {
	g := newRig(t, subagent.Config{Func: noisy, MaxQueued: -1}, web.Options{})
	stuck, reader, sse := g.dial("/ws"), g.dial("/ws"), g.events("/events")
	for _, s := range []*socket{stuck, reader} {
		s.call("subscribe", nil)
	}
	sse.kind("live_tasks")
	const batch = 100
	rounds, done := make(chan struct{}), make(chan error, 1)
	go func() { // ends with the rounds; the test reads its result
		var err error
		var last float64
		for range rounds {
			if err == nil {
				_, last, err = ends(batch, last, sse.line)
			}
			done <- err
		}
	}()
	defer close(rounds)
	events, tasks, last := 0, 0, 0.0
	began := time.Now()
	for ; events < 10_000; tasks += batch {
		for range batch {
			g.spawn(subagent.Request{Description: noise})
		}
		rounds <- struct{}{}
		n, seq, err := ends(batch, last, func() ([]byte, error) {
			_, data, err := reader.conn.Read(t.Context())
			return data, err
		})
		require.NoError(t, err)
		require.NoError(t, <-done)
		events, last = events+n, seq
	}
	t.Logf("%d events of %d tasks in %v beside a client that does not read", events, tasks, time.Since(began))
	require.EqualValues(t, tasks, g.runner.Stats().Completed)
	for {
		f, err := stuck.read()
		if err != nil {
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			t.Log("it was dropped:", err)
			break
		}
		if f["type"] == "live_tasks" {
			t.Log("it has lagged")
			require.NotContains(t, f, "resumed")
			break
		}
	}
}

// slow is the response of a client that takes nothing until it is told to.
type slow struct {
	header http.Header
	take   chan struct{} // closed: from now on everything is taken
	wrote  chan []byte
}

func (s *slow) Header() http.Header { return s.header }
func (s *slow) WriteHeader(int)     {}
func (s *slow) Write(p []byte) (int, error) {
	select {
	case s.wrote <- bytes.Clone(p):
	default:
		<-s.take
		s.wrote <- bytes.Clone(p)
	}
	return len(p), nil
}

// A client that takes nothing while 5000 events pass has lagged: after what was
// on its way come the live tasks, and then what happens from there on.
func TestLag(t *testing.T) {
	g := newRig(t, subagent.Config{MaxQueued: -1}, web.Options{})
	h := web.Handler(g.runner, web.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	w := &slow{http.Header{}, make(chan struct{}), make(chan []byte, 1)}
	served := make(chan struct{})
	go func() { // ends with ctx; the test waits for it
		defer close(served)
		h.ServeHTTP(w, httptest.NewRequest("GET", "/events", nil).WithContext(ctx))
	}()
	witness := g.events("/events")
	witness.kind("live_tasks")
	g.gate.ReleaseAll()
	var last subagent.Task
	for n := 0; n < 5000; {
		for range 50 {
			last = g.spawn(subagent.Request{})
		}
		for done := false; !done; n++ {
			ev := witness.want(func(ev sseEvent) bool { return ev.id != "" })
			done = taskID(ev.data) == last.ID.String() && ev.data["task"].(object)["status"] == "completed"
		}
	}
	close(w.take)
	sets, after := 0, 0
	for after == 0 {
		select {
		case p := <-w.wrote:
			switch text := string(p); {
			case strings.Contains(text, "event: live_tasks"):
				require.NotContains(t, text, `"resumed"`)
				if sets++; sets == 2 {
					last = g.spawn(subagent.Request{})
				}
			case strings.Contains(text, last.ID.String()):
				require.Equal(t, 2, sets)
				after++
			}
		case <-time.After(patience):
			t.Fatal("it was not told")
		}
	}
	cancel()
	for served != nil {
		select {
		case <-w.wrote:
		case <-served:
			served = nil
		}
	}
}

// watched reports when the server closes a connection.
type watched struct {
	net.Listener
	closed chan struct{} // of the connections that were accepted, one after the other
}

func (w watched) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watchedConn{Conn: conn, closed: w.closed}, nil
}

type watchedConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *watchedConn) Close() error {
	c.once.Do(func() { c.closed <- struct{}{} })
	return c.Conn.Close()
}

// A client that never reads again is dropped, over both transports.
func TestClientIsDropped(t *testing.T) {
	t.Parallel()
	runner, err := subagent.New(t.Context(), subagent.Config{Func: noisy, MaxQueued: -1})
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(web.Handler(runner, web.Options{}))
	closed := make(chan struct{}, 8)
	server.Listener = watched{server.Listener, closed}
	server.Start()
	defer server.Close()
	defer runner.Shutdown(context.Background())

	conn, _, err := websocket.Dial(t.Context(), strings.Replace(server.URL, "http", "ws", 1)+"/ws", nil)
	require.NoError(t, err)
	defer conn.CloseNow()
	require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(`{"action":"subscribe"}`)))
	raw, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	require.NoError(t, err)
	defer raw.Close()
	_, err = io.WriteString(raw, "GET /events HTTP/1.1\r\nHost: "+raw.RemoteAddr().String()+"\r\n\r\n")
	require.NoError(t, err)

	late := time.After(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for left := 2; left > 0; {
		select {
		case <-closed:
			left--
		case <-tick.C: // events go on, so that no buffer is large enough
			for range 20 {
				_, err := runner.Spawn(t.Context(), subagent.Request{ParentSessionID: "s", Description: noise})
				require.NoError(t, err)
			}
		case <-late:
			t.Fatal("a client that does not read was not dropped")
		}
	}
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
