package sqlstore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
)

// TestOddNames: no character of a path means anything, and a relative one is
// that of the folder in which the file was opened.
func TestOddNames(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"a?mode=ro", "a#b", "a%41", "a b", "日本 ü", "file:x", ":memory:", `a'b"c`, "a&vfs=memdb", "-dash", "tab\tline\n"} {
		s, err := sqlstore.OpenSQLite(name, sqlstore.Options{})
		require.NoError(t, err, "%q", name)
		require.NoError(t, s.Create(t.Context(), newTask()))
		require.NoError(t, s.Close())
		kept, err := list(t, open(t, filepath.Join(dir, name)), subagent.Filter{})
		require.NoError(t, err)
		require.Len(t, kept, 1, "%q", name)
	}
	before, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, name := range []string{"", "a\x00b", os.DevNull, strings.Repeat("x", 300)} {
		_, err := sqlstore.OpenSQLite(name, sqlstore.Options{})
		require.Error(t, err, "%q", name)
		require.NotContains(t, err.Error(), "I/O", "it says what is wrong")
		t.Log(err)
	}
	after, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, after, len(before), "something was made")
}

// TestSymlink: a link and the file that it leads to are one database.
func TestSymlink(t *testing.T) {
	path, link := file(t), file(t)
	s := open(t, path)
	require.NoError(t, os.Symlink(path, link))
	linked := open(t, link)
	task := newTask()
	require.NoError(t, linked.Create(t.Context(), task))
	_, err := s.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.Subject = "seen"; return nil })
	require.NoError(t, err)
}

// TestReplacedFile takes one of the files away, or puts another in its place:
// nothing is acknowledged that nobody would find again. Put back, it goes on.
func TestReplacedFile(t *testing.T) {
	for _, part := range []string{"", "-wal", "-shm"} {
		for _, other := range []bool{false, true} {
			path := file(t)
			s := open(t, path)
			task := newTask()
			require.NoError(t, s.Create(t.Context(), task))
			require.NoError(t, os.Rename(path+part, path+".away"))
			if other {
				require.NoError(t, os.WriteFile(path+part, nil, 0o644))
			}
			err := s.Create(t.Context(), newTask())
			require.ErrorIs(t, err, sqlstore.ErrReplaced, "%q", part)
			require.ErrorContains(t, err, path+part)
			_, err = s.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.Subject = "x"; return nil })
			require.ErrorIs(t, err, sqlstore.ErrReplaced)
			require.NoError(t, os.Rename(path+".away", path+part))
			_, err = s.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.Subject = "x"; return nil })
			require.NoError(t, err)
		}
	}
}

// TestPanicInATransaction: when its memory runs out, the driver panics. Whoever
// leads does not leave the others waiting then, and of its transaction nothing
// stays: others may write, through this store and another.
func TestPanicInATransaction(t *testing.T) {
	path := file(t)
	s := open(t, path)
	entered, goOn := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		err := s.Exec(context.Background(), `UPDATE counters SET value = length(hex(zeroblob(300000000)))`, func() { close(entered); <-goOn })
		require.ErrorContains(t, err, "out of memory")
	})
	<-entered
	task := newTask()
	all.Go(func() { require.NoError(t, s.Create(context.Background(), task)) })
	until(t, "it is in line", func() bool { return s.Waiting() == 1 })
	close(goOn)
	all.Wait()
	_, err := open(t, path).Update(t.Context(), task.ID, func(t *subagent.Task) error { t.Subject = "another may write"; return nil })
	require.NoError(t, err)
}

