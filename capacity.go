package subagent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-subagent/subagent/internal/fifo"
)

// Capacity says who may run: a number of slots and one line of waiters for
// them. Slots are granted strictly in the order of the line; a newcomer never
// overtakes a waiter; a released slot goes to the head of the line without
// being free in between. It may be shared by several Runners and by a host
// that runs work of its own beside them. All methods may be called from many
// goroutines at once. It needs no closing and owns no goroutine.
type Capacity struct {
	// mu guards all fields below. It is a leaf: no other lock is taken under
	// it, no foreign code runs and nothing blocks under it. Grantees are told
	// after it was released.
	//
	// What holds whenever mu is free: a free slot and a waiter never exist at
	// the same time. Whoever frees a slot or raises the limit moves it to the
	// next waiter in the same critical section, so whoever finds
	// running < limit has nobody to overtake.
	mu        sync.Mutex
	limit     int
	maxQueued int // < 0: unlimited
	running   int // slots held; above limit after Resize or force
	reserved  int // places admitted by reserve whose enter is still to come
	returning fifo.Queue[grantee]
	line      fifo.Queue[grantee]
	idle      *holder // recycled, linked by next
	idleCount int
}

// CapacityStats are a Capacity's numbers at one moment.
type CapacityStats struct {
	Limit   int // slots there are
	Running int // slots held; above Limit for a while after a Resize downwards
	Queued  int // waiters in line
}

// What a CapacityError unwraps to.
var (
	ErrQueueFull  = errors.New("subagent: queue full")
	ErrNoCapacity = errors.New("subagent: no free slot")
)

// CapacityError is a refusal, with the numbers of the moment that it was made.
// It unwraps to ErrQueueFull or ErrNoCapacity.
type CapacityError struct {
	Limit     int   // slots there are
	Running   int   // slots held
	Queued    int   // waiters in line, and those who were admitted and are about to join it
	MaxQueued int   // how many may wait for a slot to be freed; < 0: any number
	Err       error // ErrQueueFull or ErrNoCapacity
}

// Error says how full slots and line were when the call was refused.
func (e *CapacityError) Error() string {
	bound := "no bound"
	if e.MaxQueued >= 0 {
		bound = fmt.Sprintf("at most %d", e.MaxQueued)
	}
	return fmt.Sprintf("%v: %d of %d slots held, %d queued (%s)", e.Err, e.Running, e.Limit, e.Queued, bound)
}

// Unwrap returns ErrQueueFull or ErrNoCapacity.
func (e *CapacityError) Unwrap() error { return e.Err }

// NewCapacity returns a Capacity of limit slots, none of them held, with a
// line that admits maxQueued waiters beyond the free slots: 0 means that
// nobody may wait, less than 0 that any number may. It panics if limit is less
// than 1.
func NewCapacity(limit, maxQueued int) *Capacity {
	mustBeLimit(limit)
	return &Capacity{limit: limit, maxQueued: maxQueued}
}

// Acquire takes a slot and returns the func that gives it back. If none is
// free it waits in line until one is handed to it or ctx ends; a full line is
// a *CapacityError (ErrQueueFull) at once.
//
// A ctx that is done takes nothing, even if slots are free: Acquire returns
// ctx.Err(). When it does so after waiting, it has left the line or handed
// on a slot that was granted meanwhile, and Stats shows that already.
//
// release gives the slot to the next in line. It never blocks; it may be
// called from any goroutine and more than once, only the first call counts.
// The caller owns it: a slot whose release is never called stays held. A Func
// that acquires one of its own Runner's lends nothing meanwhile, as it does when
// it waits for a task: with one slot it waits until ctx ends.
func (c *Capacity) Acquire(ctx context.Context) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	if !c.admitsLocked() {
		err := c.refusalLocked(ErrQueueFull)
		c.mu.Unlock()
		return nil, err
	}
	h := c.holderLocked()
	generation := h.generation
	if c.takeLocked() {
		c.mu.Unlock()
		return h.releaser(generation), nil
	}
	t := c.line.Push(h.waiterLocked())
	c.mu.Unlock()
	if err := h.await(ctx, t, generation); err != nil {
		return nil, err
	}
	return h.releaser(generation), nil
}

