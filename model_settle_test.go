package subagent_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/subagenttest"
)

// settle works out what follows from what was done, and checks what the Runner
// made of it where more than one order is right.
func (m *runnerModel) settle() {
	synctest.Wait()
	for changed := true; changed; {
		changed = false
		for _, w := range slices.Clone(m.waits) {
			changed = m.look(w) || changed
		}
		for _, x := range m.tasks {
			if x.idle() && x.kind != modelDeaf && x.cause != nil {
				m.back(x, x.kind.obedience())
				changed = true
			}
		}
	}
	m.grant()
	for _, w := range m.done {
		m.check(w)
	}
	m.done, m.ends = nil, 0
}

// look sees whether a wait is over.
func (m *runnerModel) look(w *modelWait) (changed bool) {
	stopped := w.by != nil && w.by.cause != nil
	switch {
	case stopped && w.run && w.on[0].live() && !w.gone:
		// It asks for the end of what it ran, and leaves. A slot that became
		// free in this step may have been quicker.
		m.startedUpTo(w.on[0])
		m.stop(subagent.ReasonCaller, "", w.on[0])
		w.on[0].foreground = false
	case w.gone && w.run && w.on[0].live():
		return false
	case w.satisfied() && w.lent:
		if !w.by.inLane {
			w.by.inLane, w.by.lined = true, m.step
		}
		return false // until its slot is back
	case !stopped && !w.gone && !w.satisfied():
		return false
	}
	m.finish(w)
	return true
}

// finish notes that w has returned, and checks what with.
func (m *runnerModel) finish(w *modelWait) {
	m.waits = slices.DeleteFunc(m.waits, func(o *modelWait) bool { return o == w })
	m.note("wait over: "+w.String(), w.on...)
	if w.by != nil {
		w.by.wait = nil
	}
	if stopped := w.by != nil && w.by.cause != nil; stopped || w.any {
		for _, x := range w.on { // which may end before or after it has left
			x.unsureIn = m.step
			x.unsure = x.unsure || !x.live()
		}
	}
	m.done = append(m.done, w)
}

// check looks at what a wait that is over returned.
func (m *runnerModel) check(w *modelWait) {
	require.True(m.t, w.returned.Load(), "a wait that should be over goes on")
	w.cancel()
	stopped := w.by != nil && w.by.cause != nil
	if w.err == nil {
		require.True(m.t, w.satisfied(), "it returned too early")
	} else {
		require.True(m.t, stopped || w.gone, "%v", w.err)
		require.True(m.t, w.err == context.Canceled || w.err == context.DeadlineExceeded, "%v", w.err)
	}
	if m.unread(w) {
		return
	}
	require.Len(m.t, w.tasks, len(w.on), "err %v, stopped %v, store %T, any %v", w.err, stopped, m.store, w.any)
	for i, x := range w.on {
		got := w.tasks[i]
		require.Equal(m.t, x.id, got.ID, "err %v, stopped %v, store %T, live %v run %v by %v", w.err, stopped, m.store, x.live(), w.run, w.by != nil)
		m.changed[x] = true
		if !got.Status.Terminal() {
			require.True(m.t, w.any || w.err != nil)
			continue
		}
		require.Equal(m.t, x.status, got.Status)
		require.Equal(m.t, x.text, got.ResultText)
		if w.run && stopped {
			continue // it may have left before the end
		}
		if got.NotifiedAt.IsZero() {
			x.firsts++
			require.Equal(m.t, 1, x.firsts, "handed over as new twice: %s: %+v unsure %v in %d now %d", x.req.Description, got, x.unsure, x.unsureIn, m.step)
			require.True(m.t, x.unsure || x.notices == 0, "handed over as new after its notice")
		}
		x.notified = true
	}
}

// back is a worker that returned.
func (m *runnerModel) back(x *modelTask, a *modelAnswer) {
	if x.live() {
		m.end(x, a)
		return
	}
	x.inside = false // its end was decided without it
	m.free(x)
}

