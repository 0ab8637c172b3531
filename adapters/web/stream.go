package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// idle is after how much silence a stream sends something, so that both sides
// and all that stands between them see that the connection lives.
const idle = 15 * time.Second

// frame is one message of an event stream: a JSON object. A frame without body
// is a sign of life.
type frame struct {
	kind    string
	eventID string // where a client that has read it may resume; "": as before
	body    []byte
}

// liveTasks is the set of the tasks that have not ended, or a part of it.
type liveTasks struct {
	Type    string          `json:"type"` // "live_tasks"
	EventID string          `json:"event_id"`
	Tasks   json.RawMessage `json:"tasks"`
	More    bool            `json:"more,omitempty"`    // the next live_tasks goes on
	Resumed bool            `json:"resumed,omitempty"` // nothing was missed since the event that was named
}

// runningTask tells that a task has begun to run.
type runningTask struct {
	Type   string    `json:"type"` // "running_task"
	TaskID uuid.UUID `json:"task_id"`
	Seq    uint64    `json:"seq"`
}

// stream tells a client what happens in its view, until send fails, ctx ends or
// the Runner is shut down (errOver); it returns why. If what follows the event
// `after` is still kept it begins with that. Then, and whenever the client has
// fallen behind, comes the set of live tasks, and then what happens from there
// on. No event is sent twice. Each task's newest state arrives, but for tasks
// that end while the client is behind: they are missing from the live set.
//
// The Runner tells of its own tasks alone. Those of others on the same store are
// looked at when a sign of life is due: if they have changed, the client gets
// the live set.
//
// send may block; that holds up nobody else.
func (h *handler) stream(ctx context.Context, v view, after string, send func(frame) error) error {
	seen, resumed := h.feed.find(after)
	if resumed {
		var err error
		for upTo := h.feed.newest(); seen < upTo && err == nil; {
			seen, _, err = h.pass(v, seen, send)
		}
		if resumed = err == nil || errors.Is(err, errOver); !resumed && !errors.Is(err, errBehind) {
			return err
		}
	}
	for {
		if !resumed {
			// Before the set is read: what happens in between is told again, and
			// never missed.
			seen = h.feed.newest()
		}
		others, err := h.sendLive(ctx, v, seen, resumed, send)
		if err != nil {
			return err
		}
		resumed = false
		if err := h.follow(ctx, v, seen, others, send); !errors.Is(err, errBehind) {
			return err
		}
	}
}

// follow passes events on as they come. It is behind (errBehind) when others'
// tasks are not as the client was told.
func (h *handler) follow(ctx context.Context, v view, seen uint64, others string, send func(frame) error) error {
	quiet := time.NewTicker(idle)
	defer quiet.Stop()
	for {
		last, wake, err := h.pass(v, seen, send)
		if err != nil {
			return err
		}
		if seen = last; wake == nil {
			continue
		}
		select {
		case <-wake:
		case <-quiet.C:
			if err := send(frame{}); err != nil {
				return err
			}
			// A store that does not answer is asked again at the next sign.
			if tasks, err := h.live(ctx, v); err == nil && h.others(tasks) != others {
				return errBehind
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pass sends some of the events that follow seen, and returns the last that was
// looked at. If there is none it returns the channel to wait for.
func (h *handler) pass(v view, seen uint64, send func(frame) error) (uint64, <-chan struct{}, error) {
	items, wake, err := h.feed.after(seen)
	for _, it := range items {
		seen = it.seq
		if !v.has(it.session) {
			continue
		}
		body := it.frames[v.kin(it.parent, it.parentSession)]()
		if err := send(frame{kind: it.kind, eventID: h.feed.id(it.seq), body: body}); err != nil {
			return seen, nil, err
		}
		if !it.starts {
			continue
		}
		// Without an id: it belongs to the event before it.
		if err := send(frame{kind: "running_task", body: encode(runningTask{"running_task", it.id, it.seq})}); err != nil {
			return seen, nil, err
		}
	}
	return seen, wake, err
}

// others is what the live tasks of other Runners among these are, in a form to
// be compared.
func (h *handler) others(live []subagent.Task) string {
	var b strings.Builder
	for _, t := range live {
		if t.Owner != h.runner.ID() {
			fmt.Fprintln(&b, t.ID, t.Version)
		}
	}
	return b.String()
}

// sendLive sends the live set as it is now, in as many frames as it takes. Only
// the last may be resumed from. It returns what others have in it.
func (h *handler) sendLive(ctx context.Context, v view, seen uint64, resumed bool, send func(frame) error) (others string, err error) {
	tasks, err := h.live(ctx, v)
	if err != nil {
		return "", problemOf(err)
	}
	for left := h.previews(ctx, v, tasks); ; {
		list, n := chunk(left)
		left = left[n:]
		set := liveTasks{Type: "live_tasks", EventID: h.feed.id(seen), Tasks: list, More: len(left) > 0, Resumed: resumed}
		f := frame{kind: set.Type, body: encode(set)}
		if !set.More {
			f.eventID = set.EventID
		}
		if err := send(f); err != nil || !set.More {
			return h.others(tasks), err
		}
	}
}

// end waits until the task has ended and returns it, as it was last seen if it
// has been forgotten since. It reads events and waits for nothing: to the
// Runner nobody has taken notice of the end. sub must have been there before
// the task. It fails if ctx ends, or the store does not answer.
func (h *handler) end(ctx context.Context, sub *subagent.Subscription, t subagent.Task) (subagent.Task, error) {
	for !t.Status.Terminal() {
		e, err := sub.Next(ctx)
		switch {
		case errors.Is(err, subagent.ErrLagged), errors.Is(err, subagent.ErrClosed):
			now, gerr := h.runner.Get(ctx, t.ID)
			if gerr != nil {
				return t, gerr
			}
			if errors.Is(err, subagent.ErrClosed) || now.Status.Terminal() {
				return now, nil
			}
		case err != nil:
			return t, err
		case e.Task.ID == t.ID:
			t = e.Task
		}
	}
	whole, err := h.runner.Get(ctx, t.ID)
	if errors.Is(err, subagent.ErrNotFound) {
		return t, nil
	}
	return whole, err
}
