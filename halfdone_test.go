package subagent_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// trap is one call of foreign code that does not come back as it should: the
// n-th of those that are made at one place.
type trap struct {
	place string
	n     int
	how   func() error

	mu    sync.Mutex // guards what follows
	armed bool
	calls int
}

// arm has the n-th call from now on spring the trap.
func (tr *trap) arm(armed bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.armed, tr.calls = armed, 0
}

// at is a call at a place. It panics, ends its goroutine or fails there, once.
func (tr *trap) at(place string) error {
	tr.mu.Lock()
	here := tr.armed && place == tr.place
	if here {
		tr.calls++
	}
	sprung := here && tr.calls == tr.n
	tr.mu.Unlock()
	if sprung {
		return tr.how()
	}
	return nil
}

// hostileError is an error all of whose methods panic.
type hostileError struct{}

func (hostileError) Error() string   { panic("Error") }
func (hostileError) Is(error) bool   { panic("Is") }
func (hostileError) As(any) bool     { panic("As") }
func (hostileError) Unwrap() []error { panic("Unwrap") }

// traps are the ways in which foreign code does not come back.
var traps = map[string]func() error{
	"panics": func() error { panic(hostileError{}) },
	"exits":  func() error { runtime.Goexit(); return nil },
	"fails":  func() error { return hostileError{} },
}

// trappedCtx is a host's own ctx.
type trappedCtx struct {
	context.Context
	trap *trap
}

func (c trappedCtx) Done() <-chan struct{} {
	_ = c.trap.at("ctx.Done")
	return c.Context.Done()
}

func (c trappedCtx) Err() error {
	if err := c.trap.at("ctx.Err"); err != nil {
		return err
	}
	return c.Context.Err()
}

func (c trappedCtx) Value(key any) any {
	_ = c.trap.at("ctx.Value")
	return c.Context.Value(key)
}

func (c trappedCtx) Deadline() (time.Time, bool) {
	_ = c.trap.at("ctx.Deadline")
	return c.Context.Deadline()
}

// trapped is a Runner of which everything foreign may spring the trap.
type trapped struct {
	*subagent.Runner
	t        *testing.T
	trap     *trap
	inner    *subagent.MemoryStore
	capacity *subagent.Capacity
	known    []uuid.UUID // ended, running and queued
	other    uuid.UUID   // another Runner's
	notifies bool
}

func (h *trapped) PutCard(context.Context, subagent.Card) error { return h.trap.at("PutCard") }
func (h *trapped) Notify(context.Context, subagent.Task) error  { return h.trap.at("Notify") }
func (h *trapped) Enabled(context.Context, slog.Level) bool     { return true }
func (h *trapped) Handle(context.Context, slog.Record) error    { return h.trap.at("Handle") }
func (h *trapped) WithAttrs([]slog.Attr) slog.Handler           { return h }
func (h *trapped) WithGroup(string) slog.Handler                { return h }

// work is what all tasks do.
func (h *trapped) work(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
	if err := h.trap.at("Func"); err != nil {
		return subagent.Result{}, err
	}
	select {
	case <-ctx.Done():
	case <-time.After(3 * time.Second):
	}
	return subagent.Result{Text: "done"}, nil
}

