package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"

	"github.com/go-subagent/subagent"
)

const (
	readers = 4

	// checkpointPages is how long the write-ahead log grows before it is
	// brought into the file: 16 MiB. Each time costs two syncs and a write.
	checkpointPages = 4096

	// logBytes is what the log is cut to if a large import has made it longer.
	logBytes = 64 << 20
)

// What OpenSQLite refuses. The file is left as it was.
var (
	ErrDamaged     = errors.New("the file is damaged or no SQLite database")
	ErrForeign     = errors.New("the file is a database of another application")
	ErrNewerSchema = errors.New("the file was written by a newer version")
)

// ErrReplaced is what a write gets when the file, its log or its index was
// removed or replaced while it was open. Nothing is stored then.
var ErrReplaced = errors.New("removed or replaced while it was open")

// exclusive is a transaction in which what was read stays true until the
// commit: it waits for other writers when it begins, never later, where waiting
// could be in vain.
var exclusive = sql.TxOptions{Isolation: sql.LevelSerializable}

// The same as statements.
const (
	beginSQL    = `BEGIN IMMEDIATE`
	commitSQL   = `COMMIT`
	rollbackSQL = `ROLLBACK`
)

// OpenSQLite opens the file path, or creates it if it is missing or empty, and
// brings an older schema up to date. Several processes of one machine may have
// it open, but it must not be on a network file system. The caller owns the
// Store and closes it after its Runners.
//
// A file that is damaged, belongs to something else, is of a newer schema or
// cannot be written is an error that says so, and is not changed.
func OpenSQLite(path string, o Options) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	s := &Store{name: path, log: o.logger(), hosts: make(map[string]bool)}
	s.ending, s.end = context.WithCancel(context.Background())
	err = aFile(path)
	if err == nil {
		err = s.openSQLite(path, o.busyTimeout())
	}
	if err == nil {
		return s, nil
	}
	s.end()
	if s.read != nil {
		_ = s.read.Close()
	}
	if s.write != nil {
		_ = s.txn.close()
		_ = s.write.Close()
	}
	return nil, describe(path, "open", err)
}

// aFile refuses what cannot be a database, and a path that the system does not
// take: SQLite would read one with a NUL as another.
func aFile(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !info.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	return err
}

func (s *Store) openSQLite(path string, busy time.Duration) (err error) {
	// An absolute path is never taken for a URI, so no character in it means
	// anything.
	if s.write, err = driver.Open(path, func(c *sqlite3.Conn) error { return configure(c, busy, "") }); err != nil {
		return err
	}
	s.write.SetMaxOpenConns(1)
	if err := inspect(s.write); err != nil {
		return err
	}
	if err := enterWAL(s.write, busy); err != nil {
		return err
	}
	if err := migrate(s.write); err != nil {
		return err
	}
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return err
	}
	s.read, err = driver.Open(path, func(c *sqlite3.Conn) error { return configure(c, busy, "PRAGMA query_only = on") })
	if err != nil {
		return err
	}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	if err := s.prepare(); err != nil {
		return err
	}
	if s.files, err = filesOf(path); err != nil {
		return err
	}
	return s.reportUnknown()
}

// files are the database, its log and the log's index, as they were opened.
type files map[string]os.FileInfo

