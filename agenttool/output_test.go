package agenttool_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/internal/bubble"
)

// rounds of a race: the detector makes each of them many times as long.
func rounds() int {
	if bubble.Race {
		return 2_000
	}
	return 10_000
}

func TestTaskOutputWaitsForTheEnd(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id, _ := h.runs("work")
		time.AfterFunc(10*time.Second, func() { h.gate.Release(id, subagent.Result{Text: "found it"}, nil) })
		began := time.Now()
		a := h.call("task_output", args{"task_id": id})
		require.Equal(t, 10*time.Second, time.Since(began), "it wakes with the end")
		require.Equal(t, fmt.Sprintf("found it\n\ntask_id=%s status=completed", id), a.Text)
		require.False(t, a.IsError)
		require.Equal(t, id, a.TaskID)
	})
}

func TestTaskOutputOfALiveTaskIsNoError(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id, run := h.runs("work")
		second, third := h.start("second"), h.start("third")
		time.Sleep(90 * time.Second)
		run.Progress("reading\nfile 7")
		run.ToolUse("grep")
		run.Write([]byte("not for the model yet"))
		time.Sleep(3 * time.Second)
		for _, c := range []struct {
			args args
			id   uuid.UUID
			wait time.Duration
			says string
		}{
			{args{"task_id": id, "block": false}, id, 0, "status=running\nrunning for 1m33s; last progress: reading file 7; tool uses: 1; last activity 3s ago"},
			{args{"task_id": second, "block": false}, second, 0, "status=queued\nwaiting for a slot; number 1 in the queue"},
			{args{"task_id": third, "block": false, "timeout": 5000}, third, 0, "status=queued\nwaiting for a slot; number 2 in the queue"},
			{args{"task_id": third, "timeout": 0}, third, 0, "\nWaited 0s; it goes on, read it again later."},
			{args{"task_id": third, "timeout": 1500}, third, 1500 * time.Millisecond, "\nWaited 1.5s; it goes on, read it again later."},
			{args{"task_id": third, "timeout": 1}, third, time.Millisecond, "\nWaited 1ms; "},
			{args{"task_id": id}, id, 30 * time.Second, "\nWaited 30s; "},
			{args{"task_id": id, "timeout": 600000}, id, 10 * time.Minute, "\nWaited 10m0s; "},
		} {
			began := time.Now()
			a := h.call("task_output", c.args)
			require.Equal(t, c.wait, time.Since(began), "%v", c.args)
			require.False(t, a.IsError)
			require.True(t, strings.HasPrefix(a.Text, "The task has not ended yet: task_id="+c.id.String()), a.Text)
			require.Contains(t, a.Text, c.says)
			require.Equal(t, c.wait > 0 || strings.Contains(c.says, "Waited"), strings.Contains(a.Text, "Waited"))
			require.NotContains(t, a.Text, "longest that is allowed")
			require.Equal(t, c.id, a.TaskID)
			require.Nil(t, a.Usage)
		}
		d := data[map[string]any](t, h.call("task_output", args{"task_id": id, "block": false}))
		require.Equal(t, "running", d["status"])
		require.NotContains(t, d, "description")
		require.NotContains(t, d, "result_text")
		require.NotContains(t, d, "usage")
	})
}

// A wait of a timeout that is too long is cut, and the answer says so, whether
// the task ended or not.
func TestLongTimeoutsAreCutAndThatIsSaid(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id, _ := h.runs("work")
		for _, huge := range []string{"600001", "99999999", "1e300", "1e999999", strings.Repeat("9", 400)} {
			for _, tool := range []string{"task_output", "await_tasks"} {
				began := time.Now()
				a := h.call(tool, fmt.Sprintf(`{%s,"timeout":%s}`, map[string]string{"task_output": `"task_id":"` + id.String() + `"`, "await_tasks": `"task_ids":["` + id.String() + `"]`}[tool], huge))
				require.Equal(t, 10*time.Minute, time.Since(began), huge)
				require.Contains(t, a.Text, "The timeout was cut to the longest that is allowed, 600000 ms.")
				require.Contains(t, a.Text, "Waited 10m0s")
				require.False(t, a.IsError)
			}
		}
		h.finish(id, "over")
		require.Contains(t, h.call("task_output", args{"task_id": id, "timeout": 700000}).Text, "cut to the longest")
	})
}

