package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/go-subagent/subagent"
)

// problem is why a request was refused, as the client is told. The codes are a
// closed set, listed in docs/web.md; messages are for people and may change.
// None of them tells of a task, or of numbers of tasks, that the client may
// not see: the texts of other errors stay inside.
type problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`

	status int // of an HTTP response
}

// Error makes a problem an error for those who pass it on inside.
func (p *problem) Error() string { return p.Code + ": " + p.Message }

// The problems whose text is always the same.
var (
	forbidden    = &problem{"forbidden", "you may not see these tasks", http.StatusForbidden}
	readOnly     = &problem{"read_only", "tasks can be watched here, not started or stopped", http.StatusForbidden}
	notFound     = &problem{"not_found", "there is no such task, session or address", http.StatusNotFound}
	badMethod    = &problem{"method_not_allowed", "this address does not take that method", http.StatusMethodNotAllowed}
	badMedia     = &problem{"unsupported_media_type", "the body must be sent as application/json", http.StatusUnsupportedMediaType}
	tooLarge     = &problem{"too_large", fmt.Sprintf("the body has more than %d bytes", maxFrame), http.StatusRequestEntityTooLarge}
	badJSON      = &problem{"bad_json", "the body is not one JSON object in valid UTF-8", http.StatusBadRequest}
	queueFull    = &problem{"queue_full", "the queue is full: try again later", http.StatusServiceUnavailable}
	shutDown     = &problem{"closed", "the runner is shutting down and takes no new tasks", http.StatusServiceUnavailable}
	tooManyWaits = &problem{"too_many_waits", fmt.Sprintf("%d spawns of this connection are waited for: use subscribe", maxWaits), http.StatusTooManyRequests}
	replaced     = &problem{"replaced", "a later subscribe took the place of this one", http.StatusConflict}
	unavailable  = &problem{"unavailable", "the store did not answer in time: try again", http.StatusServiceUnavailable}
	noUpgrade    = &problem{"upgrade_required", "this address takes WebSocket connections, version 13 over HTTP/1.1", http.StatusUpgradeRequired}
	internal     = &problem{"internal", "the request failed", http.StatusInternalServerError}
)

func badOrigin(origin string) *problem {
	return &problem{"bad_origin", fmt.Sprintf("pages of %q may not use this address", cut(origin, 256)), http.StatusForbidden}
}

func invalid(format string, args ...any) *problem {
	return &problem{"invalid_request", fmt.Sprintf(format, args...), http.StatusBadRequest}
}

func unknownAction(action string) *problem {
	return &problem{"unknown_action", fmt.Sprintf("there is no action %q", cut(action, 256)), http.StatusBadRequest}
}

// problemOf is what a client is told of an error of the Runner.
func problemOf(err error) *problem {
	var p *problem
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, subagent.ErrNotFound):
		return notFound
	case errors.Is(err, subagent.ErrInvalidRequest):
		_, text, _ := strings.Cut(err.Error(), subagent.ErrInvalidRequest.Error()+": ")
		return invalid("%s", cut(text, maxPreview))
	case errors.Is(err, subagent.ErrQueueFull), errors.Is(err, subagent.ErrNoCapacity):
		return queueFull // without its numbers: they count everybody's tasks
	case errors.Is(err, subagent.ErrClosed):
		return shutDown
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return unavailable
	}
	return internal
}

// refuse answers a request with a problem.
func refuse(w http.ResponseWriter, p *problem) {
	respond(w, p.status, map[string]*problem{"error": p})
}

// respond answers a request with v's JSON. A client that does not take it is
// given up.
func respond(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	send := newSender(w)
	_ = send.write(encode(v)) // nobody is left to hear of the error
}
