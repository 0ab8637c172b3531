package agenttool

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/runes"
)

func TestCutTo(t *testing.T) {
	long := strings.Repeat("é", 100)
	for n := len(cutNote(200, 200)); n < 200; n++ {
		got := cutTo(long, n)
		require.LessOrEqual(t, len(got), n)
		kept := strings.SplitN(got, "\n", 2)[0]
		require.True(t, strings.HasPrefix(long, kept))
		require.Equal(t, kept+cutNote(200-len(kept), 200), got)
	}
	require.Equal(t, long, cutTo(long, 200))
	require.Equal(t, strings.Repeat("é", 40)+"\n[cut: 120 of 200 bytes left out]", cutTo(long, 113))
}

// However small the shares are, what was cut is said, with the size that it
// had.
func TestWhatFitCutsIsSaid(t *testing.T) {
	long := strings.Repeat("é", 500)
	parts := []part{fixed("head\n"), cuttable(long), fixed("\nmiddle\n"), cuttable("short"), cuttable(long), fixed("\ntail")}
	size := len(join(parts, func(s string) string { return s }))
	notes := make(map[string]int)
	for limit := len(cutNote(size, size)); limit < size; limit++ {
		got := fit(parts, limit)
		require.LessOrEqual(t, len(got), limit)
		switch {
		case strings.Contains(got, " of 1000 bytes left out]"):
			notes["each"]++
		case strings.Contains(got, " of 2005 bytes of all texts left out]"):
			notes["all"]++
			left := 2005 - strings.Count(got, "é")*2 - len("short")
			if !strings.Contains(got, "short") {
				continue
			}
			require.Contains(t, got, cutTextsNote(left, 2005)+"\ntail")
		default:
			notes["whole"]++
			kept, _, _ := strings.Cut(got, "\n[cut: ")
			require.Equal(t, kept+cutNote(size-len(kept), size), got)
		}
	}
	require.Len(t, notes, 3, "%v", notes)
}

func TestFitMakesTextValid(t *testing.T) {
	for limit := range 200 {
		got := fit([]part{fixed("a\xff\x00"), cuttable(strings.Repeat("\xffb\x00", 30)), fixed("\xfe")}, limit)
		require.LessOrEqual(t, len(got), limit)
		require.Equal(t, runes.Clean(got), got)
	}
	require.Equal(t, "a\ufffd\ufffd", fit([]part{cuttable("a\xff"), fixed("\x00")}, 100))
}

func TestShareOf(t *testing.T) {
	for _, c := range []struct {
		room    int
		lengths []int
		share   int
	}{
		{10, nil, math.MaxInt},
		{10, []int{4, 3}, math.MaxInt},
		{10, []int{4, 6}, math.MaxInt},
		{10, []int{20}, 10},
		{10, []int{20, 20}, 5},
		{10, []int{20, 2}, 8},
		{11, []int{3, 20, 2, 20}, 3},
		{-5, []int{1}, 0},
		{-5, []int{0}, math.MaxInt},
	} {
		require.Equal(t, c.share, shareOf(c.room, slices.Clone(c.lengths)), "%+v", c)
	}
}

// Whatever the parts are, the answer fits, is valid text, and is whole if it
// can be.
func FuzzFit(f *testing.F) {
	f.Add("head", "text", "more", "tail", 10)
	f.Add("head", "text", "more", "tail", 16)
	f.Add("head", "text", "m", "tail", 13)
	f.Add("", strings.Repeat("é", 100), "x", "", 60)
	f.Add("frame", "", "", "frame", 3)
	f.Fuzz(func(t *testing.T, head, a, b, tail string, limit int) {
		if limit < 0 || limit > 1<<20 {
			return
		}
		got := fit([]part{fixed(head), cuttable(a), cuttable(b), fixed(tail)}, limit)
		require.LessOrEqual(t, len(got), limit)
		require.Equal(t, runes.Clean(got), got)
		head, a, b, tail = runes.Clean(head), runes.Clean(a), runes.Clean(b), runes.Clean(tail)
		texts := len(a) + len(b)
		if whole := head + a + b + tail; len(whole) <= limit {
			require.Equal(t, whole, got)
		} else if note := cutNote(len(whole), len(whole)); len(note) <= limit {
			require.Contains(t, got, "\n[cut: ")
		}
		if texts > 0 && len(head)+len(tail)+len(cutTextsNote(texts, texts)) <= limit {
			require.True(t, strings.HasPrefix(got, head))
			require.True(t, strings.HasSuffix(got, tail), "the frame is not cut")
		}
	})
}

// A foreground task that came to wait for its own caller goes on: the answer
// has its id.
func TestFinishedOfAWaitCycle(t *testing.T) {
	s := &Toolset{maxText: defaultMaxText}
	task := subagent.Task{ID: uuid.New(), Status: subagent.StatusRunning}
	a, err := s.finished(task, subagent.ErrWaitCycle)
	require.NoError(t, err)
	require.True(t, a.IsError)
	require.True(t, strings.HasPrefix(a.Text, "[task error] "))
	require.Contains(t, a.Text, "goes on in the background")
	require.Contains(t, a.Text, "task_id="+task.ID.String()+" status=running")
	require.Equal(t, task.ID, a.TaskID)
	require.Nil(t, a.Usage)
}
