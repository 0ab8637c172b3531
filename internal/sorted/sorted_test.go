package sorted_test

import (
	"cmp"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent/internal/sorted"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lengths stand around the borders of chunks.
var lengths = []int{0, 1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257, 3000}

func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	if s := os.Getenv("SUBAGENT_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SUBAGENT_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

// evens returns 0, 2, 4 …: odd numbers are for cursors that are no value.
func evens(n int) []int {
	values := make([]int, n)
	for i := range values {
		values[i] = 2 * i
	}
	return values
}

// self is the key of a number.
func self(v int) int { return v }

func listOf(values ...int) *sorted.List[int, int] {
	l := sorted.New(self, cmp.Compare[int])
	for _, v := range values {
		l.Insert(v)
	}
	return l
}

// requireList checks everything that can be seen of l.
func requireList(t *testing.T, want []int, l *sorted.List[int, int]) {
	t.Helper()
	require.Equal(t, len(want), l.Len())
	first, ok := l.First()
	require.Equal(t, len(want) > 0, ok)
	if ok {
		require.Equal(t, want[0], first)
	}
	requireValues(t, want, slices.Collect(l.Ascend(nil)))
	back := slices.Collect(l.Descend(nil))
	slices.Reverse(back)
	requireValues(t, want, back)
}

func requireValues(t *testing.T, want, got []int) {
	t.Helper()
	if !slices.Equal(want, got) {
		require.Equal(t, want, got)
	}
}

func TestInsertInAnyOrder(t *testing.T) {
	random := seeded(t)
	for _, n := range lengths {
		values := evens(n)
		requireList(t, values, listOf(values...))

		back := slices.Clone(values)
		slices.Reverse(back)
		requireList(t, values, listOf(back...))

		mixed := slices.Clone(values)
		random.Shuffle(n, func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		requireList(t, values, listOf(mixed...))
	}
}

func TestInsertRefusesEqualValues(t *testing.T) {
	for _, n := range lengths {
		l := listOf(evens(n)...)
		for _, v := range evens(n) {
			require.False(t, l.Insert(v))
		}
		requireList(t, evens(n), l)
	}
}

func TestDelete(t *testing.T) {
	random := seeded(t)
	for _, n := range lengths {
		l, left := listOf(evens(n)...), evens(n)
		require.False(t, l.Delete(-1))
		require.False(t, l.Delete(1))
		require.False(t, l.Delete(2*n))
		for range n {
			i := random.IntN(len(left))
			require.True(t, l.Delete(left[i]))
			require.False(t, l.Delete(left[i]))
			left = slices.Delete(left, i, i+1)
			if len(left)%97 == 0 {
				requireList(t, left, l)
			}
		}
		requireList(t, nil, l)
		require.True(t, l.Insert(5), "an emptied list is as good as new")
		requireList(t, []int{5}, l)
	}
}

func TestCursors(t *testing.T) {
	for _, n := range lengths {
		l, values := listOf(evens(n)...), evens(n)
		for cursor := -1; cursor <= 2*n; cursor += 1 + n/40 {
			after, _ := slices.BinarySearch(values, cursor+1)
			up := slices.Collect(l.Ascend(func(v int) bool { return v > cursor }))
			requireValues(t, values[after:], up)

			before, _ := slices.BinarySearch(values, cursor)
			down := slices.Collect(l.Descend(func(v int) bool { return v < cursor }))
			slices.Reverse(down)
			requireValues(t, values[:before], down)
		}
	}
}

func TestIterationsStop(t *testing.T) {
	l := listOf(evens(1500)...)
	for _, stop := range []int{1, 127, 128, 129, 256} {
		up, down := 0, 0
		for range l.Ascend(nil) {
			if up++; up == stop {
				break
			}
		}
		for range l.Descend(nil) {
			if down++; down == stop {
				break
			}
		}
		require.Equal(t, []int{stop, stop}, []int{up, down})
	}
}

// TestAgainstModel does at random what a plain sorted slice does, too.
func TestAgainstModel(t *testing.T) {
	random := seeded(t)
	l, model := listOf(), []int{}
	for step := range 30_000 {
		v := random.IntN(4000)
		i, found := slices.BinarySearch(model, v)
		grow := step/5000%2 == 0 // it grows and shrinks in turn
		if random.IntN(10) < 7 == grow {
			require.Equal(t, !found, l.Insert(v))
			if !found {
				model = slices.Insert(model, i, v)
			}
		} else {
			require.Equal(t, found, l.Delete(v))
			if found {
				model = slices.Delete(model, i, i+1)
			}
		}
		if step%500 == 0 {
			requireList(t, model, l)
		}
	}
	requireList(t, model, l)
}

// TestCostInOrder: values that arrive in order fill chunks to the brim, and
// few that are left after many deletions do not pin what the many took.
func TestCostInOrder(t *testing.T) {
	const n = 50_000
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	l := listOf()
	for v := range n {
		l.Insert(v)
	}
	require.Less(t, heap()-before, int64(n*9), "bytes for %d values of 8 bytes", n)
	for v := range n {
		if v%1000 != 0 {
			l.Delete(v)
		}
	}
	require.Less(t, heap()-before, int64(n), "bytes for what is left, an eighth of what there was")
	require.Equal(t, n/1000, l.Len())
}

func TestIndex(t *testing.T) {
	x := sorted.NewIndex[string](self, cmp.Compare[int])
	require.Nil(t, x.List("a"))
	x.Insert("a", 2)
	x.Insert("a", 1)
	x.Insert("b", 3)
	x.Insert("", 4)
	x.Delete("", 4)
	x.Delete("c", 4)
	require.Equal(t, 2, x.Len())
	requireList(t, []int{1, 2}, x.List("a"))
	x.Delete("a", 2)
	requireList(t, []int{1}, x.List("a"))
	x.Delete("a", 1)
	require.Nil(t, x.List("a"), "an empty list is dropped")
	require.Equal(t, 1, x.Len())
	require.Nil(t, x.List(""))
}

func BenchmarkInsertInOrder(b *testing.B) {
	l := listOf()
	for v := range b.N {
		l.Insert(v)
	}
}

// BenchmarkSlide is the life of a bounded list: one comes, the oldest goes.
func BenchmarkSlide(b *testing.B) {
	const width = 100_000
	l := listOf(evens(width)...)
	for i := range b.N {
		l.Insert(2 * (width + i))
		l.Delete(2 * i)
	}
}
