package web

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

const (
	// maxFrame bounds, in bytes, what is sent at once over WebSocket and SSE,
	// what is read at once over WebSocket, and the body of a request.
	maxFrame = 1 << 20

	// maxPreview bounds each text of a task in events and lists, in bytes.
	maxPreview = 2000
)

// wireTask is a task as it leaves the process.
type wireTask struct {
	subagent.Task
	DescriptionTruncated bool   `json:"description_truncated,omitempty"`
	MetadataOmitted      bool   `json:"metadata_omitted,omitempty"`
	Link                 string `json:"link,omitempty"`
}

// wire is t as a client with that kinship may have it.
func (h *handler) wire(t subagent.Task, kin kinship) wireTask {
	w := wireTask{Task: h.redact(t), Link: h.link(t)}
	w.hide(t.Reason, kin)
	return w
}

// redact has the host's Redact see t. If it panics nothing that it could have
// meant to remove is sent.
func (h *handler) redact(t subagent.Task) (out subagent.Task) {
	if h.Redact == nil {
		return t
	}
	defer func() {
		if recover() != nil {
			out = subagent.Task{
				ID: t.ID, Status: t.Status, Version: t.Version, ParentSessionID: t.ParentSessionID, ParentTaskID: t.ParentTaskID,
				CreatedAt: t.CreatedAt, QueuedAt: t.QueuedAt, StartedAt: t.StartedAt, CompletedAt: t.CompletedAt,
			}
		}
	}()
	return h.Redact(t)
}

func (h *handler) link(t subagent.Task) (to string) {
	if h.Link == nil {
		return ""
	}
	defer func() {
		if recover() != nil {
			to = ""
		}
	}()
	return cut(h.Link(t), maxPreview)
}

// hide takes out what tells of tasks that the client does not see. A task that
// was stopped with its parent carries the words of whoever stopped that, or an
// ancestor of it.
func (w *wireTask) hide(reason subagent.Reason, kin kinship) {
	if kin != kinOpen && reason == subagent.ReasonParent {
		w.CancelMessage = ""
	}
	if kin != kinOutside {
		return
	}
	w.ParentTaskID = uuid.Nil
	if reason == subagent.ReasonParent {
		w.Reason = ""
	}
}

// preview makes w fit for events and lists: its size is bounded, whatever the
// task holds. The cut texts are copies, so that what keeps them does not keep
// the whole.
func (w *wireTask) preview() {
	if len(w.Description) > maxPreview {
		w.Description, w.DescriptionTruncated = strings.Clone(cut(w.Description, maxPreview)), true
	}
	if len(w.ResultText) > maxPreview {
		w.ResultText, w.ResultTruncated = strings.Clone(cut(w.ResultText, maxPreview)), true
	}
	w.Error = strings.Clone(cut(w.Error, maxPreview))
	size := 0
	for k, v := range w.Metadata {
		size += len(k) + len(v)
	}
	if size > maxPreview {
		w.Metadata, w.MetadataOmitted = nil, true
	}
}

// fit makes w small enough for one frame: the longer of its two long texts is
// halved until it is. Everything else is bounded far below that.
func (w *wireTask) fit() []byte {
	if len(w.ResultText) > maxFrame {
		w.ResultText, w.ResultTruncated = cut(w.ResultText, maxFrame), true
	}
	const margin = 1024 // for the id of the request
	for {
		body := encode(w)
		if len(body) <= maxFrame-margin || len(w.ResultText)+len(w.Description) == 0 {
			return body
		}
		if n := len(w.ResultText); n >= len(w.Description) {
			w.ResultText, w.ResultTruncated = cut(w.ResultText, n/2), true
		} else {
			w.Description, w.DescriptionTruncated = cut(w.Description, len(w.Description)/2), true
		}
	}
}

// previews are tasks as the client may have them in a list. A parent that
// several of them share is looked for once.
func (h *handler) previews(ctx context.Context, v view, tasks []subagent.Task) []wireTask {
	sessions := make(map[uuid.UUID]string)
	if !v.all {
		for i := range tasks {
			sessions[tasks[i].ID] = tasks[i].ParentSessionID
		}
	}
	out := make([]wireTask, len(tasks))
	for i, t := range tasks {
		out[i] = h.wire(t, v.kin(t.ParentTaskID, func() string {
			session, known := sessions[t.ParentTaskID]
			if !known {
				session = h.sessionOf(ctx, t.ParentTaskID)
				sessions[t.ParentTaskID] = session
			}
			return session
		}))
		out[i].preview()
	}
	return out
}

// chunk is the JSON of the first of tasks, as many as fit into one frame, and
// how many those are: at least one.
func chunk(tasks []wireTask) (list json.RawMessage, n int) {
	const margin = 4096 // for what is around the list
	list = append(list, '[')
	for i := range tasks {
		body := encode(&tasks[i])
		if n > 0 && len(list)+len(body) > maxFrame-margin {
			break
		}
		if n > 0 {
			list = append(list, ',')
		}
		list = append(list, body...)
		n++
	}
	return append(list, ']'), n
}

// encode is v's JSON. encoding/json replaces what is not valid UTF-8, so that
// every frame is valid whatever a Redact returns. v is of our own types, all of
// which can be encoded.
func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // what is sent is never read as HTML
	if err := enc.Encode(v); err != nil {
		return encode(map[string]any{"error": internal})
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// withID puts the id of a request first into the object that answers it.
func withID(id json.RawMessage, object []byte) []byte {
	if len(id) == 0 {
		return object
	}
	out := append([]byte(`{"id":`), id...)
	if len(object) > len("{}") {
		out = append(out, ',')
	}
	return append(out, object[1:]...)
}

// cut is the start of s, at most n bytes, ending between two runes.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for i := n; i >= 0 && i > n-utf8.UTFMax; i-- {
		if utf8.RuneStart(s[i]) {
			return s[:i]
		}
	}
	return s[:n]
}
