package soak

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// theTask is the one that the histories below are about.
var theTask = uuid.MustParse("019c0000-0000-7000-8000-000000000001")

// ended is its end as somebody sees it who is not the first to, or who is.
func ended(owner string, delivered bool) subagent.Task {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	t := subagent.Task{ID: theTask, Status: subagent.StatusCompleted, Background: true, Owner: owner, CreatedAt: at, CompletedAt: at, Version: 4}
	if delivered {
		t.NotifiedAt, t.Version = at.Add(time.Second), 5
	}
	return t
}

// past makes the facts of a history, of the task that Runner "a" executed.
type past struct{ facts []fact }

func (p *past) add(life int, f fact) *past {
	f.Life = life
	p.facts = append(p.facts, f)
	return p
}

// boot is the start of a host, which finds what was noted as stored before it.
func (p *past) boot(life int, runner string) *past {
	f := fact{Says: saysFound, Since: int64(len(p.facts))}
	for _, stored := range p.facts {
		for _, t := range stored.Tasks {
			if stored.Says == saysStored {
				f.Rows = []row{{t.ID, t.Version, t.Status, t.Owner}}
			}
		}
	}
	return p.add(life, f).add(life, fact{Says: saysBoot, Text: runner})
}

// ends is the end, stored by its owner.
func (p *past) ends(life int) *past {
	return p.add(life, fact{Says: saysStored, Tasks: some(ended("a", false)), Ends: true})
}

// hands is that somebody was handed it, stored.
func (p *past) hands(life int, owner string) *past {
	return p.add(life, fact{Says: saysStored, Tasks: some(ended(owner, true)), Hands: true})
}

func (p *past) card(life int) *past {
	t := ended("a", false)
	c := t.Card()
	return p.add(life, fact{Says: saysCard, ID: theTask, Card: &c})
}

// notices are a delivery that begins, and one that is taken.
func (p *past) notices(life int) *past {
	return p.add(life, fact{Says: saysNotifying, ID: theTask, Tasks: some(ended("a", false))})
}

func (p *past) noticed(life int) *past {
	return p.notices(life).add(life, fact{Says: saysNotice, ID: theTask})
}

// waits is a wait that is handed the end: as the first, or not.
func (p *past) waits(life int, first bool) *past {
	f := fact{Says: saysReturn, Call: 1, Op: "await any", Tasks: some(ended("a", !first))}
	if first {
		f.First = given(theTask)
	}
	return p.add(life, fact{Says: saysCall, Call: 1, Op: "await any", IDs: given(theTask)}).add(life, f)
}

// reads is a read that shows that it was delivered.
func (p *past) reads(life int) *past {
	return p.add(life, fact{Says: saysReturn, Call: 2, Op: "get", Tasks: some(ended("a", true))})
}

func (p *past) killed(life int) *past { return p.add(0, fact{Says: saysKilled, Call: int64(life)}) }
func (p *past) over(life int) *past   { return p.add(life, fact{Says: saysEnded}) }

// begun is a host that has stored the end.
func begun() *past { return new(past).boot(1, "a").ends(1) }

// What the model says of deliveries.
const (
	allWell   = ""
	delivered = "a notice began after it was delivered"
	again     = "a second notice, and the process that made the first one did not die"
	twice     = "its usage was handed out by a wait 2 times"
	late      = "its usage was handed out by await any, which began after it was delivered"
)

// deliveries are histories of deliveries that follow each other.
var deliveries = []struct {
	name   string
	shared bool // by two hosts
	past   *past
	want   string
}{
	{"told and stored", false, begun().card(1).noticed(1).hands(1, "a").waits(1, false), allWell},
	{"twice by one process", false, begun().card(1).noticed(1).noticed(1), again},
	{"again by the next, that ended in order", false, begun().card(1).noticed(1).over(1).boot(2, "b").noticed(2), again},
	{"again by the next, not stored", false, begun().card(1).noticed(1).killed(1).boot(2, "b").noticed(2), allWell},
	{"again by the next, stored", false, begun().card(1).noticed(1).hands(1, "a").killed(1).boot(2, "b").noticed(2), delivered},
	{"again by the next, as a reader saw stored", false, begun().card(1).noticed(1).reads(1).killed(1).boot(2, "b").noticed(2), delivered},

	{"claimed, and a notice", false, begun().waits(1, false).card(1).notices(1), delivered},
	{"claimed while the notice was under way", false, begun().card(1).waits(1, false).notices(1), allWell},
	{"claimed, and the notice once more", false, begun().card(1).notices(1).waits(1, false).notices(1).notices(1), delivered},
	{"read, and a notice", false, begun().reads(1).card(1).notices(1), delivered},
	{"claimed and killed, and a notice", false, begun().card(1).waits(1, false).killed(1).boot(2, "b").card(2).notices(2), allWell},
	{"claimed and ended in order, and a notice", false, begun().card(1).waits(1, false).over(1).boot(2, "b").card(2).notices(2), delivered},
	{"claimed, stored and killed, and a notice", false, begun().card(1).waits(1, false).hands(1, "a").killed(1).boot(2, "b").notices(2), delivered},

	{"claimed, and a first wait", false, begun().waits(1, false).waits(1, true), late},
	{"claimed and killed, and a first wait", false, begun().waits(1, false).killed(1).boot(2, "b").waits(2, true), allWell},
	{"claimed and ended in order, and a first wait", false, begun().waits(1, false).over(1).boot(2, "b").waits(2, true), late},
	{"stored and killed, and a first wait", false, begun().hands(1, "a").killed(1).boot(2, "b").waits(2, true), late},
	{"two first waits, over a kill", false, begun().waits(1, true).killed(1).boot(2, "b").waits(2, true), twice},

	{"claimed here, and a first wait there", true, begun().boot(2, "b").waits(1, false).waits(2, true), allWell},
	{"stored there, and the first attempt here", true, begun().boot(2, "b").hands(2, "a").card(1).notices(1), allWell},
	{"read there, not noted yet, and the first attempt here", true, begun().boot(2, "b").reads(2).card(1).notices(1), allWell},
	{"stored there, and the second attempt here", true, begun().boot(2, "b").card(1).notices(1).hands(2, "a").notices(1).notices(1), delivered},
	{"stored here, and the first attempt here", true, begun().boot(2, "b").hands(1, "a").card(1).notices(1), delivered},
	{"claimed here and stored there, and the first attempt here", true, begun().boot(2, "b").hands(2, "a").waits(1, false).card(1).notices(1), delivered},
	{"stored by the dead owner, and taken over by one who lives", true, begun().boot(2, "b").card(1).hands(1, "a").killed(1).card(2).notices(2), delivered},
	{"stored by one who then takes it over", true, begun().boot(2, "b").hands(2, "a").killed(1).card(2).notices(2), delivered},
	{"stored by a third, and taken over by one who lives", true, begun().boot(2, "b").boot(3, "c").killed(1).hands(3, "b").card(2).notices(2), allWell},
}