// TestOneBadWriteSpoilsNoOther has a write fail in the middle of a group: it
// alone fails, and all of it is undone.
func TestOneBadWriteSpoilsNoOther(t *testing.T) {
	s := fresh(t)
	entered, goOn := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		require.NoError(t, s.Exec(context.Background(), `DELETE FROM leases`, func() {
			select {
			case <-entered:
			default:
				close(entered)
			}
			<-goOn
		}))
	})
	<-entered
	tasks := make([]subagent.Task, 9)
	for i := range tasks {
		tasks[i] = newTask()
		all.Go(func() {
			if i%4 == 2 {
				require.ErrorContains(t, s.Exec(context.Background(), `INSERT INTO leases VALUES (NULL, NULL)`, func() {}), "NULL")
				return
			}
			require.NoError(t, s.Create(context.Background(), tasks[i]))
		})
		until(t, "it is in line", func() bool { return s.Waiting() == i+1 })
	}
	close(goOn)
	all.Wait()
	stored, err := list(t, s, subagent.Filter{})
	require.NoError(t, err)
	require.Len(t, stored, 7)
}

// TestLargestTask stores what a Runner may come to at most, and refuses more
// before it costs the memory of the database.
func TestLargestTask(t *testing.T) {
	if os.Getenv("SUBAGENT_TEST_LARGE") == "" {
		t.Skip("a GiB is moved: set SUBAGENT_TEST_LARGE")
	}
	s := fresh(t)
	task := newTask()
	task.Status, task.ResultText = subagent.StatusRunning, strings.Repeat("\x01", 17<<20) // six bytes each in JSON
	require.NoError(t, s.Create(t.Context(), task))
	_, err := s.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.Subject = "changed"; return nil })
	require.NoError(t, err)
	got, err := s.Get(t.Context(), task.ID)
	require.NoError(t, err)
	require.Equal(t, task.ResultText, got.ResultText)
	more := newTask()
	more.ResultText = strings.Repeat("x", 120<<20)
	require.ErrorIs(t, s.Create(t.Context(), more), subagent.ErrInvalidRequest)
	require.NoError(t, s.Create(t.Context(), newTask()))
}

// TestOddOwners: any text is an owner, and each is one of its own.
func TestOddOwners(t *testing.T) {
	s := fresh(t)
	owners := []string{"a", "A", "a\x00b", " a", "'; DROP TABLE leases; --", "\xff\xfe", "日本", "%", strings.Repeat("o", 1<<20)}
	for i, owner := range owners {
		require.NoError(t, s.Renew(t.Context(), owner, time.Duration(1<<63-1)))
		for j, other := range owners {
			live, err := s.Live(t.Context(), other)
			require.NoError(t, err)
			require.Equal(t, i == j, live, "%.20q, of which only %.20q is alive", other, owner)
		}
		require.NoError(t, s.Release(t.Context(), owner))
	}
}

// TestCloseWhileAllIsUsed closes the store, from several sides, while everything
// is asked of it: each call ends well or with ErrClosed.
func TestCloseWhileAllIsUsed(t *testing.T) {
	for range 5 {
		s, err := sqlstore.OpenSQLite(file(t), sqlstore.Options{})
		require.NoError(t, err)
		fill(t, s, 300)
		ctx := context.Background()
		task := newTask()
		require.NoError(t, s.Create(ctx, task))
		uses := []func() error{
			func() error { return s.Create(ctx, newTask()) },
			func() error { _, err := s.Get(ctx, task.ID); return err },
			func() error {
				_, err := s.Update(ctx, task.ID, func(t *subagent.Task) error { t.Progress.ToolUses++; return nil })
				return err
			},
			func() error { _, err := list(t, s, subagent.Filter{}); return err },
			func() error { return s.Renew(ctx, "me", time.Hour) },
			func() error { _, err := s.Live(ctx, "me"); return err },
			func() error { return s.Watch(ctx, "me", func(subagent.Task) {}) },
			func() error { return s.Delete(ctx, newTask().ID) },
		}
		var all sync.WaitGroup
		begun := make(chan struct{}, 100*len(uses))
		for range 10 {
			for _, use := range uses {
				all.Go(func() { // ends with the store
					begun <- struct{}{}
					err := use()
					for err == nil {
						err = use()
					}
					if !errors.Is(err, sqlstore.ErrClosed) {
						t.Error(err)
					}
				})
			}
		}
		for range 5 * len(uses) {
			<-begun
		}
		for range 3 {
			all.Go(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}
