package web_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

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

const subscribe = `{"action":"subscribe"}`

// A client that never reads again is dropped after ten seconds, over all three
// transports.
func TestClientIsDropped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPiped(t, subagent.Config{}, web.Options{}, nil)
		began := time.Now()
		conn, _, err := websocket.Dial(t.Context(), "ws://x/ws", &websocket.DialOptions{HTTPClient: p.http})
		require.NoError(t, err)
		defer conn.CloseNow()
		require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(subscribe)))
		p.deaf(t)
		for range 4 {
			<-p.closed
		}
		require.Equal(t, 10*time.Second, time.Since(began))
	})
}

// A Runner tells of its own tasks alone. What another one on the same store does
// reaches a client with the next sign of life, and while nothing happens there
// no set is sent again.
func TestTasksOfAnotherRunner(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := subagent.NewMemoryStore()
		gate := subagenttest.NewGate()
		other, err := subagent.New(t.Context(), subagent.Config{Store: store, Func: gate.Func()})
		require.NoError(t, err)
		task, err := other.Spawn(t.Context(), subagent.Request{ParentSessionID: "s", Description: "p"})
		require.NoError(t, err)
		gate.WaitEntered(t, task.ID)
		p := newPiped(t, subagent.Config{Store: store}, web.Options{}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		conn, _, err := websocket.Dial(ctx, "ws://x/ws", &websocket.DialOptions{HTTPClient: p.http})
		require.NoError(t, err)
		defer conn.CloseNow()
		require.NoError(t, conn.Write(ctx, websocket.MessageText, []byte(subscribe)))
		live := func() int {
			_, body, err := conn.Read(ctx)
			require.NoError(t, err)
			var set struct {
				Type  string
				Tasks []subagent.Task
			}
			require.NoError(t, json.Unmarshal(body, &set))
			require.Equal(t, "live_tasks", set.Type)
			return len(set.Tasks)
		}
		require.Equal(t, 1, live())
		time.AfterFunc(time.Minute+time.Second, func() { gate.Release(task.ID, subagent.Result{}, nil) })
		began := time.Now()
		require.Zero(t, live())
		require.Equal(t, time.Minute+15*time.Second, time.Since(began))
		require.NoError(t, other.Shutdown(t.Context()))
	})
}

// A client that reads but does not answer when it is asked whether it is there
// loses its connection, not just its events.
func TestClientWithoutPongs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPiped(t, subagent.Config{}, web.Options{}, nil)
		asked := 0
		conn, _, err := websocket.Dial(t.Context(), "ws://x/ws", &websocket.DialOptions{
			HTTPClient:     p.http,
			OnPingReceived: func(context.Context, []byte) bool { asked++; return asked < 10 },
		})
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(subscribe)))
		_, _, err = conn.Read(t.Context())
		require.NoError(t, err)
		_, _, err = conn.Read(t.Context())
		require.Error(t, err)
		require.Equal(t, 10, asked)
		require.Equal(t, 10*15*time.Second+30*time.Second, time.Since(began))
	})
}

// The time limits of the host's server are for requests: a stream and a wait
// outlive them.
func TestServerWithTimeouts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		gate := subagenttest.NewGate()
		p := newPiped(t, subagent.Config{Func: gate.Func()}, web.Options{}, func(s *http.Server) {
			s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = time.Second, time.Second, time.Second
		})
		conn := p.subscribed(t)
		stream, err := p.http.Get("http://x/events")
		require.NoError(t, err)
		defer stream.Body.Close()
		wait, err := p.http.Post("http://x/tasks", "application/json", strings.NewReader(`{"session_id":"s","prompt":"p","wait":true}`))
		require.NoError(t, err)
		defer wait.Body.Close()
		run, err := gate.Entered(t.Context())
		require.NoError(t, err)
		time.AfterFunc(time.Minute, func() { gate.Release(run.Task().ID, subagent.Result{Text: "done"}, nil) })
		var all sync.WaitGroup // nobody may wait for another to read
		all.Go(func() {
			var end subagent.Task
			assert.NoError(t, json.NewDecoder(wait.Body).Decode(&end))
			assert.Equal(t, "done", end.ResultText)
		})
		all.Go(func() {
			lines := bufio.NewScanner(stream.Body)
			for assert.True(t, lines.Scan(), "the stream ended") && !strings.Contains(lines.Text(), `"completed"`) {
			}
		})
		all.Go(func() {
			for {
				_, data, err := conn.Read(t.Context())
				if !assert.NoError(t, err) || bytes.Contains(data, []byte(`"completed"`)) {
					return
				}
			}
		})
		all.Wait()
	})
}
