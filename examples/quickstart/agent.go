package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-subagent/subagent"
)

// inspect is what one sub-agent does; where this program parses files, yours
// would talk to a model. It reads the Go files of one folder, tells how far it
// is with Run.Progress and Run.ToolUse, and writes its report with Run.Write as
// it goes: that text is kept also when the task is stopped half-way.
func inspect(ctx context.Context, run *subagent.Run, path string) (subagent.Result, error) {
	names, err := goFiles(path)
	if err != nil {
		return subagent.Result{}, err
	}
	var text strings.Builder
	out := io.MultiWriter(run, &text)
	for i, name := range names {
		// ctx ends when the task must stop: cancelled, timed out or shut down. A
		// Func that looks at it between two steps stops in good time.
		if ctx.Err() != nil {
			return subagent.Result{}, context.Cause(ctx)
		}
		run.Progress(fmt.Sprintf("%d/%d %s", i+1, len(names), printable(name)))
		run.ToolUse("parse")
		_, _ = io.WriteString(out, inspectFile(path, name)) // neither writer fails
	}
	r := readReport(text.String())
	run.Progress(r.brief())
	// An empty Result.Text stands for the text that was written.
	return subagent.Result{}, r.err()
}

// inspectFile returns a file's part of the report. A file that cannot be read
// or parsed is a line of it: the sub-agent goes on to the next.
func inspectFile(path, name string) string {
	src, err := os.ReadFile(filepath.Join(path, name))
	if err != nil {
		return fmt.Sprintf("error\t%s: %s\n", printable(name), printable(cause(err).Error()))
	}
	found, err := analyse(name, src)
	if err != nil { // it names the file, the line and the column
		return fmt.Sprintf("error\t%s\n", printable(err.Error()))
	}
	return found.text()
}

// err makes a folder with a broken file an errored task: its report is kept,
// the error says what is missing from it.
func (r report) err() error {
	switch n := len(r.problems); n {
	case 0:
		return nil
	case 1:
		return errors.New(r.problems[0])
	default:
		return fmt.Errorf("%s (and %s)", r.problems[0], plural(n-1, "more file"))
	}
}
