package web

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/go-subagent/subagent"
)

const (
	maxWaits = 64  // spawns that one connection may wait for
	maxReqID = 256 // bytes of a request's id
)

// wsRequest is a request as it comes over WebSocket.
type wsRequest struct {
	Action string          `json:"action"`
	ID     json.RawMessage `json:"id"` // anything; comes back with the answer
	request
}

// wsConn is one WebSocket connection. The goroutine that serves it reads the
// requests and does them one after the other; only a stream and the waits for
// spawned tasks have goroutines of their own. All of them write, and each write
// is bounded: when one fails the connection is closed, and with it all end.
type wsConn struct {
	h    *handler
	view view
	conn *websocket.Conn
	ctx  context.Context // ends with the connection
	wg   sync.WaitGroup  // the goroutines; serveWS waits for them

	// What follows belongs to the reading goroutine.
	unsubscribe func()        // ends the stream and waits for it; nil: there is none
	waits       chan struct{} // one in it for each wait
}

// handshake is a response that Accept uses for nothing but to accept: what it
// would say instead is not in our words.
type handshake struct{ http.ResponseWriter }

func (h handshake) Unwrap() http.ResponseWriter    { return h.ResponseWriter }
func (h handshake) Write(text []byte) (int, error) { return len(text), nil }
func (h handshake) WriteHeader(status int) {
	if status == http.StatusSwitchingProtocols {
		h.ResponseWriter.WriteHeader(status)
	}
}

// serveWS serves a connection until either side closes it.
func (h *handler) serveWS(w http.ResponseWriter, r *http.Request, v view) *problem {
	// checkOrigin has seen the origin.
	conn, err := websocket.Accept(handshake{w}, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Sec-WebSocket-Version", "13")
		return noUpgrade
	}
	conn.SetReadLimit(maxFrame)
	ctx, cancel := context.WithCancel(r.Context())
	c := &wsConn{h: h, view: v, conn: conn, ctx: ctx, waits: make(chan struct{}, maxWaits)}
	defer c.wg.Wait()
	defer cancel()
	defer conn.CloseNow()
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			return nil
		}
		if kind != websocket.MessageText {
			_ = conn.Close(websocket.StatusUnsupportedData, "requests are text")
			return nil
		}
		if c.request(data) != nil {
			return nil
		}
	}
}

// request does one request. It returns an error if the connection is over.
func (c *wsConn) request(data []byte) error {
	var q wsRequest
	if !utf8.Valid(data) { // RFC 6455 forbids to go on
		_ = c.answer(nil, nil, badJSON)
		_ = c.conn.Close(websocket.StatusInvalidFramePayloadData, "requests are UTF-8")
		return badJSON
	}
	err := decode(data, &q)
	if len(q.ID) > maxReqID {
		q.ID, err = nil, invalid("id has more than %d bytes", maxReqID)
	}
	if err != nil {
		return c.answer(q.ID, nil, err)
	}
	var v any
	switch q.Action {
	case "spawn_task":
		return c.spawn(q)
	case "subscribe":
		return c.subscribe(q)
	case "list_tasks":
		v, err = c.h.listTasks(c.ctx, c.view, q.request)
	case "get_task":
		v, err = c.h.getTask(c.ctx, c.view, q.request)
	case "cancel_task":
		v, err = c.h.cancelTask(c.ctx, c.view, q.request)
	case "cancel_session":
		v, err = c.h.cancelSession(c.ctx, c.view, q.request)
	default:
		err = unknownAction(q.Action)
	}
	return c.answer(q.ID, v, err)
}

// spawn answers at once, or with q.Wait when the task has ended.
func (c *wsConn) spawn(q wsRequest) error {
	if q.Wait {
		select {
		case c.waits <- struct{}{}:
		default:
			return c.answer(q.ID, nil, tooManyWaits)
		}
	}
	t, sub, err := c.h.spawn(c.ctx, c.view, q.request)
	if sub == nil {
		if q.Wait {
			<-c.waits
		}
		return c.answer(q.ID, spawnedOf(t), err)
	}
	c.wg.Go(func() { // ends with the task, or the connection
		c.wait(q.ID, t, sub)
		<-c.waits
	})
	return nil
}

func (c *wsConn) wait(id json.RawMessage, t subagent.Task, sub *subagent.Subscription) {
	defer sub.Close()
	t, err := c.h.end(c.ctx, sub, t)
	if err != nil {
		_ = c.answer(id, nil, problemOf(err)) // fails if the connection is over
		return
	}
	_ = c.answer(id, c.h.whole(c.ctx, c.view, t), nil)
}

// subscribe starts a stream, in the place of an earlier one. Its first set of
// live tasks is the answer.
func (c *wsConn) subscribe(q wsRequest) error {
	v, p := c.view.in(q.SessionID)
	if p != nil {
		return c.answer(q.ID, nil, p)
	}
	if c.unsubscribe != nil {
		c.unsubscribe()
	}
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan struct{})
	c.unsubscribe = func() { cancel(); <-done }
	c.wg.Go(func() { // ends with the connection, the next subscribe or the Runner
		defer close(done)
		defer cancel()
		c.stream(ctx, v, q)
	})
	return nil
}

func (c *wsConn) stream(ctx context.Context, v view, q wsRequest) {
	answered := false
	err := c.h.stream(ctx, v, q.After, func(f frame) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case f.body == nil:
			return c.ping()
		case f.kind == "live_tasks" && !answered:
			answered = f.eventID != "" // its last part
			return c.write(withID(q.ID, f.body))
		}
		return c.write(f.body)
	})
	var p *problem
	switch {
	case errors.Is(err, errOver):
		_ = c.conn.Close(websocket.StatusGoingAway, "the runner is shut down")
	case ctx.Err() != nil && !answered:
		_ = c.answer(q.ID, nil, replaced) // or the connection is over, then it fails
	case ctx.Err() == nil && errors.As(err, &p):
		_ = c.answer(q.ID, nil, p)
	case ctx.Err() == nil:
		_ = c.conn.CloseNow() // a client that does not answer must not believe that all is quiet
	}
}

// answer sends what came of a request.
func (c *wsConn) answer(id json.RawMessage, v any, err error) error {
	if err != nil {
		return c.write(withID(id, encode(map[string]*problem{"error": problemOf(err)})))
	}
	if t, ok := v.(*wireTask); ok {
		return c.write(withID(id, t.fit()))
	}
	return c.write(withID(id, encode(v)))
}

// write sends one frame. The ctx of a stream must not interrupt it: the
// connection would be lost. A client that does not take it in time is dropped.
func (c *wsConn) write(p []byte) error {
	ctx, cancel := context.WithTimeout(c.ctx, writeTimeout)
	defer cancel()
	return c.conn.Write(ctx, websocket.MessageText, p)
}

// ping asks whether the other side is still there. The answer comes through
// the reading goroutine, which may be busy with a request.
func (c *wsConn) ping() error {
	ctx, cancel := context.WithTimeout(c.ctx, 3*writeTimeout)
	defer cancel()
	return c.conn.Ping(ctx)
}
