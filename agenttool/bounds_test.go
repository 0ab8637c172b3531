package agenttool_test

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

var cutNote = regexp.MustCompile(`\n\[cut: (\d+) of (\d+) bytes left out\]`)

// A long result is cut between runes, the answer says by how much, and its end,
// with the id, is not cut.
func TestALongResultIsCutAndThatIsSaid(t *testing.T) {
	for _, limit := range []int{0, 500, 501, 502, 503, 40000} {
		inHostOf(t, subagent.Config{}, agenttool.Options{MaxText: limit}, func(t *testing.T, h *host) {
			if limit == 0 {
				limit = 32000
			}
			result := strings.Repeat("日本語", 5000) // 45 000 bytes
			id, _ := h.runs("work")
			h.finish(id, result)
			a := h.call("task_output", args{"task_id": id})
			require.LessOrEqual(t, len(a.Text), limit)
			require.Greater(t, len(a.Text), limit-16, "it uses its room")
			require.True(t, utf8.ValidString(a.Text))
			require.True(t, strings.HasSuffix(a.Text, fmt.Sprintf("\n\ntask_id=%s status=completed", id)))
			note := cutNote.FindStringSubmatchIndex(a.Text)
			require.NotNil(t, note)
			out, err := strconv.Atoi(a.Text[note[2]:note[3]])
			require.NoError(t, err)
			require.Equal(t, "45000", a.Text[note[4]:note[5]])
			require.Equal(t, result[:45000-out], a.Text[:note[0]])
		})
	}
}

// Just what fits is whole.
func TestAResultThatFitsIsWhole(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 3}, agenttool.Options{}, func(t *testing.T, h *host) {
		for _, over := range []int{0, 1} {
			id, _ := h.runs("work")
			frame := len(fmt.Sprintf("\n\ntask_id=%s status=completed", id))
			h.finish(id, strings.Repeat("x", 32000-frame+over))
			a := h.call("task_output", args{"task_id": id})
			require.LessOrEqual(t, len(a.Text), 32000)
			require.Equal(t, over == 0, len(a.Text) == 32000)
			require.Equal(t, over == 1, cutNote.MatchString(a.Text))
		}
	})
}

// Several results share the room: short ones are whole, and the long ones get
// what is left in equal shares.
func TestSeveralResultsShareTheRoom(t *testing.T) {
	inPlan(t, 8, func(t *testing.T, h *host, ids []uuid.UUID) {
		for i, id := range ids {
			text := strings.Repeat(string(rune('a'+i)), 50_000)
			if i == 2 {
				text = "short"
			}
			if i == 5 {
				h.gate.Release(id, subagent.Result{Text: text}, errors.New(strings.Repeat("why ", 10)))
				continue
			}
			h.gate.Release(id, subagent.Result{Text: text}, nil)
		}
		a := h.call("await_tasks", args{"task_ids": ids})
		require.LessOrEqual(t, len(a.Text), 32000)
		require.Greater(t, len(a.Text), 32000-64)
		require.Contains(t, a.Text, "\nshort\n")
		require.Contains(t, a.Text, "[task error] "+strings.Repeat("why ", 10)+"\n")
		require.Len(t, cutNote.FindAllString(a.Text, -1), 7)
		for i, id := range ids {
			require.Contains(t, a.Text, "task_id="+id.String())
			if i != 2 {
				require.InDelta(t, strings.Count(a.Text, strings.Repeat(string(rune('a'+i)), 100)), 44, 1, "%d", i)
			}
		}
	})
}

// Every answer obeys the bound, however small.
func TestEveryAnswerIsBounded(t *testing.T) {
	for _, limit := range []int{1, 2, 20, 100, 300} {
		inHostOf(t, subagent.Config{Workers: 9}, agenttool.Options{MaxText: limit}, func(t *testing.T, h *host) {
			id, run := h.runs(strings.Repeat("é", 300))
			run.Progress(strings.Repeat("é", 900))
			ended, _ := h.runs("work")
			h.gate.Release(ended, subagent.Result{Text: strings.Repeat("é", 900)}, errors.New(strings.Repeat("é", 900)))
			top, ctx := h.runsInside(t.Context())
			for range 3 {
				h.runsInside(ctx)
			}
			for _, a := range []agenttool.Answer{
				h.call("task_output", args{"task_id": ended}),
				h.call("task_output", args{"task_id": id, "block": false}),
				h.call("await_tasks", args{"task_ids": []any{id, ended}, "timeout": 1}),
				h.call("list_tasks", args{}),
				h.call("list_tasks", args{"limit": 1}),
				h.call("task_output", args{"task_id": "nope"}),
				h.call("nothing", args{}),
				h.call("agent", args{"prompt": "p", "description": "d", "run_in_background": true}),
				h.call("task_stop", args{"task_id": top, "reason": strings.Repeat("é", 900)}),
			} {
				require.LessOrEqual(t, len(a.Text), limit)
				require.True(t, utf8.ValidString(a.Text))
				if limit > 1 { // else not even an é fits
					require.NotEmpty(t, a.Text)
				}
			}
		})
	}
}

// A record whose own text was cut says so.
func TestAResultThatTheRecordDidNotKeepWhole(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id, _ := h.runs("work")
		h.finish(id, strings.Repeat("x", 16<<20+1))
		a := h.call("task_output", args{"task_id": id})
		require.True(t, strings.HasSuffix(a.Text, " status=completed result_truncated=true"), a.Text[len(a.Text)-100:])
		require.Contains(t, a.Text, " of 16777216 bytes left out]")
		require.Less(t, len(a.Data), 2000)
	})
}
