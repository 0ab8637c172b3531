package subagent_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// spends is a usage of in and out tokens of one call.
func spends(in, out int64) subagent.Usage {
	return subagent.Usage{InputTokens: in, OutputTokens: out, TotalTokens: in + out, Calls: 1}
}

// usageIs checks a task's usage wherever it shows.
func (r *rig) usageIs(id uuid.UUID, want subagent.Usage) {
	r.t.Helper()
	got, err := r.Get(r.ctx, id)
	require.NoError(r.t, err)
	require.Equal(r.t, want, got.Usage, "Get")
	list, err := r.List(r.ctx, subagent.Filter{})
	require.NoError(r.t, err)
	for _, task := range list {
		if task.ID == id {
			require.Equal(r.t, want, task.Usage, "List")
		}
	}
	tree, err := r.UsageTree(r.ctx, id)
	require.NoError(r.t, err)
	require.Equal(r.t, want, tree, "UsageTree")
	_, events, notices := r.heard(id)
	require.Equal(r.t, want, events[len(events)-1].Task.Usage, "event")
	if got.Status.Terminal() {
		require.Equal(r.t, want, r.row(id).Usage, "store")
		for _, n := range notices {
			require.Equal(r.t, want, n.Usage, "notice")
		}
	}
}

// A message that is reported again, as a stream, a retry or a replay does,
// counts once, for its task and for the chat.
func TestB164_AMessageThatIsReportedAgain(t *testing.T) {
	for name, reports := range map[string]func(run *subagent.Run){
		"three times": func(run *subagent.Run) {
			for range 3 {
				run.ReportUsage("m1", spends(10, 5))
			}
		},
		"growing, as a stream": func(run *subagent.Run) {
			for i := range int64(6) {
				run.ReportUsage("m1", spends(2*i, i))
			}
		},
		"put right": func(run *subagent.Run) {
			run.ReportUsage("m1", spends(1000, 500))
			run.ReportUsage("m1", spends(10, 5))
		},
		"among others": func(run *subagent.Run) {
			run.ReportUsage("m1", spends(4, 2))
			run.ReportUsage("m2", spends(6, 3))
			run.ReportUsage("m1", spends(4, 2))
			run.ReportUsage("m2", subagent.Usage{InputTokens: 6, OutputTokens: 3, TotalTokens: 9})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
				id, run := r.runs("one")
				twin, other := r.runs("has a message of the same id")
				reports(run)
				other.ReportUsage("m1", spends(1, 1))
				want := spends(10, 5)
				if name == "among others" {
					want.Calls = 2
				}
				synctest.Wait()
				r.usageIs(id, want)
				r.gate.Release(id, subagent.Result{}, nil)
				r.settled(id)
				reports(run) // late, as of a worker that is replayed
				r.usageIs(id, want)
				r.usageIs(twin, spends(1, 1))
				u := r.row(id).Usage
				chat := []subagent.Message{dispatch("call"), {ToolCallID: "call", SubagentUsage: &u}}
				for range 3 {
					subagent.AttributeUsage(chat)
				}
				require.Equal(t, want, chat[0].Usage)
			})
		})
	}
}

// A child that starts from its parent's conversation brings none of its usage:
// what counts is what the child reports, and the chat has each token once.
func TestB167_ChildrenThatInheritAConversation(t *testing.T) {
	inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
		chat := []subagent.Message{{Usage: tokens(600)}, dispatch("a", "b"), {ToolCallID: "a"}, {ToolCallID: "b"}}
		chat[1].Usage = tokens(400)
		inherits := func(q *subagent.Request) {
			q.ContextMode = subagent.ContextInherit
			q.Func = func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
				seed := clone(chat) // it may even do the host's pass over its copy
				subagent.AttributeUsage(seed)
				run.ReportUsage("own", tokens(10))
				return subagent.Result{}, nil
			}
		}
		for i := range 2 {
			end := r.awaited(r.spawn("child", inherits).ID)
			require.EqualValues(t, 10, end.Usage.TotalTokens)
			u := end.Usage
			chat[2+i].SubagentUsage = &u
			subagent.AttributeUsage(chat)
		}
		require.Empty(t, subagent.AttributeUsage(chat))
		require.EqualValues(t, 1020, charged(chat).TotalTokens)
	})
}

