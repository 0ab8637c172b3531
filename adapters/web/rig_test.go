package web_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
	"github.com/go-subagent/subagent/subagenttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

type object = map[string]any

// rig is a Runner behind a real server on a loopback address.
type rig struct {
	t      *testing.T
	runner *subagent.Runner
	gate   *subagenttest.Gate
	server *httptest.Server
}

func newRig(t *testing.T, cfg subagent.Config, o web.Options) *rig {
	t.Helper()
	g := &rig{t: t, gate: subagenttest.NewGate()}
	if cfg.Func == nil {
		cfg.Func = g.gate.Func()
	}
	if cfg.Workers == 0 {
		cfg.Workers = 4
	}
	var err error
	g.runner, err = subagent.New(t.Context(), cfg)
	require.NoError(t, err)
	g.server = httptest.NewServer(web.Handler(g.runner, o))
	t.Cleanup(func() {
		g.gate.ReleaseAll()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, g.runner.Shutdown(ctx)) // ends the streams, for which Close waits
		g.server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return g
}

func (g *rig) spawn(req subagent.Request) subagent.Task {
	g.t.Helper()
	if req.ParentSessionID == "" {
		req.ParentSessionID = "s"
	}
	if req.Description == "" {
		req.Description = "work"
	}
	task, err := g.runner.Spawn(g.t.Context(), req)
	require.NoError(g.t, err)
	return task
}

// finish lets the task return the text, and waits until everybody was told.
func (g *rig) finish(task subagent.Task, text string) subagent.Task {
	g.t.Helper()
	g.gate.Release(task.ID, subagent.Result{Text: text}, nil)
	return g.ended(task)
}

func (g *rig) ended(task subagent.Task) subagent.Task {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	done, err := g.runner.Wait(ctx, task.ID)
	require.NoError(g.t, err)
	return done
}

// until waits for what nothing announces.
func (g *rig) until(condition func() bool) {
	g.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !condition(); <-tick.C {
		require.True(g.t, time.Now().Before(deadline), "it did not happen")
	}
}

// reply is what a plain HTTP request came to.
type reply struct {
	status int
	header http.Header
	raw    string
	body   object // nil if it is no JSON object
}

func (r reply) code() string { return codeOf(r.body) }

func codeOf(body object) string {
	e, _ := body["error"].(object)
	code, _ := e["code"].(string)
	return code
}

func (g *rig) do(method, path, body string, header ...string) reply {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.t.Context(), method, g.server.URL+path, strings.NewReader(body))
	require.NoError(g.t, err)
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Del(header[i])
		if header[i+1] != "" {
			req.Header.Set(header[i], header[i+1])
		}
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	client := &http.Client{
		Timeout:       patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	require.NoError(g.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(g.t, err)
	r := reply{status: resp.StatusCode, header: resp.Header, raw: string(raw)}
	_ = json.Unmarshal(raw, &r.body)
	return r
}

func (g *rig) get(path string, header ...string) reply { return g.do("GET", path, "", header...) }

func (g *rig) post(path string, body any, header ...string) reply {
	text, ok := body.(string)
	if !ok {
		text = string(mustJSON(g.t, body))
	}
	return g.do("POST", path, text, header...)
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return b
}

// socket is a WebSocket client that keeps what it reads before it is asked for.
type socket struct {
	t    *testing.T
	conn *websocket.Conn
	kept []object
	raw  bytes.Buffer // all that was ever read
	next int
}

func (g *rig) dial(path string, header ...string) *socket {
	g.t.Helper()
	s, _, err := g.tryDial(path, header...)
	require.NoError(g.t, err)
	return s
}

func (g *rig) tryDial(path string, header ...string) (*socket, *http.Response, error) {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	conn, resp, err := websocket.Dial(ctx, strings.Replace(g.server.URL, "http", "ws", 1)+path, &websocket.DialOptions{HTTPHeader: h})
	if err != nil {
		return nil, resp, err
	}
	conn.SetReadLimit(1 << 20) // frames are promised to be no larger
	g.t.Cleanup(func() { conn.CloseNow() })
	return &socket{t: g.t, conn: conn}, resp, nil
}

func (s *socket) send(v any) {
	s.t.Helper()
	text, ok := v.(string)
	if !ok {
		text = string(mustJSON(s.t, v))
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	require.NoError(s.t, s.conn.Write(ctx, websocket.MessageText, []byte(text)))
}

func (s *socket) read() (object, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	kind, data, err := s.conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	require.Equal(s.t, websocket.MessageText, kind)
	s.raw.Write(data)
	s.raw.WriteByte('\n')
	var frame object
	require.NoError(s.t, json.Unmarshal(data, &frame))
	return frame, nil
}

// want returns the next frame that matches; those before it are kept for later.
func (s *socket) want(match func(object) bool) object {
	s.t.Helper()
	for i, f := range s.kept {
		if match(f) {
			s.kept = append(s.kept[:i:i], s.kept[i+1:]...)
			return f
		}
	}
	for {
		f, err := s.read()
		require.NoError(s.t, err)
		if match(f) {
			return f
		}
		s.kept = append(s.kept, f)
	}
}

// call sends a request and returns its answer.
func (s *socket) call(action string, fields object) object {
	s.t.Helper()
	s.next++
	id := float64(s.next)
	q := object{"action": action, "id": id}
	for k, v := range fields {
		q[k] = v
	}
	s.send(q)
	return s.want(func(f object) bool { return f["id"] == id })
}

// event returns the next event of a type, of a task if id is not "".
func (s *socket) event(kind, id string) object {
	s.t.Helper()
	return s.want(func(f object) bool { return f["type"] == kind && (id == "" || taskID(f) == id) })
}

// status waits until an event shows the task in a state.
func (s *socket) status(id string, status subagent.Status) object {
	s.t.Helper()
	return s.want(func(f object) bool {
		task, _ := f["task"].(object)
		return task["task_id"] == id && task["status"] == string(status)
	})
}

func taskID(f object) string {
	if id, ok := f["task_id"].(string); ok {
		return id
	}
	task, _ := f["task"].(object)
	id, _ := task["task_id"].(string)
	return id
}

// sseEvent is one event as a browser would see it.
type sseEvent struct {
	id, kind string
	data     object
}

// events is a client of the event stream.
type events struct {
	t      *testing.T
	body   io.ReadCloser
	lines  *bufio.Scanner
	raw    bytes.Buffer
	cancel context.CancelFunc
}

func (g *rig) events(path string, header ...string) *events {
	g.t.Helper()
	ctx, cancel := context.WithCancel(g.t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", g.server.URL+path, nil)
	require.NoError(g.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(g.t, err)
	require.Equal(g.t, 200, resp.StatusCode)
	require.Equal(g.t, "text/event-stream", resp.Header.Get("Content-Type"))
	e := &events{t: g.t, body: resp.Body, lines: bufio.NewScanner(resp.Body), cancel: cancel}
	e.lines.Buffer(nil, 2<<20)
	g.t.Cleanup(e.close)
	return e
}

func (e *events) close() {
	e.cancel()
	e.body.Close()
}

// next returns the next event; false at the end of the stream. The test's own
// time limit bounds it.
func (e *events) next() (ev sseEvent, ok bool) {
	late := time.AfterFunc(patience, e.cancel)
	defer late.Stop()
	for e.lines.Scan() {
		line := e.lines.Text()
		e.raw.WriteString(line + "\n")
		switch {
		case strings.HasPrefix(line, "id: "):
			ev.id = line[4:]
		case strings.HasPrefix(line, "event: "):
			ev.kind = line[7:]
		case strings.HasPrefix(line, "data: "):
			require.NoError(e.t, json.Unmarshal([]byte(line[6:]), &ev.data))
		case line == "" && ev.kind != "":
			return ev, true
		}
	}
	return ev, false
}

// line returns the data of the next event.
func (e *events) line() ([]byte, error) {
	for e.lines.Scan() {
		if line, ok := bytes.CutPrefix(e.lines.Bytes(), []byte("data: ")); ok {
			return line, nil
		}
	}
	return nil, io.ErrUnexpectedEOF
}

// want returns the next event that matches and drops those before it.
func (e *events) want(match func(sseEvent) bool) sseEvent {
	e.t.Helper()
	for {
		ev, ok := e.next()
		require.True(e.t, ok, "the stream ended")
		if match(ev) {
			return ev
		}
	}
}

func (e *events) kind(kind string) sseEvent {
	e.t.Helper()
	return e.want(func(ev sseEvent) bool { return ev.kind == kind })
}

func (e *events) status(id string, status subagent.Status) sseEvent {
	e.t.Helper()
	return e.want(func(ev sseEvent) bool {
		task, _ := ev.data["task"].(object)
		return task["task_id"] == id && task["status"] == string(status)
	})
}
