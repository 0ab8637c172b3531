package agenttool_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

func listed(t *testing.T, a agenttool.Answer) (ids []uuid.UUID) {
	for _, task := range data[tasksData](t, a).Tasks {
		ids = append(ids, task.ID)
	}
	return ids
}

func TestListTasksLiveOnesFirstThenNewestFirst(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 2}, agenttool.Options{}, func(t *testing.T, h *host) {
		require.Equal(t, "There are no such tasks.", h.call("list_tasks", args{}).Text)
		require.JSONEq(t, `{"tasks":[]}`, string(h.call("list_tasks", args{}).Data))
		first, _ := h.runs("first")
		time.Sleep(time.Minute)
		done, run := h.runs("done\nwith  two lines")
		run.ReportUsage("m", subagent.Usage{TotalTokens: 9})
		h.finish(done, "text")
		time.Sleep(time.Second)
		failed, _ := h.runs("failed")
		h.gate.Release(failed, subagent.Result{}, errors.New("no"))
		second, _ := h.runs("second")
		time.Sleep(time.Millisecond)
		// An id that sorts before all others says nothing of its age.
		low := h.spawn(t.Context(), func(q *subagent.Request) {
			q.ID = uuid.MustParse("00000000-0000-7000-8000-000000000001")
		})
		time.Sleep(500 * time.Millisecond)
		a := h.call("list_tasks", args{})
		require.Equal(t, fmt.Sprintf(`%s queued host's own, 500ms old
%s running second, 501ms old
%s running first, 1m2s old
%s errored failed, 501ms old
%s completed done with two lines, 1.501s old`, low, second, first, failed, done), a.Text)
		require.Equal(t, []uuid.UUID{low, second, first, failed, done}, listed(t, a))
		require.False(t, a.IsError)
		require.NotContains(t, string(a.Data), `"description"`)
		require.NotContains(t, string(a.Data), `"result_text"`)
		require.NotContains(t, string(a.Data), `"usage"`, "a list delivers nothing")
		require.Zero(t, h.get(done).NotifiedAt)

		for status, want := range map[string][]uuid.UUID{
			"all": {low, second, first, failed, done}, "pending": nil, "queued": {low}, "running": {second, first},
			"completed": {done}, "cancelled": nil, "errored": {failed},
		} {
			require.Equal(t, want, listed(t, h.call("list_tasks", args{"status": status})), status)
		}
	})
}

// A capped end is no plain one, in the list too.
func TestListTasksShowsWhyAnEndWasCapped(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id, _ := h.runs("x")
		h.gate.Release(id, subagent.Result{StopReason: "turn\ncapped"}, nil)
		synctest.Wait()
		require.Equal(t, id.String()+" completed stop_reason=turn capped x, 0s old", h.call("list_tasks", args{}).Text)
	})
}

func TestListTasksSaysHowManyThereAre(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		for i := range 230 {
			h.start(fmt.Sprintf("task %d", i))
		}
		for limit, want := range map[any]int{nil: 50, 1: 1, 200: 200} {
			a := h.call("list_tasks", args{"limit": limit})
			require.Len(t, listed(t, a), want)
			lines := strings.Split(a.Text, "\n")
			require.Len(t, lines, want+1)
			require.Equal(t, fmt.Sprintf("[cut: the first %d of 230 tasks]", want), lines[want])
			require.Contains(t, lines[0], " task 229, ")
		}
	})
}

// A list that is longer than an answer may be is cut between lines.
func TestListTasksCutsBetweenLines(t *testing.T) {
	inHostOf(t, subagent.Config{}, agenttool.Options{MaxText: 1000}, func(t *testing.T, h *host) {
		for range 20 {
			h.start(strings.Repeat("é", 200))
		}
		a := h.call("list_tasks", args{})
		require.LessOrEqual(t, len(a.Text), 1000)
		lines := strings.Split(a.Text, "\n")
		last := len(lines) - 1
		require.Equal(t, fmt.Sprintf("[cut: the first %d of 20 tasks]", last), lines[last])
		for _, line := range lines[:last] {
			require.Regexp(t, `^\S{36} (queued|running) é{100}…, 0s old$`, line)
		}
		require.Greater(t, len(a.Text)+len(lines[0]), 1000-len(lines[last]), "as many as there is room for")
		require.Len(t, listed(t, a), 20, "Data has them all")
	})
}
