package agenttool

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-subagent/subagent"
)

// part is a piece of an answer. What may be cut shares the room that the rest
// leaves.
type part struct {
	text string
	cuts bool
}

func fixed(s string) part    { return part{text: s} }
func cuttable(s string) part { return part{text: s, cuts: true} }

// fit joins the parts to at most limit bytes. If they are too long, those that
// may be cut get equal shares; what one doesn't need goes to the others.
func fit(parts []part, limit int) string {
	room, lengths := limit, []int(nil)
	for _, p := range parts {
		if p.cuts {
			lengths = append(lengths, len(p.text))
		} else {
			room -= len(p.text)
		}
	}
	share := shareOf(room, lengths)
	var b strings.Builder
	for _, p := range parts {
		if p.cuts && len(p.text) > share {
			p.text = cutTo(p.text, share)
		}
		b.WriteString(p.text)
	}
	if b.Len() > limit { // not even the frame fits
		return cutTo(b.String(), limit)
	}
	return b.String()
}

// shareOf is the length at which texts of these lengths must be cut so that
// all of them take no more than room: any length if they do so as they are.
func shareOf(room int, lengths []int) int {
	room = max(room, 0)
	slices.Sort(lengths)
	for i, n := range lengths {
		share := room / (len(lengths) - i)
		if n > share {
			return share
		}
		room -= n
	}
	return math.MaxInt
}

// cutTo is the start of s and a note of what is missing, together at most n
// bytes. Where there is no room for a note it is the start alone.
func cutTo(s string, n int) string {
	note := func(kept int) string { return fmt.Sprintf("\n[cut: %d of %d bytes left out]", len(s)-kept, len(s)) }
	if len(note(0)) > n {
		return cut(s, n)
	}
	kept := cut(s, n-len(note(0)))
	return kept + note(len(kept))
}

// cut is the start of s, at most n bytes, ending between two runes.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:max(n, 0)]
}

// maxEcho bounds, in bytes, what an answer repeats of a model's own words.
const maxEcho = 64

func brief(s string) string {
	if len(s) <= maxEcho {
		return s
	}
	return cut(s, maxEcho) + "…"
}

// reason is an error in words for a model.
func reason(err error) string { return clean(strings.TrimPrefix(err.Error(), "subagent: ")) }

// clean is s without what no store and no wire takes.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}

// maxLine bounds, in bytes, a text within a line.
const maxLine = 200

// line is s in one line.
func line(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= maxLine {
		return s
	}
	return cut(s, maxLine) + "…"
}

// headline is a task's id and status, and what else is worth a word.
func headline(t *subagent.Task) string {
	s := fmt.Sprintf("task_id=%s status=%s", t.ID, t.Status)
	if t.Reason != "" {
		s += " reason=" + line(string(t.Reason))
	}
	if t.StopReason != "" {
		s += " stop_reason=" + line(t.StopReason)
	}
	if t.Status.Terminal() && t.ResultTruncated {
		s += " result_truncated=true"
	}
	return s
}

// ending is how a task ended, without its headline.
func ending(t *subagent.Task) []part {
	text := cuttable(t.ResultText)
	if t.Status == subagent.StatusCompleted {
		if t.ResultText == "" {
			return []part{fixed("(no text)")}
		}
		return []part{text}
	}
	var parts []part
	switch why := firstOf(t.Error, t.CancelMessage); {
	case t.Status == subagent.StatusErrored:
		parts = []part{fixed("[task error] "), cuttable(firstOf(why, string(t.Reason)))}
	case why != "":
		parts = []part{fixed("[cancelled] "), cuttable(why)}
	default:
		parts = []part{fixed("[cancelled]")}
	}
	if t.ResultText != "" {
		parts = append(parts, fixed("\n\n"), text)
	}
	return parts
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// state is what a live task is doing, in one line.
func (s *Toolset) state(t *subagent.Task) string {
	var what []string
	switch t.Status {
	case subagent.StatusRunning:
		what = append(what, "running for "+since(t.StartedAt))
	default:
		what = append(what, "waiting for a slot")
		if n, ok := s.runner.QueuePosition(t.ID); ok {
			what = append(what, fmt.Sprintf("number %d in the queue", n))
		}
	}
	if !t.CancelRequestedAt.IsZero() {
		what = append(what, "asked to stop "+since(t.CancelRequestedAt)+" ago")
	}
	if p := t.Progress; !p.LastActivityAt.IsZero() {
		if p.Message != "" {
			what = append(what, "last progress: "+line(p.Message))
		}
		if p.ToolUses > 0 {
			what = append(what, fmt.Sprintf("tool uses: %d", p.ToolUses))
		}
		what = append(what, "last activity "+since(p.LastActivityAt)+" ago")
	}
	return strings.Join(what, "; ")
}

func since(at time.Time) string { return span(time.Since(at)) }

// span is a duration as short as it tells enough.
func span(d time.Duration) string {
	d = max(d, 0)
	if d < 10*time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
