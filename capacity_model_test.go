package subagent

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent/internal/bubble"
)

// TestG4_CapacityModel runs random operations on a Capacity and on a model of
// it, and compares what both did after each one. SUBAGENT_TEST_OPS sets how
// many, SUBAGENT_TEST_SEED which.
func TestG4_CapacityModel(t *testing.T) {
	seed, ops := number(t, "SUBAGENT_TEST_SEED", rand.Uint64()), number(t, "SUBAGENT_TEST_OPS", 100_000)
	rnd := rand.New(rand.NewPCG(seed, 1))
	const perRun = 1000
	for range (ops + perRun - 1) / perRun {
		bubble.Test(t, func(t *testing.T) {
			runModel(t, 1+rnd.IntN(5), rnd.IntN(8)-1, perRun, rnd.IntN)
		})
	}
}

// FuzzCapacity takes its operations from the input: two bytes for limit and
// bound, then two per operation.
func FuzzCapacity(f *testing.F) {
	f.Add([]byte{1, 1, 3, 0, 2, 0, 2, 0, 8, 0, 9, 1, 12, 0})
	f.Add([]byte("a queue of letters, cancelled and resized at will"))
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) < 2 {
			return
		}
		limit, maxQueued, input := 1+int(input[0]%5), int(input[1]%8)-1, input[2:]
		next := func(n int) int {
			if len(input) == 0 {
				return 0
			}
			b := int(input[0])
			input = input[1:]
			return b % n
		}
		bubble.Test(t, func(t *testing.T) {
			runModel(t, limit, maxQueued, min(len(input)/2, 1000), next)
		})
	})
}

// model is a Capacity and what should be true of it.
type model struct {
	t *testing.T
	c *Capacity

	limit, maxQueued, running, reserved int
	lanes                               [2][]*actor // returning, line
	wantTold                            []*actor    // in the order they should be told

	actors []*actor // all that ever queued, the stale ones too
	told   []*actor // fakes, in the order they were told
	late   []late   // granted, not yet told
	slots  int      // held without a func
	funcs  []func() // held with one
	spent  []func()
}

// actor waits in a lane: as a grantee of ours, or inside Acquire.
type actor struct {
	m      *model
	ticket ticket
	lane   int
	doomed bool // passes its slot on at once
	gaveUp bool // inside Acquire: cancelled between its grant and being told

	cancel  context.CancelFunc // set: waits inside Acquire
	release func()
	err     error
	done    bool
}

// late is the moment between a release and its handOn.
type late struct {
	want *actor
	got  grantee
}

func (a *actor) granted() grantee {
	a.m.told = append(a.m.told, a)
	a.m.c.mustAddUp(a.m.t) // would not return if the lock were held
	if a.doomed {
		return a.m.c.release()
	}
	return nil
}

// mustAddUp checks what holds whenever the lock is free.
func (c *Capacity) mustAddUp(t *testing.T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running < 0 || c.reserved < 0 || c.running < c.limit && c.waitingLocked() {
		t.Errorf("limit %d, running %d, reserved %d, returning %d, line %d",
			c.limit, c.running, c.reserved, c.returning.Len(), c.line.Len())
	}
}

func runModel(t *testing.T, limit, maxQueued, ops int, pick func(n int) int) {
	m := &model{t: t, c: NewCapacity(limit, maxQueued), limit: limit, maxQueued: maxQueued}
	steps := []func(func(n int) int){
		m.reserve, m.unreserve, m.enter, m.enter, m.enterReturning, m.leave, m.leave, m.doom, m.give, m.give, m.give,
		m.giveLate, m.handOnLate, m.take, m.tryAcquire, m.acquire, m.acquire, m.acquireDone, m.force, m.resize, m.giveAgain,
	}
	for range ops {
		steps[pick(len(steps))](pick)
		synctest.Wait()
		m.compare()
		if t.Failed() {
			t.FailNow()
		}
	}
	m.drain()
}

func (m *model) compare() {
	require.Equal(m.t, CapacityStats{Limit: m.limit, Running: m.running, Queued: len(m.lanes[1])}, m.c.Stats())
	m.c.mustAddUp(m.t)
	m.collect()
	require.Equal(m.t, len(m.wantTold), len(m.told), "told")
	for i := range m.told {
		require.Same(m.t, m.wantTold[i], m.told[i], "out of order")
	}
	m.wantTold, m.told = nil, nil
	held := m.slots + len(m.funcs)
	for _, l := range m.late {
		if !l.want.gaveUp {
			held++
		}
	}
	require.Equal(m.t, m.running, held, "slots held")
}

