package web_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
)

// pipes is a network in memory without any buffer: who does not read holds the
// writer up at once. It works in bubbles.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{} // gets one for each connection that the server closes
	end    chan struct{}
	once   sync.Once
}

func newPipes() *pipes {
	return &pipes{conns: make(chan net.Conn), closed: make(chan struct{}, 64), end: make(chan struct{})}
}

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- &watchedConn{Conn: server, closed: p.closed}
	return client
}

func (p *pipes) client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return p.dial(), nil },
	}}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.end:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.end) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// watchedConn reports that it is closed.
type watchedConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *watchedConn) Close() error {
	c.once.Do(func() { c.closed <- struct{}{} })
	return c.Conn.Close()
}

// piped is a Runner behind a server on pipes.
type piped struct {
	*pipes
	runner *subagent.Runner
	http   *http.Client
}

func newPiped(t *testing.T, cfg subagent.Config, o web.Options, limits func(*http.Server)) *piped {
	t.Helper()
	if cfg.Func == nil {
		cfg.Func = func(context.Context, *subagent.Run) (subagent.Result, error) { return subagent.Result{}, nil }
	}
	runner, err := subagent.New(t.Context(), cfg)
	require.NoError(t, err)
	server := &http.Server{Handler: web.Handler(runner, o)}
	if limits != nil {
		limits(server)
	}
	p := newPipes()
	served := make(chan struct{})
	go func() { // ends with the server; the cleanup waits for it
		defer close(served)
		_ = server.Serve(p)
	}()
	client := p.client()
	t.Cleanup(func() {
		require.NoError(t, runner.Shutdown(context.Background()))
		client.CloseIdleConnections()
		_ = server.Close()
		<-served
	})
	return &piped{p, runner, client}
}

// subscribed is a WebSocket client that was told what is live.
func (p *piped) subscribed(t *testing.T) *websocket.Conn {
	conn, _, err := websocket.Dial(t.Context(), "ws://x/ws", &websocket.DialOptions{HTTPClient: p.http})
	require.NoError(t, err)
	t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(1 << 20)
	require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(subscribe)))
	_, _, err = conn.Read(t.Context())
	require.NoError(t, err)
	return conn
}

// deaf are clients that ask for something over HTTP and take nothing of it.
func (p *piped) deaf(t *testing.T) {
	body := `{"session_id":"s","prompt":"p","wait":true}`
	for _, request := range []string{
		"GET /events HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /tasks HTTP/1.1\r\nHost: x\r\n\r\n",
		fmt.Sprintf("POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body),
	} {
		raw := p.dial()
		t.Cleanup(func() { raw.Close() })
		_, err := io.WriteString(raw, request)
		require.NoError(t, err)
	}
}
