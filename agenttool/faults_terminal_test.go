package agenttool_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// desk is a host of which everything is kept that it tells of its tasks.
type desk struct {
	*host

	// mu guards all below.
	mu      sync.Mutex
	onCard  func() error // called before a card is kept; may be nil
	cards   map[uuid.UUID][]subagent.Card
	events  map[uuid.UUID][]subagent.Event
	notices map[uuid.UUID][]subagent.Task
}

// inDesk runs f in a bubble with a desk of all five tools and one slot.
func inDesk(t *testing.T, cfg subagent.Config, f func(t *testing.T, d *desk)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		d := &desk{cards: map[uuid.UUID][]subagent.Card{}, events: map[uuid.UUID][]subagent.Event{}, notices: map[uuid.UUID][]subagent.Task{}}
		cfg.Cards, cfg.Notifier = d, d
		d.host = newHost(t, cfg, agenttool.Options{})
		news := d.Subscribe(subagent.Filter{})
		go func() { // the desk's: ends with the Runner, and the bubble waits for it
			for ev, err := news.Next(context.Background()); err == nil; ev, err = news.Next(context.Background()) {
				d.mu.Lock()
				d.events[ev.Task.ID] = append(d.events[ev.Task.ID], ev)
				d.mu.Unlock()
			}
		}()
		defer func() { // also after a failure, so that the bubble can end
			d.store.On(subagenttest.OpUpdate, nil)
			d.gate.ReleaseAll()
			_ = d.Shutdown(context.Background())
			time.Sleep(time.Hour) // the deafest work has returned then
		}()
		f(t, d)
	})
}

func (d *desk) PutCard(_ context.Context, c subagent.Card) error {
	d.mu.Lock()
	do := d.onCard
	d.mu.Unlock()
	if do != nil {
		if err := do(); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cards[c.TaskID] = append(d.cards[c.TaskID], c)
	return nil
}

func (d *desk) Notify(_ context.Context, t subagent.Task) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notices[t.ID] = append(d.notices[t.ID], t)
	return nil
}

func (d *desk) setCardFault(do func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.onCard = do
}

// told is all that was told of a task.
func (d *desk) told(id uuid.UUID) (cards []subagent.Card, events []subagent.Event, notices []subagent.Task) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cards[id], d.events[id], d.notices[id]
}

// front has a model start a task in the foreground. act is called when it has
// reached the gate.
func (d *desk) front(ctx context.Context, prompt string, act func(id uuid.UUID, run *subagent.Run)) agenttool.Answer {
	d.t.Helper()
	answer := make(chan agenttool.Answer, 1)
	go func() { // ends with the call, which front waits for
		answer <- d.callAs(ctx, agenttool.Call{ID: "call_" + prompt, Name: "agent", SessionID: session, MessageID: "msg_1"},
			args{"prompt": prompt, "description": prompt})
	}()
	run, err := d.gate.Entered(d.t.Context())
	require.NoError(d.t, err)
	act(run.Task().ID, run)
	return <-answer
}

// shown is what a surface says of an end.
type shown struct {
	Status     subagent.Status
	Reason     subagent.Reason
	StopReason string
	Error      string
	Text       string
}

func shownOf(t subagent.Task) shown {
	return shown{t.Status, t.Reason, t.StopReason, t.Error, t.ResultText}
}

// shows checks that every surface says the same of a task's end: record,
// readers, event, card, notice, waiter and the answers of the tools. At most
// one notice was given. It returns the record.
func (d *desk) shows(id uuid.UUID, want shown) subagent.Task {
	d.t.Helper()
	synctest.Wait()
	cards, events, notices := d.told(id)
	require.LessOrEqual(d.t, len(notices), 1)
	for _, n := range notices {
		require.Equal(d.t, want, shownOf(n), "notice")
	}
	row, err := d.store.Get(d.t.Context(), id)
	require.NoError(d.t, err)
	require.Equal(d.t, want, shownOf(row), "record")
	require.Equal(d.t, want, shownOf(d.get(id)), "Get")
	require.Equal(d.t, want, shownOf(events[len(events)-1].Task), "event")
	card := cards[len(cards)-1]
	require.Equal(d.t, row.Card(), card, "card")
	require.Equal(d.t, string(want.Status)+string(want.Reason)+want.StopReason, card.Attach.Status+card.Attach.Reason+card.Attach.StopReason, "card")
	end, err := d.Wait(d.t.Context(), id)
	require.NoError(d.t, err)
	require.Equal(d.t, want, shownOf(end), "waiter")
	d.toolsShow(id, want)
	return row
}

// toolsShow checks what a model, and its host, are told of an end.
func (d *desk) toolsShow(id uuid.UUID, want shown) {
	d.t.Helper()
	bare := want // Data has no text
	bare.Text = ""
	output := d.call("task_output", args{"task_id": id})
	require.Equal(d.t, bare, shownOf(data[taskData](d.t, output).Task), "task_output")
	d.saysEnd(output, id, want)
	await := d.call("await_tasks", args{"task_ids": []string{id.String()}})
	require.Equal(d.t, bare, shownOf(data[tasksData](d.t, await).Tasks[0].Task), "await_tasks")
	d.saysEnd(await, id, want)
	list := d.call("list_tasks", args{"status": want.Status})
	require.Contains(d.t, list.Text, id.String()+" "+string(want.Status))
	for _, t := range data[tasksData](d.t, list).Tasks {
		if t.ID == id {
			require.Equal(d.t, bare, shownOf(t.Task), "list_tasks")
		}
	}
	if want.StopReason != "" {
		require.Contains(d.t, list.Text, id.String()+" "+string(want.Status)+" stop_reason="+want.StopReason)
	}
}

