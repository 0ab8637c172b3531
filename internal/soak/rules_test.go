package soak

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// found: what a store has acknowledged is there when it is opened again.
func (m *model) found(l *life, f fact) {
	l.opened = f.Since
	has := make(map[uuid.UUID]row)
	for _, r := range f.Rows {
		has[r.ID] = r
		if s := m.story(r.ID); s.owner == "" {
			s.owner = r.Owner
		}
	}
	for id, s := range m.tasks {
		r, ok := has[id]
		switch {
		case s.newest.Version == 0 && s.acked == 0, s.storing > f.Since || s.acked > f.Since:
		case !ok:
			m.fault(id, "acknowledged, and not in the store when it was opened")
		case r.Version < s.newest.Version || r.Version == s.newest.Version && r.Status != s.newest.Status && s.newest.Version > 0:
			m.fault(id, "version %d (%s) was acknowledged, and the store has version %d (%s)", s.newest.Version, s.newest.Status, r.Version, r.Status)
		}
	}
}

// boot: when New has returned nothing is left open of those who are known to be
// dead. Of one that has just died beside it New cannot know.
func (m *model) boot(l *life, f fact) {
	l.runner = f.Text
	m.runners[f.Text] = l
	for _, r := range f.Rows {
		if slices.Contains(f.Dead, r.Owner) {
			m.fault(r.ID, "is %s after New, and its Runner is dead", r.Status)
		}
	}
}

// stored: acknowledged records follow each other, and none takes the place of
// another.
func (m *model) stored(l *life, f *fact, t subagent.Task, at int64) {
	s := m.story(t.ID)
	if f.Ends {
		s.settled = l.number
	}
	if f.Hands {
		s.handing, s.handler = l.number, t.Owner
	}
	m.handedOn(s, &t, at)
	switch {
	case t.Version == s.newest.Version && encode(t) != encode(s.newest):
		m.fault(t.ID, "version %d was acknowledged twice: %s and %s", t.Version, encode(s.newest), encode(t))
	case t.Version > s.newest.Version:
		if s.newest.Status.Terminal() && !t.Status.Terminal() {
			m.fault(t.ID, "stored as %s after its end", t.Status)
		}
		s.newest, s.storing = t, at
	}
	m.seen(t, at, 0, false, "stored")
}

// seen: once somebody has seen the end it does not change, and who asks after
// that sees it. began is when the one who sees t now had asked; 0: he has not.
func (m *model) seen(t subagent.Task, at, began int64, bare bool, where string) {
	s := m.story(t.ID)
	if s.first.ID == uuid.Nil {
		s.first = t
	}
	if s.owner == "" {
		s.owner = t.Owner
	}
	switch {
	case !t.Status.Terminal():
		if s.end != nil && s.ended <= began {
			m.fault(t.ID, "%s shows it %s, after its end was seen", where, t.Status)
		}
	case s.end == nil:
		if !bare && !t.ResultTruncated {
			s.end, s.ended = &t, at
		}
	default:
		if diff := sameEnd(*s.end, t, bare); diff != "" {
			m.fault(t.ID, "%s shows another end: %s", where, diff)
		}
	}
}

// returned: what a call was told.
func (m *model) returned(l *life, f fact, at int64) {
	c := l.calls[f.Call]
	delete(l.calls, f.Call)
	m.count.queue = max(m.count.queue, f.Queue)
	if slices.Contains([]string{"spawn", "cancel", "cancel session", "task_stop", "ws spawn_task", "ws cancel_task"}, f.Op) && f.Took > m.count.slowest {
		m.count.slowest, m.count.slowestOp = f.Took, f.Op
	}
	if f.Err != "" {
		m.count.refusals[f.Op]++
		for _, id := range c.ids {
			if s := m.tasks[id]; s != nil && s.acked != 0 && s.acked <= c.began && (strings.Contains(f.Err, "not found") || f.Err == "not_found") {
				m.fault(id, "%s does not find it: %s", f.Op, f.Err)
			}
		}
	}
	for _, t := range f.Tasks {
		m.seen(t, at, c.began, f.Bare, f.Op)
		s := m.story(t.ID)
		if readers[f.Op] {
			m.handedOn(s, &t, at)
		} else if s.claims[l.number] == 0 && !t.NotifiedAt.IsZero() {
			s.claims[l.number] = at
		}
		if s.acked == 0 {
			s.acked = at
		}
		s.spawned = s.spawned || f.Op == "spawn" || f.Op == "run" || f.Op == "agent"
	}
	for _, id := range f.First {
		m.handed(l, id, c, at)
	}
	switch f.Op {
	case "cancel", "cancel session":
		for _, t := range f.Tasks {
			m.stopped(l, &t, at)
		}
	case "task_stop", "ws cancel_task", "ws cancel_session":
		for _, id := range f.IDs { // the answer does not say more, but the stop was stored before
			m.stopped(l, &m.story(id).newest, at)
		}
	}
}

