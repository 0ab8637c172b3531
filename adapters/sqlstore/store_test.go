package sqlstore_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
)

// TestUnknownKeysAndColumnsSurvive rewrites a row that a newer version has
// written: with keys in its JSON, at every depth, and a column.
func TestUnknownKeysAndColumnsSurvive(t *testing.T) {
	path := file(t)
	s := open(t, path)
	task := newTask()
	task.Progress.ToolUses, task.Subject = 1, `<"quoted" & äöü>`
	require.NoError(t, s.Create(t.Context(), task))
	raw := rawDB(t, path)
	for _, statement := range []string{
		`ALTER TABLE tasks ADD COLUMN priority INTEGER DEFAULT 3`,
		`UPDATE tasks SET priority = 7, task = json_set(task, '$.priority', json('{"level":"<high>","n":[1,2.50]}'),
			'$.usage.video_tokens', 12, '$.progress.percent', 40, '$.retries', json('null'))`,
	} {
		_, err := raw.Exec(statement)
		require.NoError(t, err)
	}
	s2 := open(t, path) // s has the row in its cache as it was
	for _, s := range []*sqlstore.Store{s2, s2, s} {
		_, err := s.Update(t.Context(), task.ID, func(t *subagent.Task) error {
			t.Progress = subagent.Progress{ToolUses: t.Progress.ToolUses + 1}
			return nil
		})
		require.NoError(t, err)
	}
	end, err := s2.Update(t.Context(), task.ID, func(t *subagent.Task) error {
		t.Status, t.CompletedAt, t.Progress = subagent.StatusCancelled, t.CreatedAt, subagent.Progress{}
		return nil
	})
	require.NoError(t, err)
	got, err := s.Get(t.Context(), task.ID)
	require.NoError(t, err)
	require.Equal(t, end, got)
	require.Equal(t, task.Subject, got.Subject)
	var priority, version int
	var text string
	require.NoError(t, raw.QueryRow(`SELECT priority, version, task FROM tasks`).Scan(&priority, &version, &text))
	require.Equal(t, []int{7, 5}, []int{priority, version})
	var keys struct {
		Priority json.RawMessage
		Usage    map[string]int
		Progress map[string]int
	}
	require.NoError(t, json.Unmarshal([]byte(text), &keys))
	require.Equal(t, `{"level":"<high>","n":[1,2.50]}`, string(keys.Priority), "byte for byte")
	require.Equal(t, map[string]int{"video_tokens": 12}, keys.Usage)
	require.Equal(t, map[string]int{"percent": 40}, keys.Progress)
	require.Contains(t, text, `"retries":null`)
}

// TestUnknownStatus has a row that a newer version has written.
func TestUnknownStatus(t *testing.T) {
	path := file(t)
	s := open(t, path)
	task := newTask()
	require.NoError(t, s.Create(t.Context(), task))
	_, err := rawDB(t, path).Exec(`UPDATE tasks SET version = version + 1, status = 'paused', task = json_set(task, '$.status', 'paused')`)
	require.NoError(t, err)

	var log bytes.Buffer
	s2, err := sqlstore.OpenSQLite(path, sqlstore.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	defer s2.Close()
	require.Contains(t, log.String(), "paused")
	require.Contains(t, log.String(), "tasks=1")
	r := runner(t, subagent.Config{Store: s2})
	got, err := r.Get(t.Context(), task.ID)
	require.NoError(t, err)
	require.Equal(t, subagent.Status("paused"), got.Status)
	require.EqualValues(t, 2, got.Version, "recovered, though it may be alive")
	live, err := list(t, s2, subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}})
	require.NoError(t, err)
	require.Empty(t, live)
	_, err = s.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.Status = subagent.StatusErrored; return nil })
	require.ErrorIs(t, err, subagent.ErrInvalidTransition)
	require.ErrorIs(t, s.Delete(t.Context(), task.ID), subagent.ErrNotTerminal)
}
