package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/go-subagent/subagent"
)

const renewSQL = `INSERT INTO leases (owner, expires) VALUES ($1, $2)
	ON CONFLICT (owner) DO UPDATE SET expires = excluded.expires`

// Renew implements subagent.Leaser. Leases run on the clock of the machine: a
// jump of it that is longer than what is left of a lease ends the lease. An
// empty owner, or a ttl that is not positive, is ErrInvalidRequest.
func (s *Store) Renew(ctx context.Context, owner string, ttl time.Duration) error {
	switch {
	case owner == "":
		return fmt.Errorf("%w: lease without an owner", subagent.ErrInvalidRequest)
	case ttl <= 0:
		return fmt.Errorf("%w: lease of %v", subagent.ErrInvalidRequest, ttl)
	}
	s.host(owner)
	return s.submit(ctx, 0, func(tx *txn) error {
		now := time.Now()
		// What has ended is swept: it says as much when it is not there.
		if _, err := tx.exec(`DELETE FROM leases WHERE expires <= $1`, now.UnixMicro()); err != nil {
			return err
		}
		_, err := tx.exec(renewSQL, owner, now.Add(ttl).UnixMicro())
		return err
	})
}

// Live implements subagent.Leaser.
func (s *Store) Live(ctx context.Context, owner string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	var n int
	err := s.read.QueryRowContext(ctx, `SELECT count(*) FROM leases WHERE owner = $1 AND expires > $2`,
		owner, time.Now().UnixMicro()).Scan(&n)
	if err != nil {
		return false, s.failed(ctx, "lease of "+owner, err)
	}
	return n > 0, nil
}

// Release implements subagent.Leaser.
func (s *Store) Release(ctx context.Context, owner string) error {
	s.dismiss(owner)
	return s.submit(ctx, 0, func(tx *txn) error {
		_, err := tx.exec(`DELETE FROM leases WHERE owner = $1`, owner)
		return err
	})
}
