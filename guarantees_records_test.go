package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

func TestG13_RecoveryOfWhatADeadOwnerLeft(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := subagent.NewMemoryStore()
		var rows []subagent.Task
		for i, status := range []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning, subagent.StatusCompleted, subagent.StatusCancelled, subagent.StatusErrored} {
			row := subagent.Task{ID: uuid.Must(uuid.NewV7()), Description: fmt.Sprint(i), ParentSessionID: "s", Status: status, Owner: "dead", Background: true, CreatedAt: time.Now().UTC()}
			if status.Terminal() {
				row.CompletedAt = time.Now().UTC()
				row.NotifiedAt = row.CompletedAt
			}
			rows = append(rows, row)
		}
		require.NoError(t, store.Create(ctx, rows...))
		for round := range 3 {
			s := &surface{cards: map[uuid.UUID][]subagent.Card{}, notices: map[uuid.UUID][]subagent.Task{}}
			r, err := subagent.New(ctx, subagent.Config{Store: store, Cards: s, Notifier: s})
			require.NoError(t, err)
			synctest.Wait()
			for i, before := range rows {
				row, err := store.Get(ctx, before.ID)
				require.NoError(t, err)
				if before.Status.Terminal() {
					before.Version = 1
					require.Equal(t, before, row)
					continue
				}
				require.Equal(t, subagent.StatusErrored, row.Status)
				require.Equal(t, subagent.ReasonLost, row.Reason)
				require.Equal(t, "worker died before completion", row.Error)
				require.ErrorIs(t, row.Err(), subagent.ErrLost)
				if round == 0 {
					require.Equal(t, r.ID(), row.Owner)
					require.Len(t, s.noticesOf(row.ID), 1)
					require.Equal(t, "errored", s.lastCard(row.ID).Attach.Status)
				} else {
					require.Empty(t, s.noticesOf(row.ID), "round %d, task %d", round, i)
				}
			}
			require.NoError(t, r.Shutdown(ctx))
		}
	})
}

// Two Runners share a store with leases: one does not touch what the other
// runs, stops it through the store, and takes over when the other is dead.
func TestG13_TasksOfALiveOwner(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx := t.Context()
		gate, store := subagenttest.NewGate(), subagent.NewMemoryStore()
		one, err := subagent.New(ctx, subagent.Config{Store: store, Func: gate.Func()})
		require.NoError(t, err)
		task, err := one.Spawn(ctx, subagent.Request{Description: "x", ParentSessionID: "s"})
		require.NoError(t, err)
		gate.WaitEntered(t, task.ID)
		two, err := subagent.New(ctx, subagent.Config{Store: store})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		got, err := two.Get(ctx, task.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusRunning, got.Status)
		got, err = two.Cancel(ctx, task.ID, subagent.CancelOptions{Reason: "policy", Message: "over there"})
		require.NoError(t, err)
		require.Equal(t, subagent.StatusRunning, got.Status)
		require.False(t, got.CancelRequestedAt.IsZero())
		end, err := two.Wait(ctx, task.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCancelled, end.Status)
		require.Equal(t, subagent.Reason("policy"), end.Reason)
		require.Equal(t, "over there", end.CancelMessage)
		require.NoError(t, one.Shutdown(ctx))
		require.NoError(t, two.Shutdown(ctx))
	})
}

func TestG14_UsageIsCountedOncePerCall(t *testing.T) {
	inWorld(t, subagent.Config{}, func(w *world) {
		task := w.spawn("a")
		run := w.gate.WaitEntered(t, task.ID)
		for _, n := range []int64{1, 5, 10} { // a stream reports its running total
			run.ReportUsage("m1", subagent.Usage{InputTokens: n, TotalTokens: n})
		}
		run.ReportUsage("m2", subagent.Usage{InputTokens: 7, TotalTokens: 7})
		run.ReportUsage("m1", subagent.Usage{InputTokens: 10, TotalTokens: 10})
		require.EqualValues(t, 17, w.get(task.ID).Usage.TotalTokens)
		w.gate.Release(task.ID, subagent.Result{}, errors.New("no"))
		end := w.wait(task.ID)
		require.Equal(t, subagent.Usage{InputTokens: 17, TotalTokens: 17, Calls: 2}, end.Usage)
	})
}

func TestG14_UsageTreeCountsEachTaskOnce(t *testing.T) {
	var nest subagent.Func
	inWorld(t, subagent.Config{Workers: 2}, func(w *world) {
		nest = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			run.ReportUsage("m", subagent.Usage{TotalTokens: 10})
			if run.Task().Description != "a/b/b" {
				for range 2 {
					if _, err := w.Run(ctx, subagent.Request{Description: run.Task().Description + "/b", Func: nest}); err != nil {
						return subagent.Result{}, err
					}
				}
			}
			return subagent.Result{}, nil
		}
		task, err := w.Run(w.ctx, subagent.Request{Description: "a", ParentSessionID: "s", Func: nest})
		require.NoError(t, err)
		sum, err := w.UsageTree(w.ctx, task.ID)
		require.NoError(t, err)
		require.EqualValues(t, 10*(1+2+4), sum.TotalTokens)
	})
}

func TestG17_WhatAQueuedTaskHolds(t *testing.T) {
	const tasks = 40_000
	gate := subagenttest.NewGate()
	r, err := subagent.New(t.Context(), subagent.Config{Workers: 1, MaxQueued: -1, Func: gate.Func()})
	require.NoError(t, err)
	spawn := func() subagent.Task {
		task, err := r.Spawn(t.Context(), subagent.Request{Description: "x", ParentSessionID: "s"})
		require.NoError(t, err)
		return task
	}
	gate.WaitEntered(t, spawn().ID)
	before := liveHeap()
	goroutines := runtime.NumGoroutine() // after the collections: one from before may still have been ending
	for range tasks {
		spawn()
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	each := (int64(liveHeap()) - int64(before)) / tasks
	t.Logf("%d bytes a queued task", each)
	if runtime.GOARCH == "amd64" && !bubble.Race {
		require.LessOrEqual(t, each, int64(1228))
	}
	_, err = r.CancelSession(t.Context(), "s", subagent.CancelOptions{})
	require.NoError(t, err)
	require.Zero(t, r.Stats().Capacity.Queued)
	require.NoError(t, r.Shutdown(t.Context()))
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