// verbs are all calls of the host's that take a ctx.
var verbs = map[string]func(h *trapped, ctx context.Context){
	"Spawn":           func(h *trapped, ctx context.Context) { _, _ = h.Spawn(ctx, rigAsk("x")) },
	"Spawn, NoWait":   func(h *trapped, ctx context.Context) { _, _ = h.Spawn(ctx, rigAsk("x", noWait)) },
	"Spawn, with ID":  func(h *trapped, ctx context.Context) { _, _ = h.Spawn(ctx, rigAsk("x", withID(uuid.New()))) },
	"Spawn, known":    func(h *trapped, ctx context.Context) { _, _ = h.Spawn(ctx, rigAsk("x", withID(h.known[0]))) },
	"Run":             func(h *trapped, ctx context.Context) { _, _ = h.Run(ctx, rigAsk("x")) },
	"Wait":            func(h *trapped, ctx context.Context) { _, _ = h.Wait(ctx, h.known[1]) },
	"Wait, ended":     func(h *trapped, ctx context.Context) { _, _ = h.Wait(ctx, h.known[0]) },
	"Wait, another's": func(h *trapped, ctx context.Context) { _, _ = h.Wait(ctx, h.other) },
	"Await, any": func(h *trapped, ctx context.Context) {
		_, _ = h.Await(ctx, subagent.AwaitAny, h.known[1], h.other, h.known[2])
	},
	"Await, all": func(h *trapped, ctx context.Context) {
		_, _ = h.Await(ctx, subagent.AwaitAll, append(h.known, h.other, uuid.New())...)
	},
	"Get":           func(h *trapped, ctx context.Context) { _, _ = h.Get(ctx, h.known[0]) },
	"List":          func(h *trapped, ctx context.Context) { _, _ = h.List(ctx, subagent.Filter{}) },
	"UsageTree":     func(h *trapped, ctx context.Context) { _, _ = h.UsageTree(ctx, h.known[0]) },
	"Cancel":        func(h *trapped, ctx context.Context) { _, _ = h.Cancel(ctx, h.known[1], subagent.CancelOptions{}) },
	"Cancel, other": func(h *trapped, ctx context.Context) { _, _ = h.Cancel(ctx, h.other, subagent.CancelOptions{}) },
	"CancelSession": func(h *trapped, ctx context.Context) {
		_, _ = h.CancelSession(ctx, "s", subagent.CancelOptions{})
	},
	"Forget": func(h *trapped, ctx context.Context) { _ = h.Forget(ctx, h.known[0]) },
	"Prune":  func(h *trapped, ctx context.Context) { _, _ = h.Prune(ctx, subagent.Filter{}, time.Now()) },
	"Next": func(h *trapped, ctx context.Context) {
		s := h.Subscribe(subagent.Filter{})
		defer s.Close()
		_, _ = s.Next(ctx)
	},
	"Acquire": func(h *trapped, ctx context.Context) {
		release, err := h.capacity.Acquire(ctx)
		if err == nil {
			release()
		}
	},
}

// called calls a verb as a host does that survives it, and returns when it is
// over. Its ctx ends after a second.
func (h *trapped) called(ctx context.Context, verb func(*trapped, context.Context)) {
	over := make(chan struct{})
	go func() { // ends with the verb, and is waited for
		defer close(over)
		defer func() { _ = recover() }()
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		verb(h, trappedCtx{ctx, h.trap})
	}()
	<-over
}

// trapStores are the kinds of store that matter: the Runner's own way with a
// MemoryStore, any other, and one that goes on when its ctx has long ended.
var trapStores = []string{"memory", "any", "slow and deaf"}

func newTrapped(t *testing.T, kind string, tr *trap) *trapped {
	h := &trapped{t: t, trap: tr, inner: subagent.NewMemoryStore(), capacity: subagent.NewCapacity(1, -1)}
	cfg := subagent.Config{Store: h.inner, Capacity: h.capacity, Func: h.work}
	if kind != "memory" {
		store := subagenttest.NewFaultyStore(h.inner)
		for _, op := range []subagenttest.Op{subagenttest.OpCreate, subagenttest.OpGet, subagenttest.OpUpdate, subagenttest.OpList,
			subagenttest.OpDelete, subagenttest.OpRenew, subagenttest.OpLive, subagenttest.OpRelease} {
			store.On(op, func(subagenttest.Call) subagenttest.Fault {
				f := subagenttest.Fault{Err: tr.at(string(op))}
				if kind != "any" {
					f.Delay, f.Deaf, f.Committed = 2*time.Second, true, true
				}
				return f
			})
		}
		cfg.Store, cfg.Cards, cfg.Notifier, cfg.Logger, h.notifies = store, h, h, slog.New(h), true
		tr.arm(true) // New leaves nothing behind if it does not come back
		h.called(context.Background(), func(_ *trapped, ctx context.Context) {
			if r, err := subagent.New(ctx, subagent.Config{Store: store.Store()}); err == nil {
				require.NoError(t, r.Shutdown(context.Background()))
			}
		})
		tr.arm(false)
	}
	var err error
	h.Runner, err = subagent.New(context.Background(), cfg)
	require.NoError(t, err)
	return h
}

