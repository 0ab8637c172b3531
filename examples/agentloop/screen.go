package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-subagent/subagent"
)

// screen shows the lead's conversation as it goes on.
type screen struct {
	out   io.Writer
	fresh bool // the next text is a message's first
	open  bool // the cursor stands behind a text
}

const (
	margin     = "       " // below the name of who speaks
	lineWidth  = 110       // runes of a tool call or a line of an answer
	answerSize = 4         // lines of a tool's answer
)

func (s *screen) asked(question string) {
	s.line("")
	s.line("you    " + printable(question))
}

func (s *screen) begins(int)                { s.fresh = true }
func (s *screen) spent(int, subagent.Usage) {} // the table tells of it

func (s *screen) says(text string) {
	if s.fresh {
		s.line("")
		fmt.Fprint(s.out, "lead   ")
		s.fresh = false
	}
	s.open = true
	for i, line := range strings.Split(text, "\n") {
		if i > 0 {
			fmt.Fprint(s.out, "\n"+margin)
		}
		fmt.Fprint(s.out, printable(line))
	}
}

func (s *screen) calls(c toolCall) {
	s.line(clip(fmt.Sprintf("%s> %s %s", margin, c.Function.Name, c.Function.Arguments), lineWidth))
}

func (s *screen) hears(answer string) {
	lines := slices.DeleteFunc(strings.Split(answer, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
	for i, line := range lines {
		if i == answerSize {
			s.line(fmt.Sprintf("%s  (%s more)", margin, plural(len(lines)-i, "line")))
			break
		}
		s.line(clip(margin+"  "+line, lineWidth))
	}
}

// card shows what stands in the chat for a task.
func (s *screen) card(indent string, c subagent.Card) {
	state := c.Attach.Status
	if c.Attach.Reason != "" {
		state += " (" + c.Attach.Reason + ")"
	}
	s.line(clip(fmt.Sprintf("%s[%s] %s: %s", indent, c.Attach.Label, state, c.Content), lineWidth))
}

// line prints a line of its own.
func (s *screen) line(text string) {
	if s.open {
		fmt.Fprintln(s.out)
		s.open = false
	}
	fmt.Fprintln(s.out, strings.TrimRight(printable(text), " "))
}

// printable is s on one line and without what could move the cursor: neither a
// model nor a file may draw on the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n':
			return ' '
		case unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r):
			return '\uFFFD'
		}
		return r
	}, s)
}

// clip cuts s to n runes.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
