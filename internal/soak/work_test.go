package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

// What a Runner of the soak is made with.
const (
	workers   = 4
	maxQueued = 48
	maxDepth  = 4
	grace     = 250 * time.Millisecond // for those that do not obey
)

// kinds are what tasks do, as often as they stand here. It is the first word
// of their prompt.
var kinds = strings.Fields("quick quick quick quick quick slow slow slow slow until deaf fail fail panic goexit long write write nest nest nest nest")

// want is a request for random work. Nothing about it tells tasks apart: their
// external ids repeat.
func want(random *rand.Rand, session string) subagent.Request {
	kind := kinds[random.IntN(len(kinds))]
	q := subagent.Request{
		Description:     kind + " " + strconv.Itoa(random.IntN(25)),
		Subject:         kind,
		ParentSessionID: session,
		ExternalTaskID:  fmt.Sprintf("call_%d", random.IntN(20)),
		ParentMsgID:     fmt.Sprintf("msg_%d", random.IntN(5)),
		NoWait:          random.IntN(20) == 0,
	}
	if kind == "until" || random.IntN(12) == 0 {
		q.Timeout = time.Duration(5+random.IntN(150)) * time.Millisecond
	}
	if kind == "until" && random.IntN(2) == 0 {
		q.Timeout = 0 // it ends when somebody stops it
	}
	if random.IntN(12) == 0 {
		q.QueueTimeout = time.Duration(1+random.IntN(100)) * time.Millisecond
	}
	return q
}

// gauge counts the Funcs that hold a slot in good order. One that came back
// from a wait because it is being stopped may hold one above the limit, and is
// not counted any more.
type gauge struct{ active atomic.Int64 }

// job is one execution of a Func.
type job struct {
	h       *host
	run     *subagent.Run
	task    subagent.Task
	random  *rand.Rand
	counted bool
}

// work is the Func of every task.
func (h *host) work(ctx context.Context, run *subagent.Run) (res subagent.Result, err error) {
	t := run.Task()
	h.j.note(fact{Says: saysEnter, ID: t.ID, Text: t.Description})
	w := &job{h: h, run: run, task: t, random: rand.New(rand.NewPCG(h.o.Seed, uint64(t.ID.ID())^uint64(t.ID.ClockSequence())))}
	w.count(1)
	defer func() { w.count(-1) }()
	run.ReportUsage("call", subagent.Usage{InputTokens: 1, TotalTokens: 1})
	run.Progress("at it")
	kind, number, _ := strings.Cut(t.Description, " ")
	n, _ := strconv.Atoi(number)
	run.ReportUsage("call", usageOf(t.ID))
	text, err := w.do(ctx, kind, time.Duration(n)*time.Millisecond)
	w.left(text, err)
	switch kind {
	case "panic":
		panic("as asked")
	case "goexit":
		runtime.Goexit()
	}
	return subagent.Result{Text: text}, err
}

// usageOf is what a task with that ID uses, different for most.
func usageOf(id uuid.UUID) subagent.Usage {
	n := int64(id[15]) + 1
	return subagent.Usage{InputTokens: n, OutputTokens: 2 * n, TotalTokens: 3 * n}
}

// resultOf is what a task of that kind says in the end.
func resultOf(kind string, id uuid.UUID) string {
	text := kind + " " + id.String()
	if kind == "long" {
		text = strings.Repeat(text+"\n", 120) // more than a store keeps in its main file, and than a preview has
	}
	return text
}

// left says that the Func is about to return. What was acknowledged before that
// has reached it.
func (w *job) left(text string, err error) {
	f := fact{Says: saysLeft, ID: w.task.ID, Text: "returns"}
	if err != nil {
		f.Text, f.Err = "fails", err.Error()
	}
	f.Since = w.h.j.now()
	w.h.j.note(f)
}

func (w *job) count(by int64) {
	if by < 0 && !w.counted {
		return
	}
	w.counted = by > 0
	if n := w.h.gauge.active.Add(by); n > workers {
		w.h.j.fault(w.task.ID, "%d Funcs work, in %d slots", n, workers)
	}
}

