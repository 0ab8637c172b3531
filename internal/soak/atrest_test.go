package soak

import (
	"slices"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// rest: how one surface shows all tasks when nothing goes on.
func (m *model) rest(f fact) {
	for _, t := range f.Tasks {
		s := m.story(t.ID)
		s.shown[f.Op] = true
		if !t.Status.Terminal() {
			m.fault(t.ID, "%s shows it %s at rest", f.Op, t.Status)
			continue
		}
		if f.Op == "record" {
			m.record(s, t)
		}
		m.seen(t, 0, 0, f.Bare, f.Op+" at rest")
	}
}

// record: what is stored at rest is what was acknowledged last, or newer.
func (m *model) record(s *story, t subagent.Task) {
	switch {
	case t.Version < s.newest.Version:
		m.fault(t.ID, "version %d was acknowledged, and version %d is stored", s.newest.Version, t.Version)
	case t.Version == s.newest.Version && encode(t) != encode(s.newest):
		m.fault(t.ID, "acknowledged was %s, and stored is %s", encode(s.newest), encode(t))
	case t.Background && t.NotifiedAt.IsZero():
		m.fault(t.ID, "nobody was told of its end")
	}
	if s.end == nil {
		s.end = &t
	}
	s.final = &t
}

// finish compares, task by task, when all hosts are at rest. What each viewer
// was told last is in told.
func (m *model) finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count.torn = m.reader.torn
	for id, s := range m.tasks {
		if s.final == nil {
			if s.acked != 0 || s.newest.Version != 0 {
				m.fault(id, "acknowledged, and not in the store at rest")
			}
			continue
		}
		for _, where := range []string{"list", "get", "task_output"} {
			if !s.shown[where] {
				m.fault(id, "%s does not show it at rest", where)
			}
		}
		if wrong := m.judge(s); wrong != "" {
			m.fault(id, "%s: %s", wrong, brief(s.end))
		}
		m.lastCard(s)
		m.delivery(s)
	}
}

// lastCard: the last card is that of the end. It may be an older one where a
// later Runner cannot know that it is: its process died after it had stored the
// end and before the card was put, and no notice was owed, for the task was in
// the foreground, or somebody was handed its end: in another process, or without
// having to be woken, for who is woken and who is sent a notice is so after the
// card. Or the sink refused the last card of a host that has ended since, in
// whatever way.
func (m *model) lastCard(s *story) {
	if s.card != nil && *s.card == s.final.Card() {
		return
	}
	died := m.count.kills > 0 && (s.settled == 0 || m.life(s.settled).killed)
	left := s.refused && m.life(s.refuser).ended != 0
	told := slices.ContainsFunc(s.notices, func(n notice) bool { return n.life == s.settled })
	if left || died && (!s.final.Background || s.handing != s.settled || !told) {
		m.count.staleCards++
		return
	}
	m.fault(s.id, "its last card is %s, of its record it would be %s", encode(s.card), encode(s.final.Card()))
}

// delivery: an end was handed out. If nobody has got it, then because the
// process died that had stored that a waiter gets it, and before he did.
func (m *model) delivery(s *story) {
	if s.firsts > 0 || len(s.notices) > 0 {
		return
	}
	for _, l := range m.lives {
		for _, c := range l.calls {
			foreground := !s.final.Background && (c.op == "run" || c.op == "agent")
			if l.killed && (foreground || slices.Contains(c.ids, s.id)) {
				m.count.lostDeliveries++
				return
			}
		}
	}
	m.fault(s.id, "its end was handed to nobody")
}

// last: what a WebSocket client was told last of a task is how it ended.
func (m *model) last(id uuid.UUID, t *subagent.Task) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.story(id)
	if s.final == nil {
		m.fault(id, "a WebSocket client knows it, and the store does not")
		return
	}
	if diff := sameEnd(*s.final, *t, false); diff != "" {
		m.fault(id, "a WebSocket client was told last: %s", diff)
	}
}

// wrong is a fault that the test itself has seen.
func (m *model) wrong(id uuid.UUID, format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault(id, format, args...)
}

// again counts an end that a viewer was told twice.
func (m *model) again() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count.toldAgain++
}
