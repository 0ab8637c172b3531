package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
)

// paper is what lines are written on.
type paper struct {
	width  int // in columns; 0: lines are never cut
	colour bool
}

// cell is a piece of a line, all in one style.
type cell struct {
	text  string
	style string // the number of an SGR sequence; "": as the terminal is
}

// The styles.
const (
	plain  = ""
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

// line renders cells as one line, without its end, cut to the paper's width.
func (p paper) line(cells ...cell) string {
	var b strings.Builder
	left := p.width
	for _, c := range cells {
		text := c.text
		if p.width > 0 {
			text = cut(text, left)
			left -= width(text)
		}
		if p.colour && c.style != plain && text != "" {
			text = "\x1b[" + c.style + "m" + text + "\x1b[0m"
		}
		b.WriteString(text)
	}
	return strings.TrimRight(b.String(), " ")
}

// printLines writes lines, as one write so that they appear at once.
func printLines(out io.Writer, lines ...string) {
	_, _ = io.WriteString(out, strings.Join(lines, "\n")+"\n") // nobody is left to tell when a terminal has gone
}

// printable is s without what could move the cursor, hide text or end a line: a
// file's name and its contents must not be able to draw on the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// cut shortens s to n columns; its last one tells that something is missing.
func cut(s string, n int) string {
	if width(s) <= n {
		return s
	}
	used := 0
	for i, r := range s {
		if used+runeWidth(r) > n-1 {
			return s[:i] + strings.Repeat("…", min(1, max(0, n)))
		}
		used += runeWidth(r)
	}
	return s
}

// cutFront shortens s to n columns from its front, as paths are told apart by
// their ends.
func cutFront(s string, n int) string {
	if width(s) <= n {
		return s
	}
	runes := []rune(s)
	used, from := 0, len(runes)
	for from > 0 && used+runeWidth(runes[from-1]) <= n-1 {
		from--
		used += runeWidth(runes[from])
	}
	return "…" + string(runes[from:])
}

// pad brings s to n columns, or leaves it when it is wider.
func pad(s string, n int) string {
	return s + strings.Repeat(" ", max(0, n-width(s)))
}

// width is the number of columns that s takes.
func width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// wide holds the blocks whose runes terminals draw two columns wide.
var wide = [][2]rune{
	{0x1100, 0x115f}, {0x2e80, 0x303e}, {0x3041, 0x4dbf}, {0x4e00, 0xa4cf}, {0xa960, 0xa97f},
	{0xac00, 0xd7a3}, {0xf900, 0xfaff}, {0xfe30, 0xfe6f}, {0xff00, 0xff60}, {0xffe0, 0xffe6},
	{0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x1fa70, 0x1faff}, {0x20000, 0x3fffd},
}

func runeWidth(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	for _, block := range wide {
		if r >= block[0] && r <= block[1] {
			return 2
		}
	}
	return 1
}

// short writes a duration as a stop-watch does.
func short(d time.Duration) string {
	d = max(0, d)
	if d < time.Minute-50*time.Millisecond { // what is left rounds to less than 60.0
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	seconds := int(d.Round(time.Second).Seconds())
	if seconds < 3600 {
		return fmt.Sprintf("%dm%02ds", seconds/60, seconds%60)
	}
	return fmt.Sprintf("%dh%02dm", seconds/3600, seconds/60%60)
}
