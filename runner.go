package subagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Func does the work of one task. It is synchronous: the task ends when it
// returns. ctx ends when the task must stop, with a *CancelError as its cause;
// a Func that goes on regardless is settled without it when the grace is over.
// ctx has the values of the ctx that Spawn was given, and the end of the run
// time as its deadline. It does not end when the Func returns.
type Func func(ctx context.Context, run *Run) (Result, error)

// Config says what a Runner works with. The zero Config is a Runner in memory
// with four slots, whose Requests bring their own Func.
type Config struct {
	Store         Store         // nil: NewMemoryStore()
	Func          Func          // may be nil when every Request brings its own
	Capacity      *Capacity     // nil: a new one of Workers and MaxQueued; set: those two are ignored. May be shared by Runners
	Workers       int           // 0: $SUBAGENT_TASK_WORKERS, else 4
	MaxQueued     int           // 0: 1024; <0: unlimited (for no queue at all pass a Capacity)
	MaxDepth      int           // 0: 8 layers of sub-agents; <0: unlimited
	Timeout       time.Duration // run time; 0: none
	QueueTimeout  time.Duration // 0: none
	CancelGrace   time.Duration // how long a Func may take to obey its cancel; 0: 30 s
	ShutdownGrace time.Duration // 0: 5 s
	StoreTimeout  time.Duration // one call of the store, a sink or the notifier; 0: 10 s
	FreeOnDetach  bool          // give a detached worker's slot away at once; default: when it returns
	Cards         CardSink      // nil: no cards
	Notifier      Notifier      // nil: notices are owed until somebody waits for the task
	Logger        *slog.Logger  // nil: discard
}

// What applies where Config says nothing.
const (
	defaultWorkers       = 4
	defaultMaxQueued     = 1024
	defaultMaxDepth      = 8
	defaultCancelGrace   = 30 * time.Second
	defaultShutdownGrace = 5 * time.Second
	defaultStoreTimeout  = 10 * time.Second
	workersVariable      = "SUBAGENT_TASK_WORKERS"
)

// Runner runs tasks and always knows what became of them. All its methods may
// be called from many goroutines, from inside a Func, a Store, a CardSink or a
// Notifier.
type Runner struct {
	id           string
	cfg          Config // complete: defaults are filled in
	store        Store
	memory       *MemoryStore // the store, if it is one: its calls need no guard
	leaser       Leaser       // nil: the store belongs to this Runner alone
	capacity     *Capacity
	hub          hub
	log          logbook
	outboxes     outboxes
	tally        [7]atomic.Int64 // tasks by tallyOf: live ones now, ended ones since New
	lives        atomic.Uint64   // how many executions there were
	detached     atomic.Int64
	lent         atomic.Int64
	lastDelivery atomic.Int64              // the last deliveryStamp, in microseconds since 1970
	final        atomic.Bool               // Shutdown has begun its last writes: nothing is scheduled any more
	by           atomic.Pointer[time.Time] // until when Shutdown lets the store and the sinks answer
	quit         chan struct{}             // closed when no pause is to be waited for any more
	lastCall     chan struct{}             // closed when the last writes of Shutdown are over
	private      bool                      // nobody else can know the store
	reposted     map[uuid.UUID]bool        // tasks whose card was put again, of those that owe a notice: New's, then the recovery's
	stopped      sync.WaitGroup            // the lease keeper and the watcher

	// mu guards what follows. It is a leaf: nothing else is locked under it.
	mu      sync.Mutex
	tasks   map[uuid.UUID]*execution // live ones, and ended ones about which something is left to be done
	unsaved map[*execution]bool      // ended, and the store does not know it; false: it may not exist at all
	open    int                      // tasks that Shutdown waits for: not told, or their worker not back
	helpers int                      // goroutines of ours that write, put or deliver
	closing *closing                 // nil until Shutdown
}

// ErrClosed refuses what a Runner that is shut down, or is shutting down, no
// longer does.
var ErrClosed = errors.New("subagent: runner closed")

// New returns a Runner and recovers, before it returns, what dead owners left
// in the store: their open tasks become errored (ReasonLost), their owed
// notices are taken over. If the store is a Leaser, it tells who is dead;
// otherwise every open task there is taken for orphaned. ctx governs this
// recovery alone. New fails if cfg is wrong (ErrInvalidRequest, naming the
// field), or the store cannot be read or does not say who is dead. A Runner must
// be shut down: Shutdown.
func New(ctx context.Context, cfg Config) (*Runner, error) {
	private := cfg.Store == nil
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("subagent: no random numbers: %w", err)
	}
	r := &Runner{
		id: id.String(), cfg: cfg, store: cfg.Store, capacity: cfg.Capacity,
		tasks: make(map[uuid.UUID]*execution), unsaved: make(map[*execution]bool),
		quit: make(chan struct{}), lastCall: make(chan struct{}),
	}
	r.log.logger = cfg.Logger
	r.memory, _ = cfg.Store.(*MemoryStore)
	r.private = private
	if !private {
		r.leaser, _ = cfg.Store.(Leaser)
	}
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// complete checks c and fills its defaults in.
func (c *Config) complete() error {
	for _, d := range []struct {
		field string
		value *time.Duration
		def   time.Duration
	}{
		{"Timeout", &c.Timeout, 0},
		{"QueueTimeout", &c.QueueTimeout, 0},
		{"CancelGrace", &c.CancelGrace, defaultCancelGrace},
		{"ShutdownGrace", &c.ShutdownGrace, defaultShutdownGrace},
		{"StoreTimeout", &c.StoreTimeout, defaultStoreTimeout},
	} {
		if *d.value < 0 {
			return invalid("Config."+d.field, "is %v; it must not be negative", *d.value)
		}
		if *d.value == 0 {
			*d.value = d.def
		}
	}
	if c.MaxDepth == 0 {
		c.MaxDepth = defaultMaxDepth
	}
	if m, ok := c.Store.(*MemoryStore); c.Store == nil || ok && m == nil {
		c.Store = NewMemoryStore()
	}
	return c.completeCapacity()
}

