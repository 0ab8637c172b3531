// Package sqlstore keeps tasks in a SQLite file that one or several processes
// share. A Store is a subagent.Store, Leaser and Watcher: what it acknowledged
// survives kill -9 and the loss of power, each Runner recovers only the tasks
// of dead ones, and a cancel that is asked for in one process is seen by the
// process that executes the task.
//
// Only sqlite.go and schema.go know SQLite; the rest is database/sql and, but for
// json_each in query.go and LastInsertId in txn.go, what PostgreSQL has, too. What
// another database has to bring: an Open with a writing and a reading *sql.DB, a
// schema, and serializable transactions.
//
// There are three locks, of Store, queue and cache. Each is a leaf: nothing is
// locked under it, nothing is read or stored, and no foreign code runs. An edit,
// the body of a List loop and the fn of a Watch run outside of transactions,
// too.
package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// Store keeps tasks in a database. Its methods may be called from many
// goroutines at once. Writes that arrive while another is being stored share
// the next transaction, so a burst costs few syncs; a write that finds nobody
// writing waits for nobody.
//
// ctx governs a read, and a write until its turn has come: what has entered
// its transaction is seen through, which takes as long as the disk does and at
// most Options.BusyTimeout for other processes. A write that returned ctx's
// error has changed nothing.
type Store struct {
	name  string  // the file, for people
	files files   // what it consists of
	write *sql.DB // has one connection, which is txn's
	read  *sql.DB
	log   *slog.Logger

	txn       txn
	get, look *sql.Stmt // on read

	queue  queue
	recent cache
	ending context.Context // ends with Close, and Watch with it
	end    context.CancelFunc

	closing sync.Once
	closed  error // what Close returned

	mu    sync.Mutex      // guards hosts; a leaf
	hosts map[string]bool // owners that renew or watch through this Store, see watch.go
}

var (
	_ subagent.Store   = (*Store)(nil)
	_ subagent.Leaser  = (*Store)(nil)
	_ subagent.Watcher = (*Store)(nil)
)

// Options say how a database is used. The zero Options are good.
type Options struct {
	// BusyTimeout is how long a write, or OpenSQLite, waits for other processes
	// that write. 0: 5 s. It should be shorter than Config.StoreTimeout.
	BusyTimeout time.Duration

	// Logger is told what somebody should look at: rows with a status that this
	// version does not know. nil: nobody.
	Logger *slog.Logger
}

// ErrClosed is what every method returns after Close. It is subagent.ErrClosed.
var ErrClosed = fmt.Errorf("sqlstore: %w", subagent.ErrClosed)

func (o Options) busyTimeout() time.Duration {
	if o.BusyTimeout > 0 {
		return o.BusyTimeout
	}
	return 5 * time.Second
}

func (o Options) logger() *slog.Logger {
	if o.Logger != nil {
		return o.Logger
	}
	return slog.New(slog.DiscardHandler)
}

// Close waits for the writes that were asked for before, ends every Watch and
// gives the file back. Everything acknowledged is stored without it. Calling it
// again does nothing.
func (s *Store) Close() error {
	s.queue.close()
	s.end()
	// The reader first: the last connection tidies the file up, and only the
	// one that may write can.
	s.closing.Do(func() {
		s.closed = errors.Join(s.read.Close(), s.txn.close(), s.write.Close())
	})
	return s.closed
}

// Create implements subagent.Store.
func (s *Store) Create(ctx context.Context, tasks ...subagent.Task) error {
	rows := make([]*record, len(tasks))
	size := 0
	for i := range tasks {
		var err error
		if rows[i], err = newRecord(&tasks[i]); err != nil {
			return err
		}
		size += len(rows[i].json)
	}
	var refused error
	err := s.submit(ctx, size, func(tx *txn) (err error) {
		refused, err = tx.create(rows)
		return err
	})
	if err == nil && refused == nil && len(rows) == 1 { // an import is not changed soon
		s.recent.put(rows[0])
	}
	return cmpErr(err, refused)
}

// Get implements subagent.Store.
func (s *Store) Get(ctx context.Context, id uuid.UUID) (subagent.Task, error) {
	r, err := s.load(ctx, id)
	if err != nil {
		return subagent.Task{}, err
	}
	return r.task, nil
}

// Update implements subagent.Store. No lock is held and no transaction is open
// while edit runs. It runs again if the task was changed meanwhile; each such
// round means that somebody else's change was stored, and ctx ends them.
func (s *Store) Update(ctx context.Context, id uuid.UUID, edit func(*subagent.Task) error) (subagent.Task, error) {
	// The first round may build on a guess, which only the compare-and-set in
	// replace confirms: what does not come to that is decided on a task that
	// was read.
	old := s.recent.get(id)
	for read := false; ; read = true {
		if read || old == nil {
			var err error
			if old, err = s.load(ctx, id); err != nil {
				return subagent.Task{}, err
			}
			read = true
		}
		next, err := old.edited(edit)
		if !read && (err != nil || next == old) {
			continue
		}
		if err != nil {
			return subagent.Task{}, err
		}
		stored := next == old
		if !stored {
			stored, err = s.replace(ctx, old, next)
		}
		if err != nil {
			return subagent.Task{}, err
		}
		if stored {
			return clone(&next.task), nil // the record may be in the cache
		}
	}
}

// replace stores next in the place of old and reports false if old is not what
// is stored any more.
func (s *Store) replace(ctx context.Context, old, next *record) (stored bool, err error) {
	newsFor := s.newsFor(&old.task, &next.task)
	err = s.submit(ctx, len(next.json), func(tx *txn) (err error) {
		stored, err = tx.replace(old, next, newsFor)
		return err
	})
	if err != nil || !stored {
		return false, err
	}
	s.recent.put(next)
	return true, nil
}

// List implements subagent.Store. It reads page after page and keeps nothing
// open in between: a task that is created, changed or deleted meanwhile may be
// seen as it was or as it is, and none is seen twice.
func (s *Store) List(ctx context.Context, f subagent.Filter) iter.Seq2[subagent.Task, error] {
	f.Statuses = slices.Clone(f.Statuses)
	return func(yield func(subagent.Task, error) bool) {
		f := f // each range over the sequence starts anew
		for more := true; more; {
			var page []*record
			var err error
			if page, more, err = s.page(ctx, &f); err != nil {
				yield(subagent.Task{}, err)
				return
			}
			for _, r := range page {
				if !yield(r.task, nil) {
					return
				}
			}
		}
	}
}

// Delete implements subagent.Store.
func (s *Store) Delete(ctx context.Context, ids ...uuid.UUID) error {
	var refused error
	err := s.submit(ctx, 0, func(tx *txn) (err error) {
		refused, err = tx.delete(ids)
		return err
	})
	return cmpErr(err, refused)
}

// load reads one task.
func (s *Store) load(ctx context.Context, id uuid.UUID) (*record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := scanRecord(s.get.QueryRowContext(ctx, id[:]))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: %s", subagent.ErrNotFound, id)
	}
	if err != nil {
		return nil, s.failed(ctx, fmt.Sprintf("task %s", id), err)
	}
	return r, nil
}

// cmpErr is the first of two errors that there is: that of the database, or
// the answer that it gave.
func cmpErr(err, refused error) error {
	if err != nil {
		return err
	}
	return refused
}

// failed is err, of a read or a write, for whoever called with ctx.
func (s *Store) failed(ctx context.Context, what string, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case s.ending.Err() != nil:
		return ErrClosed
	}
	return describe(s.name, what, err)
}
