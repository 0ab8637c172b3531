package main

import (
	"embed"
	"encoding/json"
	"net"
	"net/http"
	"strings"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
)

//go:embed page
var page embed.FS

const prefix = "/subagents"

// newHost is what a host has around the panel: a page of its own that shows it
// in a frame, and here buttons that spawn tasks.
func newHost(runner *subagent.Runner, w *work, o options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", web.Handler(runner, web.Options{
		Prefix:   prefix,
		ReadOnly: o.readOnly,
		Link:     func(t subagent.Task) string { return "/#" + t.ID.String() }, // a host leads to the task's card in the chat
	}))
	mux.HandleFunc("GET /{$}", file("page/index.html", "text/html; charset=utf-8"))
	mux.HandleFunc("GET /host.js", file("page/host.js", "text/javascript; charset=utf-8"))
	mux.HandleFunc("GET /host.css", file("page/host.css", "text/css; charset=utf-8"))
	mux.HandleFunc("POST /spawn/{kind}", func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Content-Type") != "application/json" { // a form of another page cannot say so
			http.Error(rw, "the body must be JSON", http.StatusUnsupportedMediaType)
			return
		}
		req, ok := w.request(r.PathValue("kind"))
		if !ok {
			http.NotFound(rw, r)
			return
		}
		t, err := runner.Spawn(r.Context(), req)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusServiceUnavailable)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(t)
	})
	return local(mux)
}

// local serves requests that name this machine only: another name that resolves
// to a loopback address would make this page one of its own.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if ip := net.ParseIP(strings.Trim(host, "[]")); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "this server is for this machine only", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func file(name, kind string) http.HandlerFunc {
	body, err := page.ReadFile(name)
	if err != nil {
		panic(err) // it is part of the program
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'")
		_, _ = w.Write(body)
	}
}
