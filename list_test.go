package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// shelf is a Runner whose tasks are read, in a bubble.
type shelf struct {
	*subagent.Runner
	t     *testing.T
	ctx   context.Context
	gate  *subagenttest.Gate
	store *subagenttest.FaultyStore
}

// inShelves runs f twice: over a MemoryStore, and over a store of somebody
// else's make.
func inShelves(t *testing.T, workers int, f func(t *testing.T, s *shelf)) {
	t.Helper()
	for name, foreign := range map[string]bool{"memory": false, "foreign": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				memory := subagent.NewMemoryStore()
				s := &shelf{t: t, ctx: context.Background(), gate: subagenttest.NewGate(), store: subagenttest.NewFaultyStore(memory)}
				cfg := subagent.Config{Store: memory, Workers: workers, MaxQueued: -1, Func: s.gate.Func()}
				if foreign {
					cfg.Store = s.store.Store()
				}
				var err error
				s.Runner, err = subagent.New(s.ctx, cfg)
				require.NoError(t, err)
				defer func() {
					s.gate.ReleaseAll()
					_ = s.Shutdown(s.ctx)
				}()
				f(t, s)
			})
		})
	}
}

func (s *shelf) spawn(change ...func(*subagent.Request)) uuid.UUID {
	s.t.Helper()
	q := subagent.Request{Description: "x", ParentSessionID: "s"}
	for _, c := range change {
		c(&q)
	}
	task, err := s.Spawn(s.ctx, q)
	require.NoError(s.t, err)
	return task.ID
}

// list returns the IDs that List does.
func (s *shelf) list(f subagent.Filter) []uuid.UUID {
	s.t.Helper()
	tasks, err := s.List(s.ctx, f)
	require.NoError(s.t, err)
	ids := make([]uuid.UUID, len(tasks))
	for i := range tasks {
		ids[i] = tasks[i].ID
	}
	return ids
}

func (s *shelf) finish(id uuid.UUID, text string) {
	s.t.Helper()
	s.gate.Release(id, subagent.Result{Text: text}, nil)
	synctest.Wait()
}

func TestList_ShowsWhatOnlyMemoryKnows(t *testing.T) {
	inShelves(t, 1, func(t *testing.T, s *shelf) {
		id := s.spawn()
		run := s.gate.WaitEntered(t, id)
		run.Progress("half way")
		run.ToolUse("grep")
		run.ReportUsage("call", subagent.Usage{InputTokens: 3})
		_, _ = run.Write([]byte("so far"))
		for _, f := range []subagent.Filter{{}, {Statuses: []subagent.Status{subagent.StatusRunning}}, {SessionID: "s", Limit: 1}} {
			tasks, err := s.List(s.ctx, f)
			require.NoError(t, err)
			require.Len(t, tasks, 1)
			require.Equal(t, "half way", tasks[0].Progress.Message)
			require.Equal(t, 1, tasks[0].Progress.ToolUses)
			require.False(t, tasks[0].Progress.LastActivityAt.IsZero())
			require.Equal(t, subagent.Usage{InputTokens: 3, Calls: 1}, tasks[0].Usage)
			require.Equal(t, "so far", tasks[0].ResultText)
		}
		row, err := s.store.Get(s.ctx, id)
		require.NoError(t, err)
		require.Empty(t, row.ResultText, "it is not stored before the end")
	})
}

func TestList_CutsTextsBetweenRunes(t *testing.T) {
	inShelves(t, 2, func(t *testing.T, s *shelf) {
		for _, pad := range []int{0, 1, 2, 3} { // 2000 bytes end within each byte of the rune
			text := strings.Repeat("x", pad) + strings.Repeat("𝄞", 600)
			ended, live := s.spawn(), s.spawn()
			run := s.gate.WaitEntered(t, live)
			_, _ = run.Write([]byte(text))
			s.finish(ended, text)
			tasks, err := s.List(s.ctx, subagent.Filter{})
			require.NoError(t, err)
			for _, task := range tasks {
				require.True(t, task.ResultTruncated)
				require.True(t, utf8.ValidString(task.ResultText))
				require.LessOrEqual(t, len(task.ResultText), 2000)
				require.Greater(t, len(task.ResultText), 1996)
				require.True(t, strings.HasPrefix(text, task.ResultText))
				whole, err := s.Get(s.ctx, task.ID)
				require.NoError(t, err)
				require.Equal(t, text, whole.ResultText)
				require.False(t, whole.ResultTruncated)
			}
			s.finish(live, "short")
			require.NoError(t, s.Forget(s.ctx, ended, live))
		}
	})
}

