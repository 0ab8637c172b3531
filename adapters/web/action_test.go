package web_test

import (
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
	"github.com/go-subagent/subagent/subagenttest"
)

// transports are the two ways to ask. Each returns the answer without its id,
// and the HTTP status, or 0.
func transports(t *testing.T, g *rig, run func(t *testing.T, ask func(action string, fields object) (object, int))) {
	t.Run("websocket", func(t *testing.T) {
		s := g.dial("/ws")
		run(t, func(action string, fields object) (object, int) {
			answer := s.call(action, fields)
			delete(answer, "id")
			return answer, 0
		})
	})
	t.Run("http", func(t *testing.T) {
		run(t, func(action string, fields object) (object, int) {
			r := g.ask(action, fields)
			require.NotNil(t, r.body, r.raw)
			return r.body, r.status
		})
	})
}

// ask makes an action a plain HTTP request.
func (g *rig) ask(action string, fields object) reply {
	g.t.Helper()
	text := func(key string) string { s, _ := fields[key].(string); return url.PathEscape(s) }
	switch action {
	case "spawn_task":
		return g.post("/tasks", fields)
	case "get_task":
		return g.get("/tasks/" + text("task_id"))
	case "cancel_task":
		return g.post("/tasks/"+text("task_id")+"/cancel", fields)
	case "cancel_session":
		return g.post("/sessions/"+text("session_id")+"/cancel", fields)
	}
	query := url.Values{}
	for k, v := range fields {
		switch v := v.(type) {
		case []string:
			query[k] = v
		case string:
			query.Set(k, v)
		default:
			query.Set(k, string(mustJSON(g.t, v)))
		}
	}
	return g.get("/tasks?" + query.Encode())
}

func TestSpawnAndGet(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	transports(t, g, func(t *testing.T, ask func(string, object) (object, int)) {
		answer, status := ask("spawn_task", object{
			"session_id": "chat/1", "prompt": "count the whales", "description": "whales", "agent_id": "counter",
			"context": "inherit", "parent_msg_id": "msg-1", "external_task_id": "call-1",
		})
		if status != 0 {
			require.Equal(t, 201, status)
		}
		require.Len(t, answer, 3)
		require.Equal(t, "queued", answer["status"])
		require.Equal(t, "msg-1", answer["parent_msg_id"])
		id := uuid.MustParse(answer["task_id"].(string))
		g.gate.WaitEntered(t, id)

		stored, err := g.runner.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "count the whales", stored.Description)
		require.Equal(t, "whales", stored.Subject)
		require.Equal(t, []string{"chat/1", "counter", "msg-1", "call-1", "inherit"},
			[]string{stored.ParentSessionID, stored.AgentID, stored.ParentMsgID, stored.ExternalTaskID, string(stored.ContextMode)})
		require.True(t, stored.Background)

		run := g.gate.WaitEntered(t, id)
		run.Progress("diving")
		_, _ = run.Write([]byte("one whale so far"))
		answer, _ = ask("get_task", object{"task_id": id.String()})
		require.Equal(t, "running", answer["status"])
		require.Equal(t, "one whale so far", answer["result_text"])
		require.Equal(t, "diving", answer["progress"].(object)["message"])

		text := strings.Repeat("whale ", 1000)
		g.gate.Release(id, subagent.Result{Text: text}, nil)
		g.ended(stored)
		answer, _ = ask("get_task", object{"task_id": strings.ToUpper(id.String())})
		require.Equal(t, "completed", answer["status"])
		require.Equal(t, text, answer["result_text"], "all of it, not the preview")
		require.NotContains(t, answer, "result_truncated")
	})
}

// A wait is nobody's reading: the notice of the task is still owed.
func TestSpawnAndWait(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	transports(t, g, func(t *testing.T, ask func(string, object) (object, int)) {
		go func() { // ends with the first task that enters
			if run, err := g.gate.Entered(t.Context()); err == nil {
				g.gate.Release(run.Task().ID, subagent.Result{Text: strings.Repeat("long ", 1000)}, nil)
			}
		}()
		answer, _ := ask("spawn_task", object{"session_id": "s", "prompt": "p", "wait": true})
		require.Equal(t, "completed", answer["status"])
		require.Len(t, answer["result_text"], 5000)
		owed, err := g.runner.Get(t.Context(), uuid.MustParse(answer["task_id"].(string)))
		require.NoError(t, err)
		require.Zero(t, owed.NotifiedAt)
	})
}

