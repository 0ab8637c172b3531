package subagenttest

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// FaultyStore passes calls on to another store, except where a rule of the
// test makes them fail, wait, or fail after they were done. It shows what a
// host does when its store misbehaves.
//
// A FaultyStore itself is a Store and nothing more, whatever the inner store
// is, so that a Runner takes it for one of its own; Store returns it with the
// inner store's other abilities.
type FaultyStore struct {
	inner subagent.Store

	// mu guards all below. No rule and no call of the inner store runs under it.
	mu    sync.Mutex
	rules map[Op]*rule
	calls map[Op]int
}

// Op names a method of Store or Leaser.
type Op string

// The methods that rules can be given for.
const (
	OpCreate  Op = "create"
	OpGet     Op = "get"
	OpUpdate  Op = "update"
	OpList    Op = "list" // one call for each range over what List returned
	OpDelete  Op = "delete"
	OpRenew   Op = "renew"
	OpLive    Op = "live"
	OpRelease Op = "release"
)

// Call is a call that is about to be made, as a rule sees it.
type Call struct {
	Op    Op
	N     int         // 1 for the first call of Op since its rule was set
	IDs   []uuid.UUID // of Create, Get, Update and Delete
	Owner string      // of Renew, Live and Release

	// Tasks is what would be stored: the tasks given to Create, or for Update
	// what its edit makes of the record as it is now; nothing if it refuses.
	Tasks []subagent.Task
}

// Ends reports whether the call would store a task that has ended.
func (c Call) Ends() bool {
	return slices.ContainsFunc(c.Tasks, func(t subagent.Task) bool { return t.Status.Terminal() })
}

// Fault is what happens to a call. The zero Fault lets it pass.
type Fault struct {
	// Err is what the call returns instead of the inner store's answer.
	Err error

	// Committed has the inner store do the call first. With Err it is the worst
	// of faults: what was done is reported as failed.
	Committed bool

	// Delay holds the call up for a time, and Block until the channel is
	// closed. If its ctx ends meanwhile the call returns ctx's error.
	Delay time.Duration
	Block <-chan struct{}

	// Deaf has Delay and Block ignore the ctx.
	Deaf bool
}

type rule struct {
	decide func(Call) Fault
	n      int // calls since it was set; guarded by the store's mu
}

// NewFaultyStore returns a store that does what inner does, until On is called.
func NewFaultyStore(inner subagent.Store) *FaultyStore {
	return &FaultyStore{inner: inner, rules: make(map[Op]*rule), calls: make(map[Op]int)}
}

// On sets the rule for op, in the place of an earlier one; nil takes it away.
// The rule is called before each call, also concurrently. It may use the store
// and it may panic: then the store's method does. Calls that are held up
// already go on as they were told.
func (f *FaultyStore) On(op Op, decide func(Call) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if decide == nil {
		delete(f.rules, op)
		return
	}
	f.rules[op] = &rule{decide: decide}
}

// Calls returns how often op was called so far, failed calls included.
func (f *FaultyStore) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Store returns f as a store that is a Leaser and a Watcher exactly if the
// inner store is. Watch has no faults.
func (f *FaultyStore) Store() subagent.Store {
	leaser, leases := f.inner.(subagent.Leaser)
	watcher, watches := f.inner.(subagent.Watcher)
	switch {
	case leases && watches:
		return struct {
			*FaultyStore
			subagent.Leaser
			subagent.Watcher
		}{f, &faultyLeaser{f, leaser}, watcher}
	case leases:
		return struct {
			*FaultyStore
			subagent.Leaser
		}{f, &faultyLeaser{f, leaser}}
	case watches:
		return struct {
			*FaultyStore
			subagent.Watcher
		}{f, watcher}
	}
	return f
}

// Create implements Store.
func (f *FaultyStore) Create(ctx context.Context, tasks ...subagent.Task) error {
	call := Call{Op: OpCreate, Tasks: slices.Clone(tasks)}
	for i := range tasks {
		call.IDs = append(call.IDs, tasks[i].ID)
	}
	return f.do(ctx, call, func() error { return f.inner.Create(ctx, tasks...) })
}

