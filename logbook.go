package subagent

import (
	"context"
	"log/slog"
	"sync"

	"github.com/google/uuid"
)

// logbook writes to the host's logger without ever waiting for it: a logger
// is foreign code that may block, panic or call back. Lines are written in
// order by one goroutine, which lives while there are any.
type logbook struct {
	logger *slog.Logger // nil: nothing is logged

	// mu guards what follows. It is a leaf.
	mu      sync.Mutex
	lines   []line
	dropped int
	idle    chan struct{} // closed by the goroutine when it ends; nil: there is none
}

type line struct {
	level slog.Level
	text  string
	args  []any
}

const maxLines = 1024 // not yet written; more are dropped and counted

func (l *logbook) warn(text string, id uuid.UUID, args ...any) {
	l.add(slog.LevelWarn, text, append([]any{"task_id", id.String()}, args...))
}

func (l *logbook) error(text string, id uuid.UUID, args ...any) {
	l.add(slog.LevelError, text, append([]any{"task_id", id.String()}, args...))
}

func (l *logbook) add(level slog.Level, text string, args []any) {
	if l.logger == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) >= maxLines {
		l.dropped++
		return
	}
	l.lines = append(l.lines, line{level, "subagent: " + text, args})
	if l.idle == nil {
		l.idle = make(chan struct{})
		// It ends when all lines are written; Shutdown waits for it.
		go l.write(l.idle)
	}
}

func (l *logbook) write(idle chan struct{}) {
	defer close(idle)
	for {
		l.mu.Lock()
		if len(l.lines) == 0 && l.dropped == 0 {
			l.idle, l.lines = nil, nil
			l.mu.Unlock()
			return
		}
		lines, dropped := l.lines, l.dropped
		l.lines, l.dropped = nil, 0
		l.mu.Unlock()
		for _, n := range lines {
			l.put(n)
		}
		if dropped > 0 {
			l.put(line{slog.LevelError, "subagent: log lines dropped, the logger is too slow", []any{"count", dropped}})
		}
	}
}

func (l *logbook) put(n line) {
	_ = protect(func() error { // there is nowhere left to report a failure
		l.logger.Log(context.Background(), n.level, n.text, n.args...)
		return nil
	})
}

// flushed is closed once what was logged so far is written; nil if it is.
func (l *logbook) flushed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.idle
}
