package web_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
	"github.com/go-subagent/subagent/subagenttest"
)

// raw sends bytes that no client library would, and reads one response.
func (g *rig) raw(request string) reply {
	g.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.server.URL, "http://"))
	require.NoError(g.t, err)
	defer conn.Close()
	require.NoError(g.t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(conn, request)
	require.NoError(g.t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(g.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(g.t, err)
	r := reply{status: resp.StatusCode, header: resp.Header, raw: string(raw)}
	_ = json.Unmarshal(raw, &r.body)
	return r
}

// A prefix may hold what an address may hold, written as browsers write it or
// escaped.
func TestOddPrefixes(t *testing.T) {
	for prefix, paths := range map[string][]string{
		"//a//":  {"/a"},
		"/(x)!":  {"/(x)!", "/%28x%29%21"},
		"/a b":   {"/a%20b"},
		"/ü":     {"/%C3%BC", "/%c3%bc"},
		"/a:b/c": {"/a:b/c", "/a%3Ab/c", "/%61:b/c"},
		"x:y":    {"/x:y"},
		"/100%":  {"/100%25"},
	} {
		g := newRig(t, subagent.Config{}, web.Options{Prefix: prefix})
		for _, path := range paths {
			require.JSONEq(t, `{"tasks":[]}`, g.get(path+"/tasks").raw, path)
			require.Contains(t, g.get(path+"/").raw, "<!doctype html>", path)
			r := g.get(path + "?session_id=a%26b")
			require.Equal(t, 301, r.status, path)
			at, err := http.NewRequest("GET", g.server.URL+path, nil)
			require.NoError(t, err)
			to, err := at.URL.Parse(r.header.Get("Location"))
			require.NoError(t, err)
			require.Contains(t, g.get(strings.TrimPrefix(to.String(), g.server.URL)).raw, "<!doctype html>", path)
			require.Equal(t, "session_id=a%26b", to.RawQuery, "the question goes along")
		}
	}
}

// The address of a new task is right for whoever asked, also where the host has
// stripped the prefix.
func TestLocation(t *testing.T) {
	for _, o := range []web.Options{{}, {Prefix: "/deep/er"}} {
		g := newRig(t, subagent.Config{}, o)
		base := g.server.URL + o.Prefix
		if o.Prefix == "" {
			outer := httptest.NewServer(http.StripPrefix("/outer", g.server.Config.Handler))
			defer outer.Close()
			base = outer.URL + "/outer"
		}
		resp, err := http.Post(base+"/tasks", "application/json", strings.NewReader(`{"session_id":"s","prompt":"p"}`))
		require.NoError(t, err)
		defer resp.Body.Close()
		to, err := resp.Location()
		require.NoError(t, err)
		resp, err = http.Get(to.String())
		require.NoError(t, err)
		defer resp.Body.Close()
		require.Equal(t, 200, resp.StatusCode, to)
	}
}

func TestPathsThatLeadNowhere(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{Prefix: "/p"})
	for _, path := range []string{
		"/p/../p/tasks", "/p/tasks/..%2fbadge", "/p/%2e%2e/tasks", "/p/..%2f..%2fetc%2fpasswd", "/p/panel.js/..", "/p/panel/panel.js", "/p/index.html",
		"/p/panel.js%00", "/p/tasks/%00", "/p/.", "/p//tasks", "//p/tasks", "/p%2Ftasks", "/P/tasks", "*", "/", "/p/tasks/",
		"/p/sessions//cancel", "/p/sessions/x", "/p/TASKS",
	} {
		r := g.raw("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		require.Equal(t, 404, r.status, path)
		require.Equal(t, "not_found", r.code(), path)
	}
	require.Equal(t, 400, g.raw("GET /p/%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").status)
}

func TestOddMethods(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	require.Empty(t, g.do("HEAD", "/", "").raw)
	require.Equal(t, 200, g.do("HEAD", "/panel.css", "").status)
	for _, method := range []string{"HEAD", "OPTIONS", "DELETE", "TRACE", "BREW", "get"} {
		for _, path := range []string{"/tasks", "/events", "/ws", "/badge", "/tasks/x/cancel"} {
			r := g.do(method, path, "")
			require.Equal(t, 405, r.status, "%s %s", method, path)
			require.NotEmpty(t, r.header.Get("Allow"))
		}
	}
	require.Equal(t, 404, g.do("OPTIONS", "/nothing", "").status)
}

// What a page's origin is compared with is the host of the request, whatever
// form the two have.
func TestOddHostsAndOrigins(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{Origins: []string{"", "://"}})
	for _, c := range []struct {
		host, origin string
		status       int
	}{
		{"[::1]:8080", "http://[::1]:8080", 201},
		{"[::1]:8080", "http://[::1]:8081", 403},
		{"[::1]", "http://[::1]", 201},
		{"[fe80::1%25en0]:80", "http://[fe80::2]:80", 403},
		{"Example.COM", "https://example.com", 201},
		{"example.com.", "https://example.com", 403},
		{"example.com", "https://example.com@evil.example", 403},
		{"example.com", "https://evil.example#://example.com", 403},
		{"example.com", "example.com", 403},
		{"example.com", "://example.com", 201}, // no browser sends it
		{"", "http://", 403},
		{"", "null", 403},
		{"", "", 201},
	} {
		body := `{"session_id":"s","prompt":"p"}`
		head := fmt.Sprintf("POST /tasks HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n", c.host, len(body))
		if c.origin != "" {
			head += "Origin: " + c.origin + "\r\n"
		}
		require.Equal(t, c.status, g.raw(head+"\r\n"+body).status, "%v", c)
	}
	// Without any Host, as HTTP/1.0 allows.
	require.Equal(t, 403, g.raw("POST /tasks HTTP/1.0\r\nOrigin: http://x\r\n\r\n").status)
	require.Equal(t, 200, g.raw("GET /tasks HTTP/1.0\r\n\r\n").status)
}

// A query that cannot be read is refused: leaving out a part of it would widen
// what was asked for.
func TestBadQueries(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	g.spawn(subagent.Request{ParentSessionID: "a"})
	for _, query := range []string{
		"session_id=%zz", "status_filter=errored;session_id=b", "limit=1e3", "limit=99999999999999999999", "limit=0x10", "after=%00",
		"status_filter=running&status_filter=all", "status_filter=Running", "session_id=a&session_id=b", "limit=1&limit=2", "after=&after=",
	} {
		for _, path := range []string{"/tasks?", "/events?"} {
			if path == "/events?" && !strings.Contains(query, "session_id") {
				continue // a stream looks at session_id and after alone
			}
			r := g.get(path + query)
			require.Equal(t, 400, r.status, query)
			require.Equal(t, "invalid_request", r.code(), query)
		}
	}
	for _, query := range []string{"", "status_filter=", "limit=", "after=", "session_id=", "else=1&else=2"} {
		require.Len(t, g.get("/tasks?" + query).body["tasks"], 1, query)
	}
	require.Empty(t, g.get("/tasks?status_filter=errored").body["tasks"], "a filter that matches nothing")
}

// Ids of events that cannot be one of ours begin afresh.
func TestGarbageEventIDs(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	g.finish(g.spawn(subagent.Request{}), "")
	id := g.runner.ID()
	for _, after := range []string{
		id + "-", id + "-+1", id + "-1.0", id + "-0x1", id + "- 1", id + "-18446744073709551615", id + "-18446744073709551616", id + "-1-1",
		strings.ToUpper(id) + "-x", "\xff\xfe", "<script>", "'; DROP TABLE tasks; --", strings.Repeat("9", 20_000),
	} {
		ev, ok := g.events("/events", "Last-Event-ID", after).next()
		require.True(t, ok)
		require.Equal(t, "live_tasks", ev.kind, after)
		require.NotContains(t, ev.data, "resumed", after)
	}
	s := g.dial("/ws")
	require.Equal(t, "invalid_request", codeOf(s.call("subscribe", object{"after": 7})))
	require.NotContains(t, s.call("subscribe", object{"after": id + "-\u0000"}), "resumed")
}

// JSON that is odd is refused in few words, or read as the standard says.
func TestOddJSON(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	s := g.dial("/ws")
	huge := strings.Repeat("9", 1<<20-100)
	deep := strings.Repeat(`[`, 20_000) + strings.Repeat(`]`, 20_000)
	for frame, want := range map[string]string{
		`{"action":"list_tasks","limit":` + huge + `}`:    "invalid_request",
		`{"action":"list_tasks","limit":1e400}`:           "invalid_request",
		`{"action":"list_tasks","limit":-9e18}`:           "invalid_request",
		`{"action":"list_tasks","limit":"5"}`:             "invalid_request",
		`{"action":"get_task","task_id":["x"]}`:           "invalid_request",
		`{"action":"get_task","task_id":{"a":1}}`:         "invalid_request",
		`{"action":"spawn_task","wait":"yes"}`:            "invalid_request",
		`{"action":"list_tasks","x":` + deep + `}`:        "bad_json",
		`{"action":"list_tasks","status_filter":[[]]}`:    "invalid_request",
		`{"action":"list_tasks","status_filter":[null]}`:  "invalid_request",
		`{"action":"list_tasks","status_filter":["all"]}`: "invalid_request",
		`null`: "bad_json", `"list_tasks"`: "bad_json", `7`: "bad_json", ``: "bad_json", `{`: "bad_json", ` `: "bad_json",
		`{"action":"list_tasks",}`: "bad_json", `{'action':'list_tasks'}`: "bad_json", "\ufeff{}": "bad_json", `{"action":NaN}`: "bad_json",
		`{"action":"get_task","action":"list_tasks","status_filter":[]}`: "",
		`{"action":"list_tasks","session_id":null,"limit":null}`:         "",
	} {
		s.send(frame)
		f, err := s.read()
		require.NoError(t, err)
		name := frame[:min(80, len(frame))]
		require.Equal(t, want, codeOf(f), name)
		if want == "" {
			continue
		}
		message := f["error"].(object)["message"].(string)
		require.Less(t, len(message), 500, name)
		require.NotContains(t, message, "request.", "a field has the name that the client gave it")
		body := strings.Replace(frame, `"action"`, `"a"`, 1)
		if want == "bad_json" && frame != "" {
			require.Equal(t, want, g.post("/sessions/s/cancel", body).code(), name)
		}
	}
	require.Equal(t, "limit must not be a JSON string",
		s.call("list_tasks", object{"limit": "5"})["error"].(object)["message"])
}

// Two requests with one id get two answers with it.
func TestRepeatedIDs(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	s := g.dial("/ws")
	s.send(`{"action":"spawn_task","id":1,"session_id":"s","prompt":"p","wait":true}`)
	run, err := g.gate.Entered(t.Context())
	require.NoError(t, err)
	s.send(`{"action":"list_tasks","id":1}`)
	s.send(`{"action":"subscribe","id":1}`)
	for _, key := range []string{"list_tasks", "subscribe"} {
		f, err := s.read()
		require.NoError(t, err)
		require.EqualValues(t, 1, f["id"], key)
		require.Len(t, f["tasks"], 1)
	}
	g.finish(run.Task(), "done")
	require.Equal(t, "done", s.want(func(f object) bool { return f["id"] == 1.0 })["result_text"])
}

// Frames in pieces with a ping between them are one request; one that grows over
// 1 MiB is refused before it is whole.
func TestFragmentedFrames(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	s := g.dial("/ws")
	w, err := s.conn.Writer(t.Context(), websocket.MessageText)
	require.NoError(t, err)
	for i, c := range []byte(`{"action":"list_tasks","id":"é"}`) { // also cut within a rune
		_, err = w.Write([]byte{c})
		require.NoError(t, err)
		if i == 5 {
			go func() { _, _ = s.read() }() // takes the pong, then the answer to the first request
			require.NoError(t, s.conn.Ping(t.Context()))
		}
	}
	require.NoError(t, w.Close())

	s = g.dial("/ws")
	w, err = s.conn.Writer(t.Context(), websocket.MessageText)
	require.NoError(t, err)
	for range 20 {
		if _, err = w.Write(make([]byte, 64<<10)); err != nil {
			break // the server has hung up
		}
	}
	_, err = s.read()
	require.Equal(t, websocket.StatusMessageTooBig, websocket.CloseStatus(err))
	require.Contains(t, g.dial("/ws").call("list_tasks", nil), "tasks", "others go on")
}

// A handshake that is none is refused like everything else.
func TestBrokenHandshakes(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	const upgrade, connection, key = "Upgrade: websocket\r\n", "Connection: Upgrade\r\n", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
	const version = "Sec-WebSocket-Version: 13\r\n"
	for _, headers := range []string{
		"", upgrade, upgrade + connection, upgrade + connection + key, upgrade + connection + version, connection + key + version,
		upgrade + connection + version + "Sec-WebSocket-Key: short\r\n", upgrade + connection + version + key + key,
		upgrade + connection + key + "Sec-WebSocket-Version: 8\r\n", "Upgrade: h2c\r\n" + connection + key + version,
	} {
		r := g.raw("GET /ws HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n")
		require.Equal(t, 426, r.status, headers)
		require.Equal(t, "upgrade_required", r.code(), headers)
		require.Equal(t, "websocket", r.header.Get("Upgrade"))
		require.Equal(t, "13", r.header.Get("Sec-WebSocket-Version"))
	}
	require.Equal(t, 426, g.raw("GET /ws HTTP/1.0\r\n"+upgrade+connection+key+version+"\r\n").status)
}

// What the host's own code does wrong stays with the one request.
func TestSessionsThatMisbehave(t *testing.T) {
	var all atomic.Bool
	block := make(chan struct{})
	g := newRig(t, subagent.Config{}, web.Options{Sessions: func(r *http.Request) (web.SessionScope, error) {
		switch r.Header.Get("X-Do") {
		case "panic":
			panic(http.ErrAbortHandler)
		case "block":
			<-block
		}
		return web.SessionScope{All: all.Load(), IDs: []string{""}}, nil
	}})
	task := g.spawn(hidden(mark))
	for _, path := range []string{"/tasks", "/events", "/ws", "/tasks/" + task.ID.String()} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", g.server.URL+path, nil)
		require.NoError(t, err)
		req.Header.Set("X-Do", "panic")
		_, err = http.DefaultClient.Do(req)
		require.ErrorIs(t, err, io.EOF, "nothing was said")
	}
	blocked := make(chan reply)
	go func() { blocked <- g.get("/tasks", "X-Do", "block") }() // ends when block is closed
	s := g.dial("/ws")
	require.Empty(t, s.call("list_tasks", nil)["tasks"], "others are served, and \"\" is no session")
	all.Store(true)
	require.Len(t, g.get("/tasks").body["tasks"], 1, "each request is asked for")
	require.Empty(t, s.call("list_tasks", nil)["tasks"], "a connection has what it was opened with")
	close(block)
	require.Len(t, (<-blocked).body["tasks"], 1)
}