// end settles x; a is how its worker came back, nil if it did not.
func (m *runnerModel) end(x *modelTask, a *modelAnswer) {
	x.verdict(a)
	m.note("ends "+string(x.status)+" "+string(x.reason), x)
	x.inside = x.inside && a == nil
	m.ends++
	m.ended[x.status]++
	m.dirty[x] = true
	m.tally[string(x.status)+map[bool]string{true: "/"}[x.reason != ""]+string(x.reason)]++
	if x.detached {
		m.tally["detached"]++
	}
	m.line = slices.DeleteFunc(m.line, func(o *modelTask) bool { return o == x })
	m.free(x)
	x.endedIn = m.step
	awaited := m.awaited(x)
	x.unsure = x.unsureIn == m.step || slices.ContainsFunc(m.waits, func(w *modelWait) bool {
		return slices.Contains(w.on, x) && w.racing(m.step)
	})
	if x.foreground {
		x.notified = true
		return
	}
	if x.req.Metadata["run"] == "" && !awaited && m.cfg.Notifier != nil {
		x.notices, x.notified = 1, true
		m.tally["notice"]++
	}
}

// awaited reports whether somebody waits for x: a wait for any has let go of
// the others when the first of them has ended.
func (m *runnerModel) awaited(x *modelTask) bool {
	return slices.ContainsFunc(m.waits, func(w *modelWait) bool {
		others := func(o *modelTask) bool { return o != x && !o.live() }
		return slices.Contains(w.on, x) && !(w.gone && !w.run) && !(w.any && slices.ContainsFunc(w.on, others))
	})
}

// unread reports whether w found nothing, because a store that is not the
// Runner's own is not read with a ctx that has ended.
func (m *runnerModel) unread(w *modelWait) bool {
	_, foreign := m.store.(*subagenttest.FaultyStore)
	nothing := len(w.tasks) == 0 || w.tasks[0].ID == uuid.Nil
	return foreign && w.doomed && nothing && errors.Is(w.err, context.Canceled)
}

// racing reports whether something else ends w in this step, too.
func (w *modelWait) racing(step int) bool {
	if w.by != nil && w.by.cause != nil {
		return true
	}
	return w.any && slices.ContainsFunc(w.on, func(x *modelTask) bool { return !x.live() && x.endedIn == step })
}

// startedUpTo starts x, and those before it in line, if x has got a slot.
func (m *runnerModel) startedUpTo(x *modelTask) {
	i := slices.Index(m.line, x)
	if i < 0 || x.entered.Load() == 0 {
		return
	}
	for _, y := range m.line[:i+1] {
		require.Positive(m.t, y.entered.Load(), "%s overtook %s in the line", x.req.Description, y.req.Description)
		m.start(y)
	}
	m.line = slices.Delete(m.line, 0, i+1)
}

func (m *runnerModel) free(x *modelTask) {
	if x.slot && (!x.inside || m.cfg.FreeOnDetach) {
		x.slot = false
		m.held--
	}
}

// grant checks who got the slots that are free now. The line moves strictly in
// order; lenders who lined up before this step come first of all, and those
// who did in it too, unless several ends came at once: then either order is
// right.
func (m *runnerModel) grant() {
	var lane, got []*modelTask
	for _, x := range m.tasks {
		if x.inLane {
			lane = append(lane, x)
		}
	}
	free, waiting := max(0, m.limit-m.held), len(lane)+len(m.line)
	started := 0
	for i, x := range m.line {
		if x.entered.Load() > 0 {
			require.Equal(m.t, i, started, "%s overtook others in the line", x.req.Description)
			started++
		}
	}
	for _, x := range lane {
		if x.wait.returned.Load() {
			got = append(got, x)
		}
	}
	require.Equal(m.t, min(free, waiting), started+len(got), "slots handed on: %d free, %d lenders, %d in line", free, len(lane), len(m.line))
	for _, x := range lane {
		if slices.Contains(got, x) {
			continue
		}
		require.False(m.t, started > 0 && (x.lined < m.step || m.ends < 2), "the line was served before %s", x.req.Description)
		for _, y := range got {
			require.LessOrEqual(m.t, y.lined, x.lined, "a lender overtook another")
		}
	}
	for _, x := range m.line[:started] {
		m.start(x)
	}
	m.line = slices.Delete(m.line, 0, started)
	for _, x := range got {
		m.tally["lent slot back"]++
		m.held++
		w := x.wait
		x.inLane, x.slot, w.lent = false, true, false
		m.finish(w)
	}
}

