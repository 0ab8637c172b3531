package sqlstore_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
)

// writeUntilKilled creates pairs of tasks and leads them through their lives,
// and says on its output what was acknowledged: "id version".
func writeUntilKilled(args []string) error {
	s, err := sqlstore.OpenSQLite(args[0], sqlstore.Options{})
	if err != nil {
		return err
	}
	var (
		mu  sync.Mutex // guards the output, line by line
		say = func(t subagent.Task) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Println(t.ID, t.Version)
		}
		failed = make(chan error)
	)
	for range 4 {
		go func() { // ends with the process
			for {
				if err := writePair(s, say); err != nil {
					failed <- err
				}
			}
		}()
	}
	return <-failed
}

func writePair(s *sqlstore.Store, say func(subagent.Task)) error {
	ctx := context.Background()
	pair := []subagent.Task{newTask(), newTask()}
	for i := range pair {
		pair[i].Version = 1
		pair[i].ParentTaskID = pair[1-i].ID
		sign(&pair[i])
	}
	if err := s.Create(ctx, pair...); err != nil {
		return err
	}
	say(pair[0])
	say(pair[1])
	for _, status := range []subagent.Status{subagent.StatusQueued, subagent.StatusRunning, subagent.StatusCompleted} {
		t, err := s.Update(ctx, pair[0].ID, func(t *subagent.Task) error {
			t.Status = status
			t.Progress.ToolUses++
			sign(t)
			return nil
		})
		if err != nil {
			return err
		}
		say(t)
	}
	return nil
}

// sign writes what else must be there when a state is.
func sign(t *subagent.Task) {
	t.Error = fmt.Sprint(t.Status, t.Progress.ToolUses)
	t.ResultText = strings.Repeat(t.Error, 100*t.Progress.ToolUses)
}

// TestKilledWritersLoseNothing kills a process that writes, again and again on
// one file: what it said it had stored is there, and of what it was about to
// store there is all or nothing.
func TestKilledWritersLoseNothing(t *testing.T) {
	kills := 200
	if testing.Short() {
		kills = 50
	}
	path, random := file(t), seeded(t)
	acknowledged := make(map[uuid.UUID]int64)
	for i := range kills {
		cmd := child(t, "write", path)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan(), "it never wrote")
		first := lines.Text()
		// At a moment of its own, which no state of the child decides.
		kill := time.AfterFunc(time.Duration(random.IntN(30))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		note(t, acknowledged, first)
		for lines.Scan() {
			note(t, acknowledged, lines.Text())
		}
		kill.Stop()
		require.Error(t, cmd.Wait(), "killed")
		if i%10 == 9 || i == kills-1 {
			requireAcknowledged(t, path, acknowledged)
		}
	}
	t.Logf("%d kills, %d tasks", kills, len(acknowledged))
	requireIntact(t, path)
}

// note reads a line that the kill may have cut off.
func note(t *testing.T, acknowledged map[uuid.UUID]int64, line string) {
	id, version, ok := strings.Cut(line, " ")
	if !ok || len(id) != 36 {
		return
	}
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return
	}
	acknowledged[uuid.MustParse(id)] = max(acknowledged[uuid.MustParse(id)], n)
}

func requireAcknowledged(t *testing.T, path string, acknowledged map[uuid.UUID]int64) {
	s, err := sqlstore.OpenSQLite(path, sqlstore.Options{})
	require.NoError(t, err)
	defer s.Close()
	found := make(map[uuid.UUID]subagent.Task)
	for task, err := range s.List(t.Context(), subagent.Filter{}) {
		require.NoError(t, err)
		found[task.ID] = task
		signed := task
		sign(&signed)
		require.Equal(t, signed.ResultText, task.ResultText, "neither the old state nor the new")
		require.EqualValues(t, task.Version-1, task.Progress.ToolUses)
	}
	for id, task := range found {
		require.Contains(t, found, task.ParentTaskID, "half of the pair of %s", id)
	}
	for id, version := range acknowledged {
		require.Contains(t, found, id, "acknowledged and lost")
		require.GreaterOrEqual(t, found[id].Version, version, "acknowledged and lost: task %s", id)
	}
}

// TestKilledWriterLeavesNoLock opens the file while the log of a killed process
// is still beside it.
func TestKilledWriterLeavesNoLock(t *testing.T) {
	path := file(t)
	cmd := child(t, "write", path)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.True(t, bufio.NewScanner(out).Scan())
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	_, err = os.Stat(path + "-wal")
	require.NoError(t, err)
	s := open(t, path)
	require.NoError(t, s.Create(t.Context(), newTask()))
}
