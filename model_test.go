package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// The model of a Runner: a map of tasks, a line, and a number of slots. Its
// Funcs obey their ctx at once and otherwise do what they are told.

type modelTask struct {
	id       uuid.UUID
	name     string
	session  string
	status   subagent.Status
	reason   subagent.Reason
	parent   *modelTask
	waitsFor *modelTask    // the child that its Func runs in the foreground; its slot is lent
	orders   chan string   // what its Func is to do next
	limit    time.Duration // run time
	patience time.Duration // queue time
	due      time.Time     // when limit or patience is over
}

type modelWorld struct {
	t        testing.TB
	ctx      context.Context
	store    *subagent.MemoryStore
	capacity *subagent.Capacity
	runner   *subagent.Runner
	now      time.Time // the model's clock runs ahead within advance

	limit     int
	held      int // slots
	returning []*modelTask
	line      []*modelTask
	all       []*modelTask
	byName    map[string]*modelTask
}

func newModelWorld(t testing.TB) *modelWorld {
	m := &modelWorld{t: t, ctx: context.Background(), store: subagent.NewMemoryStore(), capacity: subagent.NewCapacity(2, -1), limit: 2, byName: map[string]*modelTask{}}
	m.store.SetRetention(-1)
	m.restart()
	return m
}

func (m *modelWorld) restart() {
	var err error
	m.runner, err = subagent.New(m.ctx, subagent.Config{Store: m.store, Capacity: m.capacity, Func: m.work, MaxDepth: -1})
	require.NoError(m.t, err)
}

// work follows orders until it is stopped.
func (m *modelWorld) work(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
	me := m.byName[run.Task().Description]
	for {
		select {
		case <-ctx.Done():
			return subagent.Result{}, ctx.Err()
		case order := <-me.orders:
			switch order {
			case "finish":
				return subagent.Result{Text: me.name}, nil
			case "fail":
				return subagent.Result{}, errors.New("told to")
			case "panic":
				panic("told to")
			default: // the name of a child
				_, _ = m.runner.Run(ctx, m.request(m.byName[order]))
			}
		}
	}
}

func (m *modelWorld) request(k *modelTask) subagent.Request {
	return subagent.Request{ID: k.id, Description: k.name, ParentSessionID: k.session, Timeout: k.limit, QueueTimeout: k.patience}
}

func (m *modelWorld) newTask(session string, timed int) *modelTask {
	n := len(m.all)
	k := &modelTask{id: uuid.Must(uuid.NewV7()), name: fmt.Sprint("task ", n), session: session, status: subagent.StatusQueued, orders: make(chan string, 1)}
	// Odd fractions keep two limits from ending in the same instant.
	if timed&1 != 0 {
		k.limit = 5*time.Second + time.Duration(n)*time.Microsecond
	}
	if timed&2 != 0 {
		k.patience = 7*time.Second + time.Duration(n)*time.Microsecond + 500*time.Nanosecond
	}
	m.all = append(m.all, k)
	m.byName[k.name] = k
	return k
}

func (m *modelWorld) enqueue(k *modelTask) {
	m.line = append(m.line, k)
	if k.patience > 0 {
		k.due = m.now.Add(k.patience)
	}
	m.promote()
}

func (m *modelWorld) promote() {
	for m.held < m.limit && len(m.returning)+len(m.line) > 0 {
		m.held++
		if len(m.returning) > 0 {
			m.returning = m.returning[1:]
			continue
		}
		k := m.line[0]
		m.line = m.line[1:]
		k.status, k.due = subagent.StatusRunning, time.Time{}
		if k.limit > 0 {
			k.due = m.now.Add(k.limit)
		}
	}
}

// end ends k, and before it what runs below it if it was stopped. Only then
// are slots given away.
func (m *modelWorld) end(k *modelTask, status subagent.Status, reason subagent.Reason) {
	m.endTree(k, status, reason, subagent.ReasonParent)
	m.promote()
}

func (m *modelWorld) endTree(k *modelTask, status subagent.Status, reason, below subagent.Reason) {
	if k.status.Terminal() {
		return
	}
	stopped := reason != "" && reason != subagent.ReasonError && reason != subagent.ReasonPanic
	if kid := k.waitsFor; kid != nil && stopped {
		m.endTree(kid, subagent.StatusCancelled, below, below)
	}
	if i := slices.Index(m.returning, k); i >= 0 { // it takes its slot back at once, to clean up
		m.returning = slices.Delete(m.returning, i, i+1)
		m.held++
	}
	if i := slices.Index(m.line, k); i >= 0 {
		m.line = slices.Delete(m.line, i, i+1)
	} else {
		m.held--
	}
	k.status, k.reason, k.due = status, reason, time.Time{}
	if k.parent != nil && k.parent.waitsFor == k {
		k.parent.waitsFor = nil
		m.returning = append(m.returning, k.parent) // ahead of the line
	}
}

