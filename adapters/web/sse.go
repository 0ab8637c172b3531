package web

import (
	"bytes"
	"net/http"
)

// serveEvents is the event stream as server-sent events. It ends with the
// client's connection, when the Runner is shut down, or when the client does
// not take what it is sent; a browser then comes back by itself, after a
// second, with the Last-Event-ID that it has.
func (h *handler) serveEvents(w http.ResponseWriter, r *http.Request, v view) *problem {
	q, err := queried(r.URL.RawQuery)
	if err != nil {
		return problemOf(err)
	}
	v, p := v.in(q.SessionID)
	if p != nil {
		return p
	}
	after := r.Header.Get("Last-Event-ID") // of a reconnection: newer than the one in the address
	if after == "" {
		after = q.After
	}
	out, begun := newSender(w), false
	err = h.stream(r.Context(), v, after, func(f frame) error {
		var b bytes.Buffer
		if !begun {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("X-Accel-Buffering", "no")
			b.WriteString("retry: 1000\n\n")
			begun = true
		}
		f.writeSSE(&b)
		return out.write(b.Bytes())
	})
	if begun {
		return nil
	}
	return problemOf(err)
}

// writeSSE writes f as an event. Its JSON holds no line break.
func (f frame) writeSSE(b *bytes.Buffer) {
	if f.body == nil {
		b.WriteString(":\n\n")
		return
	}
	if f.eventID != "" {
		b.WriteString("id: " + f.eventID + "\n")
	}
	b.WriteString("event: " + f.kind + "\ndata: ")
	b.Write(f.body)
	b.WriteString("\n\n")
}
