package web_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
)

func TestPrefix(t *testing.T) {
	for _, prefix := range []string{"/sub/agents", "sub/agents/"} {
		g := newRig(t, subagent.Config{}, web.Options{Prefix: prefix})
		r := g.get("/sub/agents")
		require.Equal(t, 301, r.status)
		require.Equal(t, "agents/", r.header.Get("Location"))
		require.Contains(t, g.get("/sub/agents/").raw, "<!doctype html>")
		require.JSONEq(t, `{"tasks":[]}`, g.get("/sub/agents/tasks").raw)
		require.Contains(t, g.dial("/sub/agents/ws").call("list_tasks", nil), "tasks")
		require.Equal(t, "live_tasks", g.events("/sub/agents/events").kind("live_tasks").kind)
		for _, path := range []string{"/tasks", "/sub/agentstasks", "/sub", "/sub/agents/tasks/", "/sub/agents//", "/sub/agents/tasks/x/y"} {
			require.Equal(t, "not_found", g.get(path).code(), path)
		}
	}
}

func TestStrippedPrefix(t *testing.T) {
	runner, err := subagent.New(t.Context(), subagent.Config{})
	require.NoError(t, err)
	defer runner.Shutdown(t.Context())
	mux := http.NewServeMux()
	mux.Handle("/x/", http.StripPrefix("/x", web.Handler(runner, web.Options{})))
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", "/x/badge", nil))
	require.JSONEq(t, `{"running":0,"queued":0}`, w.Body.String())
}

func TestMethods(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	for path, allow := range map[string]string{
		"/": "GET, HEAD", "/panel.js": "GET, HEAD", "/tasks": "GET, POST", "/tasks/x": "GET", "/badge": "GET", "/gauge": "GET", "/events": "GET", "/ws": "GET",
		"/tasks/x/cancel": "POST", "/sessions/x/cancel": "POST",
	} {
		r := g.do("PUT", path, "")
		require.Equal(t, 405, r.status, path)
		require.Equal(t, "method_not_allowed", r.code(), path)
		require.Equal(t, allow, r.header.Get("Allow"), path)
	}
	require.Equal(t, "upgrade_required", g.get("/ws").code())
	require.Equal(t, 404, g.post("/nothing", "{}").status)
}

func TestPageHeaders(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{Origins: []string{"https://app.example", "bad; script-src *"}})
	r := g.get("/")
	policy := r.header.Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'none'; script-src 'self'")
	require.Contains(t, policy, "frame-ancestors 'self' https://app.example")
	require.NotContains(t, policy, "unsafe")
	require.NotContains(t, policy, "*")
	require.Equal(t, "nosniff", r.header.Get("X-Content-Type-Options"))
	require.Equal(t, 304, g.get("/", "If-None-Match", r.header.Get("ETag")).status)
	require.NotRegexp(t, `(?i)<script>|style="|\son[a-z]+="|https?://`, r.raw, "nothing inline, nothing from elsewhere")
	require.Equal(t, "no-store", g.get("/tasks").header.Get("Cache-Control"))
}

