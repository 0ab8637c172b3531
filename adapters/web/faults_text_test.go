package web_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
)

// Output that splits runes, and bytes that are none, leave the connection as it
// is: each frame is valid text, and what was whole arrives whole.
func TestB203_FramesAreValidText(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	s := g.dial("/ws")
	s.call("subscribe", nil)
	const whole = "日本語 👩‍👩‍👧‍👦 é"
	for _, text := range []string{whole, "broken \xff\xfe\x00 \xe4\xb8"} {
		task := g.spawn(subagent.Request{Description: "writes " + text})
		run := g.gate.WaitEntered(t, task.ID)
		for i := range len(text) {
			_, _ = run.Write([]byte(text[i : i+1]))
			run.Progress(text[:i+1])
		}
		g.finish(task, "")
		end := s.status(task.ID.String(), subagent.StatusCompleted)["task"].(object)
		require.Equal(t, strings.Contains(text, whole), end["result_text"] == whole)
		got := s.call("get_task", object{"task_id": task.ID.String()})
		require.Nil(t, got["error"], "the connection is as it was")
	}
	require.True(t, utf8.Valid(s.raw.Bytes()))
	require.NotContains(t, s.raw.String(), `\u0000`)
}

// Results of 20 MB travel as previews, and a task that is asked for in full comes
// within the bound of a frame.
func TestB205_FramesAboutMegabytes(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	s := g.dial("/ws") // which reads no frame of more than 1 MiB
	s.call("subscribe", nil)
	long := strings.Repeat("0123456789", 2_000_000)
	for range 3 {
		task := g.spawn(subagent.Request{})
		g.gate.WaitEntered(t, task.ID)
		g.finish(task, long)
		end := s.status(task.ID.String(), subagent.StatusCompleted)["task"].(object)
		require.LessOrEqual(t, len(end["result_text"].(string)), 2000)
		require.Nil(t, s.call("get_task", object{"task_id": task.ID.String()})["error"])
	}
	require.Nil(t, s.call("list_tasks", nil)["error"])
}
