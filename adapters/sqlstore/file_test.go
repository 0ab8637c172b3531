package sqlstore_test

import (
	"bytes"
	"database/sql"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/uuid"
	_ "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
)

func TestDurabilityIsReadBack(t *testing.T) {
	path := file(t)
	for range 2 { // created, and opened again
		s := open(t, path)
		for pragma, want := range map[string]string{"synchronous": "2", "journal_mode": "wal"} {
			write, read, err := s.Pragmas(pragma)
			require.NoError(t, err)
			require.Equal(t, want, write, pragma)
			require.Equal(t, want, read, pragma)
		}
		write, read, err := s.Pragmas("query_only")
		require.NoError(t, err)
		require.Equal(t, []string{"0", "1"}, []string{write, read}, "only one connection writes")
	}
}

// refused checks that path is refused and left as it is, names included.
func refused(t *testing.T, path string) error {
	t.Helper()
	before := contents(t, path)
	s, err := sqlstore.OpenSQLite(path, sqlstore.Options{})
	if err == nil {
		require.NoError(t, s.Close())
	}
	require.Error(t, err)
	require.ErrorContains(t, err, path)
	require.Equal(t, before, contents(t, path), "something was overwritten")
	t.Log(err)
	return err
}

// contents are the file and what lies beside it.
func contents(t *testing.T, path string) map[string]string {
	all := make(map[string]string)
	names, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	for _, name := range names {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		all[name] = string(data)
	}
	return all
}

// stored is a closed file with n ended tasks.
func stored(t *testing.T, n int) string {
	path := file(t)
	s, err := sqlstore.OpenSQLite(path, sqlstore.Options{})
	require.NoError(t, err)
	fill(t, s, n)
	require.NoError(t, s.Close())
	return path
}

func overwrite(t *testing.T, path string, offset int64, data []byte) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt(data, offset)
	require.NoError(t, err)
}

func TestDamagedFilesAreRefused(t *testing.T) {
	garbage := bytes.Repeat([]byte("not a page. "), 400)
	t.Run("no database", func(t *testing.T) {
		path := file(t)
		require.NoError(t, os.WriteFile(path, garbage, 0o644))
		require.ErrorIs(t, refused(t, path), sqlstore.ErrDamaged)
	})
	t.Run("header", func(t *testing.T) {
		path := stored(t, 100)
		overwrite(t, path, 0, garbage[:100])
		require.ErrorIs(t, refused(t, path), sqlstore.ErrDamaged)
	})
	t.Run("schema", func(t *testing.T) {
		path := stored(t, 100)
		overwrite(t, path, 100, garbage[:3996])
		require.ErrorIs(t, refused(t, path), sqlstore.ErrDamaged)
	})
	t.Run("cut off", func(t *testing.T) {
		path := stored(t, 100)
		require.NoError(t, os.Truncate(path, 10*4096))
		require.ErrorIs(t, refused(t, path), sqlstore.ErrDamaged)
	})
	t.Run("a folder", func(t *testing.T) { refusedPath(t, t.TempDir()) })
	t.Run("no folder", func(t *testing.T) { refusedPath(t, filepath.Join(t.TempDir(), "missing", "tasks.db")) })
}

func refusedPath(t *testing.T, path string) {
	_, err := sqlstore.OpenSQLite(path, sqlstore.Options{})
	require.ErrorContains(t, err, path)
	t.Log(err)
}

// TestDamageInside has a page, and then a record, that cannot be read: whoever
// needs it is told where it is, and the others are served.
func TestDamageInside(t *testing.T) {
	path := stored(t, 2000)
	raw := rawDB(t, path)
	var victim uuid.UUID
	require.NoError(t, raw.QueryRow(`SELECT id FROM tasks ORDER BY id LIMIT 1 OFFSET 7`).Scan(&victim))
	_, err := raw.Exec(`UPDATE tasks SET task = substr(task, 1, 50) WHERE id = $1`, victim[:])
	require.NoError(t, err)
	var root int64
	require.NoError(t, raw.QueryRow(`SELECT rootpage FROM sqlite_schema WHERE name = 'tasks_agent'`).Scan(&root))
	require.NoError(t, raw.Close())
	overwrite(t, path, (root-1)*4096, bytes.Repeat([]byte{0xff}, 4096))

	s := open(t, path)
	_, err = list(t, s, subagent.Filter{AgentID: "agent 1"})
	require.ErrorIs(t, err, sqlstore.ErrDamaged)
	require.ErrorContains(t, err, path)
	_, err = list(t, s, subagent.Filter{})
	require.ErrorIs(t, err, sqlstore.ErrDamaged)
	require.ErrorContains(t, err, hex.EncodeToString(victim[:]), "where it is")
	t.Log(err)
	tasks, err := list(t, s, subagent.Filter{SessionID: "session 9"})
	require.NoError(t, err)
	require.Len(t, tasks, 20)
}

func list(t *testing.T, s subagent.Store, f subagent.Filter) (tasks []subagent.Task, err error) {
	for task, err := range s.List(t.Context(), f) {
		if err != nil {
			return tasks, err
		}
		tasks = append(tasks, task)
	}
	return tasks, nil
}

