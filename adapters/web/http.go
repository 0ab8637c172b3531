package web

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// serve answers a request for anything but the page.
func (h *handler) serve(w http.ResponseWriter, r *http.Request, v view, steps []string) *problem {
	at := func(pattern ...string) bool {
		if len(steps) != len(pattern) {
			return false
		}
		for i, p := range pattern {
			if p != "*" && p != steps[i] || p == "*" && steps[i] == "" {
				return false
			}
		}
		return true
	}
	read := r.Method == http.MethodGet
	post := r.Method == http.MethodPost
	switch {
	case at("ws") && read:
		return h.serveWS(w, r, v)
	case at("events") && read:
		return h.serveEvents(w, r, v)
	case at("tasks") && post:
		return h.postTask(w, r, v)
	case at("tasks") && read:
		q, err := queried(r.URL.RawQuery)
		return answer(w, err, func() (any, error) { return h.listTasks(r.Context(), v, q) })
	case at("tasks", "*") && read:
		return answer(w, nil, func() (any, error) { return h.getTask(r.Context(), v, request{TaskID: steps[1]}) })
	case at("badge") && read:
		return answer(w, nil, func() (any, error) { return h.badge(r.Context(), v) })
	case at("gauge") && read:
		return answer(w, nil, func() (any, error) { return h.gauge(r.Context(), v) })
	case at("tasks", "*", "cancel") && post:
		q, err := posted(w, r)
		q.TaskID = steps[1]
		return answer(w, err, func() (any, error) { return h.cancelTask(r.Context(), v, q) })
	case at("sessions", "*", "cancel") && post:
		q, err := posted(w, r)
		q.SessionID = steps[1]
		return answer(w, err, func() (any, error) { return h.cancelSession(r.Context(), v, q) })
	case at("tasks", "*", "cancel"), at("sessions", "*", "cancel"):
		w.Header().Set("Allow", "POST")
		return badMethod
	case at("tasks"):
		w.Header().Set("Allow", "GET, POST")
		return badMethod
	case at("tasks", "*"), at("ws"), at("events"), at("badge"), at("gauge"):
		w.Header().Set("Allow", "GET")
		return badMethod
	}
	return notFound
}

// answer does what was asked for, unless the request could not be read.
func answer(w http.ResponseWriter, err error, do func() (any, error)) *problem {
	var v any
	if err == nil {
		v, err = do()
	}
	if err != nil {
		return problemOf(err)
	}
	respond(w, http.StatusOK, v)
	return nil
}

// postTask spawns. With wait the address of the task is sent at once and the
// task when it has ended.
func (h *handler) postTask(w http.ResponseWriter, r *http.Request, v view) *problem {
	q, err := posted(w, r)
	if err != nil {
		return problemOf(err)
	}
	t, sub, err := h.spawn(r.Context(), v, q)
	if err != nil {
		return problemOf(err)
	}
	w.Header().Set("Location", "tasks/"+t.ID.String()) // relative: the prefix may be another outside
	if sub == nil {
		respond(w, http.StatusCreated, spawnedOf(t))
		return nil
	}
	defer sub.Close()
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(http.StatusCreated)
	out := newSender(w)
	if out.write(nil) != nil {
		return nil
	}
	t, err = h.end(r.Context(), sub, t)
	if err != nil {
		_ = out.write(encode(map[string]*problem{"error": problemOf(err)}))
		return nil
	}
	_ = out.write(encode(h.whole(r.Context(), v, t)))
	return nil
}

// posted reads the body of a POST. Its type makes the browser ask before a
// page of another origin may send it. No body is an empty object.
func posted(w http.ResponseWriter, r *http.Request) (q request, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return q, badMedia
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFrame))
	if big := (*http.MaxBytesError)(nil); errors.As(err, &big) {
		return q, tooLarge
	}
	if err != nil {
		return q, badJSON
	}
	if len(body) == 0 {
		return q, nil
	}
	return q, decode(body, &q)
}

// queried reads the query of GET tasks and events. One that says a thing twice,
// or cannot be read, is refused: leaving out a part would widen what is asked.
func queried(query string) (q request, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return q, invalid("the query cannot be read: it must be escaped, with & between its parts")
	}
	for _, name := range []string{"session_id", "after", "limit"} {
		if len(values[name]) > 1 {
			return q, invalid("%s is there more than once", name)
		}
	}
	q.SessionID, q.After = values.Get("session_id"), values.Get("after")
	if filter := values["status_filter"]; len(filter) > 1 {
		q.StatusFilter = encode(filter)
	} else {
		q.StatusFilter = encode(values.Get("status_filter"))
	}
	if limit := values.Get("limit"); limit != "" {
		if q.Limit, err = strconv.Atoi(limit); err != nil {
			return q, invalid("limit is %q; it must be a number", cut(limit, 256))
		}
	}
	return q, nil
}

// writeTimeout is how long a client may take for what it is sent.
const writeTimeout = 10 * time.Second

// sender writes a response piece by piece, each at once and within
// writeTimeout. Where the ResponseWriter knows no deadlines, the host's server
// has to have them.
type sender struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func newSender(w http.ResponseWriter) sender { return sender{w, http.NewResponseController(w)} }

func (s sender) write(p []byte) error {
	const piece = 64 << 10 // a slow client may take long for much, if it goes on taking
	for {
		_ = s.control.SetWriteDeadline(time.Now().Add(writeTimeout))
		n, err := s.w.Write(p[:min(piece, len(p))])
		if err != nil {
			return err
		}
		if err := s.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		if p = p[n:]; len(p) == 0 {
			_ = s.control.SetWriteDeadline(time.Time{}) // the next piece has its own
			return nil
		}
	}
}
