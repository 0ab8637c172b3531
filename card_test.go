package subagent_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

func TestCardJSON(t *testing.T) {
	goldenJSON(t, "card_full.json", fullTask().Card())
	goldenJSON(t, "card_minimal.json", minimalTask().Card())
	for _, task := range []subagent.Task{fullTask(), minimalTask(), {}} {
		want := task.Card()
		for _, v := range []any{want, &want} {
			data, err := json.Marshal(v)
			require.NoError(t, err)
			var got subagent.Card
			require.NoError(t, json.Unmarshal(data, &got))
			require.Equal(t, want, got)
		}
	}
}

func TestCardJSONRefused(t *testing.T) {
	for _, data := range []string{
		`[]`, `"attach"`, `{}`,
		`{"function":"detach","extra":{"attach":{"task_id":"0195a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"}}}`,
		`{"function":"attach"}`,
		`{"function":"attach","extra":{"attach":{"task_id":"call_0"}}}`,
		`{"function":"attach","content":5,"extra":{"attach":{"task_id":"0195a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"}}}`,
	} {
		before := minimalTask().Card()
		got := before
		require.Error(t, json.Unmarshal([]byte(data), &got), data)
		require.Equal(t, before, got, data)
	}
	got := subagent.Card{}
	require.ErrorContains(t, got.UnmarshalJSON([]byte(`{`)), "subagent: card")
}

func TestB228_CardContent(t *testing.T) {
	for _, c := range []struct {
		name string
		task subagent.Task
		want string
	}{
		{"pending", subagent.Task{Status: subagent.StatusPending}, "(queued)"},
		{"queued", subagent.Task{Status: subagent.StatusQueued}, "(queued)"},
		{"running", subagent.Task{Status: subagent.StatusRunning}, "(running)"},
		{"running with text", subagent.Task{Status: subagent.StatusRunning, ResultText: "so far"}, "(running)"},
		{"stopping", subagent.Task{Status: subagent.StatusRunning, Reason: subagent.ReasonUser}, "(running)"},
		{"completed", subagent.Task{Status: subagent.StatusCompleted, ResultText: "done"}, "done"},
		{"completed without text", subagent.Task{Status: subagent.StatusCompleted}, ""},
		{"errored", subagent.Task{Status: subagent.StatusErrored, Error: "boom", ResultText: "half"}, "Error: boom"},
		{"errored without text", subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonLost}, "Error: lost"},
		{"cancelled", subagent.Task{Status: subagent.StatusCancelled}, "(cancelled)"},
		{"cancelled with text", subagent.Task{Status: subagent.StatusCancelled, ResultText: "half"}, "half"},
		{"forced", subagent.Task{Status: subagent.StatusCancelled, Error: "cancel timed out, worker may be stuck"}, "(cancelled)"},
	} {
		card := c.task.Card()
		require.Equal(t, c.want, card.Content, c.name)
		require.Equal(t, "attach", card.Function, c.name)
		require.EqualValues(t, c.task.Status, card.Attach.Status, "%s: the true status", c.name)
		require.Equal(t, c.task.Status == subagent.StatusCompleted, card.Expand(), c.name)
	}
}

func TestCardAttach(t *testing.T) {
	task := fullTask()
	card := task.Card()
	require.Equal(t, task.ID, card.TaskID)
	require.Equal(t, subagent.Attach{
		TaskID: task.ID.String(), Status: "cancelled", Reason: "agent", StopReason: "turn_capped", SessionID: "chat-1", HeadID: "head-1",
		SourceCommitID: "commit-1", Label: task.Subject, Prompt: task.Description, ExternalTaskID: "call_0",
	}, card.Attach)
}

func TestB205_CardIsBounded(t *testing.T) {
	for _, status := range statuses {
		for pad := range 4 { // so that the bound falls on every byte of a rune
			text := strings.Repeat("x", pad) + strings.Repeat("👩‍🔬", 1<<16)
			card := subagent.Task{Status: status, ResultText: text, Error: text, Description: text}.Card()
			for _, s := range []string{card.Content, card.Attach.Prompt} {
				require.LessOrEqual(t, len(s), 2000)
				require.True(t, utf8.ValidString(s))
			}
			require.True(t, strings.HasPrefix(text, card.Attach.Prompt))
			require.Greater(t, len(card.Attach.Prompt), 1996)
		}
	}
	exact := strings.Repeat("x", 2000)
	require.Equal(t, exact, subagent.Task{Status: subagent.StatusCompleted, ResultText: exact}.Card().Content)
}

func TestB002_CardsAreKeyedByTheTask(t *testing.T) {
	first, second := fullTask(), fullTask()
	second.ID = uuid.New()
	require.Equal(t, first.Card().Attach.ExternalTaskID, second.Card().Attach.ExternalTaskID)
	require.NotEqual(t, first.Card().TaskID, second.Card().TaskID)
	require.Equal(t, first.Card(), first.Card(), "a card depends on its task alone")
}
