package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// TestModel_Runner does random operations on a Runner and on a model of it,
// and compares what both say after each one. SUBAGENT_TEST_OPS sets how many,
// SUBAGENT_TEST_SEED which.
func TestModel_Runner(t *testing.T) {
	const perBubble = 200
	ops := 100_000
	if bubble.Race {
		ops = 12_000 // the detector makes each of them several times as dear
	}
	if s := os.Getenv("SUBAGENT_TEST_OPS"); s != "" {
		var err error
		ops, err = strconv.Atoi(s)
		require.NoError(t, err, "SUBAGENT_TEST_OPS")
	}
	rnd := seeded(t)
	total := modelTally{}
	for i := range (ops + perBubble - 1) / perBubble {
		dice := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
		ok := t.Run(strconv.Itoa(i), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { runRunnerModel(t, perBubble, dice.IntN, total) })
		})
		if !ok {
			return
		}
	}
	t.Logf("%d operations: %v", ops, total)
	for _, what := range modelMustHappen {
		require.True(t, ops < 10_000 || total[what] > 0, "%s never happened", what)
	}
}

// FuzzRunner takes its operations from the input, a byte for each choice.
func FuzzRunner(f *testing.F) {
	f.Add([]byte("every byte is a choice"))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9})
	f.Add([]byte(strings.Repeat("spawn, wait, cancel and shut down. ", 20)))
	f.Fuzz(func(t *testing.T, input []byte) {
		ops := min(len(input)/4, 300)
		pick := func(n int) int {
			if len(input) == 0 {
				return 0
			}
			b := int(input[0])
			input = input[1:]
			return b % n
		}
		bubble.Test(t, func(t *testing.T) { runRunnerModel(t, ops, pick, modelTally{}) })
	})
}

// modelTally counts what happened, so that a model that does nothing is seen.
type modelTally map[string]int

var modelMustHappen = []string{
	"completed", "cancelled/user", "cancelled/parent", "cancelled/session", "cancelled/caller", "cancelled/shutdown",
	"errored/error", "errored/panic", "errored/timeout", "errored/queue_timeout", "errored/shutdown",
	"detached", "lent", "lent slot back", "lent slot forced", "cycle", "queue full", "no capacity", "depth",
	"parent cancelled", "closed", "forgotten", "recovered", "known again", "notice",
}

// modelKind is how a worker takes the end of its ctx.
type modelKind int

const (
	modelObeys    modelKind = iota // returns the ctx's error
	modelSalvages                  // returns a result and no error
	modelDeaf                      // goes on
)

// modelCause is why a task must stop.
type modelCause struct {
	reason  subagent.Reason
	message string
	grace   time.Time // until when it may return; zero: Shutdown says
}

func (c *modelCause) requested() bool {
	return c.reason != subagent.ReasonTimeout && c.reason != subagent.ReasonShutdown
}

// modelTask is one task: its worker, and what should be true of it.
type modelTask struct {
	req        subagent.Request
	id         uuid.UUID
	parent     *modelTask
	depth      int
	kind       modelKind
	foreground bool // a Run waits for it, and has not left

	status    subagent.Status
	reason    subagent.Reason
	err, text string
	detached  bool
	cause     *modelCause
	partial   string
	usage     int64
	calls     map[int64]bool
	queueEnds time.Time // zero: never
	runEnds   time.Time
	inside    bool
	slot      bool       // it holds one
	wait      *modelWait // of its Func
	inLane    bool       // its lent slot is to come back
	lined     int        // the step in which it lined up for it
	notified  bool
	unsure    bool // notified and notices were decided by a race that both may win
	endedIn   int
	unsureIn  int // the step in which it may become so
	notices   int
	forgotten bool

	// Written by the worker; read when all is settled.
	ctx           atomic.Pointer[context.Context]
	orders        chan modelOrder
	entered, left atomic.Int32

	firsts int // how many were handed its end with NotifiedAt zero
}

