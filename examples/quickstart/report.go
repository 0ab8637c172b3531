package main

import (
	"bufio"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// report is what one sub-agent found in its folder. It travels as text, one
// finding a line, with tabs between the fields:
//
//	file	a.go	pkg	120
//	nodoc	a.go:12	Name
//	todo	a.go:33	what is left to do
//	func	a.go:40	Type.Name	17
//	error	a.go:3:1: what is wrong
//
// The Runner keeps whatever part of the text was written before a task was
// stopped, so that a partial report reads like a whole one.
type report struct {
	packages     []string
	files, lines int
	undocumented []note
	todos        []note
	longest      place
	problems     []string
}

type note struct {
	at   string // file:line
	text string
}

type place struct {
	at    string
	name  string
	lines int
}

// readReport reads a report's text. Lines that it cannot read are left out.
func readReport(text string) report {
	var r report
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for lines.Scan() {
		r.add(strings.Split(lines.Text(), "\t"))
	}
	return r
}

func (r *report) add(fields []string) {
	switch {
	case fields[0] == "file" && len(fields) == 4:
		r.files++
		r.lines += number(fields[3])
		if !slices.Contains(r.packages, fields[2]) {
			r.packages = append(r.packages, fields[2])
		}
	case fields[0] == "nodoc" && len(fields) == 3:
		r.undocumented = append(r.undocumented, note{fields[1], fields[2]})
	case fields[0] == "todo" && len(fields) == 3:
		r.todos = append(r.todos, note{fields[1], fields[2]})
	case fields[0] == "func" && len(fields) == 4:
		if n := number(fields[3]); n > r.longest.lines {
			r.longest = place{fields[1], fields[2], n}
		}
	case fields[0] == "error" && len(fields) == 2:
		r.problems = append(r.problems, fields[1])
	}
}

func number(s string) int {
	n, _ := strconv.Atoi(s) // a field that is no number counts nothing
	return n
}

// text is one file's part of a report.
func (f findings) text() string {
	var b strings.Builder
	file := printable(f.file)
	fmt.Fprintf(&b, "file\t%s\t%s\t%d\n", file, f.pkg, f.lines)
	for _, m := range f.undocumented {
		fmt.Fprintf(&b, "nodoc\t%s:%d\t%s\n", file, m.line, m.text)
	}
	for _, m := range f.todos {
		fmt.Fprintf(&b, "todo\t%s:%d\t%s\n", file, m.line, printable(m.text))
	}
	if f.longest.lines > 0 {
		fmt.Fprintf(&b, "func\t%s:%d\t%s\t%d\n", file, f.longest.line, f.longest.name, f.longest.lines)
	}
	return b.String()
}

// brief is the report in one line.
func (r report) brief() string {
	parts := []string{plural(r.files, "file"), plural(r.lines, "line")}
	if n := len(r.undocumented); n > 0 {
		parts = append(parts, fmt.Sprintf("%d without doc", n))
	}
	if n := len(r.todos); n > 0 {
		parts = append(parts, plural(n, "TODO"))
	}
	return strings.Join(parts, ", ")
}

func (p place) String() string {
	return fmt.Sprintf("%s, %s, %s", p.name, plural(p.lines, "line"), p.at)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return grouped(n) + " " + noun + "s"
}

// grouped writes 12345 as 12,345.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
