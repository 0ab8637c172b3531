package agenttool_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

// Answers of at most 1 to 64 bytes about texts of long and joined runes are valid
// and within the bound.
func TestB202_AnswersOfAFewBytes(t *testing.T) {
	for _, text := range []string{"日本語の長い文章", "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪", "e\u0301a\u0308o\u0302", "\xff\x00\xe4\xb8"} {
		inHostOf(t, subagent.Config{Workers: 2}, agenttool.Options{}, func(t *testing.T, h *host) {
			id, _ := h.runs(text)
			live, run := h.runs(text)
			run.Progress(strings.Repeat(text, 50))
			h.finish(id, strings.Repeat(text, 50))
			for limit := 1; limit <= 64; limit++ {
				h.tools = agenttool.New(h.Runner, agenttool.Options{MaxText: limit, PlanTools: true})
				for _, a := range []agenttool.Answer{
					h.call("task_output", args{"task_id": id}),
					h.call("task_output", args{"task_id": live, "block": false}),
					h.call("await_tasks", args{"task_ids": []uuid.UUID{id, live}, "timeout": 0}),
					h.call("list_tasks", args{}),
					h.call("task_output", args{"task_id": text}),
				} {
					require.True(t, utf8.ValidString(a.Text), "%q", a.Text)
					require.NotContains(t, a.Text, "\x00")
					require.LessOrEqual(t, len(a.Text), limit)
				}
			}
		})
	}
}

// Eight results of 50 KB share one answer, and each says how much of it is
// missing; read alone each has the whole room.
func TestB206_EightLongResultsInOneAnswer(t *testing.T) {
	inPlan(t, 8, func(t *testing.T, h *host, ids []uuid.UUID) {
		for i, id := range ids {
			h.finish(id, strings.Repeat(string(rune('a'+i)), 50_000))
		}
		a := h.call("await_tasks", args{"task_ids": ids})
		require.LessOrEqual(t, len(a.Text), 32000)
		require.Greater(t, len(a.Text), 31_000)
		notes := cutNote.FindAllStringSubmatch(a.Text, -1)
		require.Len(t, notes, 8)
		for i, id := range ids {
			require.Contains(t, a.Text, "task_id="+id.String())
			kept := strings.Count(a.Text, strings.Repeat(string(rune('a'+i)), 10)) * 10
			require.InDelta(t, 31_000/8, kept, 200, "fair shares")
			require.Equal(t, "50000", notes[i][2])
			require.Less(t, len(a.Data), 10_000)
			alone := h.call("task_output", args{"task_id": id})
			require.Greater(t, len(alone.Text), 31_900, fmt.Sprint(i))
			require.LessOrEqual(t, len(alone.Text), 32_000)
		}
	})
}

// Lists and answers about results of megabytes are as small as any.
func TestB205_AnswersAboutMegabytes(t *testing.T) {
	inPlan(t, 2, func(t *testing.T, h *host, ids []uuid.UUID) {
		long := strings.Repeat("0123456789", 2_000_000)
		for _, id := range ids {
			h.finish(id, long)
		}
		for _, a := range []agenttool.Answer{
			h.call("list_tasks", args{}), h.call("await_tasks", args{"task_ids": ids}), h.call("task_output", args{"task_id": ids[0]}),
			h.call("task_stop", args{"task_id": ids[0], "reason": long[:1<<20]}),
		} {
			require.LessOrEqual(t, len(a.Text), 32000)
			require.Less(t, len(a.Data), 10_000)
		}
	})
}
