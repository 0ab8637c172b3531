package subagent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/go-subagent/subagent/internal/runes"
)

// Run is one execution, as its Func sees it. Its methods may be called from
// any goroutine of the Func and never block. What is reported after the task
// has ended is dropped and logged.
type Run struct {
	e      *execution
	ctx    context.Context
	cancel context.CancelCauseFunc
	base   runContext

	// What follows is guarded by the execution's lock.

	limit    *time.Timer // run time
	grace    *time.Timer
	deadline time.Time // when the run time is over; zero: never
	calls    map[string]Usage
	usage    Usage
	progress Progress
	tool     bool // progress.Message is the name of a tool
	partial  partial
	late     bool // a report after the end was logged
	end      endEdit
}

// runContext is the root of a Func's ctx: it has the values of Spawn's ctx but
// not its end, the task's Run, and the end of its run time as deadline.
type runContext struct {
	context.Context
	run *Run
}

type runKey struct{}

func (c *runContext) Value(key any) any {
	if key == (runKey{}) {
		return c.run
	}
	return c.Context.Value(key)
}

func (c *runContext) Deadline() (time.Time, bool) {
	return c.run.deadline, !c.run.deadline.IsZero()
}

func newRun(e *execution) *Run {
	run := &Run{e: e}
	run.base = runContext{e.ctx, run}
	run.ctx, run.cancel = context.WithCancelCause(&run.base)
	return run
}

// RunFromContext returns the Run of the Func that ctx was given to, or was
// derived in. The ctx of a Store, CardSink or Notifier call carries none.
func RunFromContext(ctx context.Context) (*Run, bool) {
	run, _ := ctx.Value(runKey{}).(*Run)
	return run, run != nil
}

// Task returns the task as it is now.
func (r *Run) Task() Task { return r.e.view(true).copy() }

// ReportUsage says what the model call callID has used so far. A later report
// for the same callID replaces the earlier one, so a stream may report its
// running total as often as it likes; the task's usage is the sum over its
// calls. Negative counts are taken for 0, and Calls 0 for 1.
func (r *Run) ReportUsage(callID string, u Usage) {
	u = u.atLeastZero()
	u.Calls = max(u.Calls, 1)
	r.report("usage", func() {
		if r.calls == nil {
			r.calls = make(map[string]Usage)
		}
		_, again := r.calls[callID]
		r.calls[callID] = u
		if !again {
			r.usage = r.usage.Add(u)
			return
		}
		r.usage = Usage{} // summed anew: a sum that is saturated has no difference
		for _, call := range r.calls {
			r.usage = r.usage.Add(call)
		}
	})
}

// Progress says what the task is doing, for people; it is kept up to 2000
// bytes.
func (r *Run) Progress(message string) {
	message = brief(runes.Clean(message))
	r.report("progress", func() { r.progress.Message, r.tool = message, false })
}

// ToolUse counts one tool call. Its name is shown as progress as long as
// Progress has said nothing.
func (r *Run) ToolUse(name string) {
	name = brief(runes.Clean(name))
	r.report("tool use", func() {
		r.progress.ToolUses++
		if r.progress.Message == "" || r.tool {
			r.progress.Message, r.tool = name, true
		}
	})
}

// Write appends p to the partial result. It is what readers see while the task
// runs, and the task's result text when it does not complete or its Result has
// no text. It is kept up to 16 MiB; the rest is dropped. Write takes all of p
// and never fails, so that it serves as an io.Writer.
func (r *Run) Write(p []byte) (int, error) {
	r.report("partial text", func() { r.partial.write(p) })
	return len(p), nil
}

// report makes a change to what a running task shows, and tells it.
func (r *Run) report(what string, change func()) {
	e := r.e
	e.mu.Lock()
	if e.phase != phaseRunning {
		first := !r.late
		r.late = true
		e.mu.Unlock()
		if first {
			e.runner.log.warn("report after the end dropped", e.id, "report", what)
		}
		return
	}
	defer e.mu.Unlock()
	change()
	r.progress.LastActivityAt = stamp(later(e.task.lastStamp(), r.progress.LastActivityAt))
	e.runner.hub.publish(EventProgress, e)
}

// overlayLocked puts what is only in memory on a copy of the record.
func (r *Run) overlayLocked(t *Task, full bool) {
	t.Usage, t.Progress = r.usage, r.progress
	if full {
		t.ResultText, t.ResultTruncated = r.partial.text(), r.partial.dropped
	} else {
		t.ResultText, t.ResultTruncated = r.partial.head()
	}
}

// limitLocked starts the run time.
func (r *Run) limitLocked() {
	if r.e.timeout > 0 {
		r.deadline = time.Now().Add(r.e.timeout)
		r.limit = time.AfterFunc(r.e.timeout, r.e.expire) // stopped by the end; its goroutine ends with the store's answer
	}
}

func (r *Run) outOfTime() bool { return !r.deadline.IsZero() && !time.Now().Before(r.deadline) }

// closeLocked gives the end what was reported, and its partial text if the
// Func brought none.
func (r *Run) closeLocked(n *ending) {
	stopTimer(r.limit)
	stopTimer(r.grace)
	r.partial.close()
	if n.Text == "" {
		n.Text, n.truncated = r.partial.text(), r.partial.dropped
	}
	n.usage, n.progress = r.usage, r.progress
}

// returned is how a Func came back that neither panicked nor called Goexit.
func (o *outcome) returned(res Result, err error) {
	text := runes.Clean(res.Text[:min(len(res.Text), maxText+1)])
	kept := outcome{result: Result{
		Text:           runes.Cut(text, maxText),
		HeadID:         brief(runes.Clean(res.HeadID)),
		SourceCommitID: brief(runes.Clean(res.SourceCommitID)),
		StopReason:     brief(runes.Clean(res.StopReason)),
	}}
	kept.truncated = len(kept.result.Text) < len(text)
	if err != nil {
		kept.reason, kept.err = ReasonError, typedErrorText(err)
		kept.deadline = errors.Is(err, context.DeadlineExceeded)
	}
	*o = kept
}

// panicked is how a Func came back with a panic. The stack is for the log
// alone: a model reads the record.
func (o *outcome) panicked(e *execution, v any) {
	*o = outcome{reason: ReasonPanic, err: bounded("panic: " + fmt.Sprint(v))}
	e.runner.log.error("Func panicked", e.id, "panic", o.err, "stack", string(debug.Stack()))
}

// maxError bounds the error text of a record, in bytes.
const maxError = 64 << 10

func bounded(s string) string { return runes.Cut(runes.Clean(s), maxError) }

// errorText is err.Error(), even if that panics.
func errorText(err error) string { return bounded(fmt.Sprint(err)) }

// typedErrorText is errorText behind the type of err, which tells a reader
// more than the text alone, unless it is one of those that say nothing.
func typedErrorText(err error) string {
	switch kind := fmt.Sprintf("%T", err); kind {
	case "*errors.errorString", "*fmt.wrapError", "*fmt.wrapErrors", "*errors.joinError":
		return errorText(err)
	default:
		return bounded(kind + ": " + errorText(err))
	}
}
