package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
	"github.com/go-subagent/subagent/adapters/sqlstore"
	"github.com/go-subagent/subagent/adapters/web"
	"github.com/go-subagent/subagent/agenttool"
)

// The stores of the soak.
const (
	inMemory = "MemoryStore"
	inGit    = "gitstore"
	inSQL    = "sqlstore"
)

// hostOptions are all that a host is told. They are JSON in the environment of
// its process.
type hostOptions struct {
	Store   string
	Dir     string   // of the store and the journal
	Life    int      // its number
	Seed    uint64   // of all its choices
	Clients int      // how many use it
	Most    int      // tasks, after which none are started
	Dead    []string // Runners that were killed: their leases are given back
}

func journalOf(dir string) string { return filepath.Join(dir, "journal") }

// host is a program that embeds the library.
type host struct {
	o        hostOptions
	j        *journal
	store    subagent.Store // without its ledger
	runner   *subagent.Runner
	capacity *subagent.Capacity
	tools    *agenttool.Toolset
	server   *http.Server
	url      string
	gauge    gauge
	pool     pool
	calls    atomic.Int64
	sinks    sinks
	stop     chan struct{}
	once     sync.Once // closes stop
	clients  sync.WaitGroup
	serving  sync.WaitGroup
}

// newHost opens the store, or takes the one in memory, and makes a Runner with
// clients and a server.
func newHost(o hostOptions, memory *subagent.MemoryStore) (*host, error) {
	h := &host{o: o, stop: make(chan struct{}), capacity: subagent.NewCapacity(workers, maxQueued)}
	h.pool.has = make(map[uuid.UUID]bool)
	var err error
	if h.j, err = openJournal(journalOf(o.Dir), o.Life); err != nil {
		return nil, err
	}
	if h.store = memory; memory == nil {
		if h.store, err = openStore(o); err != nil {
			return nil, err
		}
	}
	if err := h.look(); err != nil {
		return nil, err
	}
	h.sinks = sinks{h: h, random: rand.New(rand.NewPCG(o.Seed, 1)), busy: make(map[string]bool), cards: make(map[uuid.UUID]bool)}
	h.runner, err = subagent.New(context.Background(), subagent.Config{
		Store: keep(h.store, h.j), Func: h.work, Cards: &h.sinks, Notifier: &h.sinks, Capacity: h.capacity, MaxDepth: maxDepth,
		CancelGrace: grace, ShutdownGrace: time.Second, StoreTimeout: patience,
	})
	if err != nil {
		return nil, err
	}
	h.tools = agenttool.New(h.runner, agenttool.Options{PlanTools: true})
	if err := h.boot(); err != nil {
		return nil, err
	}
	if err := h.serve(); err != nil {
		return nil, err
	}
	for i := range o.Clients {
		c := &client{host: h, ctx: context.Background(), random: rand.New(rand.NewPCG(o.Seed, uint64(i+2)))}
		h.clients.Go(func() { c.live(h.stop) }) // the host's: ends with stop; quiet waits for it
	}
	return h, nil
}

// openStore opens a durable store. Leases of dead Runners are given back, so
// that nobody waits half a minute.
func openStore(o hostOptions) (subagent.Store, error) {
	if o.Store == inGit {
		return gitstore.Open(filepath.Join(o.Dir, "sessions"), gitstore.Options{})
	}
	s, err := sqlstore.OpenSQLite(filepath.Join(o.Dir, "tasks.db"), sqlstore.Options{BusyTimeout: time.Minute})
	for _, dead := range o.Dead {
		if err == nil {
			err = s.Release(context.Background(), dead)
		}
	}
	return s, err
}

// look notes what the store holds before a Runner has touched it.
func (h *host) look() error {
	f := fact{Says: saysFound, Since: h.j.now()}
	for t, err := range h.store.List(context.Background(), subagent.Filter{}) {
		if err != nil {
			return err
		}
		f.Rows = append(f.Rows, row{t.ID, t.Version, t.Status, t.Owner})
		h.pool.add(t.ID)
	}
	h.j.note(f)
	return nil
}

// boot notes which Runner this is, and what it has left open.
func (h *host) boot() error {
	f := fact{Says: saysBoot, Text: h.runner.ID(), Dead: h.o.Dead}
	open := subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}}
	for t, err := range h.store.List(context.Background(), open) {
		if err != nil {
			return err
		}
		f.Rows = append(f.Rows, row{t.ID, t.Version, t.Status, t.Owner})
	}
	h.j.note(f)
	return nil
}

