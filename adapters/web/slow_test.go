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
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
)

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
