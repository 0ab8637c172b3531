package agenttool

import (
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

func TestCutTo(t *testing.T) {
	long := strings.Repeat("é", 100)
	for n := range 200 {
		got := cutTo(long, n)
		require.LessOrEqual(t, len(got), n)
		require.True(t, utf8.ValidString(got))
		require.True(t, strings.HasPrefix(long, strings.SplitN(got, "\n", 2)[0]))
		if strings.Contains(got, "[cut: ") {
			require.Contains(t, got, " of 200 bytes left out]")
		}
	}
	require.Equal(t, strings.Repeat("é", 40)+"\n[cut: 120 of 200 bytes left out]", cutTo(long, 113))
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
		if limit < 0 || limit > 1<<20 || !utf8.ValidString(head+a+b+tail) || !utf8.ValidString(head) || !utf8.ValidString(a) || !utf8.ValidString(b) || !utf8.ValidString(tail) {
			return
		}
		got := fit([]part{fixed(head), cuttable(a), cuttable(b), fixed(tail)}, limit)
		require.LessOrEqual(t, len(got), limit)
		require.True(t, utf8.ValidString(got))
		if whole := head + a + b + tail; len(whole) <= limit {
			require.Equal(t, whole, got)
		} else if len(head)+len(tail) <= limit {
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