// modelOrder is what a worker is told to do; it returns if it gives an answer.
type modelOrder func(ctx context.Context, run *subagent.Run) *modelAnswer

type modelAnswer struct {
	result subagent.Result
	err    error
	reason subagent.Reason // of the end, if nothing else decides it
	text   string          // the error text of that end
}

func (m *runnerModel) work(x *modelTask) subagent.Func {
	return func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		x.ctx.Store(&ctx)
		x.entered.Add(1)
		defer x.left.Add(1)
		for {
			done := ctx.Done()
			if x.kind == modelDeaf {
				done = nil
			}
			select {
			case <-done:
				a := x.kind.obedience()
				return a.result, a.err
			case order := <-x.orders:
				if a := order(ctx, run); a != nil {
					return a.result, a.err
				}
			case <-m.over:
				return subagent.Result{}, nil
			}
		}
	}
}

func (k modelKind) obedience() *modelAnswer {
	if k == modelSalvages {
		return &modelAnswer{result: subagent.Result{Text: "salvaged"}}
	}
	return &modelAnswer{err: context.Canceled}
}

func (x *modelTask) live() bool      { return !x.status.Terminal() }
func (x *modelTask) lends() bool     { return x.wait != nil && x.wait.lent }
func (x *modelTask) idle() bool      { return x.inside && x.wait == nil }
func (x *modelTask) session() string { return x.req.ParentSessionID }

// above is the task with which x is cancelled.
func (x *modelTask) above() *modelTask {
	if x.req.Independent {
		return nil
	}
	return x.parent
}

func (x *modelTask) below(a *modelTask) bool {
	for p := x.above(); p != nil; p = p.above() {
		if p == a {
			return true
		}
	}
	return false
}

// verdict is the table of the ends, read from left to right: a is how the
// worker came back, nil if it did not.
func (x *modelTask) verdict(a *modelAnswer) {
	entered := x.inside
	x.text = x.partial
	if a != nil && a.result.Text != "" {
		x.text = a.result.Text
	}
	x.detached = entered && a == nil
	switch c := x.cause; {
	case c == nil && a.reason == "":
		x.status, x.reason, x.err = subagent.StatusCompleted, "", ""
	case c == nil:
		x.status, x.reason, x.err = subagent.StatusErrored, a.reason, a.text
	case c.requested():
		x.status, x.reason, x.err = subagent.StatusCancelled, c.reason, ""
		if x.detached {
			x.err = "cancel timed out, worker may be stuck"
		}
	case c.reason == subagent.ReasonTimeout:
		x.status, x.reason, x.err = subagent.StatusErrored, c.reason, "timed out after "+x.req.Timeout.String()
		if x.detached {
			x.err += "; worker may be stuck"
		}
	case entered:
		x.status, x.reason, x.err = subagent.StatusErrored, subagent.ReasonShutdown, "worker pool shutdown"
	default:
		x.status, x.reason, x.err = subagent.StatusCancelled, subagent.ReasonShutdown, ""
	}
}

// runnerModel is a Runner and what should be true of it.
type runnerModel struct {
	t     *testing.T
	pick  func(n int) int
	tally modelTally
	cfg   subagent.Config
	r     *subagent.Runner
	store subagent.Store // nil: it cannot be looked into
	sub   *subagent.Subscription
	sink  *modelSink
	over  chan struct{}

	limit, held int
	maxQueued   int
	tasks       []*modelTask
	line        []*modelTask
	waits       []*modelWait
	ended       map[subagent.Status]int
	step        int // one operation and all that follows from it
	spans       int
	ends        int                 // in this step
	done        []*modelWait        // over in this step
	dirty       map[*modelTask]bool // an event tells of it
	changed     map[*modelTask]bool // it may have changed without one
	closing     *modelShutdown
	history     []string // what was done, told when a comparison fails
}

// note remembers what is done.
func (m *runnerModel) note(what string, on ...*modelTask) {
	for _, x := range on {
		what += " " + strings.TrimPrefix(x.req.Description, "task ")
	}
	m.history = append(m.history, fmt.Sprint(m.step, ": ", what))
}