// A store that panics is an error to those who asked.
func TestStoreThatPanics(t *testing.T) {
	store := subagenttest.NewFaultyStore(subagent.NewMemoryStore())
	g := newRig(t, subagent.Config{Store: store.Store()}, web.Options{})
	store.On(subagenttest.OpList, func(subagenttest.Call) subagenttest.Fault { panic(errors.New("secret words")) })
	require.Equal(t, "internal", g.get("/tasks").code())
	require.Equal(t, "internal", g.get("/events").code())
	s := g.dial("/ws")
	f := s.call("subscribe", nil)
	require.Equal(t, "internal", codeOf(f))
	require.NotContains(t, s.raw.String(), "secret")
	store.On(subagenttest.OpList, nil)
	require.Equal(t, "live_tasks", s.call("subscribe", nil)["type"], "and may be asked again")
}

// Handlers need no closing: two of one Runner see the same, and one that is made
// after the end shows what there was.
func TestHandlersOfOneRunner(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	second := httptest.NewServer(web.Handler(g.runner, web.Options{}))
	defer second.Close()
	first, other := g.events("/events"), *g
	other.server = second
	e := other.events("/events")
	first.kind("live_tasks")
	e.kind("live_tasks")
	task := g.finish(g.spawn(subagent.Request{}), "done")
	require.Equal(t, first.status(task.ID.String(), subagent.StatusCompleted).id, e.status(task.ID.String(), subagent.StatusCompleted).id)
	require.NoError(t, g.runner.Shutdown(t.Context()))
	late := httptest.NewServer(web.Handler(g.runner, web.Options{}))
	defer late.Close()
	other.server = late
	e = other.events("/events")
	e.kind("live_tasks")
	_, more := e.next()
	require.False(t, more)
	require.Equal(t, "done", other.get("/tasks/" + task.ID.String()).body["result_text"])
}
