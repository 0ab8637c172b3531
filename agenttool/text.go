package agenttool

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/runes"
)

// part is a piece of an answer. What may be cut shares the room that the rest
// leaves.
type part struct {
	text string
	cuts bool
}

func fixed(s string) part    { return part{text: s} }
func cuttable(s string) part { return part{text: s, cuts: true} }

// fit joins the parts to valid text of at most limit bytes. If they are too
// long, those that may be cut get equal shares; what one doesn't need goes to
// the others. Each that was cut says so; if the shares are too small for that
// the last one says it of all of them, and if there is no room even for that
// the frame is cut and says it of the whole.
func fit(parts []part, limit int) string {
	parts = slices.Clone(parts)
	var lengths []int
	texts, frame := 0, 0
	for i, p := range parts {
		parts[i].text = runes.Clean(p.text)
		n := len(parts[i].text)
		if p.cuts {
			lengths = append(lengths, n)
			texts += n
		} else {
			frame += n
		}
	}
	size := texts + frame
	if size <= limit || limit < len(cutNote(size, size)) {
		return runes.Cut(join(parts, func(s string) string { return s }), limit)
	}
	if texts > 0 {
		longest := slices.Max(lengths)
		if share := shareOf(limit-frame, lengths); share >= len(cutNote(longest, longest)) {
			return join(parts, func(s string) string { return cutTo(s, share) })
		}
		if room := limit - frame - len(cutTextsNote(texts, texts)); room >= 0 {
			return joinCut(parts, shareOf(room, lengths), texts)
		}
	}
	kept := runes.Cut(join(parts, func(string) string { return "" }), limit-len(cutNote(size, size)))
	return kept + cutNote(size-len(kept), size)
}

// join joins the parts; those that may be cut are as short says.
func join(parts []part, short func(string) string) string {
	var b strings.Builder
	for _, p := range parts {
		if p.cuts {
			p.text = short(p.text)
		}
		b.WriteString(p.text)
	}
	return b.String()
}

// joinCut cuts texts to share and says so once, after the last that was cut.
func joinCut(parts []part, share, texts int) string {
	last, left := 0, 0
	for i, p := range parts {
		if p.cuts && len(p.text) > share {
			parts[i].text = runes.Cut(p.text, share)
			last, left = i, left+len(p.text)-len(parts[i].text)
		}
	}
	parts[last].text += cutTextsNote(left, texts)
	return join(parts, func(s string) string { return s })
}

func cutNote(left, size int) string {
	return fmt.Sprintf("\n[cut: %d of %d bytes left out]", left, size)
}

func cutTextsNote(left, size int) string {
	return fmt.Sprintf("\n[cut: %d of %d bytes of all texts left out]", left, size)
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

// cutTo is s, or if it is longer than n bytes its start and a note of what is
// missing, together at most n bytes. There must be room for the note.
func cutTo(s string, n int) string {
	if len(s) <= n {
		return s
	}
	kept := runes.Cut(s, n-len(cutNote(len(s), len(s))))
	return kept + cutNote(len(s)-len(kept), len(s))
}

// maxEcho bounds, in bytes, what an answer repeats of a model's own words.
const maxEcho = 64

func brief(s string) string {
	if len(s) <= maxEcho {
		return s
	}
	return runes.Cut(s, maxEcho) + "…"
}

// reason is an error in words for a model.
func reason(err error) string { return runes.Clean(strings.TrimPrefix(err.Error(), "subagent: ")) }

// maxLine bounds, in bytes, a text within a line.
const maxLine = 200

// line is s in one line.
func line(s string) string {
	s = runes.Clean(strings.Join(strings.Fields(s), " "))
	if len(s) <= maxLine {
		return s
	}
	return runes.Cut(s, maxLine) + "…"
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
	switch why := cmp.Or(t.Error, t.CancelMessage); {
	case t.Status == subagent.StatusErrored:
		parts = []part{fixed("[task error] "), cuttable(cmp.Or(why, string(t.Reason)))}
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

// state is what a live task is doing, in one line.
func (s *Toolset) state(t *subagent.Task) string {
	var what []string
	switch t.Status {
	case subagent.StatusRunning:
		what = append(what, "running for "+since(t.StartedAt))
	case subagent.StatusPending, subagent.StatusQueued:
		what = append(what, "waiting for a slot")
		if n, ok := s.runner.QueuePosition(t.ID); ok {
			what = append(what, fmt.Sprintf("number %d in the queue", n))
		}
	default:
		what = append(what, "in a state that this version does not know")
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
