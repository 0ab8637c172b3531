package web

import (
	"context"
	"errors"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// maxKept is how many events a feed keeps.
const maxKept = 4096

// feed keeps the newest events of a Runner, for any number of readers. A reader
// is nothing but the Seq of the event that it read last: it costs the feed
// nothing, nobody waits for it, and one that falls behind finds that what
// follows its event is not kept any more.
type feed struct {
	prefix string // of an event's id: the Runner's id and a dash

	// mu guards all below. Nothing else is locked under it, nothing blocks and
	// no foreign code runs under it.
	mu      sync.Mutex
	ring    []*item       // by rising seq; the oldest is at next once it is full
	next    int           // where the next event goes
	first   uint64        // the first event that came; 0: none has
	last    uint64        // the newest; 0: none
	dropped uint64        // the newest that is not kept: what follows an earlier one is not complete
	over    bool          // there will be no more
	wake    chan struct{} // made by a reader that waits; closed when there is something to see
}

// item is an event as clients get it. It never changes once the feed has it;
// its funcs do their work once, when the first client needs it.
type item struct {
	seq     uint64
	kind    string
	session string // of the record: Redact may hide it
	id      uuid.UUID
	parent  uuid.UUID
	starts  bool // the task runs and was not asked to stop

	parentSession func() string
	frames        [kinships]func() []byte
}

func newFeed(runner string) *feed { return &feed{prefix: runner + "-"} }

// run moves the events of sub into the feed until it is over. make turns them
// into items.
func (f *feed) run(sub *subagent.Subscription, make func(subagent.Event) *item) {
	defer sub.Close()
	for {
		e, err := sub.Next(context.Background())
		switch {
		case errors.Is(err, subagent.ErrLagged):
			f.lag()
		case err != nil:
			f.end()
			return
		default:
			f.add(make(e))
		}
	}
}

func (f *feed) add(it *item) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.ring) < maxKept {
		f.ring = append(f.ring, it)
	} else {
		f.dropped = f.ring[f.next].seq
		f.ring[f.next] = it
	}
	f.next = (f.next + 1) % maxKept
	if f.first == 0 {
		f.first = it.seq
	}
	f.last = it.seq
	f.wakeLocked()
}

// lag notes that events after the newest were lost. There was at least one, so
// its Seq can stand for them all: every reader is behind it.
func (f *feed) lag() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ring, f.next = nil, 0
	f.last++
	f.first, f.dropped = max(f.first, 1), f.last
	f.wakeLocked()
}

func (f *feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	f.wakeLocked()
}

func (f *feed) wakeLocked() {
	if f.wake != nil {
		close(f.wake)
		f.wake = nil
	}
}

// newest is the Seq from which a reader starts who needs nothing of before.
func (f *feed) newest() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// id names an event for clients.
func (f *feed) id(seq uint64) string { return f.prefix + strconv.FormatUint(seq, 10) }

// find returns the Seq of an event by its id, and whether all that follows it
// is kept.
func (f *feed) find(id string) (uint64, bool) {
	number, ours := strings.CutPrefix(id, f.prefix)
	seq, err := strconv.ParseUint(number, 10, 64)
	if !ours || err != nil {
		return 0, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	// What came before the first event was never here. A number that has not
	// come up yet is of a feed that began earlier and is further on.
	return seq, f.first > 0 && seq+1 >= f.first && seq >= f.dropped && seq <= f.last
}

// What reading a feed may end in.
var (
	errBehind = errors.New("web: what follows is not kept")
	errOver   = errors.New("web: the runner is shut down")
)

// after returns some of the events that follow seq, in order. If there is none
// it returns a channel that is closed when it is worth asking again, or
// errOver; errBehind if the next one is not kept any more.
func (f *feed) after(seq uint64) ([]*item, <-chan struct{}, error) {
	const batch = 64
	f.mu.Lock()
	defer f.mu.Unlock()
	if seq < f.dropped {
		return nil, nil, errBehind
	}
	oldest := 0
	if len(f.ring) == maxKept {
		oldest = f.next
	}
	at := func(i int) *item { return f.ring[(oldest+i)%maxKept] }
	from := sort.Search(len(f.ring), func(i int) bool { return at(i).seq > seq })
	if from < len(f.ring) {
		items := make([]*item, 0, batch)
		for i := from; i < len(f.ring) && len(items) < batch; i++ {
			items = append(items, at(i))
		}
		return items, nil, nil
	}
	if f.over {
		return nil, nil, errOver
	}
	if f.wake == nil {
		f.wake = make(chan struct{})
	}
	return nil, f.wake, nil
}

// taskEvent is what tells of one change of a task.
type taskEvent struct {
	Type    subagent.EventType `json:"type"`
	EventID string             `json:"event_id"`
	Seq     uint64             `json:"seq"`
	Time    time.Time          `json:"time"`
	Task    *wireTask          `json:"task"`
}

// newItem makes an event ready for clients. Redact and Link see it here, once
// and not under any lock; the JSON is made when the first client needs it, and
// shared by all that may see the same.
func (h *handler) newItem(e subagent.Event) *item {
	t := &e.Task
	it := &item{seq: e.Seq, kind: string(e.Type), session: t.ParentSessionID, id: t.ID, parent: t.ParentTaskID}
	it.starts = e.Type != subagent.EventProgress && t.Status == subagent.StatusRunning && t.CancelRequestedAt.IsZero()
	it.parentSession = sync.OnceValue(func() string { return h.sessionOf(context.Background(), it.parent) })
	reason, whole := t.Reason, h.wire(*t, kinOpen)
	whole.preview()
	for kin := range kinships {
		it.frames[kin] = sync.OnceValue(func() []byte {
			w := whole
			w.hide(reason, kin)
			return encode(taskEvent{e.Type, h.feed.id(e.Seq), e.Seq, e.Time, &w})
		})
	}
	return it
}