// saysEnd checks an answer that is about one end.
func (d *desk) saysEnd(a agenttool.Answer, id uuid.UUID, want shown) {
	d.t.Helper()
	line := fmt.Sprintf("task_id=%s status=%s", id, want.Status)
	if want.Reason != "" {
		line += " reason=" + string(want.Reason)
	}
	if want.StopReason != "" {
		line += " stop_reason=" + want.StopReason
	}
	require.Contains(d.t, a.Text, line)
	require.Equal(d.t, id, a.TaskID)
	require.Equal(d.t, want.Status == subagent.StatusErrored, a.IsError)
	require.Contains(d.t, a.Text, want.Text)
	require.Equal(d.t, want.Status == subagent.StatusErrored, strings.Contains(a.Text, "[task error] "+want.Error))
	require.Equal(d.t, want.Status == subagent.StatusCancelled, strings.Contains(a.Text, "[cancelled]"))
	require.Equal(d.t, want.Status == subagent.StatusCompleted && want.Text == "", strings.Contains(a.Text, "(no text)"))
}

// A Func that was cut short by its turn limit, or in the middle of a tool
// call, says so with its StopReason, and every surface repeats that.
func TestB074_B075_ACappedEndIsNowherePlain(t *testing.T) {
	for _, word := range []string{"aborted", "unknown", "turn_capped"} {
		for _, text := range []string{"", "what it had so far"} {
			for end, c := range map[string]struct {
				err  error
				want shown
			}{
				"completed": {nil, shown{Status: subagent.StatusCompleted}},
				"errored":   {errors.New("no model"), shown{Status: subagent.StatusErrored, Reason: subagent.ReasonError, Error: "no model"}},
				"cancelled": {nil, shown{Status: subagent.StatusCancelled, Reason: subagent.ReasonAgent}},
			} {
				t.Run(word+" "+end+" "+text, func(t *testing.T) {
					inDesk(t, subagent.Config{}, func(t *testing.T, d *desk) {
						c.want.StopReason, c.want.Text = word, text
						d.cappedEnd(c.err, c.want)
					})
				})
			}
		}
	}
}

// cappedEnd has one task in the background and one in the foreground end so.
func (d *desk) cappedEnd(err error, want shown) {
	capped := func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
		if want.Status == subagent.StatusCancelled {
			<-ctx.Done()
		}
		return subagent.Result{Text: want.Text, StopReason: want.StopReason}, err
	}
	back := d.spawn(d.t.Context(), func(q *subagent.Request) { q.Func = capped })
	synctest.Wait()
	if want.Status == subagent.StatusCancelled {
		d.call("task_stop", args{"task_id": back})
	}
	d.shows(back, want)
	_, _, notices := d.told(back)
	require.Len(d.t, notices, 1)
	if want.Status == subagent.StatusCancelled {
		return // nobody can stop the foreground task that he waits for
	}
	answer := d.front(d.t.Context(), "p", func(id uuid.UUID, _ *subagent.Run) {
		d.gate.Release(id, subagent.Result{Text: want.Text, StopReason: want.StopReason}, err)
	})
	d.saysEnd(answer, answer.TaskID, want)
	d.shows(answer.TaskID, want)
}

// tooLate are ways in which work may come back from a stop.
func tooLate() map[string]error {
	return map[string]error{
		"no error":             nil,
		"the ctx's error":      context.Canceled,
		"wrapped in a type":    &transportError{context.Canceled},
		"the transport's":      errors.New("request aborted"),
		"a deadline's":         context.DeadlineExceeded,
		"its own":              fmt.Errorf("step 3: %w", subagent.ErrCancelled),
		"several":              errors.Join(errors.New("request aborted"), context.Canceled),
		"one of another stop":  subagent.ErrShutdown,
		"one of a lost worker": subagent.ErrLost,
	}
}

// transportError is an inner layer's own type.
type transportError struct{ error }

func (e *transportError) Error() string { return "transport: " + e.error.Error() }
func (e *transportError) Unwrap() error { return e.error }

// A stop by a model is a cancelled end without error text, whatever the work
// came back with, and the same one whether the task was queued or running.
func TestB070_B071_B088_AStopIsAStopWhateverTheWorkReturns(t *testing.T) {
	for name, err := range tooLate() {
		for _, text := range []string{"", "the full answer"} {
			t.Run(name+", "+text, func(t *testing.T) {
				inDesk(t, subagent.Config{}, func(t *testing.T, d *desk) {
					running := d.spawn(t.Context(), func(q *subagent.Request) {
						q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
							_, _ = run.Write([]byte("partial"))
							run.ReportUsage("m", subagent.Usage{TotalTokens: 7})
							<-ctx.Done()
							time.Sleep(time.Second) // it goes on for a while
							return subagent.Result{Text: text}, err
						}
					})
					queued := d.start("queued")
					synctest.Wait()
					for _, id := range []uuid.UUID{running, queued} {
						a := d.call("task_stop", args{"task_id": id, "reason": "enough"})
						require.False(t, a.IsError)
						require.True(t, data[stopData](t, a).OK)
					}
					time.Sleep(time.Minute)
					label := shown{Status: subagent.StatusCancelled, Reason: subagent.ReasonAgent}
					d.shows(queued, label)
					label.Text = "partial"
					if text != "" {
						label.Text = text
					}
					row := d.shows(running, label)
					require.Equal(t, "enough", row.CancelMessage)
					require.False(t, row.Detached)
					require.EqualValues(t, 7, row.Usage.TotalTokens)
					_, _, notices := d.told(running)
					require.Len(t, notices, 1)
				})
			})
		}
	}
}