// try calls one verb, from outside or from inside a Func, with the trap armed,
// and checks what is left of it a minute later.
func (h *trapped) try(verb func(*trapped, context.Context), inside bool) {
	ctx := context.Background()
	h.known = nil
	spawn := func(fn subagent.Func) {
		task, err := h.Spawn(ctx, rigAsk("x", withFunc(fn)))
		require.NoError(h.t, err)
		h.known = append(h.known, task.ID)
	}
	spawn(h.work)
	time.Sleep(time.Minute)
	foreign := orphan(subagent.StatusRunning)
	h.other = foreign.ID
	require.NoError(h.t, h.inner.Create(ctx, foreign))
	known := make(chan struct{})
	if inside {
		spawn(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
			<-known
			h.trap.arm(true)
			h.called(ctx, verb)
			if s := h.Stats(); s.Lent != 0 {
				h.t.Errorf("its Func goes on without its slot: %+v", s)
			}
			return subagent.Result{}, nil
		})
	}
	spawn(h.work)
	spawn(h.work)
	if inside {
		h.known = append(h.known[:1], h.known[2:]...) // one may not wait for oneself
		close(known)
	} else {
		h.trap.arm(true)
		h.called(ctx, verb)
	}
	time.Sleep(5 * time.Minute)
	h.trap.arm(false)
	time.Sleep(time.Minute)
	h.nothingLeft()
}

// nothingLeft checks that every task has ended, is told and delivered, that no
// slot is held and nothing is kept in memory; then it empties the store.
func (h *trapped) nothingLeft() {
	h.t.Helper()
	ctx := context.Background()
	s := h.Stats()
	require.Zero(h.t, s.Capacity.Running+s.Capacity.Queued+s.Pending+s.Queued+s.Running+s.Lent+s.Detached+s.Unsaved+s.Subscribers, "%+v", s)
	for row, err := range h.inner.List(ctx, subagent.Filter{}) {
		require.NoError(h.t, err)
		if row.ID == h.other {
			_, err = h.inner.Update(ctx, row.ID, func(t *subagent.Task) error { t.Status = subagent.StatusErrored; return nil })
			require.NoError(h.t, err)
		} else {
			require.True(h.t, row.Status.Terminal(), "%+v", row)
			require.False(h.t, row.NotifiedAt.IsZero() && row.Background && h.notifies, "%+v", row)
		}
		require.NoError(h.t, h.inner.Delete(ctx, row.ID))
		_, err = h.Get(ctx, row.ID)
		require.ErrorIs(h.t, err, subagent.ErrNotFound, "it is kept in memory")
	}
}

// Foreign code that does not come back, at whatever place and in whatever call
// of whatever verb, leaves nothing half done: a Shutdown finds its way.
func TestG16_NothingIsLeftHalfDone(t *testing.T) {
	for place, hows := range map[string][]string{
		"ctx.Done": {"panics", "exits"}, "ctx.Err": {"panics", "exits", "fails"}, "ctx.Value": {"panics", "exits"}, "ctx.Deadline": {"panics"},
		"Func": {"panics", "fails"}, "PutCard": {"exits", "fails"}, "Notify": {"panics", "fails"}, "Handle": {"panics", "exits"},
		"create": {"panics", "exits", "fails"}, "get": {"panics", "fails"}, "update": {"panics", "exits", "fails"}, "list": {"panics", "fails"},
		"delete": {"fails"}, "renew": {"panics"}, "release": {"panics"},
	} {
		ctx := strings.HasPrefix(place, "ctx.")
		for _, kind := range trapStores {
			if kind == "memory" && !ctx {
				continue
			}
			for _, how := range hows {
				t.Run(fmt.Sprintf("%s %s, %s store", place, how, kind), func(t *testing.T) {
					bubble.Test(t, func(t *testing.T) {
						newTrapped(t, kind, &trap{place: place, how: traps[how], n: 1}).all(ctx)
					})
				})
			}
		}
	}
}

// all tries every verb; from inside a Func too, if it may wait. Verbs that make
// nothing have only their ctx to fear.
func (h *trapped) all(ctx bool) {
	defer func() { // also when the test has failed, so that the bubble can end
		h.trap.arm(false)
		require.NoError(h.t, h.Shutdown(context.Background()))
	}()
	calls := 3
	switch {
	case bubble.Race: // which looks for something else, and takes its time
		calls = 1
	case !ctx:
		calls = 2
	}
	for name, verb := range verbs {
		makes := strings.HasPrefix(name, "Spawn") || strings.HasPrefix(name, "Cancel") || waits(name)
		for h.trap.n = 1; h.trap.n <= calls && (ctx || makes); h.trap.n++ {
			h.try(verb, false)
			if ctx && waits(name) {
				h.try(verb, true)
			}
			require.False(h.t, h.t.Failed(), "%s, call %d", name, h.trap.n)
		}
	}
	h.trap.n = 1
	h.trap.arm(true)
	h.called(context.Background(), func(h *trapped, ctx context.Context) { _ = h.Shutdown(ctx) })
}

func waits(verb string) bool {
	return verb == "Run" || strings.HasPrefix(verb, "Wait") || strings.HasPrefix(verb, "Await")
}
