package sqlstore_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
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

// TestSameForgetsNoField changes one field after the other.
func TestSameForgetsNoField(t *testing.T) {
	var a subagent.Task
	require.True(t, sqlstore.Same(&a, &a))
	var vary func(v reflect.Value, name string, b *subagent.Task)
	vary = func(v reflect.Value, name string, b *subagent.Task) {
		switch old := v.Interface().(type) {
		case uuid.UUID:
			v.Set(reflect.ValueOf(uuid.Max))
		case time.Time:
			v.Set(reflect.ValueOf(old.Add(time.Microsecond)))
		case map[string]string:
			v.Set(reflect.ValueOf(map[string]string{"k": "v"}))
		default:
			switch v.Kind() {
			case reflect.Struct:
				for i := range v.NumField() {
					vary(v.Field(i), name+"."+v.Type().Field(i).Name, b)
				}
				return
			case reflect.String:
				v.SetString("x")
			case reflect.Bool:
				v.SetBool(true)
			default:
				v.SetInt(1)
			}
		}
		require.False(t, sqlstore.Same(&a, b), name)
		v.SetZero()
	}
	var b subagent.Task
	for i := range reflect.TypeFor[subagent.Task]().NumField() {
		vary(reflect.ValueOf(&b).Elem().Field(i), reflect.TypeFor[subagent.Task]().Field(i).Name, &b)
	}
}

// TestListsUseAnIndex looks at the plans: nothing is scanned or sorted.
func TestListsUseAnIndex(t *testing.T) {
	path := file(t)
	s, raw := open(t, path), rawDB(t, path)
	ended := []subagent.Status{subagent.StatusErrored, subagent.StatusCompleted, subagent.StatusErrored}
	live := []subagent.Status{subagent.StatusRunning, subagent.StatusQueued}
	many := []subagent.Status{"1", "2", "3", "4", "5", "6", "7", "8", "9"}
	for index, filters := range map[string][]subagent.Filter{
		"tasks_id":            {{}},
		"tasks_session":       {{SessionID: "s"}, {SessionID: "s", AgentID: "a"}, {SessionID: "s", Statuses: many}},
		"tasks_status":        {{Statuses: live}, {Statuses: ended[:1]}, {Statuses: ended}, {Statuses: live, SessionID: "s"}, {Statuses: live, AgentID: "a"}},
		"tasks_session_ended": {{SessionID: "s", Statuses: ended}, {SessionID: "s", Statuses: ended, AgentID: "a"}},
		"tasks_agent_ended":   {{AgentID: "a", Statuses: ended}},
		"tasks_owed":          {{Undelivered: true}, {Undelivered: true, SessionID: "s"}},
		"tasks_parent":        {{ParentTaskID: uuid.Max}, {ParentTaskID: uuid.Max, SessionID: "s", Statuses: live}},
		"tasks_external":      {{ExternalTaskID: "e"}, {ExternalTaskID: "e", Statuses: live}},
		"tasks_agent":         {{AgentID: "a"}},
		"tasks_msg":           {{ParentMsgID: "m"}, {ParentMsgID: "m", SessionID: "s"}},
	} {
		for _, f := range filters {
			for _, f.NewestFirst = range []bool{false, true} {
				for _, f.After = range []uuid.UUID{{}, uuid.Max} {
					plan := planOf(t, raw, s, f)
					for _, line := range plan {
						if strings.Contains(line, "json_each") {
							continue // the statuses, not the tasks
						}
						if strings.Contains(line, "SCAN") || strings.Contains(line, "SEARCH") {
							require.Contains(t, line, "INDEX "+index+" ", "%+v", f)
						}
						require.NotContains(t, line, "TEMP B-TREE", "%+v", f)
					}
				}
			}
		}
	}
}

func planOf(t *testing.T, raw *sql.DB, s *sqlstore.Store, f subagent.Filter) (plan []string) {
	text, args := sqlstore.SelectPage(s, f, 50)
	rows, err := raw.Query(`EXPLAIN QUERY PLAN `+text, args...)
	require.NoError(t, err, text)
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		require.NoError(t, rows.Scan(&id, &parent, &unused, &detail))
		plan = append(plan, detail+" ")
	}
	require.NoError(t, rows.Err())
	require.NotEmpty(t, plan)
	return plan
}