// What was reported is kept whatever the end is, on every surface.
func TestB169_B170_UsageOutlivesEveryEnd(t *testing.T) {
	waits := func(_ *rig) subagent.Func { return stopped(gives("", context.Canceled)) }
	for name, c := range map[string]struct {
		fn    func(r *rig) subagent.Func
		limit time.Duration
		act   func(r *rig, id uuid.UUID)
		want  subagent.Status
	}{
		"stopped in the middle of a call": {fn: waits, act: stopIt, want: subagent.StatusCancelled},
		"deaf to the stop":                {fn: func(r *rig) subagent.Func { return r.gate.DeafFunc() }, act: stopIt, want: subagent.StatusCancelled},
		"a panic":                         {fn: func(*rig) subagent.Func { return panics("no") }, want: subagent.StatusErrored},
		"Goexit":                          {fn: func(*rig) subagent.Func { return exits }, want: subagent.StatusErrored},
		"an error":                        {fn: func(*rig) subagent.Func { return gives("", errors.New("no")) }, want: subagent.StatusErrored},
		"out of time":                     {fn: waits, limit: time.Minute, want: subagent.StatusErrored},
		"deaf and out of time":            {fn: func(r *rig) subagent.Func { return r.gate.DeafFunc() }, limit: time.Minute, want: subagent.StatusErrored},
		"a panic after the stop":          {fn: func(*rig) subagent.Func { return stopped(panics("late")) }, act: stopIt, want: subagent.StatusCancelled},
		"its session is stopped": {fn: waits, act: func(r *rig, _ uuid.UUID) {
			_, err := r.CancelSession(r.ctx, "s", subagent.CancelOptions{})
			require.NoError(r.t, err)
		}, want: subagent.StatusCancelled},
		"the store fails for a while": {fn: waits, act: func(r *rig, id uuid.UUID) {
			r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Err: errBroken} })
			_, _ = r.Cancel(r.ctx, id, subagent.CancelOptions{})
			time.Sleep(time.Minute)
			r.heal()
		}, want: subagent.StatusCancelled},
		"a shutdown": {fn: waits, act: shutItDown, want: subagent.StatusErrored},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				fn := c.fn(r)
				id := r.spawn("work", func(q *subagent.Request) {
					q.Timeout = c.limit
					q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
						run.ReportUsage("first", spends(80, 40))
						run.ReportUsage("second", spends(7, 0)) // it streams; the rest never comes
						return fn(ctx, run)
					}
				}).ID
				synctest.Wait()
				if c.act != nil {
					c.act(r, id)
				}
				time.Sleep(5 * time.Minute)
				require.Equal(t, c.want, r.settled(id).Status)
				want := spends(87, 40)
				want.Calls = 2
				r.usageIs(id, want)
			})
		})
	}
}

// Tasks that run side by side, of one agent, have each their own tokens.
func TestB171_TasksSideBySide(t *testing.T) {
	inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
		same := func(q *subagent.Request) { q.AgentID, q.ExternalTaskID = "researcher", "call_0" }
		a, runA := r.runs("a", same)
		b, runB := r.runs("b", same)
		for i := range int64(5) {
			runA.ReportUsage(string(rune('a'+i)), tokens(10))
			synctest.Wait()
			if i < 3 {
				runB.ReportUsage(string(rune('a'+i)), tokens(10))
			}
		}
		for id, n := range map[uuid.UUID]int64{a: 50, b: 30} {
			r.gate.Release(id, subagent.Result{}, nil)
			require.Equal(t, n, r.settled(id).Usage.TotalTokens)
		}
	})
}

// A checkpoint has the tokens of tasks that have ended, and a restart that reads
// it and is told the same usage again adds nothing.
func TestB172_ACheckpointKeepsTheTokensOfTasks(t *testing.T) {
	var saved []byte
	var id uuid.UUID
	inner := subagent.NewMemoryStore()
	inTwoLives(t, inner,
		func(t *testing.T, r *rig) {
			task, run := r.runs("work")
			run.ReportUsage("m", tokens(70))
			r.gate.Release(task, subagent.Result{}, nil)
			id = task
			u := r.awaited(id).Usage
			chat := []subagent.Message{dispatch("call"), {ToolCallID: "call", SubagentUsage: &u}}
			subagent.AttributeUsage(chat)
			var err error
			saved, err = json.Marshal(chat)
			require.NoError(t, err)
		},
		func(t *testing.T, r *rig) {
			var chat []subagent.Message
			require.NoError(t, json.Unmarshal(saved, &chat))
			got, err := r.Get(r.ctx, id)
			require.NoError(t, err)
			require.EqualValues(t, 70, got.Usage.TotalTokens)
			require.NotZero(t, got.NotifiedAt, "its usage was handed out before, and is not again")
			tree, err := r.UsageTree(r.ctx, id)
			require.NoError(t, err)
			require.EqualValues(t, 70, tree.TotalTokens)
			for range 2 {
				require.EqualValues(t, 70, charged(chat).TotalTokens)
				require.Empty(t, subagent.AttributeUsage(chat))
			}
		})
}

