package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// emulator is a terminal's screen, as far as this program uses one. What it does
// not know is kept in faults, and so is a line that was wider than the screen.
type emulator struct {
	columns, rows int
	grid          [][]rune // 0: nothing, or the right half of a wide rune
	scrolled      []string // what has left the screen at its top
	x, y          int
	hidden        bool // the cursor
	shown         int  // how often it was shown
	coloured      bool
	faults        []string
	pending       []byte // the start of a sequence that has not come in whole
}

func newEmulator(columns, rows int) *emulator {
	e := &emulator{columns: columns, rows: rows}
	for range rows {
		e.grid = append(e.grid, make([]rune, columns))
	}
	return e
}

func (e *emulator) Write(p []byte) (int, error) {
	e.pending = append(e.pending, p...)
	for n := e.step(e.pending); n > 0; n = e.step(e.pending) {
		e.pending = e.pending[n:]
	}
	return len(p), nil
}

// step takes one rune or sequence off b and returns its length, 0 when it is
// not there in whole.
func (e *emulator) step(b []byte) int {
	if len(b) == 0 || !utf8.FullRune(b) {
		return 0
	}
	if b[0] != 0x1b {
		r, n := utf8.DecodeRune(b)
		e.put(r)
		return n
	}
	for i := 2; i < len(b); i++ {
		if b[i] >= '@' {
			e.control(string(b[1:i]), b[i])
			return i + 1
		}
	}
	return 0
}

func (e *emulator) put(r rune) {
	switch {
	case r == '\r':
		e.x = 0
	case r == '\n':
		e.down()
	case r < ' ':
		e.fault("control character %#x", r)
	default:
		e.show(r)
	}
}

func (e *emulator) show(r rune) {
	w := runeWidth(r)
	if e.x+w > e.columns {
		e.fault("line %d is too wide", e.y)
		e.x = 0
		e.down()
	}
	for i := range w {
		e.grid[e.y][e.x+i] = 0
	}
	if w > 0 {
		e.grid[e.y][e.x] = r
	}
	e.x += w
}

func (e *emulator) down() {
	if e.y++; e.y == e.rows {
		e.scrolled = append(e.scrolled, e.row(0))
		e.grid = append(e.grid[1:], make([]rune, e.columns))
		e.y--
	}
}

func (e *emulator) control(args string, final byte) {
	switch sequence := args + string(final); {
	case sequence == "[?25l":
		e.hidden = true
	case sequence == "[?25h":
		e.hidden = false
		e.shown++
	case sequence == "[K":
		clear(e.grid[e.y][e.x:])
	case sequence == "[J":
		clear(e.grid[e.y][e.x:])
		for _, row := range e.grid[e.y+1:] {
			clear(row)
		}
	case final == 'A':
		n, err := strconv.Atoi(args[1:])
		if e.y -= n; err != nil || e.y < 0 {
			e.fault("%q leaves the screen", sequence)
			e.y = max(0, e.y)
		}
	case final == 'm':
		e.coloured = true
	default:
		e.fault("unknown sequence %q", sequence)
	}
}

func (e *emulator) fault(format string, args ...any) {
	e.faults = append(e.faults, fmt.Sprintf(format, args...))
}

func (e *emulator) row(y int) string {
	var b strings.Builder
	for x := 0; x < e.columns; x++ {
		r := e.grid[y][x]
		if r == 0 {
			r = ' '
		}
		b.WriteRune(r)
		x += runeWidth(r) - 1
	}
	return strings.TrimRight(b.String(), " ")
}

// screen is what stands on the screen.
func (e *emulator) screen() string {
	var rows []string
	for y := range e.rows {
		rows = append(rows, e.row(y))
	}
	return strings.TrimRight(strings.Join(rows, "\n"), "\n")
}

// all is the screen and what has scrolled out of it.
func (e *emulator) all() string {
	return strings.TrimLeft(strings.Join(e.scrolled, "\n")+"\n"+e.screen(), "\n")
}
