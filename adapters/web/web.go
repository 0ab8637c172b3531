// Package web shows a Runner's tasks to browsers and other HTTP clients, and
// lets them start and stop tasks: over WebSocket, server-sent events and plain
// HTTP, and as a page, the Tasks panel. docs/web.md describes the protocol.
//
// A host mounts one handler:
//
//	mux.Handle("/subagents/", web.Handler(runner, web.Options{Prefix: "/subagents"}))
//
// No client ever slows a task or another client. The handler keeps the last
// 4096 events; each client reads them at its own pace, and one that falls
// behind gets the set of live tasks instead of what it missed. Nothing that a
// client reads counts as the delivery of a notice, and a connection that is
// lost stops nothing.
package web

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-subagent/subagent"
)

// Options say how a Runner is shown. The zero Options show all sessions to
// everybody who can reach the handler: use them only behind a login, or on a
// loopback address.
type Options struct {
	// Prefix is the path under which the handler is mounted, for example
	// "/subagents"; "" at the root, or where the host strips the prefix itself.
	Prefix string

	// Sessions says whose tasks a request may see, start and stop. It is called
	// for each request, and once for a WebSocket or an event stream, when it is
	// opened; it may block for as long as the client is willing to wait. An
	// error refuses the request (its text is not sent); a panic is net/http's to
	// recover from, and nothing is sent. nil: all sessions.
	Sessions func(*http.Request) (SessionScope, error)

	// ReadOnly refuses to start and to stop tasks, and hides the page's buttons.
	ReadOnly bool

	// Redact returns a task as it may leave the process; mind that a Subject
	// that nobody gave is the start of the prompt. It is called for every
	// task that is sent, events included, from several goroutines at once, and
	// should be fast: events wait for it. If it panics, only ids, times and
	// states are sent. nil: tasks are sent as they are.
	Redact func(subagent.Task) subagent.Task

	// Origins are further origins whose pages may use the handler, over
	// WebSocket and with POST: "https://app.example.com", or a host alone for
	// any scheme. The handler's own host always may. Comparison ignores case.
	Origins []string

	// Link is where a task's row leads in the host: its card in the chat, or
	// its HeadID's branch. It is given the task before Redact and called like
	// it; what it returns is sent. Only http and https addresses, absolute or
	// relative to the page, are followed. "": no link.
	Link func(subagent.Task) string
}

// SessionScope says whose tasks somebody may see: all, or those of the sessions
// with these ids. The zero SessionScope sees nothing.
type SessionScope struct {
	All bool
	IDs []string
}

// Handler returns the handler for the tasks of r. From then on it reads the
// Runner's events, with one goroutine that ends when r is shut down; event
// streams end then too, after the last event. The handler needs no closing.
//
// Requests take as long as the Runner's methods that they use; their ctx is
// the request's. A response that a client does not take is given up after 10
// seconds without progress.
func Handler(r *subagent.Runner, o Options) http.Handler {
	h := &handler{runner: r, Options: o, panel: newPanel(o)}
	if prefix := strings.Trim(o.Prefix, "/"); prefix != "" {
		h.prefix = strings.Split(prefix, "/")
	}
	h.feed = newFeed(r.ID())
	// Owned by the Runner: its shutdown ends the subscription, and with it the
	// goroutine. Nobody waits for it.
	go h.feed.run(r.Subscribe(subagent.Filter{}), h.newItem)
	return h
}

type handler struct {
	Options
	prefix []string // its steps
	runner *subagent.Runner
	feed   *feed
	panel  *panel
}

// ServeHTTP finds out who asks and for what. The page itself holds no task and
// is served to everybody.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "no-referrer")
	steps, ok := h.route(w, r)
	if !ok {
		return
	}
	if len(steps) == 1 && h.panel.serve(w, r, steps[0]) {
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	foreign, ok := h.checkOrigin(w, r)
	if !ok && (r.Method != http.MethodGet || steps[0] == "ws") {
		refuse(w, badOrigin(r.Header.Get("Origin")))
		return
	}
	if foreign && r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	v, p := h.view(r)
	if p == nil {
		p = h.serve(w, r, v, steps)
	}
	if p != nil {
		refuse(w, p)
	}
}

// route returns the steps of the path below the prefix, decoded one by one: the
// id of a session may hold a slash, and an address may be escaped in more than
// one way. If it returns false it has answered.
func (h *handler) route(w http.ResponseWriter, r *http.Request) ([]string, bool) {
	path := r.URL.EscapedPath()
	steps := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, s := range steps {
		var err error
		if steps[i], err = url.PathUnescape(s); err != nil {
			refuse(w, notFound)
			return nil, false
		}
	}
	n := len(h.prefix)
	if n > len(steps) || !slices.Equal(h.prefix, steps[:n]) || path != "" && path[0] != '/' {
		refuse(w, notFound)
		return nil, false
	}
	if n > 0 && n == len(steps) {
		// Relative, so that it holds behind a proxy that adds a prefix too.
		to := url.URL{Path: h.prefix[n-1] + "/", RawQuery: r.URL.RawQuery}
		w.Header().Set("Location", to.String())
		w.WriteHeader(http.StatusMovedPermanently)
		return nil, false
	}
	return steps[n:], true
}

// checkOrigin reports whether the page that makes the request, if a page makes
// it, may do more than read what the browser would not show it anyway: it is
// of the handler's own host or is listed. foreign is true for the latter, whose
// pages the browser asks for permission.
func (h *handler) checkOrigin(w http.ResponseWriter, r *http.Request) (foreign, ok bool) {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false, true
	}
	_, host, _ := strings.Cut(origin, "://")
	if host != "" && strings.EqualFold(host, r.Host) {
		return false, true
	}
	for _, o := range h.Origins {
		if !strings.EqualFold(o, origin) && !(strings.EqualFold(o, host) && host != "") {
			continue
		}
		header := w.Header()
		header.Add("Vary", "Origin")
		header.Set("Access-Control-Allow-Origin", origin)
		header.Set("Access-Control-Allow-Credentials", "true")
		header.Set("Access-Control-Allow-Headers", "Content-Type, Last-Event-ID")
		header.Set("Access-Control-Allow-Methods", "GET, POST")
		return true, true
	}
	return false, false
}
