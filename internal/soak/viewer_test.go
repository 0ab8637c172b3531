package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// viewer is a WebSocket client, as a page is: it subscribes, keeps the newest
// state of each task that it hears of, asks for those that it has lost sight
// of, and starts and stops tasks. It knows one host at a time, and outlives it.
type viewer struct {
	m    *model
	j    *journal
	most int

	mu      sync.Mutex // guards all below; the model's is taken under it
	tasks   map[uuid.UUID]subagent.Task
	said    map[uuid.UUID]subagent.Task // the last event of each, on this connection
	ended   map[uuid.UUID]uint64        // events that told of an end, on this connection
	seq     uint64                      // the last event of this connection
	set     map[uuid.UUID]bool          // a live set that is being told
	lost    map[uuid.UUID]bool          // live when they were last seen, and not in the set
	changed chan struct{}               // closed, and replaced, with every frame
}

func newViewer(m *model, j *journal, most int) *viewer {
	return &viewer{m: m, j: j, most: most, tasks: make(map[uuid.UUID]subagent.Task), changed: make(chan struct{})}
}

// line is a viewer's connection with one host.
type line struct {
	*viewer
	conn    *websocket.Conn
	ctx     context.Context
	cancel  context.CancelFunc
	runner  string
	answers chan frame
	over    sync.WaitGroup
}

// frame is whatever a server sends.
type frame struct {
	ID     *int64          `json:"id"`
	Type   string          `json:"type"`
	Error  json.RawMessage `json:"error"` // an object, where a request failed; a text, in a task
	Seq    uint64          `json:"seq"`
	Task   *subagent.Task  `json:"task"`
	Tasks  []subagent.Task `json:"tasks"`
	More   bool            `json:"more"`
	Next   string          `json:"next"`
	TaskID uuid.UUID       `json:"task_id"`
	Status subagent.Status `json:"status"`
	raw    []byte
}

// refused is why a request failed: a code, or "".
func (f *frame) refused() (code string) {
	var e struct {
		Code string `json:"code"`
	}
	if json.Unmarshal(f.Error, &e) != nil {
		return ""
	}
	return e.Code
}

// dial connects with a host and subscribes.
func (v *viewer) dial(runner, url string) (*line, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(1 << 20)
	c := &line{viewer: v, conn: conn, runner: runner, answers: make(chan frame, 64)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	v.mu.Lock()
	v.ended, v.seq, v.set, v.lost = make(map[uuid.UUID]uint64), 0, nil, make(map[uuid.UUID]bool)
	v.said = make(map[uuid.UUID]subagent.Task)
	v.mu.Unlock()
	c.over.Go(c.listen) // the line's: ends with the connection; hangUp waits for it
	_, err = c.ask("subscribe", nil)
	return c, err
}

// hangUp ends the connection.
func (c *line) hangUp() {
	c.cancel()
	_ = c.conn.CloseNow()
	c.over.Wait()
}

// listen reads until the connection ends.
func (c *line) listen() {
	defer c.cancel()
	for {
		_, data, err := c.conn.Read(c.ctx)
		if err != nil {
			return
		}
		var f frame
		if err := json.Unmarshal(data, &f); err != nil {
			c.m.wrong(uuid.Nil, "a frame is no JSON: %v", err)
			return
		}
		f.raw = data
		c.hear(&f)
		if f.ID != nil {
			select {
			case c.answers <- f:
			default: // nobody asks any more
			}
		}
	}
}

// hear takes over what a frame tells.
func (c *line) hear(f *frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		close(c.changed)
		c.changed = make(chan struct{})
	}()
	switch f.Type {
	case "live_tasks":
		c.liveLocked(f)
	case string(subagent.EventCreated), string(subagent.EventStatus), string(subagent.EventProgress):
		c.eventLocked(f)
	}
}

// liveLocked: who was live, and is not in the set, has ended.
func (c *line) liveLocked(f *frame) {
	if c.set == nil {
		c.set = make(map[uuid.UUID]bool)
	}
	for _, t := range f.Tasks {
		c.set[t.ID] = true
		c.keepLocked(t)
	}
	if f.More {
		return
	}
	for id, t := range c.tasks {
		if !t.Status.Terminal() && !c.set[id] {
			c.lost[id] = true
		}
	}
	c.set = nil
}

// eventLocked: events rise, and none follows that of the end, unless two have
// recovered a lost task at once: then that end may be told again.
func (c *line) eventLocked(f *frame) {
	t := *f.Task
	if f.Seq <= c.seq {
		c.m.wrong(t.ID, "event %d came after event %d", f.Seq, c.seq)
	}
	c.seq = f.Seq
	if seq, over := c.ended[t.ID]; over && t.Reason == subagent.ReasonLost && sameEnd(c.said[t.ID], t, false) == "" {
		c.m.again()
	} else if over {
		c.m.wrong(t.ID, "event %d (%s, %s) follows event %d, which told its end", f.Seq, f.Type, brief(&t), seq)
	}
	if t.Status.Terminal() {
		c.ended[t.ID] = f.Seq
	}
	if f.Type != string(subagent.EventProgress) {
		c.j.note(fact{Says: saysEvent, Op: f.Type, ID: t.ID, Text: fmt.Sprintf("event %d: %s", f.Seq, brief(&t))})
	}
	c.said[t.ID] = t
	c.keepLocked(t)
}

