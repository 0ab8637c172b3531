package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// scripted is a server on loopback that speaks the wire format. Its answers do
// not come from a model but from a script, script.go, which looks at the
// conversation that it gets, as a model does.
type scripted struct {
	url    string
	server *http.Server
	served chan struct{} // closed when Serve has returned
	count  atomic.Int64  // completions so far

	lost    chan struct{} // closed when a conversation is lost in thought
	getLost sync.Once
}

const (
	scriptedName = "scripted"
	requestLimit = 8 << 20          // bytes
	patience     = 30 * time.Second // of an answer that does not come
)

func startScripted() (*scripted, error) {
	// Loopback, and a port that the system chooses: nobody else is served.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("cannot start the scripted model: %w", err)
	}
	s := &scripted{
		url:    fmt.Sprintf("http://%s/v1", listener.Addr()),
		served: make(chan struct{}),
		lost:   make(chan struct{}),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.complete)
	s.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      2 * patience,
		IdleTimeout:       time.Minute,
	}
	go func() { // ends when the server is closed; close waits for it
		defer close(s.served)
		_ = s.server.Serve(listener) // it always returns an error, http.ErrServerClosed
	}()
	return s, nil
}

// close ends the server and its answers.
func (s *scripted) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		_ = s.server.Close() // whoever still waits for an answer gets none
	}
	<-s.served
}

// complete is POST /v1/chat/completions.
func (s *scripted) complete(w http.ResponseWriter, r *http.Request) {
	var req chatRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, requestLimit)).Decode(&req); err != nil {
		refuse(w, fmt.Errorf("the body is no chat completions request: %w", err))
		return
	}
	if err := check(req); err != nil {
		refuse(w, err)
		return
	}
	l := line{w: w, usage: req.StreamOptions != nil && req.StreamOptions.IncludeUsage, head: completion{
		ID: fmt.Sprintf("chatcmpl-%d", s.count.Add(1)), Created: time.Now().Unix(), Model: req.Model,
	}}
	says := decide(req)
	switch {
	case says.lost:
		s.getLost.Do(func() { close(s.lost) })
		l.begin()
		wait(r.Context(), nil) // it would take for ever: the client hangs up, or is cut off
		return
	case says.late:
		wait(r.Context(), s.lost)
	}
	if req.Stream {
		l.stream(says, cost(req, says))
	} else {
		l.whole(says, cost(req, says))
	}
}

// wait returns when what it waits for has come, the client has gone, or
// patience is at its end.
func wait(ctx context.Context, what <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-what:
	case <-ctx.Done():
	}
}

// check refuses what providers refuse: a conversation in which a tool call has
// no answer, or an answer no call.
func check(req chatRequest) error {
	if req.Model == "" || len(req.Messages) == 0 {
		return errors.New("model and messages are required")
	}
	owed := map[string]bool{}
	for i, m := range req.Messages {
		switch m.Role {
		case roleTool:
			if !owed[m.ToolCallID] {
				return fmt.Errorf("messages[%d] answers the tool call %q, which the message before it did not make", i, m.ToolCallID)
			}
			delete(owed, m.ToolCallID)
			continue
		case roleSystem, roleUser, roleAssistant:
		default:
			return fmt.Errorf("messages[%d] has the role %q; it must be one of system, user, assistant, tool", i, m.Role)
		}
		if len(owed) > 0 {
			return fmt.Errorf("messages[%d] follows tool calls that are not all answered", i)
		}
		for _, call := range m.ToolCalls {
			owed[call.ID] = true
		}
	}
	if len(owed) > 0 {
		return errors.New("the last message has tool calls that are not all answered")
	}
	return nil
}

func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]wireError{"error": {Message: err.Error(), Type: "invalid_request_error"}})
}

// line is the way back to one client. Errors of writing are of no interest: a
// client that has gone ends the request's ctx.
type line struct {
	w     http.ResponseWriter
	usage bool // whether a stream is to tell it
	head  completion
}

// whole sends an answer in one piece.
func (l line) whole(says speech, used wireUsage) {
	l.w.Header().Set("Content-Type", "application/json")
	c := l.head
	c.Object, c.Usage = objectWhole, &used
	c.Choices = []choice{{Message: &chatMessage{Role: roleAssistant, Content: says.text, ToolCalls: says.calls}, FinishReason: says.finish()}}
	_ = json.NewEncoder(l.w).Encode(c)
}

// stream sends an answer word by word, and tool calls in fragments: the id and
// the name first, then the arguments piece by piece.
func (l line) stream(says speech, used wireUsage) {
	l.begin()
	for _, word := range strings.SplitAfter(says.text, " ") {
		l.chunk(choice{Delta: &delta{Content: word}})
	}
	for i, call := range says.calls {
		arguments := call.Function.Arguments
		call.Function.Arguments = ""
		l.chunk(choice{Delta: &delta{ToolCalls: []callPart{{i, call}}}})
		for _, piece := range strings.SplitAfter(arguments, " ") {
			l.chunk(choice{Delta: &delta{ToolCalls: []callPart{{i, toolCall{Function: functionCall{Arguments: piece}}}}}})
		}
	}
	l.chunk(choice{Delta: &delta{}, FinishReason: says.finish()})
	if l.usage {
		c := l.head
		c.Object, c.Choices, c.Usage = objectChunk, []choice{}, &used
		l.send(c)
	}
	fmt.Fprint(l.w, "data: [DONE]\n\n")
}

func (l line) begin() {
	l.w.Header().Set("Content-Type", "text/event-stream")
	l.chunk(choice{Delta: &delta{Role: roleAssistant}})
}

func (l line) chunk(c choice) {
	chunk := l.head
	chunk.Object, chunk.Choices = objectChunk, []choice{c}
	l.send(chunk)
}

func (l line) send(c completion) {
	data, err := json.Marshal(c)
	if err != nil {
		panic(err) // there is nothing in it that is no JSON
	}
	fmt.Fprintf(l.w, "data: %s\n\n", data)
	_ = http.NewResponseController(l.w).Flush()
}
