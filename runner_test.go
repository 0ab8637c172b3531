package subagent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
)

// $SUBAGENT_TASK_WORKERS is the number of slots where nothing else says it. One
// that is no such number is an error that quotes it: it is not overlooked.
func TestNew_WorkersVariable(t *testing.T) {
	const name = "SUBAGENT_TASK_WORKERS"
	for text, want := range map[string]int{
		"": 4, "1": 1, "7": 7, "0": 0, "-1": 0, "four": 0, "1.5": 0, " 4": 0, "4 ": 0, "0x4": 0, "99999999999999999999": 0,
	} {
		t.Setenv(name, text)
		r, err := subagent.New(t.Context(), subagent.Config{})
		if want == 0 {
			require.ErrorIs(t, err, subagent.ErrInvalidRequest, text)
			require.ErrorContains(t, err, "$"+name+` is "`+text+`"`)
			require.Nil(t, r)
		} else {
			require.NoError(t, err, text)
			require.Equal(t, want, r.Stats().Capacity.Limit, text)
			require.NoError(t, r.Shutdown(t.Context()))
		}
		for _, cfg := range []subagent.Config{{Workers: 3}, {Capacity: subagent.NewCapacity(3, 0)}} { // it is not asked
			r, err := subagent.New(t.Context(), cfg)
			require.NoError(t, err)
			require.Equal(t, 3, r.Stats().Capacity.Limit)
			require.NoError(t, r.Shutdown(t.Context()))
		}
	}
}

// New refuses what can't be meant, and names the field.
func TestNew_RefusesABadConfig(t *testing.T) {
	for field, cfg := range map[string]subagent.Config{
		"Timeout":       {Timeout: -1},
		"QueueTimeout":  {QueueTimeout: -1},
		"CancelGrace":   {CancelGrace: -1},
		"ShutdownGrace": {ShutdownGrace: -1},
		"StoreTimeout":  {StoreTimeout: -1},
		"Workers":       {Workers: -1},
		"Capacity":      {Capacity: new(subagent.Capacity)},
	} {
		r, err := subagent.New(t.Context(), cfg)
		require.ErrorIs(t, err, subagent.ErrInvalidRequest, field)
		require.ErrorContains(t, err, "Config."+field)
		require.Nil(t, r)
	}
}

// Without a Store, with a nil one of either sort, the Runner has a MemoryStore
// of its own.
func TestNew_WithoutAStore(t *testing.T) {
	for name, store := range map[string]subagent.Store{"nil": nil, "a nil MemoryStore": (*subagent.MemoryStore)(nil)} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r, err := subagent.New(t.Context(), subagent.Config{Store: store, Func: gives("done", nil)})
				require.NoError(t, err)
				end, err := r.Run(t.Context(), rigAsk("x"))
				require.NoError(t, err)
				got, err := r.Get(t.Context(), end.ID)
				require.NoError(t, err)
				require.Equal(t, "done", got.ResultText)
				list, err := r.List(t.Context(), subagent.Filter{})
				require.NoError(t, err)
				require.Len(t, list, 1)
				require.NoError(t, r.Forget(t.Context(), end.ID))
				require.NoError(t, r.Shutdown(t.Context()))
			})
		})
	}
}

// badRequests are those that Spawn refuses, by the field that is wrong.
func badRequests() map[string][]func(*subagent.Request) {
	bad := map[string][]func(*subagent.Request){
		"Func": {func(q *subagent.Request) { q.Func = nil }},
		"Description": {
			func(q *subagent.Request) { q.Description = " \n" },
			func(q *subagent.Request) { q.Description = strings.Repeat("x", 1<<20+1) },
			func(q *subagent.Request) { q.Description = strings.Repeat("x", 1<<20-2) + "\x00" }, // when it is made valid
		},
		"ContextMode": {func(q *subagent.Request) { q.ContextMode = "fork" }},
		"Metadata": {
			func(q *subagent.Request) { q.Metadata = map[string]string{"k": strings.Repeat("x", 64<<10)} },
			func(q *subagent.Request) { q.Metadata = map[string]string{"a\x00": "", "a\xff": ""} },
			func(q *subagent.Request) {
				q.Metadata = map[string]string{}
				for i := range 65 {
					q.Metadata[strings.Repeat("k", i)] = ""
				}
			},
		},
		"ParentSessionID": {func(q *subagent.Request) { q.ParentSessionID = " " }},
	}
	for field, set := range map[string]func(*subagent.Request, string){
		"ExternalTaskID":  func(q *subagent.Request, s string) { q.ExternalTaskID = s },
		"AgentID":         func(q *subagent.Request, s string) { q.AgentID = s },
		"ParentSessionID": func(q *subagent.Request, s string) { q.ParentSessionID = s },
		"ParentMsgID":     func(q *subagent.Request, s string) { q.ParentMsgID = s },
	} {
		for _, id := range []string{strings.Repeat("x", 257), "a\x00b", "a\xff"} {
			bad[field] = append(bad[field], func(q *subagent.Request) { set(q, id) })
		}
	}
	return bad
}