// A wait never outlives the call's ctx. Its answer is the status, and the task
// goes on.
func TestAWaitEndsWithItsCall(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id, _ := h.runs("work")
		for _, tool := range []string{"task_output", "await_tasks"} {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			began := time.Now()
			for _, waits := range []time.Duration{2 * time.Second, 0} { // the second time it has ended before
				a := h.callAs(ctx, agenttool.Call{Name: tool, SessionID: session}, with(good(id)[tool], "timeout", 99999999))
				require.Equal(t, 2*time.Second, time.Since(began))
				require.False(t, a.IsError, a.Text)
				require.Contains(t, a.Text, "status=running")
				require.Contains(t, a.Text, fmt.Sprintf("Waited %v; ", waits))
			}
			cancel()
		}
		require.Zero(t, h.get(id).CancelRequestedAt)
		h.finish(id, "whole")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a := h.callAs(ctx, agenttool.Call{Name: "task_output", SessionID: session}, args{"task_id": id})
		require.True(t, strings.HasPrefix(a.Text, "whole\n"), "what has ended is answered even so")
		require.NotNil(t, a.Usage)
	})
}

func TestTaskOutputOfATaskThatWasAskedToStop(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id := h.spawn(t.Context(), func(q *subagent.Request) { q.Func = h.gate.DeafFunc() })
		h.gate.WaitEntered(t, id)
		h.call("task_stop", args{"task_id": id, "reason": "enough"})
		time.Sleep(time.Second)
		a := h.call("task_output", args{"task_id": id, "block": false})
		require.Contains(t, a.Text, "status=running reason=agent\nrunning for 1s; asked to stop 1s ago")
		a = h.call("task_output", args{"task_id": id}) // the grace ends it
		require.Equal(t, fmt.Sprintf("[cancelled] cancel timed out, worker may be stuck\n\ntask_id=%s status=cancelled reason=agent", id), a.Text)
		require.False(t, a.IsError)
		h.finish(id, "")
	})
}

// Reading an end is its delivery, also without blocking, and reading it again
// says the same.
func TestReadingAnEndIsItsDelivery(t *testing.T) {
	for _, block := range []bool{true, false} {
		inHost(t, func(t *testing.T, h *host) {
			id, run := h.runs("work")
			run.ReportUsage("m", subagent.Usage{TotalTokens: 7})
			h.finish(id, "whole")
			require.Zero(t, h.get(id).NotifiedAt)
			first := h.call("task_output", args{"task_id": id, "block": block})
			require.NotZero(t, h.get(id).NotifiedAt)
			require.Equal(t, &subagent.Usage{TotalTokens: 7, Calls: 1}, first.Usage)
			require.Equal(t, first.Usage, data[taskData](t, first).Usage)
			for range 3 {
				again := h.call("task_output", args{"task_id": id, "block": block})
				require.Equal(t, first.Text, again.Text)
				require.Nil(t, again.Usage)
				require.Nil(t, data[taskData](t, again).Usage)
			}
		})
	}
}

func TestDataIsTheTaskWithoutPromptAndResult(t *testing.T) {
	inHostOf(t, subagent.Config{}, agenttool.Options{}, func(t *testing.T, h *host) {
		id := h.spawn(t.Context(), func(q *subagent.Request) {
			q.Metadata = map[string]string{"k": "v"}
			q.ExternalTaskID, q.ParentMsgID, q.AgentID = "call_9", "msg_9", "reviewer"
		})
		h.gate.WaitEntered(t, id).Progress("working")
		h.gate.Release(id, subagent.Result{Text: "whole", HeadID: "head", SourceCommitID: "commit", StopReason: "capped"}, nil)
		a := h.call("task_output", args{"task_id": id})
		want := h.get(id)
		want.Description, want.ResultText, want.NotifiedAt = "", "", time.Time{}
		got := data[subagent.Task](t, a)
		got.Version, want.Version = 0, 0
		require.Equal(t, want, got)
		keys := data[map[string]json.RawMessage](t, a)
		require.NotContains(t, keys, "description")
		require.NotContains(t, keys, "result_text")
	})
}