// TryAcquire takes a slot if one is free and nobody waits for it; ok is false
// otherwise. It never blocks. release is as Acquire's.
func (c *Capacity) TryAcquire() (release func(), ok bool) {
	c.mu.Lock()
	if !c.takeLocked() {
		c.mu.Unlock()
		return nil, false
	}
	h := c.holderLocked()
	generation := h.generation
	c.mu.Unlock()
	return h.releaser(generation), true
}

// Resize changes the number of slots. Raising it starts waiters before Resize
// returns, in the order of the line. Lowering it interrupts nobody: what runs
// keeps its slot, and nothing new starts until Running is below limit. It
// never blocks, and panics if limit is less than 1.
func (c *Capacity) Resize(limit int) {
	mustBeLimit(limit)
	for _, g := range c.resize(limit) {
		handOn(g)
	}
}

// Stats returns the numbers of this moment: all three of the same one.
func (c *Capacity) Stats() CapacityStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CapacityStats{Limit: c.limit, Running: c.running, Queued: c.line.Len()}
}

// grantee is what waits for a slot.
type grantee interface {
	// granted is called, with no lock held, by whoever freed the slot, once
	// the slot is the grantee's. It returns the next grantee if it passed the
	// slot on at once, else nil.
	granted() grantee
}

// ticket is a grantee's place in one of the two lanes.
type ticket = fifo.Ticket[grantee]

// reserve admits one grantee, who will enter or unreserve later, so that enter
// is never refused. It is a *CapacityError (ErrQueueFull) if the line is full.
func (c *Capacity) reserve() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.admitsLocked() {
		return c.refusalLocked(ErrQueueFull)
	}
	c.reserved++
	return nil
}

// unreserve gives back a reserved place that is not used.
func (c *Capacity) unreserve() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved--
}

// enter uses a reserved place. If granted is true the slot is g's already and
// g.granted is not called; else g stands at the end of the line, and may be
// granted before enter returns.
func (c *Capacity) enter(g grantee) (t ticket, granted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved--
	if c.takeLocked() {
		return ticket{}, true
	}
	return c.line.Push(g), false
}

// leave takes t out of the line. It is false if t was granted before, or has
// left: the slot, if any, is then its grantee's to release.
func (c *Capacity) leave(t ticket) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.line.Remove(t)
}

// position is t's place in line; 1 is next. It is false if t waits no more.
func (c *Capacity) position(t ticket) (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.line.Position(t)
}

// take takes a slot now, or is a *CapacityError (ErrNoCapacity) if none is
// free or somebody waits.
func (c *Capacity) take() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.takeLocked() {
		return c.refusalLocked(ErrNoCapacity)
	}
	return nil
}

// enterReturning is enter for a lender who wants its slot back: it needs no
// reserved place and stands ahead of the line, behind earlier lenders.
func (c *Capacity) enterReturning(g grantee) (t ticket, granted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.takeLocked() {
		return ticket{}, true
	}
	return c.returning.Push(g), false
}

// leaveReturning is leave for a lender.
func (c *Capacity) leaveReturning(t ticket) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.returning.Remove(t)
}

// force takes a slot at once, over the limit if need be. Nothing new starts
// then until Running is below the limit again.
func (c *Capacity) force() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running++
}

// release hands a held slot to the next waiter, or frees it if nobody waits or
// more slots are held than there are. It returns who got it, or nil; the
// caller calls handOn on that after it let go of its own locks.
func (c *Capacity) release() grantee {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.releaseLocked()
}

// handOn tells g that a slot is its own, and whoever g passed it on to, and so
// on: a loop, so that a line of cancelled waiters does not become a deep stack.
func handOn(g grantee) {
	for g != nil {
		g = g.granted()
	}
}

// resize returns who got a slot by it, in order.
func (c *Capacity) resize(limit int) (started []grantee) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = limit
	for c.running < c.limit && c.waitingLocked() {
		c.running++
		started = append(started, c.nextLocked())
	}
	return started
}

// admitsLocked: a free slot takes one more than the line's bound. Subtracting
// on the left cannot overflow, however large maxQueued is.
func (c *Capacity) admitsLocked() bool {
	return c.maxQueued < 0 || c.line.Len()+c.reserved-max(0, c.limit-c.running) < c.maxQueued
}

// takeLocked may ignore both lanes: they are empty while a slot is free.
func (c *Capacity) takeLocked() bool {
	if c.running >= c.limit {
		return false
	}
	c.running++
	return true
}

