package subagenttest_test

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/subagenttest"
)

func TestMemoryStoreConforms(t *testing.T) {
	subagenttest.TestStore(t, func(*testing.T) subagent.Store { return subagent.NewMemoryStore() })
}

// handle is one of two handles on the same records: each is told, while it
// watches, of what the other changes.
type handle struct {
	*subagent.MemoryStore
	changes, others chan subagent.Task
}

func TestSharedHandlesConform(t *testing.T) {
	subagenttest.TestSharedStore(t, func(*testing.T) (a, b subagent.Store) {
		s, of, to := subagent.NewMemoryStore(), make(chan subagent.Task, 1000), make(chan subagent.Task, 1000)
		return &handle{s, of, to}, &handle{s, to, of}
	})
}

func (h *handle) Update(ctx context.Context, id uuid.UUID, edit editFunc) (subagent.Task, error) {
	t, err := h.MemoryStore.Update(ctx, id, edit)
	if err == nil {
		h.changes <- t
	}
	return t, err
}

func (h *handle) Watch(ctx context.Context, owner string, fn func(subagent.Task)) error {
	for {
		select {
		case t := <-h.others:
			if t.Owner == owner {
				fn(t)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// brokenVariable tells the child process which broken store to test.
const brokenVariable = "SUBAGENT_TEST_BROKEN_STORE"

// TestSuiteCatches runs the suite, in a process of its own because it has to
// fail there, against stores that break one rule each.
func TestSuiteCatches(t *testing.T) {
	if name := os.Getenv(brokenVariable); name != "" {
		subagenttest.TestStore(t, func(*testing.T) subagent.Store {
			return brokenStores[name].breaks(subagent.NewMemoryStore())
		})
		return
	}
	self, err := os.Executable()
	require.NoError(t, err)
	for _, name := range slices.Sorted(maps.Keys(brokenStores)) {
		t.Run(name, func(t *testing.T) {
			caught := brokenStores[name].caughtBy
			pattern := "^TestSuiteCatches$/^" + strings.ReplaceAll(caught, "/", "$/^") + "$"
			child := exec.CommandContext(t.Context(), self, "-test.run", pattern)
			child.Env = append(os.Environ(), brokenVariable+"="+name)
			out, err := child.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "the suite passed")
			require.Contains(t, string(out), "--- FAIL: TestSuiteCatches/"+caught)
			require.NotContains(t, string(out), "panic:")
		})
	}
}

var brokenStores = map[string]struct {
	breaks   func(*subagent.MemoryStore) subagent.Store
	caughtBy string
}{
	"creates one by one":       {func(m *subagent.MemoryStore) subagent.Store { return oneByOne{m} }, "create/an_ID_given_twice"},
	"wraps the edit's error":   {func(m *subagent.MemoryStore) subagent.Store { return wraps{m} }, "update/error_of_the_edit"},
	"loses updates":            {func(m *subagent.MemoryStore) subagent.Store { return loses{m} }, "update/atomic"},
	"counts no-ops":            {func(m *subagent.MemoryStore) subagent.Store { return counts{m} }, "update/nothing_changed,_nothing_written"},
	"lets the session change":  {func(m *subagent.MemoryStore) subagent.Store { return swallows{m} }, "update/what_never_changes"},
	"lets states change":       {func(m *subagent.MemoryStore) subagent.Store { return swallows{m} }, "transitions"},
	"lets ended rows change":   {func(m *subagent.MemoryStore) subagent.Store { return swallows{m} }, "terminal/no_other_field"},
	"never changes an Owner":   {func(m *subagent.MemoryStore) subagent.Store { return ownerless{m} }, "terminal/Owner_while_a_notice_is_owed"},
	"deletes some":             {func(m *subagent.MemoryStore) subagent.Store { return deletesSome{m} }, "delete/all_or_nothing"},
	"knows one order":          {func(m *subagent.MemoryStore) subagent.Store { return listing{m, oneOrder} }, "list/order"},
	"includes the cursor":      {func(m *subagent.MemoryStore) subagent.Store { return listing{m, inclusive} }, "list/cursor"},
	"takes owed for ended":     {func(m *subagent.MemoryStore) subagent.Store { return listing{m, owedIsEnded} }, "list/filter"},
	"limits before filtering":  {func(m *subagent.MemoryStore) subagent.Store { return limitsFirst{m} }, "list/pages"},
	"locked while it yields":   {func(m *subagent.MemoryStore) subagent.Store { return &locked{Store: m} }, "list/store_used_in_the_loop"},
	"locked while it edits":    {func(m *subagent.MemoryStore) subagent.Store { return &locked{Store: m} }, "update/store_used_by_the_edit"},
	"trims text":               {func(m *subagent.MemoryStore) subagent.Store { return trims{m} }, "values/text_trailing_newline"},
	"keeps milliseconds":       {func(m *subagent.MemoryStore) subagent.Store { return milliseconds{m} }, "values/times"},
	"forgets a field":          {func(m *subagent.MemoryStore) subagent.Store { return forgets{m} }, "values/every_field"},
	"shares maps":              {func(m *subagent.MemoryStore) subagent.Store { return &shares{Store: m} }, "isolation"},
	"ignores ctx":              {func(m *subagent.MemoryStore) subagent.Store { return deaf{m} }, "ctx/context_canceled"},
	"reads its own past":       {func(m *subagent.MemoryStore) subagent.Store { return &stale{Store: m} }, "concurrent"},
	"everybody lives":          {func(m *subagent.MemoryStore) subagent.Store { return immortal{m} }, "lease/unknown_and_empty"},
	"release does not release": {func(m *subagent.MemoryStore) subagent.Store { return immortal{m} }, "lease/renewed_and_released"},
}

type editFunc = func(*subagent.Task) error

type oneByOne struct{ subagent.Store }

func (s oneByOne) Create(ctx context.Context, tasks ...subagent.Task) error {
	for _, t := range tasks {
		if err := s.Store.Create(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

type wraps struct{ subagent.Store }

func (s wraps) Update(ctx context.Context, id uuid.UUID, edit editFunc) (subagent.Task, error) {
	t, err := s.Store.Update(ctx, id, edit)
	if err != nil {
		err = fmt.Errorf("update: %w", err)
	}
	return t, err
}

type loses struct{ subagent.Store }

func (s loses) Update(ctx context.Context, id uuid.UUID, edit editFunc) (subagent.Task, error) {
	next, err := s.Get(ctx, id)
	if err == nil {
		err = edit(&next)
	}
	if err != nil {
		return subagent.Task{}, err
	}
	return s.Store.Update(ctx, id, func(t *subagent.Task) error { *t = next; return nil })
}

type counts struct{ subagent.Store }

func (s counts) Update(ctx context.Context, id uuid.UUID, edit editFunc) (subagent.Task, error) {
	old, err := s.Get(ctx, id)
	if err != nil {
		return old, err
	}
	t, err := s.Store.Update(ctx, id, edit)
	if t.Version == old.Version {
		t.Version++
	}
	return t, err
}

type swallows struct{ subagent.Store }

func (s swallows) Update(ctx context.Context, id uuid.UUID, edit editFunc) (subagent.Task, error) {
	t, err := s.Store.Update(ctx, id, edit)
	if err != nil {
		return s.Get(ctx, id)
	}
	return t, nil
}

type ownerless struct{ subagent.Store }

func (s ownerless) Update(ctx context.Context, id uuid.UUID, edit editFunc) (subagent.Task, error) {
	return s.Store.Update(ctx, id, func(t *subagent.Task) error {
		owner := t.Owner
		defer func() { t.Owner = owner }()
		return edit(t)
	})
}

type deletesSome struct{ subagent.Store }

func (s deletesSome) Delete(ctx context.Context, ids ...uuid.UUID) error {
	for _, id := range ids {
		if err := s.Store.Delete(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

type listing struct {
	subagent.Store
	spoil func(*subagent.Filter)
}

func (s listing) List(ctx context.Context, f subagent.Filter) iter.Seq2[subagent.Task, error] {
	s.spoil(&f)
	return s.Store.List(ctx, f)
}

func oneOrder(f *subagent.Filter) { f.NewestFirst = false }

func inclusive(f *subagent.Filter) {
	if f.After != uuid.Nil && !f.NewestFirst {
		f.After[15]--
	}
}

func owedIsEnded(f *subagent.Filter) {
	if f.Undelivered {
		f.Undelivered = false
		f.Statuses = []subagent.Status{subagent.StatusCompleted, subagent.StatusCancelled, subagent.StatusErrored}
	}
}

type limitsFirst struct{ subagent.Store }

func (s limitsFirst) List(ctx context.Context, f subagent.Filter) iter.Seq2[subagent.Task, error] {
	return func(yield func(subagent.Task, error) bool) {
		all := subagent.Filter{Limit: f.Limit, After: f.After, NewestFirst: f.NewestFirst}
		for t, err := range s.Store.List(ctx, all) {
			if (err != nil || f.Match(t)) && !yield(t, err) {
				return
			}
		}
	}
}

// locked would hang; for the sake of a quick test it says so instead.
type locked struct {
	subagent.Store
	mu sync.Mutex
}

var errHangs = fmt.Errorf("deadlock")

func (s *locked) Get(ctx context.Context, id uuid.UUID) (subagent.Task, error) {
	if !s.mu.TryLock() {
		return subagent.Task{}, errHangs
	}
	defer s.mu.Unlock()
	return s.Store.Get(ctx, id)
}

func (s *locked) Update(ctx context.Context, id uuid.UUID, edit editFunc) (subagent.Task, error) {
	if !s.mu.TryLock() {
		return subagent.Task{}, errHangs
	}
	defer s.mu.Unlock()
	return s.Store.Update(ctx, id, edit)
}

func (s *locked) List(ctx context.Context, f subagent.Filter) iter.Seq2[subagent.Task, error] {
	return func(yield func(subagent.Task, error) bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.Store.List(ctx, f)(yield)
	}
}

type trims struct{ subagent.Store }

func (s trims) Create(ctx context.Context, tasks ...subagent.Task) error {
	tasks = slices.Clone(tasks)
	for i := range tasks {
		tasks[i].Description = strings.TrimSpace(tasks[i].Description)
	}
	return s.Store.Create(ctx, tasks...)
}

type milliseconds struct{ subagent.Store }

func (s milliseconds) Get(ctx context.Context, id uuid.UUID) (subagent.Task, error) {
	t, err := s.Store.Get(ctx, id)
	t.QueuedAt = t.QueuedAt.Truncate(time.Millisecond)
	return t, err
}

type forgets struct{ subagent.Store }

func (s forgets) Create(ctx context.Context, tasks ...subagent.Task) error {
	tasks = slices.Clone(tasks)
	for i := range tasks {
		tasks[i].SourceCommitID = ""
	}
	return s.Store.Create(ctx, tasks...)
}

type shares struct {
	subagent.Store
	given sync.Map
}

func (s *shares) Create(ctx context.Context, tasks ...subagent.Task) error {
	for _, t := range tasks {
		s.given.Store(t.ID, t.Metadata)
	}
	return s.Store.Create(ctx, tasks...)
}

func (s *shares) Get(ctx context.Context, id uuid.UUID) (subagent.Task, error) {
	t, err := s.Store.Get(ctx, id)
	if m, ok := s.given.Load(id); ok {
		t.Metadata = m.(map[string]string)
	}
	return t, err
}

type deaf struct{ subagent.Store }

func (s deaf) Get(ctx context.Context, id uuid.UUID) (subagent.Task, error) {
	return s.Store.Get(context.WithoutCancel(ctx), id)
}

// stale answers every other Get with the first answer that it gave for the ID.
type stale struct {
	subagent.Store
	first sync.Map
	n     atomic.Int64
}

func (s *stale) Get(ctx context.Context, id uuid.UUID) (subagent.Task, error) {
	t, err := s.Store.Get(ctx, id)
	if err != nil {
		return t, err
	}
	old, _ := s.first.LoadOrStore(id, t)
	if s.n.Add(1)%2 == 0 {
		return old.(subagent.Task), nil
	}
	return t, nil
}

type immortal struct{ *subagent.MemoryStore }

func (immortal) Live(context.Context, string) (bool, error) { return true, nil }
