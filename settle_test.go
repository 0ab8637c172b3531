package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/subagenttest"
)

// verdictCase is a row of the table of verdicts.
type verdictCase struct {
	name   string
	cfg    subagent.Config
	change func(*subagent.Request)
	fn     func(r *rig) subagent.Func // nil: the gate's
	before func(r *rig)               // the spawn
	act    func(r *rig, id uuid.UUID) // once nothing moves any more
	want   subagent.Task
}

// partly writes a partial result and goes on as fn.
func partly(fn subagent.Func) func(*rig) subagent.Func {
	return func(*rig) subagent.Func {
		return func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			_, _ = run.Write([]byte("part"))
			run.ReportUsage("m", subagent.Usage{TotalTokens: 7})
			return fn(ctx, run)
		}
	}
}

func partlyDeaf(r *rig) subagent.Func { return partly(r.gate.DeafFunc())(r) }

// stopped returns what f does once its ctx has ended.
func stopped(f subagent.Func) subagent.Func {
	return func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		<-ctx.Done()
		return f(ctx, run)
	}
}

func gives(text string, err error) subagent.Func {
	return func(context.Context, *subagent.Run) (subagent.Result, error) {
		return subagent.Result{Text: text, HeadID: "h", SourceCommitID: "c", StopReason: "turn_capped"}, err
	}
}

func panics(v any) subagent.Func {
	return func(context.Context, *subagent.Run) (subagent.Result, error) { panic(v) }
}

func exits(context.Context, *subagent.Run) (subagent.Result, error) {
	runtime.Goexit()
	return subagent.Result{}, nil
}

func stopIt(r *rig, id uuid.UUID) { r.stop(id) }

func shutItDown(r *rig, _ uuid.UUID) {
	r.left = true
	_ = r.Shutdown(r.ctx)
}

// occupied has another task hold the only slot.
func occupied(r *rig) { r.runs("blocker") }

// refusing has the store refuse a transition for a while.
func refusing(to subagent.Status) func(r *rig) {
	return func(r *rig) {
		r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			if len(c.Tasks) == 1 && c.Tasks[0].Status == to {
				return subagenttest.Fault{Err: errors.New("no \x00 thanks")}
			}
			return subagenttest.Fault{}
		})
	}
}

// delaying has the store be slow with a transition.
func delaying(to subagent.Status) func(r *rig) {
	return func(r *rig) {
		r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			if len(c.Tasks) == 1 && c.Tasks[0].Status == to {
				return subagenttest.Fault{Delay: time.Second}
			}
			return subagenttest.Fault{}
		})
	}
}

func limited(q *subagent.Request) { q.Timeout = 15 * time.Minute }

func verdictCompleted() []verdictCase {
	done := subagent.Task{Status: subagent.StatusCompleted}
	return []verdictCase{
		{name: "returned nil", fn: partly(gives("all", nil)), want: withText(done, "all")},
		{name: "returned nil without text", fn: partly(gives("", nil)), want: withText(done, "part")},
		{name: "returned a text that is none", fn: partly(gives("a\x00\xff", nil)), want: withText(done, "a\uFFFD\uFFFD")},
	}
}

func withText(t subagent.Task, text string) subagent.Task {
	t.ResultText = text
	return t
}

func verdictCancelled() []verdictCase {
	asked := subagent.Task{Status: subagent.StatusCancelled, Reason: subagent.ReasonAgent, CancelMessage: "enough"}
	forced := withText(asked, "part")
	forced.Error, forced.Detached = "cancel timed out, worker may be stuck", true
	return []verdictCase{
		{name: "returned nil after a cancel", fn: partly(stopped(gives("all", nil))), act: stopIt, want: withText(asked, "all")},
		{name: "returned an error after a cancel", fn: partly(stopped(gives("", fs.ErrClosed))), act: stopIt, want: withText(asked, "part")},
		{name: "returned a text and an error after a cancel", fn: partly(stopped(gives("all", fs.ErrClosed))), act: stopIt, want: withText(asked, "all")},
		{name: "panicked after a cancel", fn: partly(stopped(panics("late"))), act: stopIt, want: withText(asked, "part")},
		{name: "Goexit after a cancel", fn: partly(stopped(exits)), act: stopIt, want: withText(asked, "part")},
		{name: "cancelled while pending", before: delaying(subagent.StatusQueued), act: stopIt, want: asked},
		{name: "cancelled while queued", before: occupied, act: stopIt, want: asked},
		{name: "cancelled while it starts", before: delaying(subagent.StatusRunning), act: stopIt, want: asked},
		{name: "did not return after a cancel", fn: partlyDeaf, act: stopIt, want: forced},
		{name: "cancelled, then its time was over", change: func(q *subagent.Request) { q.Timeout = time.Second }, fn: partlyDeaf, act: stopIt, want: forced},
	}
}