// advance lets time pass, with what falls due in its order.
func (m *modelWorld) advance(d time.Duration) {
	until := m.now.Add(d)
	for {
		var next *modelTask
		for _, k := range m.all {
			if !k.due.IsZero() && !k.due.After(until) && (next == nil || k.due.Before(next.due)) {
				next = k
			}
		}
		if next == nil {
			break
		}
		m.now = next.due
		reason := subagent.ReasonTimeout
		if next.status == subagent.StatusQueued {
			reason = subagent.ReasonQueueTimeout
		}
		m.end(next, subagent.StatusErrored, reason)
	}
	m.now = until
	time.Sleep(d)
}

// step is one operation, chosen by op and arg.
func (m *modelWorld) step(op, arg byte) {
	synctest.Wait()
	m.now = time.Now()
	switch op % 12 {
	case 0, 1, 2:
		m.spawn(arg)
	case 3, 4, 5:
		m.order(arg)
	case 6:
		m.nest(arg)
	case 7:
		if k := m.pick(arg); k != nil {
			_, err := m.runner.Cancel(m.ctx, k.id, subagent.CancelOptions{})
			require.NoError(m.t, err)
			m.end(k, subagent.StatusCancelled, subagent.ReasonUser)
		}
	case 8:
		m.cancelSession(fmt.Sprint(arg % 3))
	case 9:
		m.advance(time.Duration(arg%4) * time.Second)
	case 10:
		m.limit = 1 + int(arg%4)
		m.capacity.Resize(m.limit)
		m.promote()
	case 11:
		if arg%16 == 0 {
			m.shutdown()
		} else if k := m.pick(arg); k != nil {
			m.glance(k)
		}
	}
	m.check()
}

func (m *modelWorld) pick(arg byte) *modelTask {
	if len(m.all) == 0 {
		return nil
	}
	return m.all[max(0, len(m.all)-1-int(arg)%16)] // a recent one
}

func (m *modelWorld) running() (ks []*modelTask) {
	for _, k := range m.all {
		if k.status == subagent.StatusRunning && k.waitsFor == nil && !slices.Contains(m.returning, k) {
			ks = append(ks, k)
		}
	}
	return ks
}

func (m *modelWorld) spawn(arg byte) {
	k := m.newTask(fmt.Sprint(arg%3), int(arg/3)%4)
	q := m.request(k)
	q.NoWait = arg > 220
	full := m.held >= m.limit || len(m.line) > 0
	_, err := m.runner.Spawn(m.ctx, q)
	if q.NoWait && full {
		require.ErrorIs(m.t, err, subagent.ErrNoCapacity)
		m.all = m.all[:len(m.all)-1]
		return
	}
	require.NoError(m.t, err)
	m.enqueue(k)
}

func (m *modelWorld) order(arg byte) {
	ks := m.running()
	if len(ks) == 0 {
		return
	}
	k := ks[int(arg)%len(ks)]
	switch arg % 3 {
	case 0:
		k.orders <- "fail"
		m.end(k, subagent.StatusErrored, subagent.ReasonError)
	case 1:
		k.orders <- "panic"
		m.end(k, subagent.StatusErrored, subagent.ReasonPanic)
	default:
		k.orders <- "finish"
		m.end(k, subagent.StatusCompleted, "")
	}
}

// nest has a running Func run a child in the foreground: its slot is lent.
func (m *modelWorld) nest(arg byte) {
	ks := m.running()
	if len(ks) == 0 {
		return
	}
	k := ks[int(arg)%len(ks)]
	kid := m.newTask(k.session, 0)
	kid.parent = k
	k.orders <- kid.name
	synctest.Wait()
	k.waitsFor = kid
	m.line = append(m.line, kid) // in line first, then the slot is lent
	m.promote()
	m.held--
	m.promote()
}

func (m *modelWorld) cancelSession(session string) {
	_, err := m.runner.CancelSession(m.ctx, session, subagent.CancelOptions{})
	require.NoError(m.t, err)
	for _, k := range m.all {
		if k.session == session && k.parent == nil { // children are of the same session
			m.endTree(k, subagent.StatusCancelled, subagent.ReasonSession, subagent.ReasonSession)
		}
	}
	m.endOrphans(func(k *modelTask) bool { return k.session == session }, subagent.ReasonSession)
	m.promote()
}

