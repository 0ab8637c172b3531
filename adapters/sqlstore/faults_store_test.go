package sqlstore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
)

// Fifty goroutines change fifty tasks twenty times each, through one handle and
// through two on one file: no change is lost.
func TestB193_ConcurrentChangesAreAllKept(t *testing.T) {
	for _, handles := range []int{1, 2} {
		path := file(t)
		var stores []*sqlstore.Store
		for range handles {
			stores = append(stores, open(t, path))
		}
		tasks := make([]subagent.Task, 50)
		for i := range tasks {
			tasks[i] = newTask()
		}
		require.NoError(t, stores[0].Create(t.Context(), tasks...))
		var all sync.WaitGroup
		for i := range tasks {
			all.Go(func() {
				for n := range 20 {
					_, err := stores[n%handles].Update(t.Context(), tasks[i].ID, func(task *subagent.Task) error {
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
		for _, s := range append(stores, open(t, path)) {
			for _, task := range tasks {
				got, err := s.Get(t.Context(), task.ID)
				require.NoError(t, err)
				require.Equal(t, 20, got.Progress.ToolUses)
				require.EqualValues(t, 21, got.Version)
			}
		}
	}
}

// One odd row is no obstacle to the others: with a status that is not known,
// with none, without other fields, and with a field that is not known.
func TestB194_OddRowsAmongOthers(t *testing.T) {
	path := file(t)
	s := open(t, path)
	tasks := make([]subagent.Task, 10)
	for i := range tasks {
		tasks[i] = newTask()
		tasks[i].Status, tasks[i].CompletedAt = subagent.StatusCompleted, tasks[i].CreatedAt
	}
	require.NoError(t, s.Create(t.Context(), tasks...))
	require.NoError(t, s.Close())
	raw := rawDB(t, path)
	for i, statement := range []string{
		`UPDATE tasks SET status = 'paused', task = json_set(task, '$.status', 'paused') WHERE id = $1`,
		`UPDATE tasks SET status = '', task = json_remove(task, '$.status') WHERE id = $1`,
		`UPDATE tasks SET status = 'running', task = json_remove(task, '$.status') WHERE id = $1`,
		`UPDATE tasks SET task = json_remove(task, '$.subject', '$.attempt', '$.background') WHERE id = $1`,
		`UPDATE tasks SET task = json_set(task, '$.mood', 'good') WHERE id = $1`,
	} {
		_, err := raw.Exec(statement, tasks[i].ID[:])
		require.NoError(t, err)
	}
	require.NoError(t, raw.Close())
	var log bytes.Buffer
	s, err := sqlstore.OpenSQLite(path, sqlstore.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	defer s.Close()
	require.Contains(t, log.String(), "paused")
	r, err := subagent.New(t.Context(), subagent.Config{Store: s})
	require.NoError(t, err)
	for want, statuses := range map[int][]subagent.Status{
		10: nil,
		7:  {subagent.StatusCompleted},
		0:  {subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning},
	} {
		list, err := r.List(t.Context(), subagent.Filter{Statuses: statuses})
		require.NoError(t, err)
		require.Len(t, list, want, "%v", statuses)
	}
	require.NoError(t, r.Shutdown(t.Context()))
	for i, task := range tasks[:3] {
		got, err := s.Get(t.Context(), task.ID)
		require.NoError(t, err)
		require.EqualValues(t, 1, got.Version, "%d was left alone", i)
		require.False(t, got.Status.Valid())
	}
}

// Text that is none reaches the rows and the readers as valid text.
func TestB200_TextThatIsNoneInTheRows(t *testing.T) {
	s := fresh(t)
	r := runner(t, subagent.Config{Store: s})
	for _, bad := range []string{"a\x00b", "\xff half \xe4\xb8", `\ud800 \u0000`, strings.Repeat("\x00", 3000)} {
		task, err := r.Run(t.Context(), subagent.Request{Description: bad, ParentSessionID: "a", Metadata: map[string]string{"k": bad},
			Func: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
				run.Progress(bad)
				return subagent.Result{Text: bad}, errors.New(bad)
			}})
		require.NoError(t, err)
		require.Equal(t, subagent.ReasonError, task.Reason)
		row, err := s.Get(t.Context(), task.ID)
		require.NoError(t, err)
		require.Equal(t, task.ResultText, row.ResultText)
		require.Equal(t, strings.ToValidUTF8(strings.ReplaceAll(task.ResultText, "\x00", "!"), "!"), row.ResultText)
	}
}

// A restart finds the tokens of a task that has ended, once.
func TestB172_TokensSurviveARestart(t *testing.T) {
	path := file(t)
	var id uuid.UUID
	for life := range 3 {
		s := open(t, path)
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
