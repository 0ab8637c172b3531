package subagent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// A Func hands over the text of its last message, as loops do; what it said
// before went to Write. If the last message is empty, because the answer came
// together with the last tool call, the answer is what was said. What a tool
// confirms is never taken for it.
func TestB089_B090_TheAnswerIsWhatWasSaid(t *testing.T) {
	for _, c := range []struct {
		name, want string
		transcript []string // "tool: …" is a call and its confirmation
	}{
		{"empty last message", "The answer.", []string{"The answer.", "tool: saved", ""}},
		{"ends with a call", "The answer.", []string{"The answer.", "tool: saved"}},
		{"ends with calls", "The answer.", []string{"The answer.", "tool: saved", "tool: saved"}},
		{"a last message", "The answer.", []string{"Let me see.", "tool: found", "The answer."}},
		{"said bit by bit", "The answer.", []string{"The ", "tool: found", "answer.", "tool: saved", ""}},
		{"nothing but calls", "", []string{"tool: saved", "tool: saved", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				id := r.spawn("x", withFunc(func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
					last := ""
					for _, turn := range c.transcript {
						last = ""
						if tool, call := strings.CutPrefix(turn, "tool: "); call {
							run.ToolUse(tool)
							run.Progress(tool)
							continue
						}
						_, _ = run.Write([]byte(turn))
						last = turn
					}
					return subagent.Result{Text: last}, nil
				})).ID
				end := r.awaited(id)
				require.Equal(t, subagent.StatusCompleted, end.Status)
				require.Equal(t, c.want, end.ResultText)
				r.settled(id)
			})
		})
	}
}

// Text that comes after the end is no result, whatever the end.
func TestB095_TextAfterTheEnd(t *testing.T) {
	for _, status := range endStatuses {
		t.Run(string(status), func(t *testing.T) {
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				id, run := r.endedIn(status)
				end := r.settled(id)
				_, events, _ := r.heard(id)
				n, err := run.Write([]byte("and another thing"))
				require.NoError(t, err, "it serves as a writer to the last")
				require.Equal(t, 17, n)
				time.Sleep(time.Minute)
				require.Equal(t, end, r.settled(id))
				require.Equal(t, end, run.Task())
				_, now, _ := r.heard(id)
				require.Equal(t, events, now)
			})
		})
	}
}