func TestOrigins(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{Origins: []string{"https://app.example", "any.example"}})
	host := strings.TrimPrefix(g.server.URL, "http://")
	spawn := `{"session_id":"s","prompt":"p"}`
	for origin, ok := range map[string]bool{
		"":                        true,
		"http://" + host:          true,
		"https://" + host:         true, // a proxy may speak TLS
		"https://app.example":     true,
		"HTTPS://APP.EXAMPLE":     true,
		"http://any.example":      true,
		"http://app.example":      false,
		"https://app.example.org": false,
		"https://evil.example":    false,
		"https://" + host + ".x":  false,
		"null":                    false,
		"any":                     false,
	} {
		r := g.post("/tasks", spawn, "Origin", origin)
		_, _, err := g.tryDial("/ws", "Origin", origin)
		if !ok {
			require.Equal(t, 403, r.status, origin)
			require.Equal(t, "bad_origin", r.code(), origin)
			require.Error(t, err, origin)
			require.Empty(t, r.header.Get("Access-Control-Allow-Origin"), origin)
			continue
		}
		require.Equal(t, 201, r.status, origin)
		require.NoError(t, err, origin)
	}
	_, resp, err := g.tryDial("/ws", "Origin", "https://evil.example")
	require.Error(t, err)
	require.Equal(t, 403, resp.StatusCode)

	ask := g.do("OPTIONS", "/tasks", "", "Origin", "https://app.example", "Access-Control-Request-Method", "POST")
	require.Equal(t, 204, ask.status)
	require.Equal(t, "https://app.example", ask.header.Get("Access-Control-Allow-Origin"))
	require.Contains(t, ask.header.Get("Access-Control-Allow-Headers"), "Content-Type")
	require.Equal(t, 403, g.do("OPTIONS", "/tasks", "", "Origin", "https://evil.example").status)
	require.Empty(t, g.get("/tasks", "Origin", "https://evil.example").header.Get("Access-Control-Allow-Origin"))
}

func TestBodies(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	for _, c := range []struct {
		name, body, kind, code string
		status                 int
	}{
		{"a form", "session_id=s&prompt=p", "application/x-www-form-urlencoded", "unsupported_media_type", 415},
		{"plain text", `{"session_id":"s","prompt":"p"}`, "text/plain", "unsupported_media_type", 415},
		{"no type", `{"session_id":"s","prompt":"p"}`, "", "unsupported_media_type", 415},
		{"no JSON", `{"session_id":`, "application/json", "bad_json", 400},
		{"two values", `{} {}`, "application/json", "bad_json", 400},
		{"not UTF-8", "{\"session_id\":\"s\",\"prompt\":\"\xff\"}", "application/json", "bad_json", 400},
		{"too large", `{"session_id":"s","prompt":"` + strings.Repeat("x", 1<<20) + `"}`, "application/json", "too_large", 413},
		{"nothing", ``, "application/json", "invalid_request", 400},
	} {
		for _, path := range []string{"/tasks", "/tasks/x/cancel", "/sessions/x/cancel"} {
			if c.name == "nothing" && path != "/tasks" {
				continue // a cancel needs no body
			}
			r := g.post(path, c.body, "Content-Type", c.kind)
			require.Equal(t, c.status, r.status, c.name)
			require.Equal(t, c.code, r.code(), c.name)
		}
	}
	require.Equal(t, 201, g.post("/tasks", `{"session_id":"s","prompt":"p","else":[]}`, "Content-Type", "application/json; charset=utf-8").status)
	require.Equal(t, 404, g.post("/tasks/x/cancel", "").status)
}

// The largest frame that is taken is 1 MiB, and so is the largest that is sent:
// a task that has more is cut, and is whole over HTTP.
func TestLargeFrames(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	s := g.dial("/ws")
	frame := `{"action":"spawn_task","session_id":"s","prompt":"`
	prompt := strings.Repeat("x", 1<<20-len(frame)-2)
	s.send(frame + prompt + `"}`)
	f, err := s.read()
	require.NoError(t, err)
	id := f["task_id"].(string)
	run, err := g.gate.Entered(t.Context())
	require.NoError(t, err)
	text := strings.Repeat("a \"quoted\" é\n", 200_000)
	g.finish(run.Task(), text)

	task := s.call("get_task", object{"task_id": id}) // the client reads no more than 1 MiB
	require.Equal(t, true, task["result_truncated"])
	require.Equal(t, true, task["description_truncated"])
	require.True(t, strings.HasPrefix(text, task["result_text"].(string)))
	require.Greater(t, len(task["result_text"].(string)), 100_000)
	whole := g.get("/tasks/" + id).body
	require.Equal(t, text, whole["result_text"])
	require.Equal(t, prompt, whole["description"])

	big := g.dial("/ws")
	big.send(frame + prompt + `."}`)
	_, err = big.read()
	require.Equal(t, websocket.StatusMessageTooBig, websocket.CloseStatus(err))
}