// A request with a field that is over its limit, or is none, is refused with the
// field's name by Spawn and by Run, and nobody sees anything of it.
func TestG1_ABadRequestLeavesNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newTape()
		l := newLab(t, subagent.Config{Cards: p, Notifier: p}, false)
		l.run(func(t *testing.T, l *lab) {
			r, err := subagent.New(l.ctx, subagent.Config{Store: l.store.Store(), Cards: p, Notifier: p}) // without a Func of its own
			require.NoError(t, err)
			for field, changes := range badRequests() {
				for _, change := range changes {
					q := rigAsk("x", withFunc(gives("", nil)), change)
					l.leavesNothing(func() {
						task, err := r.Spawn(l.ctx, q)
						require.Equal(t, subagent.Task{}, task)
						require.ErrorIs(t, err, subagent.ErrInvalidRequest, field)
						require.ErrorContains(t, err, "subagent: invalid request: "+field+" ")
						task, rerr := r.Run(l.ctx, q)
						require.Equal(t, subagent.Task{}, task)
						require.EqualError(t, rerr, err.Error())
					})
				}
			}
			require.Empty(t, p.cards)
			require.NoError(t, r.Shutdown(l.ctx))
		})
	})
}

// Text that is not valid UTF-8, or holds a NUL, is made valid once, and is the
// same for whoever reads or is told of the task.
func TestB200_OneTextForAll(t *testing.T) {
	const bad, good = "a\x00b\xffc\xe4\xbbd", "a\uFFFDb\uFFFDc\uFFFD\uFFFDd"
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		task := r.spawn(bad, func(q *subagent.Request) {
			q.Subject, q.Metadata = bad, map[string]string{bad: bad}
			q.Func = func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
				run.Progress(bad)
				return subagent.Result{Text: bad, HeadID: bad, SourceCommitID: bad, StopReason: bad}, errors.New(bad)
			}
		})
		time.Sleep(time.Second)
		end := r.settled(task.ID)
		require.Equal(t, subagent.Task{
			Description: good, Subject: good, Metadata: map[string]string{good: good}, Progress: subagent.Progress{Message: good},
			ResultText: good, HeadID: good, SourceCommitID: good, StopReason: good, Error: good,
		}, subagent.Task{
			Description: end.Description, Subject: end.Subject, Metadata: end.Metadata, Progress: subagent.Progress{Message: end.Progress.Message},
			ResultText: end.ResultText, HeadID: end.HeadID, SourceCommitID: end.SourceCommitID, StopReason: end.StopReason, Error: end.Error,
		})
		cards, events, notices := r.heard(task.ID)
		require.Len(t, notices, 1)
		for _, seen := range []subagent.Task{task, events[0].Task, events[len(events)-1].Task, notices[0], r.awaited(task.ID)} {
			require.Equal(t, good, seen.Description)
			require.Equal(t, good, seen.Subject)
			require.Equal(t, end.Metadata, seen.Metadata)
		}
		for _, c := range cards {
			require.Equal(t, good+good, c.Attach.Prompt+c.Attach.Label)
		}
		require.Equal(t, "Error: "+good, cards[len(cards)-1].Content)

		id, _ := r.runs("stopped")
		_, err := r.Cancel(r.ctx, id, subagent.CancelOptions{Message: bad})
		require.NoError(t, err)
		require.Equal(t, good, r.awaited(id).CancelMessage)
	})
}

// The reason of a cancel is an id like others: one over its limit, or that is no
// text, is refused, and stops nothing.
func TestCancel_RefusesABadReason(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		id, run := r.runs("x")
		for _, reason := range []subagent.Reason{subagent.Reason(strings.Repeat("r", 257)), "a\x00", "a\xff"} {
			o := subagent.CancelOptions{Reason: reason}
			task, err := r.Cancel(r.ctx, id, o)
			require.ErrorIs(t, err, subagent.ErrInvalidRequest)
			require.ErrorContains(t, err, "CancelOptions.Reason")
			require.Equal(t, subagent.Task{}, task)
			tasks, err := r.CancelSession(r.ctx, "s", o)
			require.ErrorIs(t, err, subagent.ErrInvalidRequest)
			require.ErrorContains(t, err, "CancelOptions.Reason")
			require.Nil(t, tasks)
		}
		_, err := r.CancelSession(r.ctx, "", subagent.CancelOptions{})
		require.ErrorIs(t, err, subagent.ErrInvalidRequest)
		require.Equal(t, r.row(id), run.Task(), "nothing was asked of it")
		require.Zero(t, run.Task().CancelRequestedAt)
		longest := subagent.Reason(strings.Repeat("r", 256))
		_, err = r.Cancel(r.ctx, id, subagent.CancelOptions{Reason: longest, Message: strings.Repeat("今", 1000)})
		require.NoError(t, err)
		end := r.awaited(id)
		require.Equal(t, longest, end.Reason)
		require.Equal(t, strings.Repeat("今", 666), end.CancelMessage, "cut between runes to 2000 bytes")
	})
}