// collect takes in what the callers of Acquire have got. Those that one Resize
// starts run side by side: of them only who, not the order, can be seen.
func (m *model) collect() {
	for _, a := range m.actors {
		if a.cancel == nil {
			continue
		}
		want := !slices.Contains(m.lanes[1], a) && (a.gaveUp || !m.isLate(a))
		require.Equal(m.t, want, a.done, "through with Acquire")
		if a.done && a.release != nil {
			m.funcs = append(m.funcs, a.release)
			a.release = nil
		}
	}
	m.actors = slices.DeleteFunc(m.actors, func(a *actor) bool { return a.done })
	if len(m.actors) > 64 {
		m.actors = slices.DeleteFunc(m.actors, func(a *actor) bool {
			return !slices.Contains(m.lanes[a.lane], a) && !m.isLate(a)
		})
	}
}

func (m *model) isLate(a *actor) bool {
	return slices.ContainsFunc(m.late, func(l late) bool { return l.want == a })
}

func (m *model) admits() bool {
	return m.maxQueued < 0 || len(m.lanes[1])+m.reserved < m.maxQueued+max(0, m.limit-m.running)
}

func (m *model) free() bool { return m.running < m.limit && len(m.lanes[0])+len(m.lanes[1]) == 0 }

func (m *model) pop() *actor {
	for i, lane := range m.lanes {
		if len(lane) > 0 {
			m.lanes[i] = lane[1:]
			return lane[0]
		}
	}
	return nil
}

// tell follows a slot from hand to hand.
func (m *model) tell(a *actor) {
	for a != nil {
		if a.cancel != nil {
			return
		}
		m.wantTold = append(m.wantTold, a)
		if !a.doomed {
			m.slots++
			return
		}
		a = m.freed()
	}
}

func (m *model) freed() *actor {
	if m.running <= m.limit {
		if a := m.pop(); a != nil {
			return a
		}
	}
	m.running--
	return nil
}

func (m *model) mustRefuse(err, why error) {
	var refused *CapacityError
	require.ErrorAs(m.t, err, &refused)
	require.Equal(m.t, CapacityError{
		Limit: m.limit, Running: m.running, Queued: len(m.lanes[1]) + m.reserved, MaxQueued: m.maxQueued, Err: why,
	}, *refused)
}

func (m *model) reserve(func(int) int) {
	if err := m.c.reserve(); !m.admits() {
		m.mustRefuse(err, ErrQueueFull)
		return
	} else {
		require.NoError(m.t, err)
	}
	m.reserved++
}

func (m *model) unreserve(func(int) int) {
	if m.reserved > 0 {
		m.c.unreserve()
		m.reserved--
	}
}

func (m *model) enter(func(int) int) {
	if m.reserved == 0 {
		m.reserve(nil)
	}
	if m.reserved == 0 {
		return
	}
	m.reserved--
	m.join(&actor{m: m, lane: 1}, m.c.enter)
}

func (m *model) enterReturning(func(int) int) {
	m.join(&actor{m: m, lane: 0}, m.c.enterReturning)
}

func (m *model) join(a *actor, enter func(grantee) (ticket, bool)) {
	free := m.free()
	t, granted := enter(a)
	require.Equal(m.t, free, granted)
	if granted {
		m.running++
		m.slots++
		return
	}
	a.ticket = t
	m.lanes[a.lane] = append(m.lanes[a.lane], a)
	m.actors = append(m.actors, a)
}

// leave picks anyone who ever queued, whether still there or not.
func (m *model) leave(pick func(int) int) {
	if len(m.actors) == 0 {
		return
	}
	a := m.actors[pick(len(m.actors))]
	at := slices.Index(m.lanes[a.lane], a)
	if at >= 0 {
		m.lanes[a.lane] = slices.Delete(slices.Clone(m.lanes[a.lane]), at, at+1)
	}
	if a.cancel != nil {
		if m.isLate(a) {
			a.gaveUp = true
			m.tell(m.freed())
		}
		a.cancel()
		return
	}
	if a.lane == 0 {
		require.Equal(m.t, at >= 0, m.c.leaveReturning(a.ticket))
		return
	}
	position, ok := m.c.position(a.ticket)
	require.Equal(m.t, at+1, position)
	require.Equal(m.t, at >= 0, ok)
	require.Equal(m.t, at >= 0, m.c.leave(a.ticket))
}

