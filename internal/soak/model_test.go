package soak

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// model knows, from the journal, what has happened and what may follow.
type model struct {
	path   string
	shared bool // several hosts use the store at once

	mu      sync.Mutex // guards all below; a leaf
	reader  reader
	lives   map[int]*life
	runners map[string]*life
	tasks   map[uuid.UUID]*story
	faults  []fault
	count   count
}

// life is one host.
type life struct {
	number int
	runner string
	opened int64 // when it began to read the store
	killed bool
	ended  int64          // when it had ended, in whatever way
	calls  map[int64]call // that have not returned
}

// call is one that has begun.
type call struct {
	op    string
	ids   []uuid.UUID
	began int64
}

// fault is something that is not as it must be.
type fault struct {
	id   uuid.UUID // uuid.Nil: it is about no task
	text string
}

// story is what is known of one task. Positions are ends of lines; 0: it has
// not happened.
type story struct {
	id      uuid.UUID
	first   subagent.Task // as it was first seen
	owner   string        // its first
	acked   int64         // when a call first returned it
	spawned bool          // by a spawn
	newest  subagent.Task // of those that the store acknowledged
	storing int64         // and when

	enters  int
	entered int // in which life
	left    int64
	gone    string // how its Func returned
	stops   []stop
	calm    time.Time // when it was seen to go on in spite of a stop
	by      uuid.UUID // of that task

	end       *subagent.Task // nil: nobody has seen it
	ended     int64
	settled   int           // the life that stored the end; 0: unknown
	delivered int64         // when it was first seen stored that somebody was handed the end
	handing   int           // the life that stored that; 0: unknown
	handler   string        // the task's owner then
	claims    map[int]int64 // when a life first said that somebody was handed the end: it may be the only one to know
	firsts    int           // how often a waiter was the first
	notices   []notice

	card     *subagent.Card  // the last that was put
	refused  bool            // the last attempt to put the card of its end was refused
	refuser  int             // in this life
	carded   map[int]int64   // when its terminal card was put, by life
	notified map[int]int64   // when the delivery of its notice began, by life
	shown    map[string]bool // by which surfaces at rest
	final    *subagent.Task  // its record at rest
}

// stop is a cancel that was acknowledged by the host that runs the task.
type stop struct {
	life int
	at   int64
}

type notice struct {
	life int
	at   int64
}

// count is what the report tells.
type count struct {
	calls, ends, refusals             map[string]int
	kills, restarts, recovered, torn  int
	notices, repeated, firsts, events int
	cards, cardsRefused, staleCards   int
	lostDeliveries, overlaps, abroad  int
	toldAgain                         int
	queue                             int
	slowest                           time.Duration
	slowestOp                         string
}

func newModel(dir string, shared bool) (*model, error) {
	f, err := os.OpenFile(journalOf(dir), os.O_CREATE|os.O_RDONLY, 0o644)
	return &model{
		path: journalOf(dir), shared: shared, reader: reader{file: f},
		lives: make(map[int]*life), runners: make(map[string]*life), tasks: make(map[uuid.UUID]*story),
		count: count{calls: make(map[string]int), ends: make(map[string]int), refusals: make(map[string]int)},
	}, err
}

// catchUp reads what is new, and reports whether all is well.
func (m *model) catchUp() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.reader.read(m.take)
	return len(m.faults) == 0, err
}

// most is how many faults are kept: one leads to others.
const mostFaults = 8

func (m *model) fault(id uuid.UUID, format string, args ...any) {
	if len(m.faults) < mostFaults {
		m.faults = append(m.faults, fault{id, fmt.Sprintf(format, args...)})
	}
}

func (m *model) life(n int) *life {
	l := m.lives[n]
	if l == nil {
		l = &life{number: n, calls: make(map[int64]call)}
		m.lives[n] = l
	}
	return l
}

func (m *model) story(id uuid.UUID) *story {
	s := m.tasks[id]
	if s == nil {
		s = &story{id: id, claims: make(map[int]int64), carded: make(map[int]int64), notified: make(map[int]int64), shown: make(map[string]bool)}
		m.tasks[id] = s
	}
	return s
}

// take is one step of the model: a fact, and where its line ends.
func (m *model) take(f fact, at int64) {
	l := m.life(f.Life)
	switch f.Says {
	case saysFound:
		m.found(l, f)
	case saysBoot:
		m.boot(l, f)
	case saysKilled:
		dead := m.life(int(f.Call))
		dead.killed, dead.ended = true, at
		m.count.kills++
	case saysEnded:
		l.ended = at
		m.count.restarts++
	case saysCall:
		m.count.calls[f.Op]++
		l.calls[f.Call] = call{f.Op, f.IDs, at}
	case saysReturn:
		m.returned(l, f, at)
	case saysStored:
		for _, t := range f.Tasks {
			m.stored(l, &f, t, at)
		}
	case saysEnter:
		m.enter(l, f.ID)
	case saysLeft:
		s := m.story(f.ID)
		s.left, s.gone = f.Since, f.Text
	case saysCard, saysCardFails:
		m.card(l, f, at)
	case saysNotifying:
		m.notifying(l, f, at)
	case saysNotice:
		m.notice(l, f, at)
	case saysEvent:
		m.count.events++
	case saysCalm:
		m.calm(f)
	case saysRest:
		m.rest(f)
	case saysFault:
		m.fault(f.ID, "life %d: %s", f.Life, f.Text)
	}
}

// print is all faults, each with the history of its task and of those above it.
func (m *model) print() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	for i, f := range m.faults {
		fmt.Fprintf(&b, "\nfault %d: %s\n", i+1, f.text)
		for s := m.tasks[f.id]; s != nil; s = m.tasks[s.first.ParentTaskID] {
			fmt.Fprintf(&b, "history of task %s:\n", s.id)
			for _, line := range history(m.path, s.id) {
				fmt.Fprintln(&b, "  ", line)
			}
		}
	}
	return b.String()
}
