package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// The control sequences that the screen uses, besides colours.
const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	clearRight = "\x1b[K" // to the end of the line
	clearBelow = "\x1b[J" // to the end of the screen
)

var spinner = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

// screen is the view for terminals: a table of the tasks above a bar for the
// whole, drawn over itself in place. Each frame is one write, and no line is
// cleared before it is drawn anew, so that nothing flickers.
type screen struct {
	out      io.Writer
	size     func() (columns, rows int, ok bool)
	o        options
	colour   bool
	position queuePosition
	tasks    []subagent.Task // in the order of the folders
	index    map[uuid.UUID]int
	names    int // columns of the widest name
	began    time.Time
	stopped  bool
	beat     int
	pressed  chan os.Signal // Ctrl-Z; nil outside begin and close
	drawn    []string       // what stands on the terminal now, above the cursor
}

func newScreen(out io.Writer, size func() (columns, rows int, ok bool), o options) *screen {
	return &screen{out: out, size: size, o: o, colour: os.Getenv("NO_COLOR") == "", index: map[uuid.UUID]int{}}
}

func (s *screen) note(text string) { printLines(s.out, printable(text)) }

func (s *screen) begin(tasks []subagent.Task, position queuePosition) {
	s.tasks, s.position, s.began = slices.Clone(tasks), position, time.Now()
	for i, t := range tasks {
		s.index[t.ID] = i
		s.names = max(s.names, width(t.Subject))
	}
	s.pressed = suspensions()
	_, _ = io.WriteString(s.out, hideCursor)
	s.tick()
}

// update takes a task's newer state; tick shows it. The first events are older
// than what Spawn returned, which Version tells.
func (s *screen) update(t subagent.Task) {
	if i, ok := s.index[t.ID]; ok && t.Version >= s.tasks[i].Version {
		s.tasks[i] = t
	}
}

func (s *screen) tick() {
	select {
	case <-s.pressed:
		s.pause()
	default:
	}
	s.beat++
	p, rows := s.paper()
	s.draw(s.frame(p, rows, time.Now()), p)
}

// pause gives the terminal back while the program is suspended. Afterwards the
// table is drawn anew below what others have written meanwhile.
func (s *screen) pause() {
	_, _ = io.WriteString(s.out, showCursor)
	suspend()
	_, _ = io.WriteString(s.out, hideCursor)
	s.drawn = nil
}

func (s *screen) stopping() {
	s.stopped = true
	s.tick()
}

// end leaves the whole table on the terminal, however long, and the summary
// below it.
func (s *screen) end(tasks []subagent.Task) {
	s.tasks = tasks
	now := time.Now()
	p, _ := s.paper()
	lines := append(s.head(p), s.table(p, tasks, now)...)
	lines = append(lines, "")
	s.draw(append(lines, summary(p, tasks, now.Sub(s.began))...), p)
}

func (s *screen) close() {
	signal.Stop(s.pressed)
	_, _ = io.WriteString(s.out, showCursor)
}

// paper is the terminal as it is now: its size may change at any time. The last
// column stays empty, because terminals differ in what they do after it.
func (s *screen) paper() (p paper, rows int) {
	columns, rows, ok := s.size()
	if !ok {
		columns, rows = 80, 24
	}
	return paper{max(1, columns-1), s.colour}, rows
}

// frame is what is shown while tasks run: never more lines than fit above the
// cursor.
func (s *screen) frame(p paper, rows int, now time.Time) []string {
	lines := s.head(p)
	shown, rest := s.pick(max(1, rows-len(lines)-3)) // a gap, the bar, the cursor's row
	lines = append(lines, s.table(p, shown, now)...)
	if len(rest) > 0 {
		lines = append(lines, p.line(cell{fmt.Sprintf("  … %s more: %s", grouped(len(rest)), tally(rest)), dim}))
	}
	lines = append(lines, "", s.bar(p, now))
	return lines[max(0, len(lines)-max(1, rows-1)):]
}

func (s *screen) head(p paper) []string {
	return []string{p.line(cell{title(s.o, len(s.tasks)), bold}), ""}
}

// pick chooses the tasks for room lines. When not all of them fit, the live
// ones come first, in the order of the line, then those that ended last; one
// line is left for the rest.
func (s *screen) pick(room int) (shown, rest []subagent.Task) {
	if len(s.tasks) <= room {
		return s.tasks, nil
	}
	order := slices.Clone(s.tasks)
	slices.SortStableFunc(order, func(a, b subagent.Task) int {
		if d := rank(a) - rank(b); d != 0 || !a.Status.Terminal() {
			return d
		}
		return b.CompletedAt.Compare(a.CompletedAt)
	})
	room = max(1, room-1)
	return order[:room], order[room:]
}

func rank(t subagent.Task) int {
	switch {
	case t.Status == subagent.StatusRunning:
		return 0
	case !t.Status.Terminal():
		return 1
	}
	return 2
}

func (s *screen) table(p paper, tasks []subagent.Task, now time.Time) []string {
	lines := make([]string, len(tasks))
	for i, t := range tasks {
		lines[i] = s.row(p, t, now)
	}
	return lines
}

// row is one task: mark, state, folder, how long it has run, what it is at. Of a
// long folder the end is kept, that tells it from its neighbours.
func (s *screen) row(p paper, t subagent.Task, now time.Time) string {
	state := stateOf(t)
	if state.mark == "" {
		state.mark = spinner[s.beat%len(spinner)]
	}
	position := 0
	if t.Status == subagent.StatusQueued {
		position, _ = s.position(t.ID)
	}
	clock := ""
	if d, ok := elapsed(t, now); ok {
		clock = short(d)
	}
	names := min(s.names, max(8, p.width/3))
	return p.line(
		cell{" " + state.mark + " " + pad(state.word, len("completed")), state.style},
		cell{"  " + pad(cutFront(t.Subject, names), names), plain},
		cell{fmt.Sprintf("  %6s", clock), dim},
		cell{"  " + detail(t, position), dim},
	)
}

func (s *screen) bar(p paper, now time.Time) string {
	done, all := countEnded(s.tasks), len(s.tasks)
	length := min(30, max(0, p.width-48))
	filled := length * done / max(1, all)
	cells := []cell{
		{" " + strings.Repeat("━", filled), green},
		{strings.Repeat("─", length-filled), dim},
		{fmt.Sprintf("  %d/%d", done, all), bold},
		{"  " + short(now.Sub(s.began)), dim},
	}
	if s.stopped {
		cells = append(cells, cell{"  stopping; Ctrl-C again quits", yellow})
	}
	return p.line(cells...)
}

// draw replaces what stands on the terminal by lines.
func (s *screen) draw(lines []string, p paper) {
	var b strings.Builder
	if up := s.height(p); up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", up)
	}
	b.WriteString("\r")
	for _, line := range lines {
		b.WriteString(line + clearRight + "\n")
	}
	b.WriteString(clearBelow)
	_, _ = io.WriteString(s.out, b.String()) // nobody is left to tell when the terminal has gone
	s.drawn = lines
}

// height is how many rows the last frame takes now: a terminal that was made
// narrower has wrapped its lines.
func (s *screen) height(p paper) int {
	rows := 0
	for _, line := range s.drawn {
		rows += 1 + max(0, width(unstyled(line))-1)/(p.width+1)
	}
	return rows
}

// unstyled is line without its colours.
func unstyled(line string) string {
	var b strings.Builder
	for i, part := range strings.Split(line, "\x1b[") {
		if _, text, ok := strings.Cut(part, "m"); i > 0 && ok {
			part = text
		}
		b.WriteString(part)
	}
	return b.String()
}