// releaseLocked leaves running as it is when somebody waits: the slot is never
// free for a newcomer to take. Over the limit there is no slot to hand on, as
// this one has ceased to exist.
func (c *Capacity) releaseLocked() grantee {
	if c.running <= c.limit && c.waitingLocked() {
		return c.nextLocked()
	}
	c.running--
	return nil
}

func (c *Capacity) waitingLocked() bool { return c.returning.Len()+c.line.Len() > 0 }

func (c *Capacity) nextLocked() grantee {
	if g, ok := c.returning.Pop(); ok {
		return g
	}
	g, _ := c.line.Pop()
	return g
}

func (c *Capacity) refusalLocked(err error) *CapacityError {
	return &CapacityError{
		Limit: c.limit, Running: c.running, Queued: c.line.Len() + c.reserved, MaxQueued: c.maxQueued, Err: err,
	}
}

// maxIdle bounds the holders that a burst of waiters leaves behind.
const maxIdle = 256

// holder is one caller of Acquire or TryAcquire, from its call until its
// release. Holders are recycled, within their Capacity only: a channel of a
// synctest bubble must not turn up in another.
type holder struct {
	capacity *Capacity

	// ready carries the grant. It has room for one and a holder is granted at
	// most once between two receives, so that sending never blocks. It is made
	// when the holder waits for the first time.
	ready chan struct{}

	// generation counts the releases; capacity.mu guards it. A release func
	// knows the generation it belongs to, which makes it idempotent, even if
	// the holder has been recycled since.
	generation uint64
	next       *holder // guarded by capacity.mu
}

func (h *holder) granted() grantee {
	h.ready <- struct{}{}
	return nil
}

// await waits for the grant or the end of ctx.
func (h *holder) await(ctx context.Context, t ticket, generation uint64) error {
	done := h.done(ctx, t)
	if done == nil { // nothing to choose from: a receive is cheaper than a select
		<-h.ready
		return nil
	}
	select {
	case <-h.ready:
		// A ctx that ended before the grant must not win by the luck of the
		// select. ready is drained, so the holder is as good as new.
		if !isClosed(done) {
			return nil
		}
		h.release(generation)
	case <-done:
		h.giveUp(t)
	}
	return ended(ctx)
}

// done is ctx.Done(), which is foreign code: if it does not return, the line is
// left.
func (h *holder) done(ctx context.Context, t ticket) (done <-chan struct{}) {
	returned := false
	defer func() {
		if !returned {
			h.giveUp(t)
		}
	}()
	done = ctx.Done()
	returned = true
	return done
}

// giveUp leaves the line. Removing t and popping it both happen under mu, so
// exactly one of them took place first. If it was the removal, nobody will
// ever call granted. If it was the pop, then the slot has been ours since: it
// is counted in running, and we hand it on like any other slot, before we
// return. But the call of granted that follows the pop happens outside mu and
// may be still to come, at any time: this holder is left to the garbage
// collector, as in the hands of a later caller it would be a grant of nothing.
func (h *holder) giveUp(t ticket) {
	c := h.capacity
	c.mu.Lock()
	var g grantee
	if c.line.Remove(t) {
		c.recycleLocked(h)
	} else {
		g = c.releaseLocked()
	}
	c.mu.Unlock()
	handOn(g)
}

func (h *holder) releaser(generation uint64) func() {
	return func() { h.release(generation) }
}

func (h *holder) release(generation uint64) {
	c := h.capacity
	c.mu.Lock()
	if h.generation != generation {
		c.mu.Unlock()
		return
	}
	h.generation++
	c.recycleLocked(h)
	g := c.releaseLocked()
	c.mu.Unlock()
	handOn(g)
}

func (h *holder) waiterLocked() grantee {
	if h.ready == nil {
		h.ready = make(chan struct{}, 1)
	}
	return h
}

func (c *Capacity) holderLocked() *holder {
	h := c.idle
	if h == nil {
		return &holder{capacity: c}
	}
	c.idle, h.next = h.next, nil
	c.idleCount--
	return h
}

func (c *Capacity) recycleLocked(h *holder) {
	if c.idleCount < maxIdle {
		h.next, c.idle = c.idle, h
		c.idleCount++
	}
}

func mustBeLimit(limit int) {
	if limit < 1 {
		panic(fmt.Sprintf("subagent: a capacity needs a limit of at least 1, got %d", limit))
	}
}