// keepLocked keeps the newest state of a task.
func (v *viewer) keepLocked(t subagent.Task) {
	have, known := v.tasks[t.ID]
	if !known || t.Version > have.Version || t.Version == have.Version && !have.Status.Terminal() {
		v.tasks[t.ID] = t
	}
	if t.Status.Terminal() {
		delete(v.lost, t.ID)
	}
}

// requests numbers all requests of the test, over all connections.
var requests atomic.Int64

// ask makes a request, and notes it and its answer as a client in a host does.
func (c *line) ask(action string, fields map[string]any, ids ...uuid.UUID) (frame, error) {
	n := requests.Add(1)
	q := map[string]any{"action": action, "id": n}
	for k, v := range fields {
		q[k] = v
	}
	body, err := json.Marshal(q)
	if err != nil {
		return frame{}, err
	}
	op := "ws " + action
	c.j.note(fact{Says: saysCall, Call: n, Op: op, IDs: ids})
	began := time.Now()
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	if err := c.conn.Write(ctx, websocket.MessageText, body); err != nil {
		return frame{}, err
	}
	for {
		select {
		case f := <-c.answers:
			if *f.ID != n {
				continue // one that nobody waited for any more
			}
			return f, c.answered(op, n, f, ids, time.Since(began))
		case <-ctx.Done():
			if c.ctx.Err() == nil {
				c.m.wrong(uuid.Nil, "no answer to %s", body)
			}
			return frame{}, ctx.Err()
		}
	}
}

// answered notes what an answer says.
func (c *line) answered(op string, n int64, f frame, ids []uuid.UUID, took time.Duration) error {
	out := fact{Says: saysReturn, Call: n, Op: op, IDs: ids, Took: took}
	switch {
	case f.refused() != "":
		out.Err = f.refused()
	case op == "ws list_tasks":
		out.Tasks = f.Tasks
	case op == "ws cancel_session":
		for _, t := range f.Tasks {
			out.IDs = append(out.IDs, t.ID)
		}
	case op == "ws get_task":
		var t subagent.Task
		if err := json.Unmarshal(f.raw, &t); err != nil {
			return err
		}
		out.Tasks = some(t)
	case op == "ws spawn_task":
		out.IDs = given(f.TaskID)
	}
	c.mu.Lock()
	for _, t := range out.Tasks {
		c.keepLocked(t)
	}
	c.mu.Unlock()
	c.j.note(out)
	return nil
}

// play does one thing after the other until stop is closed or the connection
// ends.
func (c *line) play(random *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-c.ctx.Done():
			return
		case <-time.After(time.Duration(random.IntN(15)) * time.Millisecond): // the pace of the load
		}
		known, lost := c.some()
		if lost != uuid.Nil {
			known = lost
		}
		target := map[string]any{"task_id": known}
		switch n := random.IntN(12); {
		case lost != uuid.Nil, n < 3 && known != uuid.Nil:
			_, _ = c.ask("get_task", target, known)
		case n < 5 && known != uuid.Nil:
			_, _ = c.ask("cancel_task", target, known)
		case n < 7:
			_, _ = c.ask("list_tasks", map[string]any{"session_id": session(random, c.size()), "limit": 1 + random.IntN(40)})
		case n < 8:
			_, _ = c.ask("cancel_session", map[string]any{"session_id": session(random, c.size())})
		case c.size() < c.most:
			q := want(random, session(random, c.size()))
			f, err := c.ask("spawn_task", map[string]any{
				"session_id": q.ParentSessionID, "prompt": q.Description, "description": q.Subject, "external_task_id": q.ExternalTaskID,
			})
			if err == nil && !strings.Contains("queue_full closed", f.refused()) {
				c.m.wrong(uuid.Nil, "spawn_task is refused: %s", f.raw)
			}
		}
	}
}

func (v *viewer) size() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.tasks)
}

// some is any task that it knows, preferably a live one, and any that it has
// lost sight of.
func (v *viewer) some() (known, lost uuid.UUID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, t := range v.tasks {
		if known = id; !t.Status.Terminal() {
			break
		}
	}
	for lost = range v.lost {
		break
	}
	return known, lost
}

// settle waits, at rest, until it was told of every end, and compares those.
// Tasks that another host runs it asks for, as events tell of its own host's
// alone.
func (c *line) settle() error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		ask, open, changed := c.untold()
		if ask != uuid.Nil {
			if _, err := c.ask("get_task", map[string]any{"task_id": ask}, ask); err != nil {
				return err
			}
			continue
		}
		if open == uuid.Nil {
			break
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-deadline.C:
			c.m.wrong(open, "a WebSocket client was not told of its end")
			return nil
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, told := range []map[uuid.UUID]subagent.Task{c.tasks, c.said} {
		for id, t := range told {
			c.m.last(id, &t)
		}
	}
	return nil
}

// untold is a task whose end it has to ask for, one whose end it is to be told,
// and what says that there was a frame.
func (c *line) untold() (ask, open uuid.UUID, changed chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, t := range c.tasks {
		if !t.Status.Terminal() {
			if open = id; t.Owner != c.runner || c.lost[id] {
				return id, id, c.changed
			}
		}
	}
	for id, t := range c.said {
		if !t.Status.Terminal() {
			open = id
		}
	}
	return uuid.Nil, open, c.changed
}
