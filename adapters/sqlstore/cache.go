package sqlstore

import (
	"sync"

	"github.com/google/uuid"
)

// cache keeps the rows that were written last, so that the next change of a
// task need not read it first. What it holds may be out of date: it is a guess
// that counts only once a compare-and-set of the row's birth and version has
// confirmed it, and nobody is ever shown it before that. So nothing has to be
// told to it when other processes write.
type cache struct {
	mu         sync.Mutex // guards both; a leaf
	young, old map[uuid.UUID]*record
}

// What the cache holds at most: two generations of so many records, each of so
// many bytes of JSON. When the young one is full it becomes the old one.
const (
	cacheRecords = 1024
	cacheBytes   = 8 << 10
)

func (c *cache) get(id uuid.UUID) *record {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.young[id]; r != nil {
		return r
	}
	return c.old[id]
}

func (c *cache) put(r *record) {
	if len(r.json) > cacheBytes || r.task.Status.Terminal() && owed(&r.task) == 0 {
		c.drop(r.task.ID) // too large, or nobody will change it again
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.young == nil || len(c.young) >= cacheRecords {
		c.young, c.old = make(map[uuid.UUID]*record), c.young
	}
	c.young[r.task.ID] = r
}

func (c *cache) drop(id uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.young, id)
	delete(c.old, id)
}
