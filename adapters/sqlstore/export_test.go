package sqlstore

import (
	"context"

	"github.com/go-subagent/subagent"
)

// Pragmas are those of a connection that writes and of one that reads.
func (s *Store) Pragmas(name string) (write, read string, err error) {
	if err = s.txn.conn.QueryRowContext(context.Background(), `PRAGMA `+name).Scan(&write); err == nil {
		err = s.read.QueryRow(`PRAGMA ` + name).Scan(&read)
	}
	return write, read, err
}

// Exec runs a statement in the queue.
func (s *Store) Exec(ctx context.Context, statement string, before func(), args ...any) error {
	return s.submit(ctx, 0, func(tx *txn) error {
		before()
		_, err := tx.exec(statement, args...)
		return err
	})
}

// Waiting is how many writes are in line.
func (s *Store) Waiting() int {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return len(s.queue.waiting)
}

func SelectPage(s *Store, f subagent.Filter, limit int) (text string, args []any) {
	q := selectPage(&f, limit)
	return q.text, q.args
}