func (w *job) do(ctx context.Context, kind string, d time.Duration) (string, error) {
	text := resultOf(kind, w.task.ID)
	switch kind {
	case "slow":
		return text, pause(ctx, d)
	case "until":
		<-ctx.Done()
		return text, context.Cause(ctx)
	case "deaf":
		return text, pause(context.WithoutCancel(ctx), 20*d) // up to half a second: twice the grace
	case "fail":
		return "", errors.New("as asked")
	case "write":
		_, err := w.run.Write([]byte("part of " + text))
		return text, errors.Join(err, pause(ctx, d))
	case "nest":
		return text, w.nest(ctx)
	}
	return text, nil
}

// pause lasts for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// nest starts a few children, waits for them in one way or another or not at
// all, and ends.
func (w *job) nest(ctx context.Context) error {
	var kids []uuid.UUID
	for range 1 + w.random.IntN(3) {
		q := want(w.random, "")
		q.NoWait = false
		if w.random.IntN(5) == 0 {
			q.Independent, q.Metadata = true, map[string]string{independent: "yes"}
		}
		if t := w.h.spawn(ctx, q); t.ID != uuid.Nil {
			kids = append(kids, t.ID)
		}
	}
	if len(kids) == 0 || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	limit := time.Duration(5+w.random.IntN(400)) * time.Millisecond
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w.count(-1) // from here on the slot is lent
	way := w.random.IntN(6)
	switch way {
	case 0:
		w.h.wait(wait, kids[0])
	case 1:
		w.h.await(wait, subagent.AwaitAny, kids)
	case 2:
		w.h.tool(ctx, "await_tasks", "", kids, map[string]any{"task_ids": kids, "timeout": limit.Milliseconds()})
	case 3:
		w.h.run(wait, want(w.random, ""))
	case 4:
		w.h.tool(wait, "agent", "", nil, map[string]any{"prompt": "quick 1", "description": "quick"})
	default:
		w.h.await(wait, subagent.AwaitAll, kids)
	}
	if wait.Err() == nil && way != 2 { // that of the tool may have run out within
		w.count(1)
	}
	return context.Cause(ctx)
}

// independent is the key of a task's metadata that says that it is.
const independent = "independent"

// told is what a call came to.
type told struct {
	tasks []subagent.Task
	first []uuid.UUID // whose end was handed out for the first time
	bare  bool
	text  string
	err   error
}

// calling notes a call before it is made and what it came to.
func (h *host) calling(op, text string, ids []uuid.UUID, do func() told) told {
	n := h.calls.Add(1)
	h.j.note(fact{Says: saysCall, Call: n, Op: op, IDs: ids, Text: text})
	began := time.Now()
	was := do()
	f := fact{Says: saysReturn, Call: n, Op: op, IDs: ids, Tasks: was.tasks, First: was.first, Bare: was.bare, Text: was.text, Took: time.Since(began)}
	if was.err != nil {
		f.Err = was.err.Error()
	}
	f.Queue = h.capacity.Stats().Queued
	h.j.note(f)
	return was
}

// handed are those of tasks whose end a wait was the first to hand out.
func handed(tasks ...subagent.Task) (first []uuid.UUID) {
	for _, t := range tasks {
		if t.Status.Terminal() && t.NotifiedAt.IsZero() {
			first = append(first, t.ID)
		}
	}
	return first
}

// refusals are what a spawn may be refused with.
var refusals = []error{subagent.ErrQueueFull, subagent.ErrNoCapacity, subagent.ErrDepth, subagent.ErrParentCancelled, subagent.ErrClosed, context.Canceled, context.DeadlineExceeded}

func (h *host) expect(what string, err error, allowed ...error) {
	if err == nil {
		return
	}
	for _, a := range allowed {
		if errors.Is(err, a) {
			return
		}
	}
	h.j.fault(uuid.Nil, "%s: %v", what, err)
}