// Every page of every order holds what a plain list, filtered here, holds.
func TestList_OrderCursorAndLimit(t *testing.T) {
	rnd := seeded(t)
	inShelves(t, 3, func(t *testing.T, s *shelf) {
		var all []uuid.UUID
		for i := range 40 {
			id := s.spawn(func(q *subagent.Request) { q.ParentSessionID = fmt.Sprint("s", i%2) })
			if all = append(all, id); rnd.IntN(3) == 0 {
				_, err := s.Cancel(s.ctx, id, subagent.CancelOptions{})
				require.NoError(t, err)
			}
		}
		synctest.Wait()
		for i := range 400 {
			f := subagent.Filter{NewestFirst: i%2 == 0, Limit: rnd.IntN(6)}
			if rnd.IntN(2) == 0 {
				f.SessionID = "s1"
			}
			if rnd.IntN(2) == 0 {
				f.Statuses = []subagent.Status{subagent.StatusQueued, subagent.StatusRunning}
			}
			if rnd.IntN(2) == 0 {
				f.After = all[rnd.IntN(len(all))]
			}
			require.Equal(t, s.expected(all, f), s.list(f), "%+v", f)
		}
		require.Equal(t, all, s.list(subagent.Filter{}), "the order of creation")
		_, err := s.List(s.ctx, subagent.Filter{Limit: -1})
		require.ErrorIs(t, err, subagent.ErrInvalidRequest)
	})
}

// expected is what f selects from all, which are in the order of their IDs.
func (s *shelf) expected(all []uuid.UUID, f subagent.Filter) []uuid.UUID {
	all = slices.Clone(all)
	if f.NewestFirst {
		slices.Reverse(all)
	}
	if f.After != uuid.Nil {
		all = all[slices.Index(all, f.After)+1:]
	}
	found := []uuid.UUID{}
	for _, id := range all {
		task, err := s.Get(s.ctx, id)
		require.NoError(s.t, err)
		if f.Match(task) && (f.Limit == 0 || len(found) < f.Limit) {
			found = append(found, id)
		}
	}
	return found
}

// Ends that the store would not take are found by the status that they have,
// in their place, and not by the one that is stored; pages are full all the same.
func TestG9_ListFindsUnsavedEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, gate := context.Background(), subagenttest.NewGate()
		faulty := subagenttest.NewFaultyStore(subagent.NewMemoryStore())
		r, err := subagent.New(ctx, subagent.Config{Store: faulty.Store(), Workers: 6, Func: gate.Func()})
		require.NoError(t, err)
		s := &shelf{Runner: r, t: t, ctx: ctx, gate: gate, store: faulty}
		var all []uuid.UUID
		for range 6 {
			all = append(all, s.spawn())
		}
		synctest.Wait()
		faulty.On(subagenttest.OpUpdate, func(subagenttest.Call) subagenttest.Fault {
			return subagenttest.Fault{Err: errors.New("down")}
		})
		for _, i := range []int{0, 2, 3} {
			s.finish(all[i], "")
		}
		require.Equal(t, 3, r.Stats().Unsaved)
		running := subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}}
		completed := subagent.Filter{Statuses: []subagent.Status{subagent.StatusCompleted}}
		require.Equal(t, []uuid.UUID{all[1], all[4], all[5]}, s.list(running))
		require.Equal(t, []uuid.UUID{all[0], all[2], all[3]}, s.list(completed))
		for limit := range 4 {
			for _, newest := range []bool{false, true} {
				for _, after := range append([]uuid.UUID{uuid.Nil}, all...) {
					for _, f := range []subagent.Filter{running, completed, {}} {
						f.Limit, f.NewestFirst, f.After = limit, newest, after
						require.Equal(t, s.expected(all, f), s.list(f), "%+v", f)
					}
				}
			}
		}
		faulty.On(subagenttest.OpUpdate, nil)
		gate.ReleaseAll()
		require.NoError(t, r.Shutdown(ctx))
		require.Len(t, s.list(completed), 6)
	})
}

func TestForget_NothingOfATaskIsLeft(t *testing.T) {
	inShelves(t, 2, func(t *testing.T, s *shelf) {
		a, b := s.spawn(), s.spawn()
		s.finish(a, "done")
		require.ErrorIs(t, s.Forget(s.ctx, a, b), subagent.ErrNotTerminal)
		require.Equal(t, []uuid.UUID{a, b}, s.list(subagent.Filter{}), "all or nothing")
		require.NoError(t, s.Forget(s.ctx, a, uuid.New()))
		require.NoError(t, s.Forget(s.ctx, a), "unknown ids are ignored")
		require.NoError(t, s.Forget(s.ctx))
		require.Equal(t, []uuid.UUID{b}, s.list(subagent.Filter{}))
		_, err := s.Get(s.ctx, a)
		require.ErrorIs(t, err, subagent.ErrNotFound)
		_, err = s.Wait(s.ctx, a)
		require.ErrorIs(t, err, subagent.ErrNotFound)
		_, err = s.Cancel(s.ctx, a, subagent.CancelOptions{})
		require.ErrorIs(t, err, subagent.ErrNotFound)
		_, err = s.UsageTree(s.ctx, a)
		require.ErrorIs(t, err, subagent.ErrNotFound)
	})
}

