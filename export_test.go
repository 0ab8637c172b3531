package subagent

import (
	"time"

	"github.com/google/uuid"
)

// Lock takes the lock of c.
func (c *Capacity) Lock() (unlock func()) {
	c.mu.Lock()
	return c.mu.Unlock
}

// Overdue is the end of a task's queue time.
func (r *Runner) Overdue(id uuid.UUID) { r.find(id).overdue(time.Minute) }
