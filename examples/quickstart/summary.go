package main

import (
	"fmt"
	"path"
	"time"

	"github.com/go-subagent/subagent"
)

// Lists in a folder's report are cut to this many entries.
const listed = 3

// summary is what a session found: the totals, then each folder's report in
// short. It reads nothing but the tasks, also those that were stopped: a task
// keeps the text that it had written.
func summary(p paper, tasks []subagent.Task, took time.Duration) []string {
	reports := make([]report, len(tasks))
	for i, t := range tasks {
		reports[i] = readReport(t.ResultText)
	}
	lines := totals(p, tasks, reports, took)
	for i, t := range tasks {
		lines = append(lines, "")
		lines = append(lines, folderReport(p, t, reports[i])...)
	}
	return lines
}

func totals(p paper, tasks []subagent.Task, reports []report, took time.Duration) []string {
	var packages, files, lines, undocumented, todos int
	var longest place
	for i, r := range reports {
		packages += len(r.packages)
		files += r.files
		lines += r.lines
		undocumented += len(r.undocumented)
		todos += len(r.todos)
		if r.longest.lines > longest.lines {
			longest = r.longest
			longest.at = path.Join(tasks[i].Subject, r.longest.at)
		}
	}
	table := []string{
		p.line(cell{fmt.Sprintf("%s in %s: %s", plural(len(tasks), "folder"), short(took), tally(tasks)), bold}),
		entry(p, "packages", grouped(packages)),
		entry(p, "files", grouped(files)),
		entry(p, "lines", grouped(lines)),
		entry(p, "without doc", grouped(undocumented)),
		entry(p, "TODOs", grouped(todos)),
	}
	if longest.lines > 0 {
		table = append(table, entry(p, "longest", longest.String()))
	}
	return table
}

func entry(p paper, name, value string) string {
	return p.line(cell{"  " + pad(name, len("without doc")) + "  ", dim}, cell{value, plain})
}

func folderReport(p paper, t subagent.Task, r report) []string {
	state := stateOf(t)
	head := []cell{{t.Subject, bold}}
	if t.Status != subagent.StatusCompleted {
		head = append(head, cell{"  " + state.word + ", " + string(t.Reason), state.style})
	}
	lines := []string{p.line(head...)}
	if r.files > 0 {
		lines = append(lines, entry(p, "read", r.brief()))
	}
	for i, name := range r.packages {
		lines = append(lines, entry(p, label(i, "package"), name))
	}
	lines = append(lines, list(p, "without doc", r.undocumented)...)
	lines = append(lines, list(p, "TODO", r.todos)...)
	if r.longest.lines > 0 {
		lines = append(lines, entry(p, "longest", r.longest.String()))
	}
	return append(lines, trouble(p, t, r)...)
}

// trouble says what is wrong: every file's problem, or the task's own.
func trouble(p paper, t subagent.Task, r report) []string {
	if len(r.problems) == 0 && t.Error != "" {
		return []string{entry(p, "error", printable(t.Error))}
	}
	var lines []string
	for i, text := range r.problems {
		lines = append(lines, entry(p, label(i, "error"), text))
	}
	return lines
}

func list(p paper, name string, notes []note) []string {
	var lines []string
	for i, n := range notes[:min(listed, len(notes))] {
		lines = append(lines, entry(p, label(i, name), n.at+"  "+n.text))
	}
	if more := len(notes) - listed; more > 0 {
		lines = append(lines, entry(p, "", fmt.Sprintf("and %s more", grouped(more))))
	}
	return lines
}

// label names the first line of several.
func label(i int, name string) string {
	if i > 0 {
		return ""
	}
	return name
}