func TestModel_Deliveries(t *testing.T) {
	for _, c := range deliveries {
		t.Run(c.name, func(t *testing.T) {
			m, err := newModel(t.TempDir(), c.shared)
			if err != nil {
				t.Fatal(err)
			}
			defer m.reader.file.Close()
			for i, f := range c.past.facts {
				m.take(f, int64(i+1))
			}
			var said []string
			for _, f := range m.faults {
				said = append(said, f.text)
			}
			if got := strings.Join(said, "; "); got != c.want {
				t.Errorf("it says %q, and should say %q", got, c.want)
			}
		})
	}
}

// TestModel_StopOfAParent: whom a stop reaches that its own host has acknowledged.
func TestModel_StopOfAParent(t *testing.T) {
	kid := uuid.MustParse("019c0000-0000-7000-8000-000000000002")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	parent := func(status subagent.Status, reason subagent.Reason, stop bool) subagent.Task {
		t := subagent.Task{ID: theTask, Owner: "a", Status: status, Reason: reason}
		if stop {
			t.CancelRequestedAt = at
		}
		return t
	}
	running := parent(subagent.StatusRunning, "", true)
	stop := fact{Says: saysReturn, Call: 1, Op: "cancel", Tasks: some(running)}
	left := fact{Says: saysLeft, ID: theTask, Text: "returns"}
	const reached = "it worked on after a stop of 019c0000-0000-7000-8000-000000000001 was acknowledged, and ended as if there was none"
	for _, c := range []struct {
		name  string
		facts []fact // left's place is filled in
		ends  subagent.Task
		want  string // of the child
		above string // of the parent
	}{
		{"in time", []fact{stop, left}, parent(subagent.StatusCancelled, subagent.ReasonUser, true), reached, ""},
		{"as its Func is back", []fact{left, stop}, parent(subagent.StatusCancelled, subagent.ReasonUser, true), reached, ""},
		{"once it is over", []fact{left, stop}, parent(subagent.StatusCompleted, "", true), "", ""},
		{"once it has failed", []fact{left, stop}, parent(subagent.StatusErrored, subagent.ReasonError, true), "", ""},
		{"after its time limit", []fact{left, stop}, parent(subagent.StatusErrored, subagent.ReasonTimeout, true), reached, ""},
		{"in time, and it does not obey", []fact{stop, left}, parent(subagent.StatusCompleted, "", true), reached, reached},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := newModel(t.TempDir(), true)
			if err != nil {
				t.Fatal(err)
			}
			defer m.reader.file.Close()
			p := new(past).boot(1, "a").add(1, fact{Says: saysStored, Tasks: some(parent(subagent.StatusRunning, "", false))})
			p.add(1, fact{Says: saysStored, Tasks: some(subagent.Task{ID: kid, Owner: "a", Status: subagent.StatusRunning, ParentTaskID: theTask})})
			for _, f := range c.facts {
				f.Since = int64(len(p.facts))
				p.add(1, f)
			}
			c.ends.Version = 2
			p.add(1, fact{Says: saysStored, Tasks: some(c.ends)})
			p.add(1, fact{Says: saysLeft, ID: kid, Text: "returns", Since: int64(len(p.facts))})
			p.add(1, fact{Says: saysStored, Tasks: some(subagent.Task{ID: kid, Owner: "a", Status: subagent.StatusCompleted, ParentTaskID: theTask, Version: 1})})
			for i, f := range p.facts {
				m.take(f, int64(i+1))
			}
			if got := m.disobeyed(m.story(kid)); got != c.want {
				t.Errorf("of the child it says %q, and should say %q", got, c.want)
			}
			if got := m.disobeyed(m.story(theTask)); got != c.above {
				t.Errorf("of the parent it says %q, and should say %q", got, c.above)
			}
		})
	}
}