func (c *Config) completeCapacity() error {
	if c.Capacity != nil {
		if limit := c.Capacity.Stats().Limit; limit < 1 {
			return invalid("Config.Capacity", "has %d slots; make it with NewCapacity", limit)
		}
		return nil
	}
	if c.Workers < 0 {
		return invalid("Config.Workers", "is %d; it must not be negative", c.Workers)
	}
	if c.MaxQueued == 0 {
		c.MaxQueued = defaultMaxQueued
	}
	if c.Workers == 0 {
		c.Workers = defaultWorkers
		if text := os.Getenv(workersVariable); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 {
				return invalid("$"+workersVariable, "is %q; it must be a whole number from 1", text)
			}
			c.Workers = n
		}
	}
	c.Capacity = NewCapacity(c.Workers, c.MaxQueued)
	return nil
}

// ID names this Runner: the Owner of the tasks that it executes.
func (r *Runner) ID() string { return r.id }

// QueuePosition is a queued task's place in the line for a slot, 1 being next.
// It is false for a task that does not wait in this Runner's line. The line is
// shared by all who share the Capacity.
func (r *Runner) QueuePosition(id uuid.UUID) (int, bool) {
	e := r.find(id)
	if e == nil {
		return 0, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase != phaseQueued {
		return 0, false
	}
	return r.capacity.position(e.place)
}

// Subscribe returns the events of the tasks that match f and that this Runner
// executes or recovers, from this moment on; of those of other Runners on the
// same store List and Get tell. After, Limit and NewestFirst have no meaning
// here. Close the Subscription when it is no longer read. After Shutdown it is
// over at once.
func (r *Runner) Subscribe(f Filter) *Subscription { return r.hub.subscribe(f) }

// find returns the execution of a task that is in memory.
func (r *Runner) find(id uuid.UUID) *execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tasks[id]
}

// executions returns those in memory that match, in the order of their IDs.
func (r *Runner) executions(match func(*execution) bool) []*execution {
	r.mu.Lock()
	all := make([]*execution, 0, len(r.tasks))
	for _, e := range r.tasks {
		all = append(all, e)
	}
	r.mu.Unlock()
	return inOrder(all, match)
}

// register makes e known, unless its ID is taken, then it returns who has it, or
// the Runner is closing.
func (r *Runner) register(e *execution) (taken *execution, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// First: a recovery during Shutdown must find that it has ended the task
	// already, or that would be told a second time.
	if taken := r.tasks[e.id]; taken != nil {
		return taken, nil
	}
	if r.closing != nil {
		return nil, ErrClosed
	}
	r.tasks[e.id] = e
	e.open = true
	r.open++
	return nil, nil
}

// unregister undoes register.
func (r *Runner) unregister(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tasks[e.id] == e {
		delete(r.tasks, e.id)
	}
	r.closeLocked(e)
}

func (r *Runner) isClosing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closing != nil
}

// drop forgets what e was kept for: back says that Shutdown need not wait for
// it any more, over that nothing is left to be done.
func (r *Runner) drop(e *execution, back, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if over && r.tasks[e.id] == e {
		delete(r.tasks, e.id)
	}
	if back {
		r.closeLocked(e)
	}
	r.pokeLocked()
}

// closeLocked says that Shutdown need not wait for e any more.
func (r *Runner) closeLocked(e *execution) {
	if e.open {
		e.open = false
		r.open--
		r.pokeLocked()
	}
}

// keep remembers that e's end is not stored, and whether e exists.
func (r *Runner) keep(e *execution, exists bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsaved[e] = exists
}

func (r *Runner) saved(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unsaved, e)
}

// begin and finish enclose what a goroutine of ours does on the side; Shutdown
// waits for it.
func (r *Runner) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.helpers++
}

func (r *Runner) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.helpers--
	r.pokeLocked()
}

// attend runs f and returns when it has, or with ctx's error when ctx ends
// first; f goes on then. With a MemoryStore and no sinks f does not block.
func (r *Runner) attend(ctx context.Context, f func()) error {
	if r.memory != nil && r.cfg.Cards == nil {
		f()
		return nil
	}
	done := make(chan struct{})
	r.begin()
	go func() { // ends with f, which is bounded by StoreTimeout
		defer r.finish()
		defer close(done)
		f()
	}()
	if callOf(ctx) != nil {
		return nil // a call of ours must not wait for itself
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}
