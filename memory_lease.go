package subagent

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// Renew implements Leaser. An empty owner, or a ttl that is not positive, is
// ErrInvalidRequest.
func (m *MemoryStore) Renew(ctx context.Context, owner string, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if owner == "" {
		return fmt.Errorf("%w: lease without an owner", ErrInvalidRequest)
	}
	if ttl <= 0 {
		return fmt.Errorf("%w: lease of %v", ErrInvalidRequest, ttl)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.leases[owner] = now.Add(ttl)
	m.sweepLocked(now)
	return nil
}

// Live implements Leaser.
func (m *MemoryStore) Live(ctx context.Context, owner string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Before(m.leases[owner]), nil
}

// Release implements Leaser.
func (m *MemoryStore) Release(ctx context.Context, owner string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leases, owner)
	return nil
}

// sweepLocked forgets expired leases whenever their number may have doubled:
// the map stays within twice the live ones, at a constant cost per Renew.
func (m *MemoryStore) sweepLocked(now time.Time) {
	if len(m.leases) < m.sweepAt {
		return
	}
	maps.DeleteFunc(m.leases, func(_ string, expiry time.Time) bool { return !now.Before(expiry) })
	m.sweepAt = max(minLeaseSweep, 2*len(m.leases))
}
