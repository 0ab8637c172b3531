package subagent

import (
	"strings"
	"unicode/utf8"

	"github.com/go-subagent/subagent/internal/runes"
)

// maxPreview bounds, in bytes, the text that events, cards and listings carry;
// maxText bounds the text of a record.
const (
	maxPreview = 2000
	maxText    = 16 << 20
)

// partial is the text that a running Func has written so far: always valid
// and at most maxText bytes. The bytes of a rune that was split between two
// writes wait outside until the rest comes, so that no reader sees a
// replacement for what is whole a moment later. The zero partial is empty and
// ready. It has no lock: the caller holds one. It must not be copied.
type partial struct {
	buf     strings.Builder // grows in place and lends its text without a copy
	tail    [utf8.UTFMax]byte
	held    int // bytes in tail: the start of a rune, at most 3 between writes
	first   string
	dropped bool // something did not fit; nothing is kept from then on
}

// write appends b, which it does not keep.
func (p *partial) write(b []byte) {
	for p.held > 0 && len(b) > 0 {
		p.tail[p.held] = b[0]
		p.held = copy(p.tail[:], p.take(p.tail[:p.held+1]))
		b = b[1:]
	}
	if len(b) > 0 {
		p.held = copy(p.tail[:], p.take(b))
	}
}

// text is all that was written, but for a rune that is not complete yet.
// Later writes do not touch the bytes that it was given, so nothing is copied.
func (p *partial) text() string { return p.buf.String() }

// head is the start of the text, at most maxPreview bytes, and whether there
// is more. Once there is more it never changes, and is a copy of its own: a
// preview must not keep megabytes alive.
func (p *partial) head() (s string, more bool) {
	if p.buf.Len() <= maxPreview {
		return p.buf.String(), p.dropped
	}
	if p.first == "" {
		p.first = brief(p.buf.String())
	}
	return p.first, true
}

// close ends the text: what is left of a split rune will not be completed.
func (p *partial) close() {
	p.keep(p.tail[:p.held])
	p.held = 0
}

// take keeps b up to an incomplete rune at its end, which it returns.
func (p *partial) take(b []byte) (rest []byte) {
	if fits := maxText - p.buf.Len() + utf8.UTFMax; len(b) > fits {
		b = b[:fits] // cleaning never shrinks a text: this is too much already
	}
	n := wholeRunes(b)
	p.keep(b[:n])
	return b[n:]
}

// keep adds b, which splits no rune. After something was dropped nothing fits
// any more: text behind a gap would be a lie.
func (p *partial) keep(b []byte) {
	if p.dropped || len(b) == 0 {
		return
	}
	s := runes.Clean(string(b))
	kept := runes.Cut(s, maxText-p.buf.Len())
	p.buf.WriteString(kept)
	p.dropped = len(kept) < len(s)
}

// wholeRunes is the length of b without the rune that it may end within.
func wholeRunes(b []byte) int {
	for i := len(b) - 1; i >= 0 && i > len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return i
			}
			break
		}
	}
	return len(b)
}

// cutRunes is the start of s, at most n runes.
func cutRunes(s string, n int) string {
	for i := range s {
		if n <= 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// brief is s cut to maxPreview. A cut one is a copy: previews outlive the
// records that they were made of, and must not keep the whole text alive.
func brief(s string) string {
	if len(s) <= maxPreview {
		return s
	}
	return strings.Clone(runes.Cut(s, maxPreview))
}

// preview makes t a copy for events and listings. A text that was truncated
// in the record itself stays marked.
func preview(t *Task) {
	if len(t.ResultText) > maxPreview {
		t.ResultText, t.ResultTruncated = brief(t.ResultText), true
	}
}
