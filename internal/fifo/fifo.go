// Package fifo is a first-in, first-out queue whose entries can also be taken
// out of the middle. It is pure: no lock, no goroutine, no context.
package fifo

import "math/bits"

const (
	smallestChunk = 16
	largestChunk  = 1024
)

// Queue is a line of values. The zero Queue is empty and ready. It must not be
// copied after its first Push, and its user guards it against concurrent use.
//
// It is a doubly linked list of chunks that are filled once, front to back. An
// entry that is taken out leaves a hole and its place is never used again, so
// a stale Ticket is simply not in the queue. Every chunk but the last has at
// least one live entry: the memory that is kept follows what is queued, not
// what once was.
type Queue[T any] struct {
	head, tail *chunk[T]
	length     int
}

// Ticket is the place of one value in one Queue. The zero Ticket is in no
// queue. Tickets are comparable, and no two Pushes return the same one.
type Ticket[T any] struct {
	chunk *chunk[T]
	index int
}

type chunk[T any] struct {
	queue      *Queue[T] // a ticket shown to another queue is not in it
	prev, next *chunk[T]
	values     []T // its length grows to its capacity, then the chunk is full
	count      int // of live entries
	first      int // no word of live before it has a bit set
	live       [largestChunk / 64]uint64
}

// Push puts v at the end of the line.
func (q *Queue[T]) Push(v T) Ticket[T] {
	c := q.tail
	if c == nil || len(c.values) == cap(c.values) {
		c = q.grow()
	}
	i := len(c.values)
	c.values = append(c.values, v)
	c.live[i/64] |= 1 << (i % 64)
	c.count++
	q.length++
	return Ticket[T]{c, i}
}

// Pop takes the value out that has stood in line longest; false if there is
// none. Over many calls its cost is constant, holes included.
func (q *Queue[T]) Pop() (v T, ok bool) {
	if q.length == 0 {
		return v, false
	}
	c := q.head // has a live entry, or it would be the last chunk of an empty queue
	for c.live[c.first] == 0 {
		c.first++
	}
	i := c.first*64 + bits.TrailingZeros64(c.live[c.first])
	v = c.values[i]
	q.clear(c, i)
	return v, true
}

// Remove takes the value of t out of the line, wherever it stands. It is false
// if that value was popped or removed before, or t is not of this queue.
func (q *Queue[T]) Remove(t Ticket[T]) bool {
	if !q.holds(t) {
		return false
	}
	q.clear(t.chunk, t.index)
	return true
}

// Len is how many values stand in line.
func (q *Queue[T]) Len() int { return q.length }

// Position is the place of t in line: 1 is next. It is false when Remove would
// be. It costs a step per chunk ahead of t and a few within t's own.
func (q *Queue[T]) Position(t Ticket[T]) (int, bool) {
	if !q.holds(t) {
		return 0, false
	}
	ahead := 0
	for c := t.chunk.prev; c != nil; c = c.prev {
		ahead += c.count
	}
	word, bit := t.index/64, t.index%64
	for _, live := range t.chunk.live[:word] {
		ahead += bits.OnesCount64(live)
	}
	ahead += bits.OnesCount64(t.chunk.live[word] & (1<<bit - 1))
	return ahead + 1, true
}

func (q *Queue[T]) holds(t Ticket[T]) bool {
	return t.chunk != nil && t.chunk.queue == q && t.chunk.live[t.index/64]&(1<<(t.index%64)) != 0
}

// grow appends a chunk, twice the size of the last. A last chunk without live
// entries is only dropped here: until it is full its places are still needed,
// and keeping its size lets a steady push and pop allocate once per 1024.
func (q *Queue[T]) grow() *chunk[T] {
	size, last := smallestChunk, q.tail
	if last != nil {
		size = min(2*cap(last.values), largestChunk)
	}
	c := &chunk[T]{queue: q, prev: last, values: make([]T, 0, size)}
	if q.tail = c; last == nil {
		q.head = c
		return c
	}
	last.next = c
	if last.count == 0 {
		q.unlink(last)
	}
	return c
}

// clear makes entry i a hole. It forgets the value, which a stale ticket would
// keep from the garbage collector otherwise.
func (q *Queue[T]) clear(c *chunk[T], i int) {
	var none T
	c.values[i] = none
	c.live[i/64] &^= 1 << (i % 64)
	c.count--
	q.length--
	if c.count == 0 && c != q.tail {
		q.unlink(c)
	}
}

// unlink drops c, which is not the last chunk. It cuts c's own links too: a
// stale ticket then holds one chunk, not the chain behind it.
func (q *Queue[T]) unlink(c *chunk[T]) {
	if c.prev == nil {
		q.head = c.next
	} else {
		c.prev.next = c.next
	}
	c.next.prev = c.prev
	c.prev, c.next = nil, nil
}