// endOrphans ends those whose parent ended before them.
func (m *modelWorld) endOrphans(match func(*modelTask) bool, reason subagent.Reason) {
	for _, k := range m.all {
		if match(k) {
			m.endTree(k, subagent.StatusCancelled, reason, reason)
		}
	}
}

// glance waits for a task that may not end, for a moment.
func (m *modelWorld) glance(k *modelTask) {
	ctx, cancel := context.WithCancel(m.ctx)
	cancel()
	got, err := m.runner.Wait(ctx, k.id)
	if k.status.Terminal() {
		require.NoError(m.t, err)
	} else {
		require.ErrorIs(m.t, err, context.Canceled)
	}
	require.Equal(m.t, k.status, got.Status)
}

// shutdown ends everything, and a new Runner goes on with the store.
func (m *modelWorld) shutdown() {
	require.NoError(m.t, m.runner.Shutdown(m.ctx))
	for _, k := range m.all {
		if k.status == subagent.StatusQueued {
			k.status, k.reason = subagent.StatusCancelled, subagent.ReasonShutdown
		}
	}
	m.line = nil
	m.endAtShutdown()
	m.restart()
}

// endAtShutdown: what ran had the grace to end by its own limit.
func (m *modelWorld) endAtShutdown() {
	for _, k := range m.all {
		if k.status == subagent.StatusRunning {
			got, err := m.store.Get(m.ctx, k.id)
			require.NoError(m.t, err)
			require.Contains(m.t, []subagent.Reason{subagent.ReasonShutdown, subagent.ReasonTimeout, subagent.ReasonParent}, got.Reason)
			k.status, k.reason = got.Status, got.Reason
			require.True(m.t, k.status.Terminal())
		}
		k.due, k.waitsFor = time.Time{}, nil
	}
	m.held, m.returning = 0, nil
}

// check compares what the Runner says with the model.
func (m *modelWorld) check() {
	synctest.Wait()
	queued, running := 0, 0
	for _, k := range m.all[max(0, len(m.all)-24):] {
		got, err := m.runner.Get(m.ctx, k.id)
		require.NoError(m.t, err)
		require.Equal(m.t, k.status, got.Status, k.name)
		require.Equal(m.t, k.reason, got.Reason, k.name)
	}
	for _, k := range m.all {
		switch k.status {
		case subagent.StatusQueued:
			queued++
		case subagent.StatusRunning:
			running++
		}
	}
	for i, k := range m.line {
		place, ok := m.runner.QueuePosition(k.id)
		require.True(m.t, ok, k.name)
		require.Equal(m.t, i+1, place, k.name)
	}
	s := m.runner.Stats()
	require.Equal(m.t, subagent.CapacityStats{Limit: m.limit, Running: m.held, Queued: len(m.line)}, s.Capacity)
	require.Equal(m.t, queued, s.Queued)
	require.Equal(m.t, running, s.Running)
	require.Zero(m.t, s.Detached+s.Unsaved+s.Pending)
}

func (m *modelWorld) finish() {
	require.NoError(m.t, m.runner.Shutdown(m.ctx))
	require.Equal(m.t, subagent.CapacityStats{Limit: m.limit}, m.capacity.Stats())
	for row, err := range m.store.List(m.ctx, subagent.Filter{}) {
		require.NoError(m.t, err)
		require.True(m.t, row.Status.Terminal())
	}
}

// modelOps is how many operations the model test makes: SUBAGENT_TEST_OPS.
func modelOps(t testing.TB) int {
	if s := os.Getenv("SUBAGENT_TEST_OPS"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		return n
	}
	if testing.Short() || raceEnabled {
		return 20_000
	}
	return 100_000
}

func TestRunnerModel(t *testing.T) {
	rng := seeded(t)
	const steps = 200 // in one bubble
	for range modelOps(t) / steps {
		ops := make([]byte, 2*steps)
		for i := range ops {
			ops[i] = byte(rng.IntN(256))
		}
		synctest.Test(t, func(t *testing.T) { runModel(t, ops) })
	}
}

func runModel(t *testing.T, ops []byte) {
	m := newModelWorld(t)
	for i := 0; i+1 < len(ops); i += 2 {
		m.step(ops[i], ops[i+1])
	}
	m.finish()
}

func FuzzRunner(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		ops := make([]byte, 100)
		for i := range ops {
			ops[i] = byte(rng.IntN(256))
		}
		f.Add(ops)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		synctest.Test(t, func(t *testing.T) { runModel(t, ops[:min(len(ops), 1000)]) })
	})
}
