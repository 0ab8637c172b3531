package agenttool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

// Every kind of answer, with its Data, as models and hosts get it.
func TestAnswers(t *testing.T) {
	var h *host
	deaf := func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		return h.gate.DeafFunc()(ctx, run)
	}
	inHostOf(t, subagent.Config{Workers: 2, Func: deaf}, agenttool.Options{Agents: profiles}, func(t *testing.T, hh *host) {
		h = hh
		var p transcript
		say := func(tool string, a args) agenttool.Answer {
			answer := h.call(tool, a)
			raw, err := json.Marshal(a)
			require.NoError(t, err)
			p.add(tool+" "+string(raw), answer)
			return answer
		}
		answersAboutTasks(t, h, say)
		answersAboutDescendants(t, h, say)
		answersThatRefuse(say)
		golden(t, "answers.txt", p.String())
	})
}

// sayer makes a call and keeps its answer.
type sayer func(tool string, a args) agenttool.Answer

var startReading = args{"prompt": "Read every file.", "description": "read the files", "agent_id": "reviewer", "run_in_background": true}

func answersAboutTasks(t *testing.T, h *host, say sayer) {
	first := say("agent", startReading).TaskID
	run := h.gate.WaitEntered(t, first)
	second := say("agent", with(startReading, "context", "inherit")).TaskID
	h.gate.WaitEntered(t, second)
	third := say("agent", startReading).TaskID
	say("list_tasks", args{})
	time.Sleep(12 * time.Second)
	run.ReportUsage("m1", subagent.Usage{InputTokens: 100, OutputTokens: 20, TotalTokens: 120, CacheReadTokens: 60})
	run.Progress("file 3 of 7")
	run.ToolUse("read")
	time.Sleep(time.Second)
	say("task_output", args{"task_id": first, "block": false})
	say("task_output", args{"task_id": third, "timeout": 1500})
	say("await_tasks", args{"task_ids": []uuid.UUID{first, third}, "timeout": 700000})
	fmt.Fprint(run, "Files 1 to 3 are fine.")
	h.gate.Release(first, subagent.Result{}, errors.New("the provider is overloaded"))
	synctest.Wait()
	say("await_tasks", args{"task_ids": []uuid.UUID{third, first}, "mode": "any"})
	say("task_output", args{"task_id": first})
	h.finish(second, "All is well.")
	say("task_output", args{"task_id": second})
	say("task_output", args{"task_id": second})
	h.gate.WaitEntered(t, third)
	say("task_stop", args{"task_id": third, "reason": "we know enough"})
	h.finish(third, "")
	say("task_stop", args{"task_id": third})
	say("await_tasks", args{"task_ids": []uuid.UUID{first, second, third}})
	h.gate.ReleaseAll()
	say("agent", with(startReading, "run_in_background", false))
}

func answersAboutDescendants(t *testing.T, h *host, say sayer) {
	busy := func(q *subagent.Request) { q.Subject, q.Func = "a part of it", busyForASecond }
	ctxs := make(chan context.Context, 1)
	parent := h.spawn(t.Context(), func(q *subagent.Request) {
		q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			ctxs <- ctx
			return busyForASecond(ctx, run)
		}
	})
	h.spawn(<-ctxs, busy)
	synctest.Wait()
	say("task_stop", args{"task_id": parent})
	time.Sleep(time.Minute)
	say("list_tasks", args{"status": "cancelled", "limit": 2})
	say("list_tasks", args{"status": "pending"})
}

func answersThatRefuse(say sayer) {
	say("task_output", args{"task_id": "call_1"})
	say("task_output", args{"task_id": "first"})
	say("task_output", args{"task_id": "00000000-0000-0000-0000-000000000000", "timeout": -1})
	say("await_tasks", args{"task_ids": []any{"first", 7, "00000000-0000-0000-0000-000000000000"}})
	say("agent", args{"prompt": "p"})
	say("agent", args{"prompt": "p", "description": "d", "subagent_type": "x"})
	say("agent", args{"prompt": "p", "description": "d", "agent_id": "x"})
	say("Task", args{})
}

func busyForASecond(context.Context, *subagent.Run) (subagent.Result, error) {
	time.Sleep(time.Second)
	return subagent.Result{}, nil
}