// The caller waits for its child, which waits for a stranger, who waits for the
// caller: the last of these waits is refused, and all go on.
func TestAWaitThatCouldNeverEndIsRefused(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 3}, agenttool.Options{}, func(t *testing.T, h *host) {
		lead, ctx := h.runsInside(t.Context())
		waitsFor := func(id uuid.UUID) func(*subagent.Request) {
			return func(q *subagent.Request) {
				q.Func = func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
					_, err := h.Wait(ctx, id)
					return subagent.Result{}, err
				}
			}
		}
		stranger := h.spawn(t.Context(), waitsFor(lead))
		child := h.spawn(ctx, waitsFor(stranger))
		synctest.Wait()
		for _, tool := range []string{"task_output", "await_tasks"} {
			a := h.callAs(ctx, agenttool.Call{Name: tool}, good(child)[tool])
			refused(t, a, tool+": waiting would never end", "wait cycle")
		}
		h.finish(lead, "")
		require.Equal(t, subagent.StatusCompleted, h.get(child).Status)
	})
}

// What was done when the call began is never answered as still running, and
// one of all who read it has the usage.
func TestTaskOutputRacesCompletion(t *testing.T) {
	release := make(chan func())
	r, err := subagent.New(context.Background(), subagent.Config{Workers: 4, Func: func(context.Context, *subagent.Run) (subagent.Result, error) {
		(<-release)()
		return subagent.Result{Text: "done"}, nil
	}})
	require.NoError(t, err)
	defer r.Shutdown(context.Background())
	tools := agenttool.New(r, agenttool.Options{})
	var early, late int
	for round := range rounds() {
		task, err := r.Spawn(context.Background(), subagent.Request{Description: "d", ParentSessionID: session})
		require.NoError(t, err)
		raw := func(more string) json.RawMessage {
			return json.RawMessage(`{"task_id":"` + task.ID.String() + `"` + more + `}`)
		}
		answers := make([]agenttool.Answer, 4)
		var all sync.WaitGroup
		entered := make(chan struct{})
		for i, more := range []string{``, `,"timeout":0`, `,"block":false`, `,"timeout":0`} {
			all.Go(func() {
				<-entered
				for range round % (16 * (i + 1)) { // not all at the same moment
					runtime.Gosched()
				}
				got, err := r.Get(context.Background(), task.ID)
				before := err == nil && got.Status.Terminal()
				answers[i] = tools.Call(context.Background(), agenttool.Call{Name: "task_output", Arguments: raw(more), SessionID: session})
				if ended := strings.HasPrefix(answers[i].Text, "done\n"); before && !ended {
					t.Errorf("round %d: it was done, and the answer is %q", round, answers[i].Text)
				}
			})
		}
		release <- func() { close(entered) }
		all.Wait()
		require.True(t, strings.HasPrefix(answers[0].Text, "done\n"), answers[0].Text)
		usages := 0
		for _, a := range answers {
			if a.Usage != nil {
				usages++
			}
			if strings.HasPrefix(a.Text, "done\n") {
				late++
			} else {
				early++
			}
		}
		require.Equal(t, 1, usages, "round %d", round)
	}
	t.Logf("%d answers before the end, %d after it", early, late)
}

// The answer comes in the instant of the end, not at a later tick; and if end
// and time-out are in the same instant, a time-out that was answered is
// followed by the end, with the usage, once.
func TestTaskOutputAnswersInTheInstantOfTheEnd(t *testing.T) {
	inFuncHost(t, func(context.Context, *subagent.Run) (subagent.Result, error) {
		time.Sleep(5 * time.Millisecond)
		return subagent.Result{Text: "done"}, nil
	}, func(t *testing.T, h *host) {
		ended := 0
		for range rounds() {
			id := h.start("work")
			began := time.Now()
			var at [3]time.Duration
			var answers [3]agenttool.Answer
			var all sync.WaitGroup
			for i, timeout := range []int{30000, 5, 6} {
				all.Go(func() {
					raw := fmt.Sprintf(`{"task_id":"%s","timeout":%d}`, id, timeout)
					answers[i] = h.tools.Call(t.Context(), agenttool.Call{Name: "task_output", Arguments: json.RawMessage(raw), SessionID: session})
					at[i] = time.Since(began)
				})
			}
			all.Wait()
			require.Equal(t, [3]time.Duration{5 * time.Millisecond, 5 * time.Millisecond, 5 * time.Millisecond}, at)
			usages := 0
			for i, a := range answers {
				done := strings.HasPrefix(a.Text, "done\n")
				require.True(t, done || i == 1, a.Text)
				require.True(t, done || strings.Contains(a.Text, "Waited 5ms; "), a.Text)
				if done && i == 1 {
					ended++
				}
				if a.Usage != nil {
					usages++
				}
			}
			require.Equal(t, 1, usages)
			synctest.Wait()
		}
		t.Logf("of %d answers in the instant of the end %d had it", rounds(), ended)
	})
}
