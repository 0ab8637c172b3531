package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// txn is the connection that writes, with a transaction open on it. Whoever
// leads the queue has it alone, and nobody else writes meanwhile, so what it has
// read stays true. An error of the database fails all of a verb; what a verb
// refuses to its caller is returned apart, and then it has changed nothing.
type txn struct {
	conn     *sql.Conn
	prepared map[string]*sql.Stmt // by text; they are few
	broken   bool                 // the driver has panicked in it
}

// transact stores a batch, all of it or nothing. bad is the entry that the
// database did not take, or -1. It is governed by no ctx: it may be the work of
// many callers.
func (s *Store) transact(batch []*entry) (bad int, err error) {
	t, begun := &s.txn, false
	defer func() {
		if p := recover(); p != nil { // the driver, when memory runs out; all wait for the leader, so it goes on
			t.broken, err = true, fmt.Errorf("panic: %v", p)
		}
		if err == nil {
			return
		}
		if begun {
			_, _ = t.exec(rollbackSQL) // whether it can be or not, nothing was committed
		}
		err = describe(s.name, "", err)
	}()
	if _, err := t.exec(beginSQL); err != nil {
		return -1, err
	}
	begun = true
	for i, e := range batch {
		bad = i
		if err := e.do(t); err != nil {
			return i, err
		}
	}
	bad = -1
	if err := s.files.check(); err != nil {
		return -1, err
	}
	_, err = t.exec(commitSQL)
	return -1, err
}

// close gives the connection back. One in which the driver has panicked never
// comes back.
func (t *txn) close() error {
	if t.conn == nil || t.broken {
		return nil
	}
	var err error
	for _, stmt := range t.prepared {
		err = errors.Join(err, stmt.Close())
	}
	return errors.Join(err, t.conn.Close())
}

// stmt is the prepared statement of a text.
func (t *txn) stmt(text string) (*sql.Stmt, error) {
	if stmt := t.prepared[text]; stmt != nil {
		return stmt, nil
	}
	stmt, err := t.conn.PrepareContext(context.Background(), text)
	if err == nil {
		t.prepared[text] = stmt
	}
	return stmt, err
}

func (t *txn) exec(text string, args ...any) (sql.Result, error) {
	stmt, err := t.stmt(text)
	if err != nil {
		return nil, err
	}
	return stmt.Exec(args...)
}

// create inserts all of rows or none.
func (t *txn) create(rows []*record) (refused, err error) {
	if len(rows) > 1 { // a single one is refused by its statement
		if refused, err := t.vacant(rows); refused != nil || err != nil {
			return refused, err
		}
	}
	for _, r := range rows {
		res, err := t.exec(insertSQL, r.args()...)
		if err != nil {
			return nil, err
		}
		if n, err := res.RowsAffected(); n == 0 {
			return exists(r.task.ID), err
		}
		if r.place, err = res.LastInsertId(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// vacant refuses rows of which one is stored or given twice.
func (t *txn) vacant(rows []*record) (refused, err error) {
	given := make(map[uuid.UUID]bool, len(rows))
	for _, r := range rows {
		_, found, err := t.status(r.task.ID)
		if err != nil {
			return nil, err
		}
		if found || given[r.task.ID] {
			return exists(r.task.ID), nil
		}
		given[r.task.ID] = true
	}
	return nil, nil
}

func exists(id uuid.UUID) error { return fmt.Errorf("%w: %s", subagent.ErrTaskExists, id) }

// replace puts next in the place of old and reports false if old is not what
// is stored any more. newsFor is the owner to be told; "" for none.
func (t *txn) replace(old, next *record, newsFor string) (stored bool, err error) {
	text, args := updateSQL(old, next)
	res, err := t.exec(text, args...)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	if err != nil || n == 0 || newsFor == "" {
		return n > 0, err
	}
	return true, t.announce(old.place, newsFor)
}

// delete removes the terminal tasks among ids, or nothing if one is not.
func (t *txn) delete(ids []uuid.UUID) (refused, err error) {
	for _, id := range ids {
		status, found, err := t.status(id)
		if err != nil {
			return nil, err
		}
		if found && !status.Terminal() {
			return fmt.Errorf("%w: %s is %s", subagent.ErrNotTerminal, id, status), nil
		}
	}
	for _, id := range ids {
		if _, err := t.exec(`DELETE FROM tasks WHERE id = $1`, id[:]); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (t *txn) status(id uuid.UUID) (status subagent.Status, found bool, err error) {
	stmt, err := t.stmt(`SELECT status FROM tasks WHERE id = $1`)
	if err != nil {
		return "", false, err
	}
	err = stmt.QueryRow(id[:]).Scan(&status)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	return status, err == nil, err
}