func TestWaitStopsNothingWhenTheConnectionIsLost(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	s := g.dial("/ws")
	s.send(object{"action": "spawn_task", "session_id": "s", "prompt": "p", "wait": true})
	run, err := g.gate.Entered(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.conn.CloseNow())
	g.until(func() bool { return g.runner.Stats().Subscribers == 1 }) // the handler's own
	require.Equal(t, subagent.StatusCompleted, g.finish(run.Task(), "done").Status)
}

func TestTooManyWaits(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	s := g.dial("/ws")
	for range 64 {
		s.send(object{"action": "spawn_task", "session_id": "s", "prompt": "p", "wait": true})
	}
	require.Equal(t, "too_many_waits", codeOf(s.call("spawn_task", object{"session_id": "s", "prompt": "p", "wait": true})))
	g.gate.ReleaseAll()
	for range 64 {
		s.want(func(f object) bool { return f["status"] == "completed" })
	}
	require.Equal(t, "completed", s.call("spawn_task", object{"session_id": "s", "prompt": "p", "wait": true})["status"])
}

func TestListPagesAndFilters(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 1}, web.Options{})
	var ids []string // newest first
	for _, session := range []string{"a", "b", "a", "b", "a"} {
		ids = slices.Insert(ids, 0, g.spawn(subagent.Request{ParentSessionID: session, Description: strings.Repeat("é", 3000)}).ID.String())
	}
	g.gate.WaitEntered(t, uuid.MustParse(ids[4]))
	transports(t, g, func(t *testing.T, ask func(string, object) (object, int)) {
		list := func(fields object) (got []string, next string) {
			answer, _ := ask("list_tasks", fields)
			require.Empty(t, codeOf(answer), answer)
			for _, task := range answer["tasks"].([]any) {
				got = append(got, task.(object)["task_id"].(string))
			}
			next, _ = answer["next"].(string)
			return got, next
		}
		got, next := list(object{})
		require.Equal(t, ids, got)
		require.Empty(t, next)
		got, _ = list(object{"session_id": "b"})
		require.Equal(t, []string{ids[1], ids[3]}, got)
		got, _ = list(object{"status_filter": "running"})
		require.Equal(t, ids[4:], got)
		got, _ = list(object{"status_filter": []string{"running", "queued"}, "session_id": "a"})
		require.Equal(t, []string{ids[0], ids[2], ids[4]}, got)
		got, _ = list(object{"status_filter": "all"})
		require.Equal(t, ids, got)
		got, _ = list(object{"status_filter": "errored"})
		require.Empty(t, got)

		var all []string
		for next, pages := "", 0; pages == 0 || next != ""; pages++ {
			fields := object{"limit": 2}
			if next != "" {
				fields["after"] = next
			}
			got, next = list(fields)
			require.LessOrEqual(t, len(got), 2)
			all = append(all, got...)
		}
		require.Equal(t, ids, all)

		answer, _ := ask("list_tasks", object{"limit": 1})
		task := answer["tasks"].([]any)[0].(object)
		require.Len(t, task["description"], 2000)
		require.Equal(t, true, task["description_truncated"])
		require.True(t, strings.HasSuffix(task["description"].(string), "é"), "cut between runes")
	})
}

func TestCancel(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 1}, web.Options{})
	transports(t, g, func(t *testing.T, ask func(string, object) (object, int)) {
		running := g.spawn(subagent.Request{ParentSessionID: "a/b"})
		g.gate.WaitEntered(t, running.ID)
		queued := g.spawn(subagent.Request{ParentSessionID: "a/b"})
		answer, _ := ask("cancel_task", object{"task_id": queued.ID.String(), "reason": "not needed"})
		require.Equal(t, object{"task_id": queued.ID.String(), "status": "cancelled"}, answer)
		end := g.ended(queued)
		require.Equal(t, "not needed", end.CancelMessage)
		require.Equal(t, subagent.ReasonUser, end.Reason)

		more := g.spawn(subagent.Request{ParentSessionID: "a/b"})
		answer, _ = ask("cancel_session", object{"session_id": "a/b", "reason": "enough"})
		require.Equal(t, "a/b", answer["session_id"])
		require.Len(t, answer["tasks"], 2)
		require.Equal(t, running.ID.String(), answer["tasks"].([]any)[0].(object)["task_id"])
		require.Equal(t, object{"task_id": more.ID.String(), "status": "cancelled"}, answer["tasks"].([]any)[1])
		require.Equal(t, subagent.ReasonSession, g.ended(running).Reason)

		answer, _ = ask("cancel_task", object{"task_id": running.ID.String()})
		require.Equal(t, "cancelled", answer["status"], "a task that has ended stays as it is")
		answer, _ = ask("cancel_session", object{"session_id": "a/b"})
		require.Equal(t, []any{}, answer["tasks"])
	})
}