func verdictTimes() []verdictCase {
	late := subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonTimeout, Error: "timed out after 15m0s"}
	stuck := withText(late, "part")
	stuck.Error, stuck.Detached = "timed out after 15m0s; worker may be stuck", true
	return []verdictCase{
		{name: "returned in time after its limit", change: limited, fn: partly(stopped(gives("all", nil))), want: withText(late, "all")},
		{name: "returned its ctx's error after its limit", change: limited, fn: partly(stopped(gives("", context.DeadlineExceeded))), want: withText(late, "part")},
		{name: "panicked after its limit", change: limited, fn: partly(stopped(panics("late"))), want: withText(late, "part")},
		{name: "Goexit after its limit", change: limited, fn: partly(stopped(exits)), want: withText(late, "part")},
		{name: "did not return after its limit", change: limited, fn: partlyDeaf, want: stuck},
		{name: "cancelled after its limit", change: limited, fn: partlyDeaf, act: func(r *rig, id uuid.UUID) {
			time.Sleep(15*time.Minute + time.Second)
			r.stop(id)
		}, want: stuck},
		{name: "waited too long", before: occupied, change: func(q *subagent.Request) { q.QueueTimeout = 5 * time.Minute },
			want: subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonQueueTimeout, Error: "waited 5m0s for a slot"}},
	}
}

type verdictError struct{ error }

func verdictErrored() []verdictCase {
	failed := func(text, err string) subagent.Task {
		return subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonError, Error: err, ResultText: text}
	}
	panicked := func(err string) subagent.Task {
		return subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonPanic, Error: err, ResultText: "part"}
	}
	refused := subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonStore, Error: "store: no \uFFFD thanks"}
	plain := errors.New("boom")
	return []verdictCase{
		{name: "errors.New", fn: partly(gives("", plain)), want: failed("part", "boom")},
		{name: "fmt.Errorf", fn: partly(gives("all", fmt.Errorf("it: %w", plain))), want: failed("all", "it: boom")},
		{name: "fmt.Errorf of two", fn: partly(gives("", fmt.Errorf("%w, %w", plain, fs.ErrExist))), want: failed("part", "boom, file already exists")},
		{name: "errors.Join", fn: partly(gives("", errors.Join(plain, plain))), want: failed("part", "boom\nboom")},
		{name: "a typed error", fn: partly(gives("", verdictError{plain})), want: failed("part", "subagent_test.verdictError: boom")},
		{name: "a typed error by pointer", fn: partly(gives("", &fs.PathError{Op: "open", Path: "\xff", Err: plain})), want: failed("part", "*fs.PathError: open \uFFFD: boom")},
		{name: "an unasked-for ctx error", fn: partly(gives("", fmt.Errorf("%w", context.Canceled))), want: failed("part", "context canceled")},
		{name: "panic", fn: partly(panics("ouch")), want: panicked("panic: ouch")},
		{name: "panic with an error", fn: partly(panics(plain)), want: panicked("panic: boom")},
		{name: "panic with a number", fn: partly(panics(42)), want: panicked("panic: 42")},
		{name: "Goexit", fn: partly(exits), want: panicked("panic: runtime.Goexit")},
		{name: "the store refuses queued", before: refusing(subagent.StatusQueued), want: refused},
		{name: "the store refuses running", before: refusing(subagent.StatusRunning), want: refused},
	}
}

