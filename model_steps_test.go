package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// steps are the operations, the more frequent ones several times. Each reports
// whether it did anything.
func (m *runnerModel) steps() []func() bool {
	return []func() bool{
		m.spawn, m.spawn, m.spawn, m.spawn, m.spawnInside, m.spawnInside, m.runInside, m.runInside, m.runOutside,
		m.waitInside, m.waitInside, m.waitOutside, m.leave, m.comeBack, m.comeBack, m.comeBack, m.comeBack, m.report, m.report,
		m.cancel, m.cancel, m.cancelSession, m.forget, m.resize, m.again, m.pass, m.pass, m.pass, m.recover,
	}
}

// oneOf picks a task that is as asked, nil if there is none.
func (m *runnerModel) oneOf(is func(*modelTask) bool) *modelTask {
	var fit []*modelTask
	for _, x := range m.tasks {
		if is(x) {
			fit = append(fit, x)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return fit[m.pick(len(fit))]
}

// newTask makes a request, of parent's worker if there is one.
func (m *runnerModel) newTask(parent *modelTask, run bool) *modelTask {
	x := &modelTask{parent: parent, depth: 1, foreground: run, kind: modelKind(m.pick(3)), orders: make(chan modelOrder)}
	x.req = subagent.Request{
		Description: fmt.Sprint("task ", len(m.tasks)), ParentSessionID: fmt.Sprint("s", m.pick(3)), Func: m.work(x),
		NoWait: m.pick(8) == 0,
	}
	if m.pick(4) == 0 {
		x.req.Timeout = m.span()
	}
	if m.pick(4) == 0 {
		x.req.QueueTimeout = m.span()
	}
	if parent == nil && m.pick(3) == 0 {
		x.req.ID = uuid.Must(uuid.NewV7())
	}
	if parent != nil {
		x.depth, x.req.Independent = parent.depth+1, m.pick(4) == 0
		if m.pick(2) == 0 {
			x.req.ParentSessionID = parent.session()
		}
	}
	if run {
		x.req.Metadata = map[string]string{"run": "yes"}
	}
	return x
}

// refusal is why x cannot be spawned with a ctx that is done or not.
func (m *runnerModel) refusal(x *modelTask, done bool) error {
	cancelled := false
	for p := x.parent; p != nil; p = p.above() {
		cancelled = cancelled || p.cause != nil
	}
	free := max(0, m.limit-m.held)
	switch {
	case done && cancelled:
		return errors.Join(subagent.ErrParentCancelled, context.Canceled)
	case done:
		return context.Canceled
	case m.closing != nil:
		return m.count("closed", subagent.ErrClosed)
	case cancelled:
		return m.count("parent cancelled", subagent.ErrParentCancelled)
	case x.depth > 3:
		return m.count("depth", subagent.ErrDepth)
	case x.req.NoWait && free == 0:
		return m.count("no capacity", subagent.ErrNoCapacity)
	case !x.req.NoWait && m.maxQueued >= 0 && len(m.line)-free >= m.maxQueued:
		return m.count("queue full", subagent.ErrQueueFull)
	}
	return nil
}

func (m *runnerModel) count(what string, err error) error {
	m.tally[what]++
	return err
}

// refused checks that err is what refusal said.
func (m *runnerModel) refused(want, err error) {
	if joined, ok := want.(interface{ Unwrap() []error }); ok {
		for _, w := range joined.Unwrap() {
			require.ErrorIs(m.t, err, w)
		}
		return
	}
	require.ErrorIs(m.t, err, want)
}

// born puts x, whose spawn was not refused, where it belongs.
func (m *runnerModel) born(x *modelTask) {
	m.tasks = append(m.tasks, x)
	if x.parent != nil {
		m.note("spawned by", x.parent)
	}
	m.note(fmt.Sprintf("spawned %+v", modelFacts(x)), x)
	m.dirty[x] = true
	x.status = subagent.StatusQueued
	if x.req.QueueTimeout > 0 {
		x.queueEnds = time.Now().Add(x.req.QueueTimeout)
	}
	if x.req.NoWait {
		m.start(x)
		return
	}
	m.line = append(m.line, x)
}

// modelFacts are the properties of x that decide what becomes of it.
func modelFacts(x *modelTask) any {
	return struct {
		Kind              modelKind
		Timeout, Queue    time.Duration
		Session           string
		Independent, Wait bool
		Run               bool
	}{x.kind, x.req.Timeout, x.req.QueueTimeout, x.session(), x.req.Independent, !x.req.NoWait, x.foreground}
}

func (m *runnerModel) start(x *modelTask) {
	m.note("starts", x)
	m.held++
	x.slot, x.inside, x.status = true, true, subagent.StatusRunning
	if x.req.Timeout > 0 {
		x.runEnds = time.Now().Add(x.req.Timeout)
	}
	m.dirty[x] = true
}

func (m *runnerModel) crowded() bool {
	live := 0
	for _, x := range m.tasks {
		if x.live() {
			live++
		}
	}
	return live > 10
}

func (m *runnerModel) spawn() bool {
	if m.crowded() {
		return false
	}
	x := m.newTask(nil, false)
	want := m.refusal(x, false)
	task, err := m.r.Spawn(context.Background(), x.req)
	m.spawned(x, task, err, want)
	return true
}

// spawned notes how a Spawn came back.
func (m *runnerModel) spawned(x *modelTask, task subagent.Task, err, want error) {
	if want != nil {
		m.refused(want, err)
		return
	}
	require.NoError(m.t, err)
	require.Equal(m.t, subagent.StatusQueued, task.Status)
	x.id = task.ID
	m.born(x)
}

// tell gives an order to a worker that waits for one.
func (m *runnerModel) tell(x *modelTask, order modelOrder) {
	x.orders <- order
	synctest.Wait()
}

// spawnInside has a worker spawn: one that runs, or is being stopped, or has
// been left alone. A ctx of a worker that is back serves as well.
func (m *runnerModel) spawnInside() bool {
	p := m.oneOf(func(x *modelTask) bool { return x.ctx.Load() != nil && x.wait == nil })
	if p == nil || m.crowded() {
		return false
	}
	x := m.newTask(p, false)
	ctx := *p.ctx.Load()
	done := ctx.Err() != nil
	want := m.refusal(x, done)
	var task subagent.Task
	var err error
	spawn := func(ctx context.Context, _ *subagent.Run) *modelAnswer {
		task, err = m.r.Spawn(ctx, x.req)
		return nil
	}
	if p.inside {
		m.tell(p, spawn)
	} else {
		spawn(ctx, nil)
	}
	m.spawned(x, task, err, want)
	return true
}

// runInside has a worker run a child in the foreground.
func (m *runnerModel) runInside() bool {
	p := m.oneOf(func(x *modelTask) bool { return x.idle() && x.cause == nil })
	if p == nil || m.crowded() {
		return false
	}
	x := m.newTask(p, true)
	want := m.refusal(x, false)
	w := m.newWait(p, x)
	w.run = true
	m.tell(p, func(ctx context.Context, _ *subagent.Run) *modelAnswer {
		w.do(ctx, func(ctx context.Context) ([]subagent.Task, error) {
			task, err := m.r.Run(ctx, x.req)
			return []subagent.Task{task}, err
		})
		return nil
	})
	if want != nil {
		require.True(m.t, w.returned.Load())
		m.refused(want, w.err)
		w.cancel()
		return true
	}
	m.adopt(x)
	m.begin(w)
	return true
}

// adopt finds the task that a Run has spawned: it is the newest one.
func (m *runnerModel) adopt(x *modelTask) {
	if x.id = x.req.ID; x.id == uuid.Nil {
		newest, err := m.r.List(context.Background(), subagent.Filter{NewestFirst: true, Limit: 1})
		require.NoError(m.t, err)
		require.Equal(m.t, x.req.Description, newest[0].Description)
		x.id = newest[0].ID
	}
	m.born(x)
}

// answers are the ways in which a worker comes back.
var modelAnswers = []*modelAnswer{
	{}, {result: subagent.Result{Text: "done"}}, {result: subagent.Result{Text: "finished"}},
	{err: errors.New("no luck"), reason: subagent.ReasonError, text: "no luck"},
	{result: subagent.Result{Text: "half"}, err: modelError{}, reason: subagent.ReasonError, text: "subagent_test.modelError: typed"},
	{reason: subagent.ReasonPanic, text: "panic: ouch"},
	{reason: subagent.ReasonPanic, text: "panic: runtime.Goexit"},
}

type modelError struct{}

func (modelError) Error() string { return "typed" }

func (m *runnerModel) comeBack() bool {
	x := m.oneOf((*modelTask).idle)
	if x == nil {
		return false
	}
	a := modelAnswers[m.pick(len(modelAnswers))]
	m.note("comes back", x)
	m.tell(x, func(context.Context, *subagent.Run) *modelAnswer {
		switch a.text {
		case "panic: ouch":
			panic("ouch")
		case "panic: runtime.Goexit":
			runtime.Goexit()
		}
		return a
	})
	m.back(x, a)
	return true
}

// report has a worker say something; late reports are dropped.
func (m *runnerModel) report() bool {
	x := m.oneOf((*modelTask).idle)
	if x == nil {
		return false
	}
	n, tokens := m.pick(3), int64(1+m.pick(100))
	m.tell(x, func(_ context.Context, run *subagent.Run) *modelAnswer {
		switch n {
		case 0:
			run.Progress("on it")
		case 1:
			_, _ = run.Write([]byte("said. "))
		case 2:
			run.ReportUsage(fmt.Sprint("call ", tokens), subagent.Usage{InputTokens: tokens})
			run.ReportUsage("one call", subagent.Usage{InputTokens: 5}) // replaces the earlier
		}
		return nil
	})
	if !x.live() {
		return true
	}
	m.dirty[x] = true
	if n == 1 {
		x.partial += "said. "
	}
	if n == 2 {
		if x.calls == nil {
			x.calls = map[int64]bool{}
		}
		x.calls[tokens] = true
		x.usage = 5
		for t := range x.calls {
			x.usage += t
		}
	}
	return true
}

func (m *runnerModel) cancel() bool {
	x := m.oneOf(func(x *modelTask) bool { return !x.forgotten && (x.live() || m.pick(8) == 0) })
	if x == nil {
		return false
	}
	message := []string{"", "enough"}[m.pick(2)]
	m.note("cancel", x)
	got, err := m.r.Cancel(context.Background(), x.id, subagent.CancelOptions{Message: message})
	require.NoError(m.t, err)
	require.Equal(m.t, x.id, got.ID)
	m.stop(subagent.ReasonUser, message, x)
	return true
}

func (m *runnerModel) cancelSession() bool {
	session := fmt.Sprint("s", m.pick(3))
	var roots []*modelTask
	for _, x := range m.tasks {
		if x.live() && x.session() == session {
			roots = append(roots, x)
		}
	}
	if len(roots) > 2 && m.pick(3) > 0 {
		return false // it would leave too little
	}
	m.note("cancel "+session, roots...)
	got, err := m.r.CancelSession(context.Background(), session, subagent.CancelOptions{})
	require.NoError(m.t, err)
	want := map[uuid.UUID]bool{}
	for _, x := range m.stop(subagent.ReasonSession, "", roots...) {
		want[x.id] = true
	}
	for _, x := range roots {
		want[x.id] = true
	}
	for _, task := range got {
		require.True(m.t, want[task.ID], "%+v", task)
	}
	require.Len(m.t, got, len(want))
	return true
}

// stop gives the live ones of roots, and what hangs below them, a cause.
func (m *runnerModel) stop(reason subagent.Reason, message string, roots ...*modelTask) (marked []*modelTask) {
	grace := time.Now().Add(m.cfg.CancelGrace)
	own, kids := &modelCause{reason, message, grace}, &modelCause{subagent.ReasonParent, message, grace}
	roots = slices.DeleteFunc(slices.Clone(roots), func(x *modelTask) bool { return !x.live() })
	for _, x := range m.tasks {
		cause := kids
		if slices.Contains(roots, x) {
			cause = own
		} else if !slices.ContainsFunc(roots, x.below) {
			continue
		}
		if x.live() && x.cause == nil {
			x.cause = cause
			marked = append(marked, x)
		}
	}
	m.note("stopped as "+string(reason), marked...)
	for _, x := range marked {
		m.carryOut(x)
	}
	return marked
}

// carryOut is what a cause does at once.
func (m *runnerModel) carryOut(x *modelTask) {
	if !x.inside {
		m.end(x, nil)
		return
	}
	if x.cause.requested() {
		m.dirty[x] = true
	}
	if w := x.wait; w != nil {
		m.takeBack(w)
	}
}

func (m *runnerModel) forget() bool {
	x := m.oneOf(func(x *modelTask) bool {
		return !x.forgotten && (!x.live() || m.pick(8) == 0) && !x.inside && !m.pinned(x)
	})
	if x == nil {
		return false
	}
	m.note("forget", x)
	err := m.r.Forget(context.Background(), x.id)
	if x.live() {
		require.ErrorIs(m.t, err, subagent.ErrNotTerminal)
		return true
	}
	require.NoError(m.t, err)
	_, err = m.r.Get(context.Background(), x.id)
	require.ErrorIs(m.t, err, subagent.ErrNotFound)
	x.forgotten = true
	m.tally["forgotten"]++
	return true
}

// pinned reports whether a wait under way will hand x over, although it has
// ended: it waits for others too, or for its slot.
func (m *runnerModel) pinned(x *modelTask) bool {
	return slices.ContainsFunc(m.waits, func(w *modelWait) bool { return slices.Contains(w.on, x) })
}

func (m *runnerModel) resize() bool {
	m.limit = 1 + m.pick(4)
	m.note(fmt.Sprint("resize to ", m.limit))
	m.cfg.Capacity.Resize(m.limit)
	return true
}

// again spawns what is known: with the same content, and with another.
func (m *runnerModel) again() bool {
	x := m.oneOf(func(x *modelTask) bool { return x.req.ID != uuid.Nil && !x.forgotten })
	if x == nil || m.closing != nil {
		return false
	}
	m.tally["known again"]++
	got, err := m.r.Spawn(context.Background(), x.req)
	require.NoError(m.t, err)
	require.Equal(m.t, x.status, got.Status)
	other := x.req
	other.Description += " or not"
	_, err = m.r.Spawn(context.Background(), other)
	require.ErrorIs(m.t, err, subagent.ErrTaskExists)
	return true
}
