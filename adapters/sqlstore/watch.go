package sqlstore

import (
	"context"
	"errors"
	"time"

	"github.com/go-subagent/subagent"
)

// News are changes of a live task that its owner may not know of. Whoever
// writes one marks the row with the owner and with the next number of a
// counter, in the same transaction: numbers come in the order of the commits,
// so a watcher that remembers the last one misses nothing, also if the owner
// wrote the row again in between.

const (
	countSQL    = `UPDATE counters SET value = value + 1 WHERE name = 'news'`
	announceSQL = `UPDATE tasks SET news_for = $1, news = (SELECT value FROM counters WHERE name = 'news') WHERE place = $2`
	newsSQL     = `SELECT ` + columns + `, news FROM tasks WHERE news_for = $1 AND news > $2 ORDER BY news LIMIT $3`
)

// watchEvery is how often a watcher looks. It is a search in an index that has
// nothing but news.
const watchEvery = 50 * time.Millisecond

// Watch implements subagent.Watcher. It looks every 50 ms and, on its first
// look, tells also of what happened before. A task that others took away from
// owner is told, too, as it is now.
func (s *Store) Watch(ctx context.Context, owner string, fn func(subagent.Task)) error {
	s.host(owner)
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for last := int64(0); ; {
		for more := true; more; {
			var page []*record
			var err error
			if page, last, err = s.news(ctx, owner, last); err != nil {
				return err
			}
			for _, r := range page {
				fn(r.task)
			}
			more = len(page) == pageTasks
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ending.Done():
			return ErrClosed
		}
	}
}

// news reads what owner is to be told after the number last, and the number of
// the newest of it.
func (s *Store) news(ctx context.Context, owner string, last int64) ([]*record, int64, error) {
	rows, err := s.look.QueryContext(ctx, owner, last, pageTasks)
	if err != nil {
		return nil, last, s.failed(ctx, "news", err)
	}
	defer rows.Close()
	var page []*record
	for rows.Next() {
		r, err := scanRecord(withNumber{rows, &last})
		switch {
		case errors.Is(err, errRow): // whoever asks for the task is told; the others' news go on
			s.log.Error("sqlstore: news of a task that cannot be read", "file", s.name, "error", err)
		case err != nil:
			return nil, last, s.failed(ctx, "news", err)
		default:
			page = append(page, r)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, last, s.failed(ctx, "news", err)
	}
	return page, last, nil
}

// withNumber scans one column more than it is asked for.
type withNumber struct {
	row    interface{ Scan(...any) error }
	number *int64
}

func (w withNumber) Scan(dest ...any) error { return w.row.Scan(append(dest, w.number)...) }

// announce marks a task as news for owner.
func (t *txn) announce(place int64, owner string) error {
	if _, err := t.exec(countSQL); err != nil {
		return err
	}
	_, err := t.exec(announceSQL, owner, place)
	return err
}

// newsFor is the owner who has to be told of a change, or "". Which of several
// Runners on this Store makes a change is not known, so they are told of every
// cancel and of every task that changes hands; what else an owner here changes
// it knows itself.
func (s *Store) newsFor(old, next *subagent.Task) string {
	if old.Status.Terminal() || old.Owner == "" {
		return ""
	}
	if old.Owner != next.Owner || !old.CancelRequestedAt.Equal(next.CancelRequestedAt) {
		return old.Owner
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts[old.Owner] {
		return ""
	}
	return old.Owner
}

// host notes that owner works through this Store.
func (s *Store) host(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts[owner] = true
}

// dismiss notes that owner does not any more.
func (s *Store) dismiss(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.hosts, owner)
}