func verdictShutdown() []verdictCase {
	never := subagent.Task{Status: subagent.StatusCancelled, Reason: subagent.ReasonShutdown}
	undrained := subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonShutdown, Error: "worker pool shutdown"}
	stuck := withText(undrained, "part")
	stuck.Detached = true
	return []verdictCase{
		{name: "shut down while pending", before: delaying(subagent.StatusQueued), act: shutItDown, want: never},
		{name: "shut down while queued", before: occupied, act: shutItDown, want: never},
		{name: "shut down, returned in time", act: shutItDown, fn: func(*rig) subagent.Func {
			return func(context.Context, *subagent.Run) (subagent.Result, error) {
				time.Sleep(4 * time.Second)
				return subagent.Result{Text: "drained"}, nil
			}
		}, want: withText(subagent.Task{Status: subagent.StatusCompleted}, "drained")},
		{name: "shut down, returned nil", fn: partly(stopped(gives("all", nil))), act: shutItDown, want: withText(undrained, "all")},
		{name: "shut down, returned an error", fn: partly(stopped(gives("", fs.ErrClosed))), act: shutItDown, want: withText(undrained, "part")},
		{name: "shut down, panicked", fn: partly(stopped(panics("late"))), act: shutItDown, want: withText(undrained, "part")},
		{name: "shut down, did not return", fn: partlyDeaf, act: shutItDown, want: stuck},
	}
}

// The table of verdicts, row by row, each on every surface, for a task that
// nobody waits for and for one in the foreground.
func TestG11_EveryVerdictOnEverySurface(t *testing.T) {
	for _, rows := range [][]verdictCase{verdictCompleted(), verdictCancelled(), verdictTimes(), verdictErrored(), verdictShutdown()} {
		for _, row := range rows {
			for _, foreground := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, foreground %v", row.name, foreground), func(t *testing.T) {
					inRig(t, row.cfg, func(t *testing.T, r *rig) { row.check(r, foreground) })
				})
			}
		}
	}
}

func (row *verdictCase) check(r *rig, foreground bool) {
	t, id := r.t, uuid.Must(uuid.NewV7())
	if row.before != nil {
		row.before(r)
	}
	q := rigAsk("x", func(q *subagent.Request) {
		q.ID = id
		if row.fn != nil {
			q.Func = row.fn(r)
		}
		if row.change != nil {
			row.change(q)
		}
	})
	var seen subagent.Task
	var err error
	go func() {
		if foreground {
			seen, err = r.Run(r.ctx, q)
		} else {
			seen, err = r.Spawn(r.ctx, q)
		}
	}()
	synctest.Wait()
	if row.act != nil {
		row.act(r, id)
	}
	time.Sleep(time.Hour)
	end := r.settled(id)
	row.compare(t, end)
	if end.Reason != subagent.ReasonStore {
		require.NoError(t, err)
	}
	require.Equal(t, !foreground, end.Background)
	require.False(t, end.NotifiedAt.IsZero(), "it was delivered, one way or the other")
	_, _, notices := r.heard(id)
	waited := r.awaited(id)
	row.compare(t, waited)
	require.Equal(t, end, waited, "who waits later sees that it was delivered")
	if foreground {
		require.Empty(t, notices, "no notice is owed")
		require.Equal(t, essence(end), essence(seen))
		require.Equal(t, end.Version, seen.Version)
		require.Zero(t, seen.NotifiedAt, "Run is the first to see the end")
	} else {
		require.Len(t, notices, 1)
	}
	r.cardsTell(end)
	r.heal()
}

// compare looks at what the table says of a row.
func (row *verdictCase) compare(t *testing.T, got subagent.Task) {
	t.Helper()
	want := row.want
	require.Equal(t, want.Status, got.Status)
	require.Equal(t, want.Reason, got.Reason)
	require.Equal(t, want.Error, got.Error)
	require.Equal(t, want.ResultText, got.ResultText)
	require.Equal(t, want.Detached, got.Detached)
	require.Equal(t, want.CancelMessage, got.CancelMessage)
	require.Equal(t, want.CancelMessage != "", !got.CancelRequestedAt.IsZero())
	if want.ResultText == "part" || want.ResultText == "all" {
		require.EqualValues(t, 7, got.Usage.TotalTokens, "usage is kept whatever the end")
	}
	if want.ResultText == "all" {
		require.Equal(t, "h/c/turn_capped", got.HeadID+"/"+got.SourceCommitID+"/"+got.StopReason)
	}
	times := []time.Time{got.CreatedAt, got.QueuedAt, got.StartedAt, got.CancelRequestedAt, got.CompletedAt}
	for last, at := (time.Time{}), 0; at < len(times); at++ {
		if !times[at].IsZero() {
			require.False(t, times[at].Before(last), "times never go backwards: %v", times)
			last = times[at]
		}
	}
}