// stopped notes a stop that its own Runner has acknowledged: from then on the
// task and its descendants obey it. A task that had ended merely ended.
func (m *model) stopped(l *life, t *subagent.Task, at int64) {
	s := m.tasks[t.ID]
	live := !t.Status.Terminal() && !t.CancelRequestedAt.IsZero()
	if s != nil && s.owner == l.runner && (live || t.Status == subagent.StatusCancelled) {
		s.stops = append(s.stops, stop{l.number, at})
	}
}

// readers are the calls that show what is stored. Those that wait may say that
// somebody was handed an end while that is still being stored: a claim.
var readers = map[string]bool{"get": true, "list": true, "ws get_task": true, "ws list_tasks": true}

// handedOn notes a record that shows that somebody was handed the end.
func (m *model) handedOn(s *story, t *subagent.Task, at int64) {
	if s.delivered == 0 && !t.NotifiedAt.IsZero() {
		s.delivered = at
	}
}

// known is since when a host knows that somebody was handed an end; 0: it need
// not know. All know what is stored. What a host has only claimed it knows
// itself; with a kill that is gone, and once it has ended in order it is stored.
func (m *model) known(s *story, l *life) int64 {
	known := s.delivered
	for number, at := range s.claims {
		if by := m.life(number); by != l {
			if by.killed || by.ended == 0 {
				continue
			}
			at = max(at, by.ended)
		}
		if known == 0 || at < known {
			known = at
		}
	}
	return known
}

// handed: the end, and with it the usage, is handed to one waiter as the first,
// and not once it was known to be delivered. That there is one holds over kills:
// the record says so before the waiter is told.
func (m *model) handed(l *life, id uuid.UUID, c call, at int64) {
	s := m.story(id)
	s.firsts++
	m.count.firsts++
	if s.firsts > 1 {
		m.fault(id, "its usage was handed out by a wait %d times", s.firsts)
	}
	if known := m.known(s, l); known != 0 && known <= c.began {
		m.fault(id, "its usage was handed out by %s, which began after it was delivered", c.op)
	}
	for _, n := range s.notices {
		if n.at <= c.began && n.life == l.number {
			m.count.overlaps++
		}
	}
}

// enter: a Func is entered once for each ID, and by the Runner that owns it.
func (m *model) enter(l *life, id uuid.UUID) {
	s := m.story(id)
	s.enters++
	s.entered = l.number
	if s.enters > 1 {
		m.fault(id, "its Func was entered %d times", s.enters)
	}
	if s.end != nil && s.end.StartedAt.IsZero() {
		m.fault(id, "its Func was entered after it had ended in the queue")
	}
}

// card: a card shows the end last, and no other end.
func (m *model) card(l *life, f fact, at int64) {
	s, c := m.story(f.ID), f.Card
	terminal := subagent.Status(c.Attach.Status).Terminal()
	if f.Says == saysCardFails {
		s.refused, s.refuser = terminal, l.number
		m.count.cardsRefused++
		return
	}
	m.count.cards++
	s.refused = false
	if s.card != nil && subagent.Status(s.card.Attach.Status).Terminal() && *s.card != *c {
		m.fault(f.ID, "its card changed after its end: %s and %s", encode(s.card), encode(c))
	}
	if s.end != nil && terminal && s.end.Card() != *c {
		m.fault(f.ID, "its card is %s, of its end it would be %s", encode(c), encode(s.end.Card()))
	}
	if terminal && s.carded[l.number] == 0 {
		s.carded[l.number] = at
	}
	s.card = c
}

// notifying: no notice begins once the task is known to be delivered. Whether it
// is owed is decided after its card was put, and anew before each attempt: only
// what was known by then counts. Before the first attempt a host does not ask
// the store: a wait in another process may have been handed the end since it was
// stored.
func (m *model) notifying(l *life, f fact, at int64) {
	t := f.Tasks[0]
	s := m.story(t.ID)
	m.seen(t, at, 0, false, "a notice")
	if !t.Status.Terminal() || !t.Background {
		m.fault(t.ID, "a notice of a task that owes none: %s", brief(&t))
	}
	asked := max(l.opened, s.notified[l.number]) // since then it has read the record
	decided := max(asked, s.carded[l.number])
	known, claimed := m.known(s, l), s.claims[l.number]
	switch {
	case known == 0 || known > decided:
	case m.abroad(s, l) && known > asked && (claimed == 0 || claimed > decided):
		m.count.abroad++
	default:
		m.fault(t.ID, "a notice began after it was delivered")
	}
	s.notified[l.number] = at
}

// abroad reports whether another host stored that somebody was handed the end,
// or may have, without l having read that in any case. It has if that host was
// the task's owner: then l took the task over after its death.
func (m *model) abroad(s *story, l *life) bool {
	owner := s.handing != 0 && m.life(s.handing).runner == s.handler
	return m.shared && s.handing != l.number && !owner
}

// notice: one is repeated only if the process died that made the one before.
func (m *model) notice(l *life, f fact, at int64) {
	s := m.story(f.ID)
	m.count.notices++
	if n := len(s.notices); n > 0 {
		m.count.repeated++
		if before := m.life(s.notices[n-1].life); before == l || !before.killed {
			m.fault(f.ID, "a second notice, and the process that made the first one did not die")
		}
	}
	s.notices = append(s.notices, notice{l.number, at})
}