// pass lets time go by, up to the next thing that time brings about.
func (m *runnerModel) pass() bool {
	now := time.Now()
	var next time.Time
	for _, at := range m.deadlines() {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if next.IsZero() {
		return false
	}
	if m.pick(4) == 0 { // not quite
		time.Sleep(next.Sub(now) / 2)
		return true
	}
	time.Sleep(next.Sub(now))
	m.elapse()
	return true
}

// tick lets a moment pass, so that what is done now and what was done before
// are never due in the same instant.
func (m *runnerModel) tick() (due bool) {
	now := time.Now().Add(1)
	due = slices.ContainsFunc(m.deadlines(), func(at time.Time) bool { return !at.After(now) })
	time.Sleep(time.Nanosecond)
	if due {
		m.elapse()
	}
	return due
}

// elapse notes what time has brought about.
func (m *runnerModel) elapse() {
	synctest.Wait()
	now := time.Now()
	if s := m.closing; s != nil && !s.next.After(now) {
		s.advance(m)
	}
	for _, w := range slices.Clone(m.waits) {
		if !w.ends.IsZero() && !w.ends.After(now) && !w.gone {
			m.gone(w)
		}
	}
	for _, x := range m.tasks {
		m.due(x, now)
	}
}

// deadlines are the times at which something is due.
func (m *runnerModel) deadlines() (all []time.Time) {
	if m.closing != nil && !m.closing.returned {
		all = append(all, m.closing.next)
	}
	for _, w := range m.waits {
		if !w.gone && !w.ends.IsZero() {
			all = append(all, w.ends)
		}
	}
	for _, x := range m.tasks {
		switch {
		case x.status == subagent.StatusQueued && !x.queueEnds.IsZero():
			all = append(all, x.queueEnds)
		case x.status == subagent.StatusRunning && x.cause == nil && !x.runEnds.IsZero():
			all = append(all, x.runEnds)
		case x.status == subagent.StatusRunning && x.cause != nil && !x.cause.grace.IsZero():
			all = append(all, x.cause.grace)
		}
	}
	return all
}

func (m *runnerModel) due(x *modelTask, now time.Time) {
	switch {
	case x.status == subagent.StatusQueued && !x.queueEnds.IsZero() && !x.queueEnds.After(now):
		a := &modelAnswer{reason: subagent.ReasonQueueTimeout, text: "waited " + x.req.QueueTimeout.String() + " for a slot"}
		m.end(x, a)
	case x.status == subagent.StatusRunning && x.cause == nil && !x.runEnds.IsZero() && !x.runEnds.After(now):
		m.stop(subagent.ReasonTimeout, "", x)
	case x.status == subagent.StatusRunning && x.cause != nil && !x.cause.grace.IsZero() && !x.cause.grace.After(now):
		m.end(x, nil)
	}
}

// recover opens a second Runner on a copy of the store, as if the process had
// died now.
func (m *runnerModel) recover() bool {
	if m.store == nil || m.pick(4) > 0 {
		return false
	}
	ctx := context.Background()
	clone := subagent.NewMemoryStore()
	rows := map[uuid.UUID]subagent.Task{}
	for row, err := range m.store.List(ctx, subagent.Filter{}) {
		require.NoError(m.t, err)
		rows[row.ID] = row
		require.NoError(m.t, clone.Create(ctx, row))
	}
	r, err := subagent.New(ctx, subagent.Config{Store: clone, Func: m.cfg.Func})
	require.NoError(m.t, err)
	for _, x := range m.tasks {
		if x.forgotten {
			continue
		}
		got, err := r.Get(ctx, x.id)
		require.NoError(m.t, err)
		want := rows[x.id]
		if !x.live() {
			want.Version = 1
			require.Equal(m.t, want, got)
			continue
		}
		m.tally["recovered"]++
		require.Equal(m.t, subagent.StatusErrored, got.Status)
		require.Equal(m.t, subagent.ReasonLost, got.Reason)
		require.Equal(m.t, "worker died before completion", got.Error)
		require.Equal(m.t, r.ID(), got.Owner)
		require.Equal(m.t, want.CancelRequestedAt, got.CancelRequestedAt)
	}
	require.NoError(m.t, r.Shutdown(ctx))
	return true
}

// modelShutdown is a Shutdown under way.
type modelShutdown struct {
	next     time.Time // when it loses its patience, and again
	told     bool      // the ctxs of what runs have ended
	returned bool
	late     []uuid.UUID // what was inside when it gave up

	err error // written by its goroutine
	did atomic.Bool
}

// shutDown begins the shutdown, does a few things more, and sees it to its end.
func (m *runnerModel) shutDown() {
	s := &modelShutdown{next: time.Now().Add(m.cfg.ShutdownGrace)}
	m.closing = s
	m.step++
	r := m.r
	go func() { // ends with the shutdown
		s.err = r.Shutdown(context.Background())
		s.did.Store(true)
	}()
	synctest.Wait()
	for _, x := range m.tasks {
		if x.live() && !x.inside && x.cause == nil {
			x.cause = &modelCause{reason: subagent.ReasonShutdown}
			m.end(x, nil)
		}
	}
	m.settleClosing()
	steps := []func() bool{m.comeBack, m.report, m.spawn, m.cancel, m.leave, m.pass, m.pass}
	for range 200 {
		if s.returned {
			break
		}
		m.step++
		if m.tick() || steps[m.pick(len(steps))]() || m.pass() {
			m.settleClosing()
		}
	}
	require.True(m.t, s.returned, "it does not come to an end")
	m.leftovers()
}

// settleClosing is settle and compare while the Runner shuts down.
func (m *runnerModel) settleClosing() {
	m.settle()
	s := m.closing
	if !slices.ContainsFunc(m.tasks, func(x *modelTask) bool { return x.live() || x.inside }) {
		s.returned = true
	}
	require.Equal(m.t, s.returned, s.did.Load(), "shutdown has returned")
	m.compare()
}

// advance is the end of one of the two waits: first the ctxs end, then what
// has not returned is settled without.
func (s *modelShutdown) advance(m *runnerModel) {
	if !s.told {
		s.told = true
		s.next = time.Now().Add(max(m.cfg.ShutdownGrace, time.Second))
		for _, x := range m.tasks {
			if x.live() && x.cause == nil {
				x.cause = &modelCause{reason: subagent.ReasonShutdown}
				m.carryOut(x)
			}
		}
		return
	}
	s.returned = true
	for _, x := range m.tasks {
		if x.inside {
			s.late = append(s.late, x.id)
		}
		if x.live() {
			m.end(x, nil)
		}
	}
}

// leftovers checks what a shutdown leaves: the workers that did not return,
// by name, and nothing once they have.
func (m *runnerModel) leftovers() {
	s := m.closing
	var stuck []uuid.UUID
	for _, x := range m.tasks {
		require.False(m.t, x.live())
		if x.inside {
			stuck = append(stuck, x.id)
		}
	}
	// A Func that waited for another may come back at the very end.
	var left subagent.ShutdownError
	if err := (*subagent.ShutdownError)(nil); errors.As(s.err, &err) {
		left = *err
	} else {
		require.NoError(m.t, s.err)
	}
	require.Subset(m.t, left.Detached, stuck)
	require.Subset(m.t, s.late, left.Detached)
	require.Empty(m.t, left.Unsaved)
	close(m.over)
	for _, x := range m.tasks {
		if x.inside {
			m.back(x, &modelAnswer{})
		}
	}
	m.settle()
	m.compareStats()
	m.compareList()
	_, err := m.sub.Next(context.Background())
	require.ErrorIs(m.t, err, subagent.ErrClosed)
}