func (h *host) serve() error {
	on, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	h.url = "ws://" + on.Addr().String() + "/ws"
	h.server = &http.Server{Handler: web.Handler(h.runner, web.Options{}), ReadHeaderTimeout: time.Minute}
	h.serving.Go(func() { // the host's: ends with the server; quit waits for it
		if err := h.server.Serve(on); !errors.Is(err, http.ErrServerClosed) {
			h.j.fault(uuid.Nil, "the server has ended: %v", err)
		}
	})
	return nil
}

// quiet stops the clients.
func (h *host) quiet() {
	h.once.Do(func() { close(h.stop) })
	h.clients.Wait()
}

// quit ends the host in order, while its clients still want something of it.
// Shutdown's own patience is short, and a slow machine may use it up: a Func that
// it has left alone is waited for. An end that it has not stored is a fault.
func (h *host) quit() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := h.runner.Shutdown(ctx)
	var left *subagent.ShutdownError
	if errors.As(err, &left) && len(left.Unsaved) == 0 {
		err = h.free()
	}
	h.quiet()
	h.slots()
	err = errors.Join(err, h.server.Close())
	h.serving.Wait()
	if s, ok := h.store.(io.Closer); ok {
		err = errors.Join(err, s.Close())
	}
	h.j.note(fact{Says: saysEnded})
	return errors.Join(err, h.j.file.Close())
}

// sinks take cards and notices, and sometimes fail to.
type sinks struct {
	h *host

	mu     sync.Mutex // guards all below; a leaf
	random *rand.Rand
	busy   map[string]bool    // sessions to which a notice is being delivered
	cards  map[uuid.UUID]bool // tasks whose last card was refused
}

var errSink = errors.New("the sink fails, as it does now and then")

func (s *sinks) fails() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.IntN(40) == 0
}

// PutCard implements subagent.CardSink.
func (s *sinks) PutCard(_ context.Context, c subagent.Card) error {
	if s.fails() {
		s.h.j.note(fact{Says: saysCardFails, ID: c.TaskID, Card: &c})
		s.owed(c.TaskID, true)
		return errSink
	}
	s.owed(c.TaskID, false)
	s.h.j.note(fact{Says: saysCard, ID: c.TaskID, Card: &c})
	return nil
}

// Notify implements subagent.Notifier.
func (s *sinks) Notify(_ context.Context, t subagent.Task) error {
	s.h.j.note(fact{Says: saysNotifying, ID: t.ID, Tasks: some(t), Text: t.ParentSessionID})
	if s.turn(t.ParentSessionID, true) {
		s.h.j.fault(t.ID, "two notices at once in session %q", t.ParentSessionID)
	}
	defer s.turn(t.ParentSessionID, false)
	if s.fails() {
		return errSink
	}
	s.h.j.note(fact{Says: saysNotice, ID: t.ID, Tasks: some(t), Text: t.ParentSessionID})
	return nil
}

// owed notes whether the card of a task will come again.
func (s *sinks) owed(id uuid.UUID, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if again {
		s.cards[id] = true
	} else {
		delete(s.cards, id)
	}
}

// owing counts the cards that will come again.
func (s *sinks) owing() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.cards)
}

// turn begins or ends a delivery to a session, and reports whether one was under
// way.
func (s *sinks) turn(session string, begins bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.busy[session]
	s.busy[session] = begins
	return was
}

// hostVariable makes the test's program a host.
const hostVariable = "SUBAGENT_SOAK_HOST"

// commands are what the test asks of a host. It answers each with a line that
// is empty, or says what went wrong.
var commands = map[string]func(*host) error{
	"quiet": func(h *host) error { h.quiet(); return nil },
	"calm":  (*host).calm,
	"rest":  (*host).rest,
	"quit":  (*host).quit,
}

// beHost is a host's main function. It ends with its input at the latest.
func beHost(options string) error {
	var o hostOptions
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return err
	}
	h, err := newHost(o, nil)
	if err != nil {
		return err
	}
	fmt.Println(h.runner.ID(), h.url)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		do := commands[in.Text()]
		if do == nil {
			return fmt.Errorf("no such command: %q", in.Text())
		}
		if err := do(h); err != nil {
			fmt.Printf("%q\n", err)
		} else {
			fmt.Println()
		}
		if in.Text() == "quit" {
			return nil
		}
	}
	return in.Err()
}