func TestPrune_SparesLiveYoungAndOwed(t *testing.T) {
	inShelves(t, 5, func(t *testing.T, s *shelf) {
		old, owed, other := s.spawn(), s.spawn(), s.spawn(func(q *subagent.Request) { q.ParentSessionID = "other" })
		young, live := s.spawn(), s.spawn()
		end := func(id uuid.UUID) {
			s.finish(id, "")
			if id != owed {
				_, err := s.Wait(s.ctx, id)
				require.NoError(t, err)
			}
		}
		end(old)
		end(owed)
		end(other)
		time.Sleep(time.Minute)
		before := time.Now()
		end(young) // in this very instant: it has not ended before
		n, err := s.Prune(s.ctx, subagent.Filter{SessionID: "s"}, before)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, []uuid.UUID{owed, other, young, live}, s.list(subagent.Filter{}))
		n, err = s.Prune(s.ctx, subagent.Filter{}, time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, []uuid.UUID{owed, live}, s.list(subagent.Filter{}))
	})
}

// A tree is summed as it is now: what has ended, and what still runs.
func TestG14_UsageTreeOfLiveAndEndedTasks(t *testing.T) {
	inShelves(t, 10, func(t *testing.T, s *shelf) {
		use := func(run *subagent.Run, n int64) { run.ReportUsage("call", subagent.Usage{InputTokens: n}) }
		kids := map[int64]uuid.UUID{}
		// spawn starts a task that has used n, and returns the ctx of its Func.
		spawn := func(ctx context.Context, n int64) context.Context {
			inside := make(chan context.Context, 1)
			task, err := s.Spawn(ctx, subagent.Request{Description: "x", ParentSessionID: "s", Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
				inside <- ctx
				return s.gate.Func()(ctx, run)
			}})
			require.NoError(t, err)
			use(s.gate.WaitEntered(t, task.ID), n)
			kids[n] = task.ID
			return <-inside
		}
		rootCtx := spawn(s.ctx, 1)
		midCtx := spawn(rootCtx, 10)
		root, mid := kids[1], kids[10]
		spawn(midCtx, 100)
		spawn(midCtx, 200)
		spawn(rootCtx, 1000)
		spawn(s.ctx, 5000) // a stranger
		s.finish(mid, "")
		s.finish(kids[100], "")
		for id, want := range map[uuid.UUID]int64{root: 1311, mid: 310, kids[100]: 100, kids[5000]: 5000} {
			got, err := s.UsageTree(s.ctx, id)
			require.NoError(t, err)
			require.Equal(t, want, got.InputTokens)
		}
	})
}

// Readers spin while tasks end: over memory and store, one by one and in
// lists, none is ever taken back from an end that it has seen.
func TestG3_ReadersAreNeverTakenBack(t *testing.T) {
	rounds := map[string]int{"memory": 8000, "foreign": 2000}
	if bubble.Race {
		rounds = map[string]int{"memory": 1500, "foreign": 500}
	}
	ctx := t.Context()
	store := subagent.NewMemoryStore()
	faulty := subagenttest.NewFaultyStore(store)
	for name, s := range map[string]subagent.Store{"memory": store, "foreign": faulty.Store()} {
		t.Run(name, func(t *testing.T) {
			r, err := subagent.New(ctx, subagent.Config{Store: s, Func: func(context.Context, *subagent.Run) (subagent.Result, error) {
				return subagent.Result{Text: "done"}, nil
			}})
			require.NoError(t, err)
			var current atomic.Pointer[uuid.UUID]
			var over atomic.Bool
			var readers sync.WaitGroup
			ended := func(task subagent.Task, err error) bool { return err == nil && task.Status.Terminal() }
			list := func(id uuid.UUID) (subagent.Task, error) {
				tasks, err := r.List(ctx, subagent.Filter{NewestFirst: true, Limit: 3})
				i := slices.IndexFunc(tasks, func(task subagent.Task) bool { return task.ID == id })
				if err != nil || i < 0 {
					return subagent.Task{}, subagent.ErrNotFound
				}
				return tasks[i], nil
			}
			get := func(id uuid.UUID) (subagent.Task, error) { return r.Get(ctx, id) }
			stored := func(id uuid.UUID) (subagent.Task, error) { return store.Get(ctx, id) }
			pairs := [][2]func(uuid.UUID) (subagent.Task, error){{get, list}, {list, get}, {stored, get}, {stored, list}, {get, stored}}
			for i := range 2 {
				readers.Go(func() {
					for ; !over.Load(); runtime.Gosched() {
						pair, id := pairs[i%len(pairs)], current.Load()
						if id == nil || !ended(pair[0](*id)) {
							continue
						}
						if task, err := pair[1](*id); err == nil && !task.Status.Terminal() {
							t.Errorf("live after its end: %+v", task)
							return
						}
						i++
					}
				})
			}
			for range rounds[name] {
				task, err := r.Spawn(ctx, subagent.Request{Description: "x", ParentSessionID: "s"})
				require.NoError(t, err)
				current.Store(&task.ID)
				_, err = r.Wait(ctx, task.ID)
				require.NoError(t, err)
			}
			over.Store(true)
			readers.Wait()
			require.NoError(t, r.Shutdown(ctx))
		})
	}
}
