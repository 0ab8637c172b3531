package fifo_test

import (
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent/internal/fifo"
)

func TestZeroQueueIsEmpty(t *testing.T) {
	var q fifo.Queue[string]
	require.Zero(t, q.Len())
	_, ok := q.Pop()
	require.False(t, ok)
	require.False(t, q.Remove(fifo.Ticket[string]{}))
	_, ok = q.Position(fifo.Ticket[string]{})
	require.False(t, ok)
}

func TestFirstInIsFirstOut(t *testing.T) {
	var q fifo.Queue[int]
	const n = 5000 // several chunks, of every size
	for i := range n {
		q.Push(i)
	}
	for i := range n {
		v, ok := q.Pop()
		require.True(t, ok)
		require.Equal(t, i, v)
	}
	_, ok := q.Pop()
	require.False(t, ok)
}

func TestTicketIsGoodOnce(t *testing.T) {
	var q, other fifo.Queue[string]
	a, b := q.Push("a"), q.Push("b")
	require.NotEqual(t, a, b)
	require.False(t, other.Remove(a), "a ticket of another queue")
	require.True(t, q.Remove(a))
	require.False(t, q.Remove(a), "removed already")
	v, ok := q.Pop()
	require.True(t, ok)
	require.Equal(t, "b", v)
	require.False(t, q.Remove(b), "popped already")
	_, ok = q.Position(b)
	require.False(t, ok)
}

// A stale ticket stays stale whatever its chunk went through since.
func TestStaleTicketsNeverComeBack(t *testing.T) {
	var q fifo.Queue[int]
	var stale []fifo.Ticket[int]
	for i := range 3000 {
		stale = append(stale, q.Push(i))
		_, ok := q.Pop()
		require.True(t, ok)
	}
	q.Push(1)
	for _, ticket := range stale {
		require.False(t, q.Remove(ticket))
	}
	require.Equal(t, 1, q.Len())
}

func TestPositionCountsTheLiveAhead(t *testing.T) {
	var q fifo.Queue[int]
	var tickets []fifo.Ticket[int]
	for i := range 100 {
		tickets = append(tickets, q.Push(i))
	}
	for i := 0; i < 100; i += 2 {
		require.True(t, q.Remove(tickets[i]))
	}
	for i := 1; i < 100; i += 2 {
		at, ok := q.Position(tickets[i])
		require.True(t, ok)
		require.Equal(t, i/2+1, at)
	}
}

// The queue does the same as a slice, whatever is asked of it.
func TestAgainstASlice(t *testing.T) {
	seed := testSeed(t)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		m := slicedQueue{pushBias: rnd.IntN(3)}
		for range 5000 {
			m.step(t, rnd.IntN)
		}
		for m.q.Len() > 0 {
			m.pop(t)
		}
		require.Empty(t, m.want)
	}
}

func FuzzQueue(f *testing.F) {
	f.Add([]byte{5, 5, 5, 0, 2, 1, 3, 1, 5, 0, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		m := slicedQueue{pushBias: 2}
		for len(ops) >= 3 {
			op := ops
			m.step(t, func(n int) int {
				next := int(op[0])
				op = op[1:]
				return next % n
			})
			ops = op
		}
	})
}

// slicedQueue is a queue and what it should be.
type slicedQueue struct {
	q        fifo.Queue[int]
	want     []int
	tickets  map[int]fifo.Ticket[int]
	pushBias int
	pushed   int
}

func (m *slicedQueue) step(t *testing.T, pick func(n int) int) {
	switch op := pick(6 + m.pushBias); op {
	case 0, 1:
		m.pop(t)
	case 2:
		m.remove(t, pick(m.pushed+1))
	case 3:
		id := pick(m.pushed + 1)
		at, ok := m.q.Position(m.tickets[id])
		require.Equal(t, slices.Index(m.want, id)+1, at)
		require.Equal(t, at > 0, ok)
	default:
		if m.tickets == nil {
			m.tickets = map[int]fifo.Ticket[int]{}
		}
		m.tickets[m.pushed] = m.q.Push(m.pushed)
		m.want = append(m.want, m.pushed)
		m.pushed++
	}
	require.Equal(t, len(m.want), m.q.Len())
}

func (m *slicedQueue) pop(t *testing.T) {
	v, ok := m.q.Pop()
	require.Equal(t, len(m.want) > 0, ok)
	if ok {
		require.Equal(t, m.want[0], v)
		m.want = m.want[1:]
	}
}

func (m *slicedQueue) remove(t *testing.T, id int) {
	i := slices.Index(m.want, id)
	require.Equal(t, i >= 0, m.q.Remove(m.tickets[id]))
	if i >= 0 {
		m.want = slices.Delete(m.want, i, i+1)
	}
}

func TestQueuedEntryIsSmall(t *testing.T) {
	const n = 1_000_000
	var q fifo.Queue[any]
	before := heap()
	for range n {
		q.Push(nil)
	}
	each := float64(heap()-before) / n
	t.Logf("%.1f bytes per queued 16-byte value", each)
	require.Less(t, each, 24.0)
	runtime.KeepAlive(&q)
}

// What left the queue leaves memory too, even when the last one stays.
func TestMemoryFollowsWhatIsQueued(t *testing.T) {
	const n = 1_000_000
	var q fifo.Queue[any]
	before := heap()
	tickets := make([]fifo.Ticket[any], n)
	for i := range tickets {
		tickets[i] = q.Push(i)
	}
	last := tickets[n-1]
	for _, i := range rand.Perm(n - 1) {
		q.Remove(tickets[i])
	}
	tickets = nil
	require.Less(t, int64(heap()-before), int64(128<<10))
	at, ok := q.Position(last)
	require.True(t, ok)
	require.Equal(t, 1, at)
}

// A value that left can be collected although a stale ticket is kept.
func TestStaleTicketKeepsNoValue(t *testing.T) {
	var q fifo.Queue[*[64]byte]
	gone := make(chan struct{})
	v := new([64]byte)
	runtime.AddCleanup(v, func(c chan struct{}) { close(c) }, gone)
	ticket := q.Push(v)
	q.Pop()
	v = nil
	for range 100 {
		runtime.GC()
		select {
		case <-gone:
			require.False(t, q.Remove(ticket))
			return
		default:
			runtime.Gosched()
		}
	}
	t.Fatal("the value is still held")
}

func TestSteadyTrafficDoesNotAllocate(t *testing.T) {
	var q fifo.Queue[any]
	turn := func() {
		q.Push(nil)
		q.Pop()
	}
	for range 10_000 {
		turn()
	}
	require.Zero(t, testing.AllocsPerRun(10_000, turn))
}

func BenchmarkPushPop(b *testing.B) {
	var q fifo.Queue[any]
	b.ReportAllocs()
	for b.Loop() {
		q.Push(nil)
		q.Pop()
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func testSeed(t *testing.T) uint64 {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("SUBAGENT_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("SUBAGENT_TEST_SEED=%d", seed)
	return seed
}
