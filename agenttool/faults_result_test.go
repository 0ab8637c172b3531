package agenttool_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/subagenttest"
)

// endWay is a way in which the same scripted agent ends.
type endWay struct {
	name     string
	cfg      subagent.Config
	occupied bool                                               // the only slot is another's
	refuses  subagent.Status                                    // the store does
	end      func(ctx context.Context) (subagent.Result, error) // after three chunks; nil: it waits for its stop
	act      func(d *desk, id uuid.UUID)                        // when nothing moves any more
	want     shown
}

const threeChunks = "one, two, three"

func endWays() []endWay {
	gives := func(text string, err error) func(context.Context) (subagent.Result, error) {
		return func(context.Context) (subagent.Result, error) {
			return subagent.Result{Text: text, HeadID: "head", SourceCommitID: "commit"}, err
		}
	}
	errored := func(reason subagent.Reason, text, kept string) shown {
		return shown{Status: subagent.StatusErrored, Reason: reason, Error: text, Text: kept}
	}
	limited := subagent.Config{Timeout: time.Minute, CancelGrace: time.Second, FreeOnDetach: true}
	deaf := func(context.Context) (subagent.Result, error) {
		time.Sleep(30 * time.Minute)
		return subagent.Result{}, nil
	}
	return []endWay{
		{name: "completed", end: gives("the answer", nil), want: shown{Status: subagent.StatusCompleted, Text: "the answer"}},
		{name: "completed without a last word", end: gives("", nil), want: shown{Status: subagent.StatusCompleted, Text: threeChunks}},
		{name: "error", end: gives("", errors.New("no model")), want: errored(subagent.ReasonError, "no model", threeChunks)},
		{name: "error and text", end: gives("nearly", errors.New("no model")), want: errored(subagent.ReasonError, "no model", "nearly")},
		{name: "panic", end: func(context.Context) (subagent.Result, error) { panic("nil map") }, want: errored(subagent.ReasonPanic, "panic: nil map", threeChunks)},
		{name: "Goexit", end: func(context.Context) (subagent.Result, error) { runtime.Goexit(); panic("unreachable") },
			want: errored(subagent.ReasonPanic, "panic: runtime.Goexit", threeChunks)},
		{name: "time limit", cfg: limited, want: errored(subagent.ReasonTimeout, "timed out after 1m0s", threeChunks)},
		{name: "time limit, deaf", cfg: limited, end: deaf, want: errored(subagent.ReasonTimeout, "timed out after 1m0s; worker may be stuck", threeChunks)},
		{name: "stop", act: stopByHost, want: shown{Status: subagent.StatusCancelled, Reason: subagent.ReasonUser, Text: threeChunks}},
		{name: "queue time limit", cfg: subagent.Config{QueueTimeout: time.Minute}, occupied: true, want: errored(subagent.ReasonQueueTimeout, "waited 1m0s for a slot", "")},
		{name: "stop in the queue", occupied: true, act: stopByHost, want: shown{Status: subagent.StatusCancelled, Reason: subagent.ReasonUser}},
		{name: "the store refuses queued", refuses: subagent.StatusQueued, want: errored(subagent.ReasonStore, "store: read-only", "")},
		{name: "the store refuses running", refuses: subagent.StatusRunning, want: errored(subagent.ReasonStore, "store: read-only", "")},
	}
}

func stopByHost(d *desk, id uuid.UUID) {
	_, err := d.Cancel(d.t.Context(), id, subagent.CancelOptions{})
	require.NoError(d.t, err)
}

// work is the scripted agent: it says three chunks, has a cost, and ends.
func (w *endWay) work(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
	run.ReportUsage("m", subagent.Usage{TotalTokens: 7})
	for _, chunk := range []string{"one, ", "two, ", "three"} {
		_, _ = run.Write([]byte(chunk))
	}
	if w.end != nil {
		return w.end(ctx)
	}
	<-ctx.Done()
	return subagent.Result{}, ctx.Err()
}

// One scripted agent, in the background and then in the foreground, whatever
// its end: the same status, text, error and cost; both answers and the notice
// name the task, and all tools find it afterwards.
func TestB091_B096_B097_B098_TheSameEndInFrontAndBehind(t *testing.T) {
	for _, w := range endWays() {
		t.Run(w.name, func(t *testing.T) {
			w.cfg.Func = w.work
			inDesk(t, w.cfg, func(t *testing.T, d *desk) {
				if w.occupied {
					d.gate.WaitEntered(t, d.spawn(t.Context(), func(q *subagent.Request) { q.Func = d.gate.Func() }))
				}
				d.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
					if w.refuses != "" && c.Tasks[0].Status == w.refuses {
						return subagenttest.Fault{Err: errors.New("read-only")}
					}
					return subagenttest.Fault{}
				})
				back := w.once(d, true)
				front := w.once(d, false)
				require.Equal(t, back, front)
			})
		})
	}
}

// once starts the agent, sees it to its end, and returns what a model reads of
// it at last, without its id.
func (w *endWay) once(d *desk, background bool) string {
	t := d.t
	answers := make(chan agenttool.Answer, 1)
	go func() { // ends with the call, which once waits for
		answers <- d.call("agent", args{"prompt": "p", "description": "d", "run_in_background": background})
	}()
	synctest.Wait()
	list := data[tasksData](t, d.call("list_tasks", args{})).Tasks
	if w.act != nil {
		w.act(d, list[0].ID)
	}
	time.Sleep(2 * time.Minute)
	a := <-answers
	id := a.TaskID
	require.Contains(t, a.Text, id.String())
	require.Equal(t, id, data[taskData](t, a).ID)
	row := d.shows(id, w.want)
	require.Equal(t, strings.HasPrefix(w.name, "completed") || strings.HasPrefix(w.name, "error"), row.HeadID == "head" && row.SourceCommitID == "commit")
	_, _, notices := d.told(id)
	if background {
		require.Len(t, notices, 1)
		require.Equal(t, id, notices[0].ID)
		require.Equal(t, row.Usage, notices[0].Usage)
	} else {
		require.Empty(t, notices)
		d.saysEnd(a, id, w.want)
		require.Equal(t, row.Usage, *a.Usage)
	}
	stop := d.call("task_stop", args{"task_id": id})
	require.Equal(t, stopData{OK: true, Status: w.want.Status, TaskID: id, Stopped: []uuid.UUID{}}, data[stopData](t, stop))
	text := d.call("task_output", args{"task_id": id}).Text
	if !background {
		require.Equal(t, a.Text, text, "reading it again says the same")
	}
	return fmt.Sprintf("%s %+v %s/%s", strings.ReplaceAll(text, id.String(), "ID"), row.Usage, row.HeadID, row.SourceCommitID)
}