func (m *model) doom(pick func(int) int) {
	if len(m.actors) > 0 {
		m.actors[pick(len(m.actors))].doomed = true
	}
}

func (m *model) give(pick func(int) int) {
	if m.slots+len(m.funcs) == 0 {
		return
	}
	at := pick(m.slots + len(m.funcs))
	if at < len(m.funcs) {
		release := m.funcs[at]
		m.funcs = slices.Delete(m.funcs, at, at+1)
		m.spent = append(m.spent, release)
		m.tell(m.freed())
		release()
		return
	}
	want, got := m.release()
	m.tell(want)
	handOn(got)
}

func (m *model) release() (want *actor, got grantee) {
	m.slots--
	want, got = m.freed(), m.c.release()
	require.Equal(m.t, want == nil, got == nil)
	if a, fake := got.(*actor); fake {
		require.Same(m.t, want, a)
	}
	return want, got
}

func (m *model) giveLate(func(int) int) {
	if m.slots == 0 {
		return
	}
	if want, got := m.release(); got != nil {
		m.late = append(m.late, late{want, got})
	}
}

func (m *model) handOnLate(pick func(int) int) {
	if len(m.late) == 0 {
		return
	}
	at := pick(len(m.late))
	l := m.late[at]
	m.late = slices.Delete(m.late, at, at+1)
	if !l.want.gaveUp {
		m.tell(l.want)
	}
	handOn(l.got)
}

func (m *model) giveAgain(pick func(int) int) {
	if len(m.spent) > 0 {
		m.spent[pick(len(m.spent))]()
	}
}

func (m *model) take(func(int) int) {
	if err := m.c.take(); !m.free() {
		m.mustRefuse(err, ErrNoCapacity)
		return
	} else {
		require.NoError(m.t, err)
	}
	m.running++
	m.slots++
}

func (m *model) tryAcquire(func(int) int) {
	release, ok := m.c.TryAcquire()
	require.Equal(m.t, m.free(), ok)
	if ok {
		m.running++
		m.funcs = append(m.funcs, release)
	}
}

func (m *model) acquire(func(int) int) {
	a := &actor{m: m, lane: 1}
	ctx, cancel := context.WithCancel(m.t.Context()) // ends the goroutine when the test fails, too
	a.cancel = cancel
	go func() { // ends when granted or cancelled, by drain at the latest
		a.release, a.err = m.c.Acquire(ctx)
		a.done = true
	}()
	synctest.Wait()
	switch {
	case !m.admits():
		m.mustRefuse(a.err, ErrQueueFull)
	case m.free():
		m.running++
		m.actors = append(m.actors, a)
	default:
		m.lanes[1] = append(m.lanes[1], a)
		m.actors = append(m.actors, a)
	}
}

func (m *model) acquireDone(func(int) int) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := m.c.Acquire(ctx)
	require.ErrorIs(m.t, err, context.Canceled)
}

func (m *model) force(func(int) int) {
	m.c.force()
	m.running++
	m.slots++
}

func (m *model) resize(pick func(int) int) {
	m.limit = 1 + pick(6)
	var started []*actor
	for m.running < m.limit && len(m.lanes[0])+len(m.lanes[1]) > 0 {
		started = append(started, m.pop())
		m.running++
	}
	for _, a := range started {
		m.tell(a)
	}
	m.c.Resize(m.limit)
}

// drain ends everything; nothing may be left over.
func (m *model) drain() {
	first := func(int) int { return 0 }
	for m.reserved > 0 {
		m.unreserve(nil)
	}
	for len(m.late) > 0 {
		m.handOnLate(first)
		synctest.Wait()
		m.compare()
	}
	for n := 0; m.running > 0; n++ {
		require.Less(m.t, n, 10_000)
		m.give(first)
		synctest.Wait()
		m.compare()
	}
	require.Empty(m.t, m.lanes[0])
	require.Empty(m.t, m.lanes[1])
	require.Equal(m.t, CapacityStats{Limit: m.limit}, m.c.Stats())
}

func number(t *testing.T, variable string, otherwise uint64) uint64 {
	n := otherwise
	if s := os.Getenv(variable); s != "" {
		var err error
		n, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err, variable)
	}
	t.Logf("%s=%d", variable, n)
	return n
}
