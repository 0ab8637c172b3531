package main

import (
	"io"
	"os"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// view is what the user sees of a session: a live table on a terminal, plain
// lines elsewhere. One goroutine calls it.
type view interface {
	note(text string) // instead of a session: there is none
	begin(tasks []subagent.Task, position queuePosition)
	update(t subagent.Task)
	tick()
	stopping()
	end(tasks []subagent.Task) // the final tasks: the last state, then the summary
	close()                    // leaves the terminal as it was; always called
}

type queuePosition func(id uuid.UUID) (position int, queued bool)

func newView(out io.Writer, o options) view {
	if f, ok := out.(*os.File); ok && isLive(f) {
		return newScreen(f, func() (int, int, bool) { return terminalSize(f) }, o)
	}
	return newLog(out, o)
}

// isLive reports whether lines that are written to f can be drawn over.
func isLive(f *os.File) bool {
	if term := os.Getenv("TERM"); term == "" || term == "dumb" {
		return false
	}
	_, _, ok := terminalSize(f)
	return ok
}

func title(o options, tasks int) string {
	return plural(tasks, "folder") + " under " + printable(o.dir) + ", " + grouped(o.workers) + " at a time"
}