// cardsTell checks that a card was put at each transition that the task made.
// One that is to stop already may go over states that nobody needs to see.
func (r *rig) cardsTell(end subagent.Task) {
	r.t.Helper()
	want := []string{"pending"}
	if !end.QueuedAt.IsZero() {
		want = append(want, "queued")
	}
	if !end.StartedAt.IsZero() {
		want = append(want, "running")
	}
	want = append(want, string(end.Status))
	cards, _, _ := r.heard(end.ID)
	got := strings.Fields(cardStatuses(cards))
	if end.Status != subagent.StatusCancelled {
		require.Equal(r.t, want, got)
	}
	require.Subset(r.t, want, got) // the audit looks at their order
	require.Equal(r.t, "pending", got[0])
	require.Equal(r.t, string(end.Status), got[len(got)-1])
}

// A worker that comes back late, or reports late, changes nothing on any
// surface, whatever ended its task.
func TestG3_WhatComesAfterTheEndIsDropped(t *testing.T) {
	late := map[string]func(run *subagent.Run) (subagent.Result, error){
		"result": func(*subagent.Run) (subagent.Result, error) {
			return subagent.Result{Text: "late", HeadID: "late"}, nil
		},
		"error":  func(*subagent.Run) (subagent.Result, error) { return subagent.Result{}, errors.New("late") },
		"panic":  func(*subagent.Run) (subagent.Result, error) { panic("late") },
		"Goexit": func(*subagent.Run) (subagent.Result, error) { runtime.Goexit(); return subagent.Result{}, nil },
	}
	for name, comesBack := range late {
		for _, why := range []string{"cancel", "time limit", "shutdown"} {
			t.Run(why+", then "+name, func(t *testing.T) {
				inRig(t, subagent.Config{}, func(t *testing.T, r *rig) { lateWorker(r, why, comesBack) })
			})
		}
	}
}

func lateWorker(r *rig, why string, comesBack func(*subagent.Run) (subagent.Result, error)) {
	report := func(run *subagent.Run, text string, n int64) {
		run.ReportUsage("m", subagent.Usage{TotalTokens: n})
		run.Progress(text)
		run.ToolUse(text)
		_, err := run.Write([]byte(text))
		require.NoError(r.t, err)
	}
	id, run := r.runs("x", func(q *subagent.Request) {
		q.Timeout = time.Hour
		q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			_, _ = r.gate.DeafFunc()(ctx, run)
			return comesBack(run)
		}
	})
	report(run, "in time", 1)
	switch why {
	case "cancel":
		r.stop(id)
	case "shutdown":
		r.left = true
		require.ErrorIs(r.t, r.Shutdown(r.ctx), subagent.ErrShutdown)
	}
	time.Sleep(2 * time.Hour)
	end := r.settled(id)
	require.True(r.t, end.Detached)
	require.Equal(r.t, "in time", end.ResultText)
	require.Equal(r.t, subagent.Usage{TotalTokens: 1, Calls: 1}, end.Usage)
	require.Equal(r.t, 1, end.Progress.ToolUses)
	cards, events, notices := r.heard(id)
	report(run, "late", 1000)
	r.gate.ReleaseAll()
	synctest.Wait()
	report(run, "later still", 2000)
	require.Equal(r.t, end, r.settled(id))
	require.Equal(r.t, end, run.Task())
	cardsNow, eventsNow, noticesNow := r.heard(id)
	require.Equal(r.t, cards, cardsNow)
	require.Equal(r.t, events, eventsNow)
	require.Equal(r.t, notices, noticesNow)
}

// sameEnd is a cheap look at what differs between two ends.
func sameEnd(a, b subagent.Task) bool {
	return a.ID == b.ID && a.Status == b.Status && a.Reason == b.Reason && a.Error == b.Error && a.ResultText == b.ResultText &&
		a.CompletedAt.Equal(b.CompletedAt) && a.CancelRequestedAt.Equal(b.CancelRequestedAt)
}