// calm: what was stopped has ended, and so have its descendants, or their end is
// being stored: that their stop came before the calm is for judge to see.
func (m *model) calm(f fact) {
	for _, t := range f.Tasks {
		m.seen(t, 0, f.Since, false, "list")
		if !t.CancelRequestedAt.IsZero() {
			m.fault(t.ID, "was asked to stop and goes on: %s", brief(&t))
		}
		if by, at := m.stoppedBy(t.ID); at != 0 && at <= f.Since {
			m.story(t.ID).calm, m.story(t.ID).by = f.At, by
		}
	}
}

// stoppedBy is the first acknowledged stop that reaches a task, and of which
// task it is: itself, or an ancestor up to an independent one. An ancestor whose
// Func was back and that ended as that said had merely ended: who stops it then
// finds it running at most because its end is still being stored.
func (m *model) stoppedBy(id uuid.UUID) (by uuid.UUID, at int64) {
	life := 0
	for s := m.tasks[id]; s != nil; s = m.tasks[s.first.ParentTaskID] {
		if owner := m.runners[s.owner]; owner != nil && life == 0 {
			life = owner.number
		}
		for _, stop := range s.stops {
			if stop.life == life && (at == 0 || stop.at < at) && !s.over(stop.at) {
				by, at = s.id, stop.at
			}
		}
		if s.first.Metadata[independent] != "" || s.first.ParentTaskID == uuid.Nil {
			break
		}
	}
	return by, at
}

// over reports whether the task's Func was back at that moment, and its end is
// what came of that.
func (s *story) over(at int64) bool {
	if s.end == nil || s.left == 0 || s.left >= at {
		return false
	}
	return s.end.Status == subagent.StatusCompleted || s.end.Reason == subagent.ReasonError || s.end.Reason == subagent.ReasonPanic
}

// disobeyed: who was told to stop, itself or by way of an ancestor, neither goes
// on nor ends as if it had not been.
func (m *model) disobeyed(s *story) (wrong string) {
	t := s.end
	outOfTime := t.Reason == subagent.ReasonTimeout || t.Reason == subagent.ReasonQueueTimeout
	if !s.calm.IsZero() && !outOfTime && (t.CancelRequestedAt.IsZero() || t.CancelRequestedAt.After(s.calm)) {
		return fmt.Sprintf("it went on, although a stop of %s was acknowledged", s.by)
	}
	by, at := m.stoppedBy(s.id)
	if at != 0 && s.left >= at && t.Status != subagent.StatusCancelled && !outOfTime && t.Reason != subagent.ReasonShutdown {
		return fmt.Sprintf("it worked on after a stop of %s was acknowledged, and ended as if there was none", by)
	}
	return ""
}

// judge: an end is one that this task can have.
func (m *model) judge(s *story) (wrong string) {
	t := s.end
	kind, _, _ := strings.Cut(t.Description, " ")
	owner := m.runners[s.owner]
	m.count.ends[strings.TrimSuffix(fmt.Sprintf("%s %s", t.Status, t.Reason), " ")]++
	if t.Reason == subagent.ReasonLost {
		m.count.recovered++
		if owner == nil || !owner.killed {
			return "it was lost, and its process did not die"
		}
		return ""
	}
	if t.Reason == subagent.ReasonStore {
		// No store fails here. But a caller's ctx that ends while the record is
		// being stored fails the spawn, whether the record came or not.
		late := t.Error == "store: its record was stored too late"
		ended := strings.HasPrefix(t.Error, "store: ") && (strings.HasSuffix(t.Error, context.Canceled.Error()) || strings.HasSuffix(t.Error, context.DeadlineExceeded.Error()))
		if s.enters > 0 || !ended && (!late || s.spawned) {
			return "the store refused it, and no store fails here"
		}
		return ""
	}
	if wrong := m.disobeyed(s); wrong != "" {
		return wrong
	}
	if s.enters > 0 && t.StartedAt.IsZero() {
		return "its Func was entered, and it never started"
	}
	switch t.Status {
	case subagent.StatusCompleted:
		if s.gone != "returns" || kind == "panic" || kind == "goexit" || t.ResultText != resultOf(kind, s.id) || t.Usage.TotalTokens != usageOf(s.id).TotalTokens {
			return "it completed with what its Func did not say"
		}
	case subagent.StatusCancelled:
		if t.CancelRequestedAt.IsZero() && t.Reason != subagent.ReasonShutdown {
			return "it was cancelled, and nobody asked for that"
		}
	case subagent.StatusErrored:
		switch t.Reason {
		case subagent.ReasonTimeout, subagent.ReasonQueueTimeout:
		case subagent.ReasonError:
			if s.gone != "fails" {
				return "it failed, and its Func did not"
			}
		case subagent.ReasonShutdown:
			if owner == nil || owner.killed {
				return "it ended with a shutdown, and there was none"
			}
		case subagent.ReasonPanic:
			if kind != "panic" && kind != "goexit" {
				return "it panicked, and was not asked to"
			}
		default:
			return "it ended for a reason that does not exist here"
		}
	}
	return ""
}
