package main

import (
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// log is the view for files, pipes and dumb terminals: one line when a task
// starts and one when it ends.
type log struct {
	out     io.Writer
	o       options
	began   time.Time
	started map[uuid.UUID]bool
	ended   map[uuid.UUID]bool
	width   int // of the widest name
}

func newLog(out io.Writer, o options) *log {
	return &log{out: out, o: o, started: map[uuid.UUID]bool{}, ended: map[uuid.UUID]bool{}}
}

func (l *log) note(text string) { printLines(l.out, printable(text)) }

func (l *log) begin(tasks []subagent.Task, _ queuePosition) {
	l.began = time.Now()
	for _, t := range tasks {
		l.width = max(l.width, min(40, width(t.Subject)))
	}
	printLines(l.out, title(l.o, len(tasks)))
}

// update may be shown an end without the start before it: events that were not
// read yet are merged into the newest.
func (l *log) update(t subagent.Task) {
	if !l.started[t.ID] && !t.StartedAt.IsZero() {
		l.started[t.ID] = true
		l.line("started", t)
	}
	if !l.ended[t.ID] && t.Status.Terminal() {
		l.ended[t.ID] = true
		l.line(stateOf(t).word, t)
	}
}

func (l *log) line(what string, t subagent.Task) {
	cells := []cell{{text: pad(what, 11)}, {text: pad(t.Subject, l.width)}}
	if t.Status.Terminal() && what != "started" {
		clock := ""
		if d, ok := elapsed(t, t.CompletedAt); ok {
			clock = short(d)
		}
		cells = append(cells, cell{text: fmt.Sprintf("  %6s  ", clock)}, cell{text: detail(t, 0)})
	}
	printLines(l.out, paper{}.line(cells...))
}

func (l *log) tick() {}

func (l *log) stopping() { printLines(l.out, "stopping; Ctrl-C again quits at once") }

func (l *log) end(tasks []subagent.Task) {
	for _, t := range tasks {
		l.update(t) // what the events had not told yet
	}
	printLines(l.out, append([]string{""}, summary(paper{}, tasks, time.Since(l.began))...)...)
}

func (l *log) close() {}