// Every error that an action can have, over both transports.
func TestActionErrors(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 1, MaxQueued: 1}, web.Options{})
	unknown := uuid.NewString()
	long := strings.Repeat("x", 300)
	table := []struct {
		action string
		fields object
		code   string
		status int
	}{
		{"spawn_task", object{"prompt": "p"}, "invalid_request", 400},
		{"spawn_task", object{"session_id": "s"}, "invalid_request", 400},
		{"spawn_task", object{"session_id": "s", "prompt": " \n"}, "invalid_request", 400},
		{"spawn_task", object{"session_id": "s", "prompt": "p", "context": "half"}, "invalid_request", 400},
		{"spawn_task", object{"session_id": "s", "prompt": "p", "context": "inherit"}, "invalid_request", 400},
		{"spawn_task", object{"session_id": long, "prompt": "p"}, "invalid_request", 400},
		{"spawn_task", object{"session_id": "s", "prompt": "p", "external_task_id": long}, "invalid_request", 400},
		{"spawn_task", object{"session_id": "s", "prompt": 5}, "invalid_request", 400},
		{"list_tasks", object{"status_filter": "sleeping"}, "invalid_request", 400},
		{"list_tasks", object{"status_filter": []string{"running", "sleeping"}}, "invalid_request", 400},
		{"list_tasks", object{"limit": -1}, "invalid_request", 400},
		{"list_tasks", object{"limit": 1001}, "invalid_request", 400},
		{"list_tasks", object{"limit": 1.5}, "invalid_request", 400},
		{"list_tasks", object{"after": "yesterday"}, "invalid_request", 400},
		{"get_task", object{"task_id": unknown}, "not_found", 404},
		{"get_task", object{"task_id": "42"}, "not_found", 404},
		{"cancel_task", object{"task_id": unknown}, "not_found", 404},
		{"cancel_task", object{"task_id": uuid.Nil.String()}, "not_found", 404},
	}
	transports(t, g, func(t *testing.T, ask func(string, object) (object, int)) {
		for _, c := range table {
			answer, status := ask(c.action, c.fields)
			require.Equal(t, c.code, codeOf(answer), "%v %v", c, answer)
			require.NotEmpty(t, answer["error"].(object)["message"])
			if status != 0 {
				require.Equal(t, c.status, status, "%v", c)
			}
		}
		running := g.spawn(subagent.Request{})
		g.gate.WaitEntered(t, running.ID)
		queued := g.spawn(subagent.Request{})
		answer, status := ask("spawn_task", object{"session_id": "s", "prompt": "p"})
		require.Equal(t, "queue_full", codeOf(answer))
		require.NotRegexp(t, `\d`, answer["error"].(object)["message"], "no numbers of others' tasks")
		require.Contains(t, []int{0, 503}, status)
		g.finish(running, "")
		g.finish(queued, "")
	})
}

func TestWebSocketErrors(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	s := g.dial("/ws")
	for _, c := range []struct{ frame, id, code string }{
		{`{"action":"fly","id":1}`, `1`, "unknown_action"},
		{`{"id":{"a":[1,"<>"]}}`, `{"a":[1,"<>"]}`, "unknown_action"},
		{`{"action":"get_task","id":"x","task_id":7}`, `"x"`, "invalid_request"},
		{`{"action":7,"id":null}`, `null`, "invalid_request"},
		{`{"action":"list_tasks","id":false,"status_filter":{}}`, `false`, "invalid_request"},
		{`{"action":"list_tasks","status_filter":"x"}`, ``, "invalid_request"},
		{`{"action":"cancel_session","id":2}`, `2`, "invalid_request"},
		{`{"action":"get_task","id":"` + strings.Repeat("i", 300) + `"}`, ``, "invalid_request"},
		{`nonsense`, ``, "bad_json"},
		{`[1,2]`, ``, "bad_json"},
		{`{"action":"list_tasks"} {}`, ``, "bad_json"},
	} {
		s.send(c.frame)
		f, err := s.read()
		require.NoError(t, err, c.frame)
		require.Equal(t, c.code, codeOf(f), c.frame)
		id, present := f["id"]
		require.Equal(t, c.id != "", present, c.frame)
		if present {
			require.JSONEq(t, c.id, string(mustJSON(t, id)), c.frame)
		}
	}
	require.Contains(t, s.call("list_tasks", nil), "tasks", "the connection goes on")
}