// Tokens stay with the task, and so with the agent and its model, that spent
// them; the sum over a tree has them once.
func TestB173_TokensStayWithWhoSpentThem(t *testing.T) {
	inRig(t, subagent.Config{Workers: 1}, func(t *testing.T, r *rig) {
		child := func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			run.ReportUsage("m", tokens(7))
			return subagent.Result{}, nil
		}
		lead := r.spawn("lead", func(q *subagent.Request) {
			q.AgentID, q.Metadata = "lead", map[string]string{"model": "A"}
			q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
				run.ReportUsage("m", tokens(100))
				_, err := r.Run(ctx, subagent.Request{Description: "c", AgentID: "helper", Metadata: map[string]string{"model": "B"}, Func: child})
				return subagent.Result{}, err
			}
		}).ID
		require.EqualValues(t, 100, r.awaited(lead).Usage.TotalTokens)
		for agent, want := range map[string]struct {
			model  string
			tokens int64
		}{"lead": {"A", 100}, "helper": {"B", 7}} {
			list, err := r.List(r.ctx, subagent.Filter{AgentID: agent})
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.Equal(t, want.model, list[0].Metadata["model"])
			require.Equal(t, want.tokens, list[0].Usage.TotalTokens)
		}
		tree, err := r.UsageTree(r.ctx, lead)
		require.NoError(t, err)
		require.EqualValues(t, 107, tree.TotalTokens)
	})
}

// A replay that asks for the same work again: with the Request.ID of the first
// time it gets that task, in whatever state and life, and nothing runs or is
// counted twice; without one it starts another and leaves the first alone.
func TestB175_AReplayedSpawn(t *testing.T) {
	id, calls := uuid.Must(uuid.NewV7()), 0
	request := func() subagent.Request {
		return rigAsk("work", func(q *subagent.Request) {
			q.ExternalTaskID, q.ParentMsgID = "call_0", "msg_1"
			q.Func = func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
				calls++
				run.ReportUsage("m", tokens(10))
				return subagent.Result{Text: "done"}, nil
			}
		})
	}
	known := request()
	known.ID = id
	again := func(t *testing.T, r *rig) {
		before := r.row(id)
		for range 2 {
			got, err := r.Spawn(r.ctx, known)
			require.NoError(t, err)
			require.Equal(t, before, got)
			got, err = r.Run(r.ctx, known)
			require.NoError(t, err)
			require.Equal(t, before, got)
		}
		require.Equal(t, before, r.row(id))
	}
	inTwoLives(t, subagent.NewMemoryStore(),
		func(t *testing.T, r *rig) {
			_, err := r.Spawn(r.ctx, known)
			require.NoError(t, err)
			r.awaited(id)
			again(t, r)
			require.Equal(t, 1, calls)
		},
		func(t *testing.T, r *rig) {
			again(t, r)
			require.Equal(t, 1, calls)
			before := r.row(id)
			fresh, err := r.Run(r.ctx, request())
			require.NoError(t, err)
			require.NotEqual(t, id, fresh.ID)
			require.Equal(t, before, r.row(id))
			require.Equal(t, 2, calls)
			require.EqualValues(t, 10, fresh.Usage.TotalTokens)
		})
}

// inTwoLives runs two Runners one after the other on a store, as a restart does.
func inTwoLives(t *testing.T, inner *subagent.MemoryStore, lives ...func(t *testing.T, r *rig)) {
	t.Helper()
	for _, live := range lives {
		bubble.Test(t, func(t *testing.T) {
			rigOn(t, subagent.Config{}, newTape(), inner, subagenttest.NewFaultyStore(inner)).run(live)
		})
	}
}
