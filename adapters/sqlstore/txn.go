package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// txn is one transaction that writes. Nobody else writes while it is open, so
// what it has read stays true. An error of the database fails all of it; what
// a verb refuses to its caller is returned apart, and then the verb has changed
// nothing.
type txn struct {
	s     *Store
	tx    *sql.Tx
	bound map[*sql.Stmt]*sql.Stmt // the Store's statements, made this transaction's
}

// exec runs a prepared statement and returns how many rows it changed.
func (t *txn) exec(stmt *sql.Stmt, args ...any) (int64, error) {
	bound := t.bound[stmt]
	if bound == nil {
		bound = t.tx.StmtContext(context.Background(), stmt)
		t.bound[stmt] = bound
	}
	res, err := bound.Exec(args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// create inserts all of rows or none.
func (t *txn) create(rows []*record) (refused, err error) {
	if len(rows) > 1 { // a single one is refused by its statement
		if refused, err := t.vacant(rows); refused != nil || err != nil {
			return refused, err
		}
	}
	for _, r := range rows {
		n, err := t.exec(t.s.insert, r.args()...)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return exists(r.task.ID), nil
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
	stmt, args := t.s.touch, []any{next.json, next.task.Version}
	switch {
	case !sameKeys(&old.task, &next.task):
		stmt, args = t.s.rewrite, append(args, next.keys()...)
	case old.task.Status != next.task.Status || owed(&old.task) != owed(&next.task):
		stmt, args = t.s.move, append(args, string(next.task.Status), owed(&next.task))
	}
	// The version alone does not tell a row from one that was deleted and
	// created anew.
	n, err := t.exec(stmt, append(args, old.task.ID[:], old.task.Version, old.birth)...)
	if err != nil || n == 0 || newsFor == "" {
		return n > 0, err
	}
	return true, t.announce(old.task.ID, newsFor)
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
		if _, err := t.tx.Exec(`DELETE FROM tasks WHERE id = $1`, id[:]); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (t *txn) status(id uuid.UUID) (status subagent.Status, found bool, err error) {
	err = t.tx.QueryRow(`SELECT status FROM tasks WHERE id = $1`, id[:]).Scan(&status)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	return status, err == nil, err
}