func TestReadOnly(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{ReadOnly: true})
	task := g.spawn(subagent.Request{})
	transports(t, g, func(t *testing.T, ask func(string, object) (object, int)) {
		for action, fields := range map[string]object{
			"spawn_task":     {"session_id": "s", "prompt": "p"},
			"cancel_task":    {"task_id": task.ID.String()},
			"cancel_session": {"session_id": "s"},
		} {
			answer, status := ask(action, fields)
			require.Equal(t, "read_only", codeOf(answer), action)
			require.Contains(t, []int{0, 403}, status)
		}
		answer, _ := ask("list_tasks", nil)
		require.Len(t, answer["tasks"], 1)
	})
	now, err := g.runner.Get(t.Context(), task.ID)
	require.NoError(t, err)
	require.Zero(t, now.CancelRequestedAt)
}

func TestClosedRunner(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	done := g.finish(g.spawn(subagent.Request{}), "kept")
	require.NoError(t, g.runner.Shutdown(t.Context()))
	transports(t, g, func(t *testing.T, ask func(string, object) (object, int)) {
		answer, status := ask("spawn_task", object{"session_id": "s", "prompt": "p"})
		require.Equal(t, "closed", codeOf(answer))
		require.Contains(t, []int{0, 503}, status)
		answer, _ = ask("get_task", object{"task_id": done.ID.String()})
		require.Equal(t, "kept", answer["result_text"])
	})
}

// What a store says of its troubles stays inside.
func TestStoreErrors(t *testing.T) {
	store := subagenttest.NewFaultyStore(subagent.NewMemoryStore())
	g := newRig(t, subagent.Config{Store: store.Store()}, web.Options{})
	store.On(subagenttest.OpList, func(subagenttest.Call) subagenttest.Fault {
		return subagenttest.Fault{Err: os.ErrPermission}
	})
	transports(t, g, func(t *testing.T, ask func(string, object) (object, int)) {
		answer, status := ask("list_tasks", nil)
		require.Equal(t, "internal", codeOf(answer))
		require.NotContains(t, answer["error"].(object)["message"], "permission")
		require.Contains(t, []int{0, 500}, status)
	})
	require.Equal(t, "internal", codeOf(g.dial("/ws").call("subscribe", nil)))
	require.Equal(t, "internal", g.get("/events").code())
	require.Equal(t, "internal", g.get("/badge").code())
	store.On(subagenttest.OpList, nil)
}

func TestBadgeAndGauge(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 2}, web.Options{})
	require.JSONEq(t, `{"running":0,"queued":0}`, g.get("/badge").raw)
	for range 2 {
		g.gate.WaitEntered(t, g.spawn(subagent.Request{}).ID)
	}
	for range 3 {
		g.spawn(subagent.Request{ParentSessionID: "other"})
	}
	require.JSONEq(t, `{"running":2,"queued":3}`, g.get("/badge").raw)
	require.JSONEq(t, `{"limit":2,"running":2,"queued":3,"lent":0,"detached":0}`, g.get("/gauge").raw)
}

// The table of codes in the documentation is the set in the source.
func TestErrorTable(t *testing.T) {
	source, err := os.ReadFile("problem.go")
	require.NoError(t, err)
	document, err := os.ReadFile("../../docs/web.md")
	require.NoError(t, err)
	codes := func(text []byte, pattern string) (found []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found = append(found, string(m[1]))
		}
		slices.Sort(found)
		return slices.Compact(found)
	}
	_, table, _ := strings.Cut(string(document), "## Errors")
	table, _, _ = strings.Cut(table, "\n## ")
	require.Equal(t, codes(source, `&problem\{"([a-z_]+)"`), codes([]byte(table), "(?m)^\\| `([a-z_]+)`"))
}
