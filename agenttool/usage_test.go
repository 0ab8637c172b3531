package agenttool_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/internal/bubble"
)

// spent is a usage that differs from others of another n.
func spent(n int64) subagent.Usage {
	return subagent.Usage{InputTokens: n, OutputTokens: 2 * n, TotalTokens: 3 * n, CacheReadTokens: n / 2, Calls: 1}
}

// conversation is a host's saved history, as docs/integrate.md advises: each
// message has its id, a tool result the id of the message that it answers.
type conversation struct {
	ids      []string // of the messages
	answers  []string // of tool results: the message that made the call
	messages []subagent.Message
}

// turn appends an assistant message with its calls, and returns its id.
func (c *conversation) turn(calls ...string) string {
	return c.add("", subagent.Message{ToolCalls: calls, Usage: spent(1000)})
}

func (c *conversation) add(answers string, m subagent.Message) string {
	id := fmt.Sprintf("msg_%d", len(c.ids))
	c.ids, c.answers, c.messages = append(c.ids, id), append(c.answers, answers), append(c.messages, m)
	return id
}

// charge stores usage on the result of the agent call that started the task.
func (c *conversation) charge(t *testing.T, msgID, callID string, u *subagent.Usage) {
	t.Helper()
	for i := range c.messages {
		if c.answers[i] == msgID && c.messages[i].ToolCallID == callID {
			require.Nil(t, c.messages[i].SubagentUsage, "a usage is delivered once")
			c.messages[i].SubagentUsage = u
			return
		}
	}
	t.Fatalf("no result of call %s in message %s", callID, msgID)
}

// take stores the usage that an answer delivers, wherever it came from.
func (c *conversation) take(t *testing.T, a agenttool.Answer) {
	t.Helper()
	var d struct {
		taskData
		Tasks []taskData `json:"tasks"`
	}
	require.NoError(t, json.Unmarshal(a.Data, &d))
	for _, task := range append(d.Tasks, d.taskData) {
		if task.Usage != nil {
			c.charge(t, task.ParentMsgID, task.ExternalTaskID, task.Usage)
		}
	}
}

func (c *conversation) charged() (tokens []int64) {
	for _, m := range c.messages {
		if m.ToolCalls != nil {
			tokens = append(tokens, m.Usage.TotalTokens-3000)
		}
	}
	return tokens
}

// saved is the history after it was written and read again.
func (c *conversation) saved(t *testing.T) []subagent.Message {
	t.Helper()
	raw, err := json.Marshal(c.messages)
	require.NoError(t, err)
	var again []subagent.Message
	require.NoError(t, json.Unmarshal(raw, &again))
	return again
}

// startIn starts a background task in its own turn; providers number their
// calls anew in each.
func (h *host) startIn(c *conversation, call string, u *subagent.Usage) uuid.UUID {
	h.t.Helper()
	msg := c.turn(call)
	a := h.callAs(h.t.Context(), agenttool.Call{ID: call, Name: "agent", SessionID: session, MessageID: msg},
		args{"prompt": "p", "description": "d", "run_in_background": true})
	require.False(h.t, a.IsError, a.Text)
	require.Nil(h.t, a.Usage)
	c.add(msg, subagent.Message{ToolCallID: call})
	c.add("", subagent.Message{}) // other messages stand in between
	run := h.gate.WaitEntered(h.t, a.TaskID)
	if u != nil {
		run.ReportUsage("m", *u)
	}
	return a.TaskID
}

// Three agents whose calls have the same id: whichever delivery brings the
// usage, it lands on the message that started the task, once, and a replay
// changes nothing.
func TestUsageOfEqualCallIDsLandsOnTheRightMessages(t *testing.T) {
	for name, read := range map[string]func(t *testing.T, h *host, c *conversation, ids []uuid.UUID){
		"task_output": func(t *testing.T, h *host, c *conversation, ids []uuid.UUID) {
			for _, i := range []int{2, 0, 1} {
				c.take(t, h.call("task_output", args{"task_id": ids[i], "block": i == 0}))
			}
		},
		"await_tasks all": func(t *testing.T, h *host, c *conversation, ids []uuid.UUID) {
			c.take(t, h.call("await_tasks", args{"task_ids": []uuid.UUID{ids[1], ids[2], ids[0]}}))
		},
		"await_tasks any, then output": func(t *testing.T, h *host, c *conversation, ids []uuid.UUID) {
			c.take(t, h.call("await_tasks", args{"task_ids": ids[:1], "mode": "any"}))
			c.take(t, h.call("await_tasks", args{"task_ids": ids}))
		},
	} {
		inHostOf(t, subagent.Config{Workers: 3}, agenttool.Options{}, func(t *testing.T, h *host) {
			var c conversation
			var ids []uuid.UUID
			for _, n := range []int64{1, 20, 300} {
				u := spent(n)
				ids = append(ids, h.startIn(&c, "call_0", &u))
			}
			early := c.saved(t)
			require.Empty(t, subagent.AttributeUsage(early), "nothing has ended")
			h.gate.ReleaseAll()
			synctest.Wait()
			read(t, h, &c, ids)
			unattributed := c.saved(t) // a checkpoint from before the pass
			require.Len(t, subagent.AttributeUsage(c.messages), 6, name)
			require.Equal(t, []int64{3, 60, 900}, c.charged(), name)
			for range 2 {
				require.Empty(t, subagent.AttributeUsage(c.messages))
			}
			replayed := c.saved(t)
			require.Empty(t, subagent.AttributeUsage(replayed))
			require.Equal(t, c.messages, replayed)
			subagent.AttributeUsage(unattributed)
			require.Equal(t, c.messages, unattributed, "what was saved before is charged once")
			for _, id := range ids {
				require.Nil(t, h.call("task_output", args{"task_id": id}).Usage)
			}
			a := h.call("await_tasks", args{"task_ids": ids})
			require.NotContains(t, string(a.Data), `"usage"`)
		})
	}
}