// TestCloseWaitsForTheLine holds up a write inside its transaction: what came
// before Close is stored, but for what was called off.
func TestCloseWaitsForTheLine(t *testing.T) {
	path := file(t)
	s, err := sqlstore.OpenSQLite(path, sqlstore.Options{})
	require.NoError(t, err)
	entered, goOn := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		require.NoError(t, s.Exec(context.Background(), `DELETE FROM leases`, func() { close(entered); <-goOn }))
	})
	<-entered
	tasks := make([]subagent.Task, 20)
	for i := range tasks {
		tasks[i] = newTask()
		all.Go(func() { require.NoError(t, s.Create(context.Background(), tasks[i])) })
		until(t, "it is in line", func() bool { return s.Waiting() == i+1 })
	}
	ctx, cancel := context.WithCancel(t.Context())
	called := newTask()
	all.Go(func() { require.ErrorIs(t, s.Create(ctx, called), context.Canceled) })
	until(t, "it is in line", func() bool { return s.Waiting() == len(tasks)+1 })
	cancel()
	until(t, "it has left", func() bool { return s.Waiting() == len(tasks) })

	closed := make(chan error, 1)
	all.Go(func() { closed <- s.Close() })
	until(t, "it is closing", func() bool {
		late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		return errors.Is(s.Create(late, newTask()), sqlstore.ErrClosed)
	})
	close(goOn)
	all.Wait()
	require.NoError(t, <-closed)
	require.ErrorIs(t, s.Create(t.Context(), newTask()), sqlstore.ErrClosed)
	_, err = s.Get(t.Context(), tasks[0].ID)
	require.ErrorIs(t, err, sqlstore.ErrClosed)
	require.NoError(t, s.Close(), "again")
	stored, err := list(t, open(t, path), subagent.Filter{})
	require.NoError(t, err)
	require.Len(t, stored, len(tasks))
}

// TestOneTransactionForAllThatWait counts the commits that another connection
// sees.
func TestOneTransactionForAllThatWait(t *testing.T) {
	path := file(t)
	s, other := open(t, path), rawDB(t, path)
	other.SetMaxOpenConns(1)
	version := func() (n int) {
		require.NoError(t, other.QueryRow(`PRAGMA data_version`).Scan(&n))
		return n
	}
	entered, goOn := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		require.NoError(t, s.Exec(context.Background(), `DELETE FROM leases`, func() { close(entered); <-goOn }))
	})
	<-entered
	const n = 40
	seen := make(chan int, n)
	for i := range n {
		all.Go(func() {
			require.NoError(t, s.Exec(context.Background(), `UPDATE counters SET value = value + 1`, func() { seen <- version() }))
		})
		until(t, "it is in line", func() bool { return s.Waiting() == i+1 })
	}
	close(goOn)
	all.Wait()
	first := <-seen
	for range n - 1 {
		require.Equal(t, first, <-seen, "a commit in between")
	}
	require.Greater(t, version(), first)
}

// TestListOfLargeTasks reads more than one page holds in bytes.
func TestListOfLargeTasks(t *testing.T) {
	s := fresh(t)
	var want []uuid.UUID
	for range 8 {
		task := newTask()
		task.Status, task.ResultText = subagent.StatusCompleted, strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
		require.NoError(t, s.Create(t.Context(), task))
		want = append(want, task.ID)
	}
	var got []uuid.UUID
	for task, err := range s.List(t.Context(), subagent.Filter{Limit: 7}) {
		require.NoError(t, err)
		require.Len(t, task.ResultText, 1<<20)
		got = append(got, task.ID)
	}
	require.Equal(t, want[:7], got)
}

// TestStaleGuess has another handle change what this one wrote last: an edit
// never decides on what is not there any more.
func TestStaleGuess(t *testing.T) {
	path := file(t)
	a, b := open(t, path), open(t, path)
	task := newTask()
	require.NoError(t, a.Create(t.Context(), task))
	_, err := b.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.AgentID = "b"; return nil })
	require.NoError(t, err)
	got, err := a.Update(t.Context(), task.ID, func(*subagent.Task) error { return nil })
	require.NoError(t, err)
	require.Equal(t, "b", got.AgentID, "nothing to change, and the state of before")

	end := func(t *subagent.Task) error {
		t.Status, t.CompletedAt = subagent.StatusCancelled, t.CreatedAt
		return nil
	}
	_, err = b.Update(t.Context(), task.ID, end)
	require.NoError(t, err)
	require.NoError(t, b.Delete(t.Context(), task.ID))
	require.NoError(t, b.Create(t.Context(), task), "the same ID with the same version")
	_, err = b.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.AgentID = "another"; return nil })
	require.NoError(t, err)
	_, err = b.Update(t.Context(), task.ID, end)
	require.NoError(t, err)
	_, err = a.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.Subject = "changed"; return nil })
	require.ErrorIs(t, err, subagent.ErrInvalidTransition, "decided on a row that is gone")
	require.NoError(t, b.Delete(t.Context(), task.ID))
	_, err = a.Update(t.Context(), task.ID, end)
	require.ErrorIs(t, err, subagent.ErrNotFound)
}

// TestGuessOfAnotherLife has another handle delete a task and create it anew:
// with the same ID and version, in the same place.
func TestGuessOfAnotherLife(t *testing.T) {
	path := file(t)
	a, b := open(t, path), open(t, path)
	task := newTask()
	require.NoError(t, a.Create(t.Context(), task))
	_, err := b.Update(t.Context(), task.ID, func(t *subagent.Task) error {
		t.Status, t.CompletedAt = subagent.StatusCancelled, t.CreatedAt
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, b.Delete(t.Context(), task.ID))
	task.AgentID = "anew"
	require.NoError(t, b.Create(t.Context(), task))
	got, err := a.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.Subject = "changed"; return nil })
	require.NoError(t, err)
	require.Equal(t, "anew", got.AgentID, "decided on the row of before")
}