// filesOf looks at them after both connections have read, so they are there.
func filesOf(path string) (files, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	f := make(files, 3)
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		if f[name], err = os.Stat(name); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// check is an error if one of them is not in its place any more: a commit would
// be stored where nobody finds it again.
func (f files) check() error {
	for name, opened := range f {
		if now, err := os.Stat(name); err != nil || !os.SameFile(opened, now) {
			return fmt.Errorf("%w: %s", ErrReplaced, name)
		}
	}
	return nil
}

// configure prepares a connection. It reads back what durability hangs on: a
// driver or a build may have other defaults, or ignore a PRAGMA.
func configure(c *sqlite3.Conn, busy time.Duration, more string) error {
	if err := c.BusyTimeout(busy); err != nil {
		return err
	}
	settings := `PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = %d; PRAGMA journal_size_limit = %d; `
	if err := c.Exec(fmt.Sprintf(settings, checkpointPages, logBytes) + more); err != nil {
		return err
	}
	stmt, _, err := c.Prepare(`PRAGMA synchronous`)
	if err != nil {
		return err
	}
	defer stmt.Close()
	if !stmt.Step() || stmt.ColumnInt(0) != 2 {
		return fmt.Errorf("PRAGMA synchronous is %d and not FULL: %w", stmt.ColumnInt(0), errors.Join(stmt.Err(), errDurability))
	}
	return nil
}

var errDurability = errors.New("the database would not be durable")

// inspect refuses, before anything is written, a file that is not ours.
func inspect(db *sql.DB) error {
	// One transaction, so that a file which others create meanwhile is seen
	// either without a schema or with all of it.
	tx, err := db.BeginTx(context.Background(), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var app, version, tables int
	err = errors.Join(
		tx.QueryRow(`SELECT count(*) FROM sqlite_schema`).Scan(&tables),
		tx.QueryRow(`PRAGMA application_id`).Scan(&app),
		tx.QueryRow(`PRAGMA user_version`).Scan(&version))
	switch {
	case err != nil:
		return err
	case app == 0 && version == 0 && tables == 0:
		return nil // new
	case app != applicationID:
		return fmt.Errorf("%w (application_id %d, %d tables and indexes)", ErrForeign, app, tables)
	case version > schemaVersion:
		return fmt.Errorf("%w: its schema is version %d, this program knows %d", ErrNewerSchema, version, schemaVersion)
	}
	return nil
}

// enterWAL switches the file to its write-ahead log, for good. While others
// open it for the first time SQLite refuses that without waiting, hence the
// loop; each round waits for whoever is in the way.
func enterWAL(db *sql.DB, busy time.Duration) error {
	deadline := time.Now().Add(busy)
	for {
		var mode string
		err := db.QueryRow(`PRAGMA journal_mode = WAL`).Scan(&mode)
		switch {
		case err == nil && mode == "wal":
			return nil
		case err == nil:
			return fmt.Errorf("PRAGMA journal_mode is %q and not WAL, which this system may not support: %w", mode, errDurability)
		case !errors.Is(err, sqlite3.BUSY) || time.Now().After(deadline):
			return err
		}
		// A transaction begins when nobody else's is open.
		tx, err := db.BeginTx(context.Background(), &exclusive)
		if err != nil {
			return err
		}
		_ = tx.Rollback()
	}
}

// syncFolder makes the names of the file and its log durable.
func syncFolder(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // it does so itself
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// prepare makes the statements, and refuses a file in which they cannot be made.
func (s *Store) prepare() (err error) {
	if s.txn.conn, err = s.write.Conn(context.Background()); err != nil {
		return err
	}
	s.txn.prepared = make(map[string]*sql.Stmt)
	// Each table and column is in one of these.
	for _, text := range []string{insertSQL, announceSQL, countSQL, renewSQL} {
		if _, err := s.txn.stmt(text); err != nil {
			return err
		}
	}
	if s.get, err = s.read.Prepare(getSQL); err != nil {
		return err
	}
	s.look, err = s.read.Prepare(newsSQL)
	return err
}

// reportUnknown logs statuses that this version does not know. Their tasks are
// listed as they are; they are neither run, nor counted as live, nor changed.
func (s *Store) reportUnknown() error {
	last := ""
	for range 1000 { // distinct values, each found in the index
		var next sql.NullString
		if err := s.read.QueryRow(`SELECT min(status) FROM tasks WHERE status > $1`, last).Scan(&next); err != nil {
			return err
		}
		if !next.Valid {
			return nil
		}
		last = next.String
		if !subagent.Status(last).Valid() {
			var n int
			if err := s.read.QueryRow(`SELECT count(*) FROM tasks WHERE status = $1`, last).Scan(&n); err != nil {
				return err
			}
			s.log.Warn("sqlstore: tasks with a status that this version does not know are left alone",
				"file", s.name, "status", last, "tasks", n)
		}
	}
	return nil
}

// describe is err with the file, the place in it and what it means.
func describe(file, place string, err error) error {
	where := file
	if place != "" {
		where += ": " + place
	}
	meaning := ""
	switch {
	case errors.Is(err, sqlite3.NOTADB), errors.Is(err, sqlite3.CORRUPT), errors.Is(err, errRow),
		errors.Is(err, sqlite3.ERROR): // what is right here is wrong there: the schema is not as it should be
		return fmt.Errorf("sqlstore: %s: %w: %w", where, ErrDamaged, err)
	case errors.Is(err, sqlite3.FULL), errors.Is(err, sqlite3.IOERR):
		// The driver keeps the system's error to itself.
		if cause := tryWrite(filepath.Dir(file)); cause != nil {
			return fmt.Errorf("sqlstore: %s: %w: %w", where, cause, err)
		}
	case errors.Is(err, sqlite3.READONLY), errors.Is(err, sqlite3.PERM):
		meaning = "it cannot be written: "
	case errors.Is(err, sqlite3.CANTOPEN):
		meaning = "it cannot be opened: "
	case errors.Is(err, sqlite3.BUSY):
		meaning = "other processes have kept it busy for too long: "
	}
	return fmt.Errorf("sqlstore: %s: %s%w", where, meaning, err)
}

// tryWrite is what the system says to a mebibyte more in dir.
func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".sqlstore-*")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 1<<20))
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}