// Zero usage is delivered and attributed as any other.
func TestZeroUsageIsAttributed(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		var c conversation
		id := h.startIn(&c, "call_0", nil)
		h.finish(id, "text")
		a := h.call("task_output", args{"task_id": id})
		require.NotNil(t, a.Usage)
		require.Contains(t, string(a.Data), `"usage":{"input_tokens":0,"output_tokens":0,"total_tokens":0}`)
		c.take(t, a)
		require.Equal(t, []int{0, 1}, subagent.AttributeUsage(c.messages))
		require.Equal(t, []int64{0}, c.charged())
	})
}

type noticed struct{ tasks chan subagent.Task }

func (n noticed) Notify(_ context.Context, t subagent.Task) error {
	n.tasks <- t
	return nil
}

// What a notice has delivered, no answer delivers again, and the other way
// round.
func TestTheNoticeIsADeliveryToo(t *testing.T) {
	inbox := noticed{}
	bubble.Test(t, func(t *testing.T) {
		inbox.tasks = make(chan subagent.Task, 10)
		h := newHost(t, subagent.Config{Notifier: inbox}, agenttool.Options{})
		defer func() { require.NoError(t, h.Shutdown(context.Background())) }()
		var c conversation
		u := spent(7)
		told := h.startIn(&c, "call_0", &u)
		h.finish(told, "text")
		notice := <-inbox.tasks
		c.charge(t, notice.ParentMsgID, notice.ExternalTaskID, &notice.Usage)
		synctest.Wait()
		require.Nil(t, h.call("task_output", args{"task_id": told}).Usage)
		require.Nil(t, h.call("await_tasks", args{"task_ids": []any{told}}).Usage)

		read := h.startIn(&c, "call_0", &u)
		time.AfterFunc(time.Second, func() { h.gate.Release(read, subagent.Result{}, nil) })
		a := h.call("task_output", args{"task_id": read}) // somebody waits: no notice is owed
		require.NotNil(t, a.Usage)
		c.take(t, a)
		synctest.Wait()
		require.Empty(t, inbox.tasks)
		subagent.AttributeUsage(c.messages)
		require.Equal(t, []int64{21, 21}, c.charged())
	})
}

// Of many who read an end at the same time one has the usage.
func TestOneOfManyReadersHasTheUsage(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		for range 50 {
			id, _ := h.runs("work")
			usages := make(chan *subagent.Usage, 20)
			var all sync.WaitGroup
			for i := range cap(usages) {
				all.Go(func() {
					tool := []string{"task_output", "await_tasks"}[i%2]
					raw, _ := json.Marshal(good(id)[tool])
					usages <- h.tools.Call(t.Context(), agenttool.Call{Name: tool, Arguments: raw, SessionID: session}).Usage
				})
			}
			if id[15]%2 == 0 {
				synctest.Wait()
			}
			h.gate.Release(id, subagent.Result{}, nil)
			all.Wait()
			close(usages)
			n := 0
			for u := range usages {
				if u != nil {
					n++
				}
			}
			require.Equal(t, 1, n)
		}
	})
}

// A task's usage is its own: what its sub-agents used is charged in its
// conversation, not in that of its parent.
func TestUsageIsNotThatOfDescendants(t *testing.T) {
	var h *host
	var inner *subagent.Usage
	inFuncHost(t, func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		if run.Task().Description == "lead" {
			run.ReportUsage("m", spent(1))
			inner = h.callAs(ctx, agenttool.Call{Name: "agent"}, args{"prompt": "child", "description": "d"}).Usage
			return subagent.Result{}, nil
		}
		run.ReportUsage("m", spent(100))
		return subagent.Result{}, nil
	}, func(t *testing.T, hh *host) {
		h = hh
		a := h.call("agent", args{"prompt": "lead", "description": "d"})
		require.Equal(t, spent(1), *a.Usage)
		require.Equal(t, spent(100), *inner)
	})
}

// Usage that could not be read is not counted and not marked; when it can, a
// later pass counts it, once.
func TestMalformedUsageWaitsForALaterPass(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		var c conversation
		u := spent(7)
		id := h.startIn(&c, "call_0", &u)
		h.finish(id, "")
		stored, err := json.Marshal(h.call("task_output", args{"task_id": id}).Usage)
		require.NoError(t, err)
		_, err = subagent.ParseUsage(append([]byte(`{"input_tokens":"7",`), stored[1:]...)) // as a bad writer left it
		require.ErrorContains(t, err, "input_tokens")
		require.Empty(t, subagent.AttributeUsage(c.messages))
		require.False(t, c.messages[1].UsageAttributed)
		whole, err := subagent.ParseUsage(stored)
		require.NoError(t, err)
		c.messages[1].SubagentUsage = whole
		require.Equal(t, []int{0, 1}, subagent.AttributeUsage(c.messages))
		require.Empty(t, subagent.AttributeUsage(c.messages))
		require.Equal(t, []int64{21}, c.charged())
	})
}
