package gitstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
)

// Fifty goroutines change fifty tasks of one session twenty times each: no change
// is lost, neither for readers nor in the file. A second handle is refused.
func TestB193_ConcurrentChangesAreAllKept(t *testing.T) {
	dir := memoryDir(t)
	s := openStore(t, dir, gitstore.Options{})
	tasks := make([]subagent.Task, 50)
	for i := range tasks {
		tasks[i] = newTask("a")
	}
	create(t, s, tasks...)
	var all sync.WaitGroup
	for i := range tasks {
		all.Go(func() {
			for range 20 {
				_, err := s.Update(t.Context(), tasks[i].ID, func(task *subagent.Task) error {
					task.Progress.ToolUses++
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	_, err := gitstore.Open(dir, gitstore.Options{})
	require.ErrorIs(t, err, gitstore.ErrLocked)
	require.ErrorContains(t, err, fmt.Sprint(os.Getpid()), "who has it")
	kept := func(s subagent.Store) {
		for _, task := range tasks {
			got := get(t, s, task.ID)
			require.Equal(t, 20, got.Progress.ToolUses)
			require.EqualValues(t, 21, got.Version)
		}
	}
	kept(s)
	require.NoError(t, s.Close())
	kept(openStore(t, dir, gitstore.Options{}))
}

// oddFile writes a session of ten records, as a tool or a newer version may have
// written them: the first three are odd.
func oddFile(t *testing.T, dir string, odd ...func(record map[string]any)) (ids []uuid.UUID) {
	t.Helper()
	file := make(map[string]map[string]any)
	for i := range 10 {
		data, err := json.Marshal(newTask("a"))
		require.NoError(t, err)
		var record map[string]any
		require.NoError(t, json.Unmarshal(data, &record))
		record["status"], record["completed_at"] = "completed", record["created_at"]
		if i < len(odd) {
			odd[i](record)
		}
		id := record["task_id"].(string)
		file[id] = record
		ids = append(ids, uuid.MustParse(id))
	}
	data, err := json.Marshal(file)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "a"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "tasks.json"), data, 0o644))
	return ids
}

// One odd record is no obstacle to the others: with a status that is not known,
// with none, without other fields, and with a field that is not known.
func TestB194_OddRecordsAmongOthers(t *testing.T) {
	dir, log := tempDir(t), newSaid()
	ids := oddFile(t, dir,
		func(r map[string]any) { r["status"] = "paused" },
		func(r map[string]any) { delete(r, "status") },
		func(r map[string]any) { delete(r, "subject"); delete(r, "attempt"); delete(r, "background") },
		func(r map[string]any) { r["mood"] = "good" })
	s := openStore(t, dir, gitstore.Options{Logger: slogTo(log)})
	r, err := subagent.New(t.Context(), subagent.Config{Store: s})
	require.NoError(t, err)
	list, err := r.List(t.Context(), subagent.Filter{})
	require.NoError(t, err)
	require.Len(t, list, 10)
	done, err := r.List(t.Context(), subagent.Filter{Statuses: []subagent.Status{subagent.StatusCompleted}})
	require.NoError(t, err)
	require.Len(t, done, 8)
	live, err := r.List(t.Context(), subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}})
	require.NoError(t, err)
	require.Empty(t, live)
	require.NoError(t, r.Shutdown(t.Context()))
	for _, id := range ids[:2] {
		require.Contains(t, log.all(), id.String(), "it is reported")
		require.EqualValues(t, 1, get(t, s, id).Version, "and left alone")
	}
}

// Text that is none reaches the file, the history and the readers as valid text.
func TestB200_TextThatIsNoneInTheFile(t *testing.T) {
	dir := tempDir(t)
	s := openStore(t, dir, gitstore.Options{})
	for _, bad := range []string{"a\x00b", "\xff half \xe4\xb8", `\ud800 \u0000`, strings.Repeat("\x00", 3000)} {
		r, err := subagent.New(t.Context(), subagent.Config{Store: s})
		require.NoError(t, err)
		task, err := r.Run(t.Context(), subagent.Request{Description: bad, ParentSessionID: "a", Metadata: map[string]string{"k": bad},
			Func: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
				run.Progress(bad)
				return subagent.Result{Text: bad}, errors.New(bad)
			}})
		require.NoError(t, err)
		require.Equal(t, subagent.ReasonError, task.Reason)
		require.NoError(t, r.Shutdown(t.Context()))
		row := get(t, s, task.ID)
		require.Equal(t, task.ResultText, row.ResultText)
		require.Equal(t, strings.ToValidUTF8(strings.ReplaceAll(task.ResultText, "\x00", "!"), "!"), row.ResultText)
	}
	require.NoError(t, s.Close())
	requireReconciled(t, filepath.Join(dir, "a"))
}

// A restart finds the tokens of a task that has ended, once.
func TestB172_TokensSurviveARestart(t *testing.T) {
	dir := tempDir(t)
	var id uuid.UUID
	for life := range 3 {
		s := openStore(t, dir, gitstore.Options{})
		r, err := subagent.New(t.Context(), subagent.Config{Store: s})
		require.NoError(t, err)
		if life == 0 {
			task, err := r.Run(t.Context(), subagent.Request{Description: "x", ParentSessionID: "a",
				Func: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
					run.ReportUsage("m", subagent.Usage{InputTokens: 60, OutputTokens: 10, TotalTokens: 70})
					return subagent.Result{}, nil
				}})
			require.NoError(t, err)
			id = task.ID
		}
		used, err := r.UsageTree(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, subagent.Usage{InputTokens: 60, OutputTokens: 10, TotalTokens: 70, Calls: 1}, used)
		require.NoError(t, r.Shutdown(t.Context()))
		require.NoError(t, s.Close())
	}
}