func (h *host) spawn(ctx context.Context, q subagent.Request) subagent.Task {
	was := h.calling("spawn", q.Description, given(q.ID), func() told {
		t, err := h.runner.Spawn(ctx, q)
		return told{tasks: some(t), err: err}
	})
	h.expect("spawn", was.err, refusals...)
	return h.known(was)
}

func (h *host) run(ctx context.Context, q subagent.Request) {
	was := h.calling("run", q.Description, given(q.ID), func() told {
		t, err := h.runner.Run(ctx, q)
		return told{tasks: some(t), first: handed(some(t)...), err: err}
	})
	h.expect("run", was.err, append(refusals, subagent.ErrWaitCycle)...)
	h.known(was)
}

// known remembers the one task of an answer for other clients.
func (h *host) known(was told) subagent.Task {
	if len(was.tasks) == 0 {
		return subagent.Task{}
	}
	h.pool.add(was.tasks[0].ID)
	return was.tasks[0]
}

func (h *host) wait(ctx context.Context, id uuid.UUID) {
	was := h.calling("wait", "", given(id), func() told {
		t, err := h.runner.Wait(ctx, id)
		return told{tasks: some(t), first: handed(some(t)...), err: err}
	})
	h.expect("wait", was.err, context.Canceled, context.DeadlineExceeded, subagent.ErrWaitCycle)
}

func (h *host) await(ctx context.Context, mode subagent.AwaitMode, ids []uuid.UUID) {
	was := h.calling("await "+string(mode), "", ids, func() told {
		tasks, err := h.runner.Await(ctx, mode, ids...)
		return told{tasks: tasks, first: handed(tasks...), err: err}
	})
	h.expect("await", was.err, context.Canceled, context.DeadlineExceeded, subagent.ErrWaitCycle)
}

// tool makes a call as a model does, and reads what the answer's data says.
func (h *host) tool(ctx context.Context, name, session string, ids []uuid.UUID, arguments map[string]any) told {
	raw, err := json.Marshal(arguments)
	if err != nil {
		panic(err)
	}
	was := h.calling(name, "", ids, func() told {
		a := h.tools.Call(ctx, agenttool.Call{ID: "call_1", Name: name, Arguments: raw, SessionID: session, MessageID: "msg_1"})
		var data struct {
			TaskID uuid.UUID       `json:"task_id"`
			Usage  *subagent.Usage `json:"usage"`
			Tasks  []struct {
				TaskID uuid.UUID       `json:"task_id"`
				Usage  *subagent.Usage `json:"usage"`
			} `json:"tasks"`
		}
		out := told{bare: true, text: a.Text[:min(len(a.Text), 300)]}
		if a.Data == nil {
			return out
		}
		if err := json.Unmarshal(a.Data, &data); err != nil {
			return told{err: err}
		}
		if data.Usage != nil {
			out.first = append(out.first, data.TaskID)
		}
		for _, t := range data.Tasks {
			if t.Usage != nil {
				out.first = append(out.first, t.TaskID)
			}
		}
		out.tasks, out.err = tasksOf(name, a.Data)
		return out
	})
	h.expect(name, was.err)
	if name == "agent" {
		h.known(was)
	}
	return was
}

// tasksOf are the tasks that the data of a tool's answer shows.
func tasksOf(name string, data []byte) ([]subagent.Task, error) {
	var list struct {
		Tasks []subagent.Task `json:"tasks"`
	}
	switch name {
	case "task_stop":
		return nil, nil
	case "agent", "task_output":
		list.Tasks = make([]subagent.Task, 1)
		return list.Tasks, json.Unmarshal(data, &list.Tasks[0])
	}
	return list.Tasks, json.Unmarshal(data, &list)
}

// some is t, unless there is none.
func some(t subagent.Task) []subagent.Task {
	if t.ID == uuid.Nil {
		return nil
	}
	return []subagent.Task{t}
}

func given(id uuid.UUID) []uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return []uuid.UUID{id}
}