func runRunnerModel(t *testing.T, ops int, pick func(int) int, tally modelTally) {
	m := &runnerModel{
		t: t, pick: pick, tally: tally, over: make(chan struct{}),
		ended: map[subagent.Status]int{}, dirty: map[*modelTask]bool{}, changed: map[*modelTask]bool{},
	}
	m.open()
	defer func() { // also when a comparison failed, so that the bubble can end
		if t.Failed() {
			t.Log("limit ", m.limit, ", step: what, tasks\n", strings.Join(m.history, "\n"))
		}
		if !isClosedChan(m.over) {
			close(m.over)
		}
		for _, w := range m.waits {
			w.cancel()
		}
		_ = m.r.Shutdown(context.Background())
		m.sub.Close()
	}()
	steps := m.steps()
	for range ops {
		m.step++
		if m.tick() || steps[pick(len(steps))]() {
			m.settle()
			m.compare()
		}
	}
	m.shutDown()
}

func isClosedChan(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// open makes a Runner of a random configuration.
func (m *runnerModel) open() {
	m.limit, m.maxQueued = 1+m.pick(3), m.pick(8)-2
	m.cfg = subagent.Config{
		MaxDepth: 3, CancelGrace: m.span(), ShutdownGrace: m.span(), FreeOnDetach: m.pick(2) == 0,
		Capacity: subagent.NewCapacity(m.limit, max(m.maxQueued, -1)),
	}
	m.sink = &modelSink{}
	if m.pick(2) == 0 {
		m.cfg.Notifier = m.sink
	}
	switch m.pick(8) {
	case 0: // the Runner's own
	case 1:
		m.store = subagenttest.NewFaultyStore(subagent.NewMemoryStore())
		m.cfg.Cards = m.sink
	default:
		m.store = subagent.NewMemoryStore()
	}
	m.cfg.Store = m.store
	var err error
	m.r, err = subagent.New(context.Background(), m.cfg)
	require.NoError(m.t, err)
	m.sub = m.r.Subscribe(subagent.Filter{})
}

// span is a time that does not come twice: what is due in the same instant may
// happen in any order.
func (m *runnerModel) span() time.Duration {
	m.spans++
	return time.Second + time.Duration(m.pick(256)*m.pick(256)*97+m.spans)*time.Microsecond
}

// compare checks what the Runner says of the tasks that may have changed, and
// now and then of all.
func (m *runnerModel) compare() {
	m.compareStats()
	m.readEvents()
	for _, x := range m.tasks {
		if !x.forgotten && (x.live() || m.dirty[x] || m.changed[x]) {
			m.compareTask(x)
		}
	}
	clear(m.dirty)
	clear(m.changed)
	for i, x := range m.line {
		n, ok := m.r.QueuePosition(x.id)
		require.True(m.t, ok)
		require.Equal(m.t, i+1, n, "position")
	}
	if m.step%50 == 0 {
		m.compareList()
	}
}

func (m *runnerModel) compareStats() {
	want := subagent.Stats{
		Capacity: subagent.CapacityStats{Limit: m.limit, Running: m.held, Queued: len(m.line)},
		Queued:   len(m.line), Subscribers: 1,
		Completed: uint64(m.ended[subagent.StatusCompleted]),
		Cancelled: uint64(m.ended[subagent.StatusCancelled]),
		Errored:   uint64(m.ended[subagent.StatusErrored]),
	}
	if m.closing != nil && m.closing.returned {
		want.Subscribers = 0
	}
	for _, x := range m.tasks {
		if x.status == subagent.StatusRunning {
			want.Running++
		}
		if x.inside && !x.live() {
			want.Detached++
		}
		if x.lends() {
			want.Lent++
		}
		if entered, left := x.entered.Load(), x.left.Load(); x.inside != (entered > left) || entered > 1 {
			require.Fail(m.t, "worker", "inside %v, entered %d, left %d: %s", x.inside, entered, left, x.req.Description)
		}
	}
	require.Equal(m.t, want, m.r.Stats())
}

func (m *runnerModel) compareTask(x *modelTask) {
	got, err := m.r.Get(context.Background(), x.id)
	require.NoError(m.t, err)
	m.sameTask(x, got)
	if n := m.sink.noticesOf(x.id); x.unsure {
		x.unsure, x.notices, x.notified = false, n, !got.NotifiedAt.IsZero()
		require.LessOrEqual(m.t, n, 1)
	} else {
		require.Equal(m.t, x.notices, n, "notices %+v reason %s unsureIn %d now %d", got, x.reason, x.unsureIn, m.step)
	}
	if m.store != nil && !x.live() {
		row, err := m.store.Get(context.Background(), x.id)
		require.NoError(m.t, err)
		require.Equal(m.t, row, got, "store")
	}
	if m.cfg.Cards != nil {
		require.Equal(m.t, string(x.status), m.sink.card(x.id).Attach.Status, "card")
	}
}

func (m *runnerModel) sameTask(x *modelTask, got subagent.Task) {
	type seen struct {
		status               subagent.Status
		reason               subagent.Reason
		err, text, message   string
		detached, background bool
		usage                int64
		requested            bool
		notified             bool
	}
	want := seen{x.status, x.reason, x.err, x.text, "", x.detached, x.req.Metadata["run"] == "", x.usage, false, x.notified}
	if x.live() {
		want.text = x.partial
	}
	if c := x.cause; c != nil && c.requested() {
		want.requested, want.message = true, c.message
		want.reason = c.reason
	}
	is := seen{
		got.Status, got.Reason, got.Error, got.ResultText, got.CancelMessage, got.Detached, got.Background,
		got.Usage.InputTokens, !got.CancelRequestedAt.IsZero(), !got.NotifiedAt.IsZero(),
	}
	if x.unsure && !x.live() {
		want.notified = is.notified
	}
	if want != is { // require.Equal is slow, and this is done very often
		require.Equal(m.t, want, is, "%s", x.req.Description)
	}
	if !x.live() && (got.CompletedAt.IsZero() || got.CompletedAt.Before(got.StartedAt) || got.CompletedAt.Before(got.CancelRequestedAt)) {
		require.Fail(m.t, "times", "%+v", got)
	}
}

func (m *runnerModel) compareList() {
	status := []subagent.Status{subagent.StatusQueued, subagent.StatusRunning, subagent.StatusCancelled}[m.pick(3)]
	all, err := m.r.List(context.Background(), subagent.Filter{})
	require.NoError(m.t, err)
	some, err := m.r.List(context.Background(), subagent.Filter{Statuses: []subagent.Status{status}})
	require.NoError(m.t, err)
	wantAll, wantSome := map[uuid.UUID]*modelTask{}, 0
	for _, x := range m.tasks {
		if !x.forgotten {
			wantAll[x.id] = x
			if x.status == status {
				wantSome++
			}
		}
	}
	require.Len(m.t, all, len(wantAll))
	require.Len(m.t, some, wantSome)
	for _, got := range all {
		require.Contains(m.t, wantAll, got.ID)
		m.sameTask(wantAll[got.ID], got)
	}
}

// readEvents checks that each task that changed in this step was told of, with
// the state that it has now, and that an end is told once.
func (m *runnerModel) readEvents() {
	told := map[uuid.UUID]subagent.Event{}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	for range 10_000 {
		e, err := m.sub.Next(done)
		if err != nil {
			require.True(m.t, errors.Is(err, context.Canceled) || errors.Is(err, subagent.ErrClosed), "%v", err)
			break
		}
		told[e.Task.ID] = e // one a task: what is unread is merged
	}
	for _, x := range m.tasks {
		e, ok := told[x.id]
		if m.dirty[x] != ok {
			require.Fail(m.t, "event", "%s: told %v, want %v: %+v", x.req.Description, ok, m.dirty[x], e)
		}
		if ok {
			require.Equal(m.t, x.status, e.Task.Status)
		}
	}
}