func rawDB(t *testing.T, path string) *sql.DB {
	db, err := sql.Open("sqlite3", path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestOtherSchemasAreRefused(t *testing.T) {
	t.Run("newer", func(t *testing.T) {
		path := stored(t, 10)
		raw := rawDB(t, path)
		_, err := raw.Exec(`PRAGMA user_version = 99`)
		require.NoError(t, err)
		require.NoError(t, raw.Close())
		err = refused(t, path)
		require.ErrorIs(t, err, sqlstore.ErrNewerSchema)
		require.ErrorContains(t, err, "99")
	})
	for _, version := range []string{"-3", "0"} {
		t.Run("version "+version, func(t *testing.T) {
			path := stored(t, 10)
			raw := rawDB(t, path)
			_, err := raw.Exec(`PRAGMA user_version = ` + version)
			require.NoError(t, err)
			require.NoError(t, raw.Close())
			require.ErrorIs(t, refused(t, path), sqlstore.ErrDamaged)
		})
	}
	t.Run("ours, without a table", func(t *testing.T) {
		path := stored(t, 10)
		raw := rawDB(t, path)
		_, err := raw.Exec(`DROP TABLE leases`)
		require.NoError(t, err)
		require.NoError(t, raw.Close())
		require.ErrorIs(t, refused(t, path), sqlstore.ErrDamaged)
	})
	t.Run("another application", func(t *testing.T) {
		path := file(t)
		raw := rawDB(t, path)
		_, err := raw.Exec(`CREATE TABLE tasks (id INTEGER PRIMARY KEY, title TEXT)`)
		require.NoError(t, err)
		require.NoError(t, raw.Close())
		require.ErrorIs(t, refused(t, path), sqlstore.ErrForeign)
	})
	t.Run("ours, without a column", func(t *testing.T) {
		path := stored(t, 10)
		raw := rawDB(t, path)
		_, err := raw.Exec(`ALTER TABLE tasks RENAME COLUMN owed TO gone`)
		require.NoError(t, err)
		require.NoError(t, raw.Close())
		require.ErrorIs(t, refused(t, path), sqlstore.ErrDamaged)
	})
}

// openOnce is a process that opens the file and says how that went.
func openOnce(args []string) error {
	s, err := sqlstore.OpenSQLite(args[0], sqlstore.Options{})
	if err != nil {
		return err
	}
	if _, err := io.ReadAll(os.Stdin); err != nil {
		return err
	}
	return s.Close()
}

// TestReadOnlyFile opens the file in a process that may not write it: root may
// write everything, so such a test's child is somebody else.
func TestReadOnlyFile(t *testing.T) {
	path := stored(t, 10)
	dir := filepath.Dir(path)
	program := filepath.Join(dir, "program") // where anybody may start it
	self, err := os.Executable()
	require.NoError(t, err)
	data, err := os.ReadFile(self)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, data, 0o755))
	require.NoError(t, os.Chmod(path, 0o444))
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	cmd := exec.Command(program, path)
	cmd.Env = append(os.Environ(), childVariable+"=open")
	if os.Getuid() == 0 && !asNobody(cmd) {
		t.Skip("root may write everything here, and there is no way to be somebody else")
	}
	before := contents(t, path)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) {
		t.Skipf("the child cannot be started as somebody else: %v", err)
	}
	require.Error(t, err)
	require.Contains(t, string(out), path)
	require.Contains(t, string(out), "it cannot be")
	require.Equal(t, before, contents(t, path))
	t.Log(strings.TrimSpace(string(out)))
}

// TestFullDisk fills the disk under an open store and makes room again.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t, 4<<20)
	path := filepath.Join(dir, "tasks.db")
	s := open(t, path)
	tasks := fill(t, s, 100)
	ballast := filepath.Join(dir, "ballast")
	fillDisk(t, ballast)

	big := newTask()
	big.Description = strings.Repeat("0123456789", 50_000)
	err := s.Create(t.Context(), big)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, path)
	t.Log(err)
	_, err = s.Get(t.Context(), big.ID)
	require.ErrorIs(t, err, subagent.ErrNotFound)
	kept, err := list(t, s, subagent.Filter{})
	require.NoError(t, err)
	require.Len(t, kept, len(tasks))

	_, err = sqlstore.OpenSQLite(filepath.Join(dir, "another.db"), sqlstore.Options{})
	require.ErrorIs(t, err, syscall.ENOSPC)
	t.Log(err)

	require.NoError(t, os.Remove(ballast))
	require.NoError(t, s.Create(t.Context(), big), "as soon as there is room it goes on")
	another := open(t, filepath.Join(dir, "another.db"))
	require.NoError(t, another.Create(t.Context(), newTask()))
}

func fillDisk(t *testing.T, path string) {
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	for block := make([]byte, 64<<10); len(block) > 0; { // smaller and smaller, until not a byte fits
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
}

// TestConcurrentFirstOpens opens a file that is not there yet, many times at
// once, from this process and from others.
func TestConcurrentFirstOpens(t *testing.T) {
	for range 5 {
		path := file(t)
		var cmds []*exec.Cmd
		var ends []io.Closer
		for range 3 {
			cmd := child(t, "open", path)
			end, err := cmd.StdinPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			cmds, ends = append(cmds, cmd), append(ends, end)
		}
		const n = 4
		stores, errs := make([]*sqlstore.Store, n), make([]error, n)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() { stores[i], errs[i] = sqlstore.OpenSQLite(path, sqlstore.Options{}) })
		}
		all.Wait()
		require.NoError(t, errors.Join(errs...))
		task := newTask()
		require.NoError(t, stores[0].Create(t.Context(), task))
		for i, s := range stores {
			_, err := s.Get(t.Context(), task.ID)
			require.NoError(t, err, "store %d has another file", i)
			require.NoError(t, s.Close())
		}
		for i, cmd := range cmds {
			require.NoError(t, ends[i].Close())
			require.NoError(t, cmd.Wait())
		}
		requireIntact(t, path)
	}
}

func requireIntact(t *testing.T, path string) {
	t.Helper()
	raw := rawDB(t, path)
	defer raw.Close()
	var verdict string
	require.NoError(t, raw.QueryRow(`PRAGMA integrity_check`).Scan(&verdict))
	require.Equal(t, "ok", verdict)
}
