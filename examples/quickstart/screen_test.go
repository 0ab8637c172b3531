package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"

	"github.com/go-subagent/subagent"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// sketch is a task as the screen needs it, number n of its kind.
func sketch(n int, name string, status subagent.Status) subagent.Task {
	t := subagent.Task{ID: uuid.New(), Subject: name, Status: status}
	if status != subagent.StatusQueued {
		t.StartedAt = began
		t.Progress.Message = fmt.Sprintf("%d/99 file.go", n)
	}
	if status.Terminal() {
		t.CompletedAt = began.Add(time.Duration(n) * time.Second)
	}
	if status == subagent.StatusErrored {
		t.Error = "x.go:1:1: a problem that needs a long, long line to be told in full"
	}
	return t
}

// crowd is 12 tasks in all states, 日本 folders and a long path among them.
func crowd() []subagent.Task {
	var tasks []subagent.Task
	for i, status := range []subagent.Status{
		subagent.StatusCompleted, subagent.StatusRunning, subagent.StatusErrored, subagent.StatusQueued,
		subagent.StatusCancelled, subagent.StatusRunning, subagent.StatusCompleted, subagent.StatusQueued,
		subagent.StatusCompleted, subagent.StatusCompleted, subagent.StatusQueued, subagent.StatusRunning,
	} {
		name := fmt.Sprintf("f%02d", i)
		switch i {
		case 1:
			name = "日本語/の/とても長い/名前/f01"
		case 5:
			name = strings.Repeat("deep/", 20) + "f05"
		}
		tasks = append(tasks, sketch(i, name, status))
	}
	return tasks
}

func still(columns, rows int, tasks []subagent.Task) (*screen, *bytes.Buffer) {
	var out bytes.Buffer
	s := newScreen(&out, func() (int, int, bool) { return columns, rows, true }, options{dir: "/src", workers: 4})
	s.colour = false
	s.begin(tasks, func(id uuid.UUID) (int, bool) {
		line := 0
		for _, t := range tasks {
			if t.Status == subagent.StatusQueued {
				line++
			}
			if t.ID == id {
				return line, t.Status == subagent.StatusQueued
			}
		}
		return 0, false
	})
	s.began, s.beat = began, 0
	return s, &out
}

func TestFrame(t *testing.T) {
	s, _ := still(80, 24, crowd())
	p, rows := s.paper()
	s.stopped = true
	assert.Equal(t, strings.Join([]string{
		"12 folders under /src, 4 at a time",
		"",
		" ✓ completed  f00                           0.0s  0/99 file.go",
		" ⠋ running    …語/の/とても長い/名前/f01   12.0s  1/99 file.go",
	}, "\n"), strings.Join(s.frame(p, rows, began.Add(12*time.Second))[:4], "\n"))
	whole := strings.Join(s.frame(p, rows, began.Add(12*time.Second)), "\n")
	assert.Contains(t, whole, "✗ errored    f02")
	assert.Contains(t, whole, "· queued     f03")
	assert.Contains(t, whole, "next in line")
	assert.Contains(t, whole, "#3 in line")
	assert.Contains(t, whole, "■ cancelled  f04                           4.0s  at 4/99 file.go")
	assert.Contains(t, whole, "6/12  12.0s  stopping; Ctrl-C again quits")
	assert.Contains(t, whole, "p/deep/f05")
}

func TestFrameShowsTheLiveOnesFirst(t *testing.T) {
	s, _ := still(60, 13, crowd())
	p, rows := s.paper()
	frame := s.frame(p, rows, began)
	var order []string
	for _, line := range frame {
		if i := strings.Index(line, "f0"); i >= 0 && !strings.Contains(line, "more") {
			order = append(order, line[i:i+3])
		}
	}
	assert.Len(t, frame, 12)
	assert.Equal(t, []string{"f01", "f05", "f03", "f07", "f09"}, order, "f11 and f10 are in between")
	assert.Contains(t, frame[9], "  … 5 more: 3 completed, 1 errored, 1 cancelled")
}

func TestFrameFitsEveryTerminal(t *testing.T) {
	tasks := crowd()
	for columns := 1; columns <= 120; columns += 7 {
		for rows := 1; rows <= 20; rows++ {
			s, _ := still(columns, rows, tasks)
			p, _ := s.paper()
			frame := s.frame(p, rows, began.Add(100*time.Hour))
			assert.LessOrEqual(t, len(frame), max(1, rows-1), "%d×%d", columns, rows)
			for _, line := range frame {
				assert.Less(t, width(line), max(2, columns), "%d×%d: %q", columns, rows, line)
			}
		}
	}
}

func TestAFrameIsDrawnOverTheLast(t *testing.T) {
	s, out := still(80, 24, crowd())
	out.Reset()
	s.tick()
	assert.True(t, strings.HasPrefix(out.String(), "\x1b[16A\r"), "12 rows, the title, the bar and two gaps")
	assert.True(t, strings.HasSuffix(out.String(), "\n"+clearBelow))
	assert.NotContains(t, out.String(), "\x1b[2", "nothing is cleared before it is drawn")

	// Made half as wide, the terminal has wrapped the rows that were longer.
	p, _ := s.paper()
	p.width = 39
	assert.Greater(t, s.height(p), 16)
	assert.LessOrEqual(t, s.height(p), 32)
}

func TestUpdateKeepsTheNewest(t *testing.T) {
	tasks := crowd()
	tasks[3].Version = 2
	s, _ := still(80, 24, tasks)
	old, unknown := tasks[3], sketch(1, "unknown", subagent.StatusRunning)
	old.Version, old.Status = 1, subagent.StatusPending
	s.update(old)
	s.update(unknown)
	assert.Equal(t, tasks, s.tasks)
	old.Version = 3
	s.update(old)
	assert.Equal(t, subagent.StatusPending, s.tasks[3].Status)
}

func TestColoursAreAddedAfterTheCut(t *testing.T) {
	line := paper{6, true}.line(cell{"1234", red}, cell{"5678", bold}, cell{"9", dim})
	assert.Equal(t, "\x1b[31m1234\x1b[0m\x1b[1m5…\x1b[0m", line)
	assert.Equal(t, "12345…", unstyled(line))
}