func TestBadFrames(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	s := g.dial("/ws")
	s.send("{\"action\":\"list_tasks\",\"id\":\"\xff\"}")
	f, err := s.read()
	require.NoError(t, err)
	require.Equal(t, "bad_json", codeOf(f))
	_, err = s.read()
	require.Equal(t, websocket.StatusInvalidFramePayloadData, websocket.CloseStatus(err))

	s = g.dial("/ws")
	require.NoError(t, s.conn.Write(t.Context(), websocket.MessageBinary, []byte("{}")))
	_, err = s.read()
	require.Equal(t, websocket.StatusUnsupportedData, websocket.CloseStatus(err))
}

func TestRedactAndLink(t *testing.T) {
	o := web.Options{
		Redact: func(task subagent.Task) subagent.Task {
			if task.AgentID == "boom" {
				panic("no")
			}
			task.Description = strings.ReplaceAll(task.Description, "secret", "███") + "\xff"
			task.ResultText = strings.ReplaceAll(task.ResultText, "secret", "███")
			task.Subject = ""
			task.ParentSessionID = "hidden"
			return task
		},
		Link: func(task subagent.Task) string {
			if task.AgentID == "boom" {
				panic("no")
			}
			return "/chat/" + task.ParentSessionID + "#" + task.Description
		},
		Sessions: func(*http.Request) (web.SessionScope, error) { return web.SessionScope{IDs: []string{"s"}}, nil },
	}
	g := newRig(t, subagent.Config{}, o)
	s, e := g.dial("/ws"), g.events("/events")
	require.Contains(t, s.call("subscribe", nil), "tasks")
	e.kind("live_tasks")
	task := g.spawn(subagent.Request{Description: "a secret"})
	g.gate.WaitEntered(t, task.ID)
	boom := g.spawn(subagent.Request{Description: "a secret", AgentID: "boom"})
	g.finish(task, "the secret")
	g.finish(boom, "the secret")
	s.status(boom.ID.String(), subagent.StatusCompleted)
	e.status(boom.ID.String(), subagent.StatusCompleted)
	got := s.call("get_task", object{"task_id": task.ID.String()})
	require.Equal(t, "a ███\uFFFD", got["description"])
	require.Equal(t, "the ███", got["result_text"])
	require.Equal(t, "/chat/s#a secret", got["link"], "the host's own words")
	got = s.call("get_task", object{"task_id": boom.ID.String()})
	require.NotContains(t, got, "result_text")
	require.NotContains(t, got, "link")
	require.Equal(t, "completed", got["status"])
	lists := g.get("/tasks").raw + s.raw.String() + e.raw.String()
	require.Contains(t, lists, "███")
	require.NotContains(t, strings.ReplaceAll(lists, "/chat/s#a secret", ""), "secret")
}

func TestSessionsRefuse(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{Sessions: func(r *http.Request) (web.SessionScope, error) {
		if r.Header.Get("Authorization") == "" {
			return web.SessionScope{All: true}, errors.New("token of ann@example.com is stale")
		}
		return web.SessionScope{All: true}, nil
	}})
	for _, path := range []string{"/tasks", "/tasks/x", "/badge", "/gauge", "/events"} {
		r := g.get(path)
		require.Equal(t, 403, r.status)
		require.Equal(t, "forbidden", r.code())
		require.NotContains(t, r.raw, "ann")
	}
	require.Equal(t, "forbidden", g.post("/tasks", "{}").code())
	_, resp, err := g.tryDial("/ws")
	require.Error(t, err)
	require.Equal(t, 403, resp.StatusCode)
	require.Equal(t, 200, g.get("/").status, "the page holds no task")
	require.Equal(t, 200, g.get("/tasks", "Authorization", "x").status)
	require.Contains(t, g.dial("/ws", "Authorization", "x").call("list_tasks", nil), "tasks")
}