// Get implements Store.
func (f *FaultyStore) Get(ctx context.Context, id uuid.UUID) (t subagent.Task, err error) {
	err = f.do(ctx, Call{Op: OpGet, IDs: []uuid.UUID{id}}, func() (err error) {
		t, err = f.inner.Get(ctx, id)
		return err
	})
	return onlyIf(t, err)
}

// Update implements Store. With a rule set it runs edit once more, to learn
// what it will do.
func (f *FaultyStore) Update(ctx context.Context, id uuid.UUID, edit func(*subagent.Task) error) (t subagent.Task, err error) {
	call := Call{Op: OpUpdate, IDs: []uuid.UUID{id}}
	if f.ruled(OpUpdate) {
		if next, err := f.inner.Get(ctx, id); err == nil && edit(&next) == nil {
			call.Tasks = []subagent.Task{next}
		}
	}
	err = f.do(ctx, call, func() (err error) {
		t, err = f.inner.Update(ctx, id, edit)
		return err
	})
	return onlyIf(t, err)
}

// List implements Store. A fault that is Committed comes after the last task.
func (f *FaultyStore) List(ctx context.Context, filter subagent.Filter) iter.Seq2[subagent.Task, error] {
	return func(yield func(subagent.Task, error) bool) {
		stopped := false
		err := f.do(ctx, Call{Op: OpList}, func() error {
			for t, err := range f.inner.List(ctx, filter) {
				if err != nil {
					return err
				}
				if stopped = !yield(t, nil); stopped {
					break
				}
			}
			return nil
		})
		if err != nil && !stopped {
			yield(subagent.Task{}, err)
		}
	}
}

// Delete implements Store.
func (f *FaultyStore) Delete(ctx context.Context, ids ...uuid.UUID) error {
	call := Call{Op: OpDelete, IDs: slices.Clone(ids)}
	return f.do(ctx, call, func() error { return f.inner.Delete(ctx, ids...) })
}

// faultyLeaser is the Leaser of a FaultyStore.
type faultyLeaser struct {
	f     *FaultyStore
	inner subagent.Leaser
}

func (l *faultyLeaser) Renew(ctx context.Context, owner string, ttl time.Duration) error {
	return l.f.do(ctx, Call{Op: OpRenew, Owner: owner}, func() error { return l.inner.Renew(ctx, owner, ttl) })
}

func (l *faultyLeaser) Live(ctx context.Context, owner string) (live bool, err error) {
	err = l.f.do(ctx, Call{Op: OpLive, Owner: owner}, func() (err error) {
		live, err = l.inner.Live(ctx, owner)
		return err
	})
	return live && err == nil, err
}

func (l *faultyLeaser) Release(ctx context.Context, owner string) error {
	return l.f.do(ctx, Call{Op: OpRelease, Owner: owner}, func() error { return l.inner.Release(ctx, owner) })
}

// do makes the call, with the fault that the rule decides on.
func (f *FaultyStore) do(ctx context.Context, call Call, inner func() error) error {
	fault := f.decide(call)
	if fault.Committed {
		if err := inner(); err != nil {
			return err
		}
		if err := fault.wait(ctx); err != nil {
			return err
		}
		return fault.Err
	}
	if err := fault.wait(ctx); err != nil {
		return err
	}
	if fault.Err != nil {
		return fault.Err
	}
	return inner()
}

func (f *FaultyStore) ruled(op Op) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rules[op] != nil
}

func (f *FaultyStore) decide(call Call) Fault {
	f.mu.Lock()
	f.calls[call.Op]++
	r := f.rules[call.Op]
	if r == nil {
		f.mu.Unlock()
		return Fault{}
	}
	r.n++
	call.N = r.n
	f.mu.Unlock()
	return r.decide(call)
}

// wait holds the call up. It returns ctx's error if that cut it short.
func (f *Fault) wait(ctx context.Context) error {
	done := ctx.Done()
	if f.Deaf {
		done = nil
	}
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-done:
			return ctx.Err()
		}
	}
	if f.Block != nil {
		select {
		case <-f.Block:
		case <-done:
			return ctx.Err()
		}
	}
	return nil
}

// onlyIf keeps what the inner store answered from callers that are told of an
// error.
func onlyIf(t subagent.Task, err error) (subagent.Task, error) {
	if err != nil {
		return subagent.Task{}, err
	}
	return t, nil
}
