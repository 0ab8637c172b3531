package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		removeProgram()
		os.Exit(code)
	}))
}

// tree makes a directory of the named files.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

// call runs the program to its end.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

const (
	goodFile = "// Package good is fine.\npackage good\n\n// F does nothing.\nfunc F() {\n}\n"
	loudFile = "package loud\n\nfunc Loud() {}\n\n// TODO(me): be quiet\nvar x = 1\n"
)

func TestPlainOutput(t *testing.T) {
	dir := tree(t, map[string]string{"a/good.go": goodFile, "b/c/loud.go": loudFile, "README.md": "no Go"})
	code, stdout, stderr := call(t, "-workers", "1", dir)

	assert.Equal(t, exitDone, code)
	assert.Empty(t, stderr)
	assert.NotContains(t, stdout, "\x1b")
	// A slot is handed on before the end is told, so that a start may be told
	// before the end that made room for it. Each folder's own lines are in order.
	lines := strings.Split(timeless(stdout), "\n")
	require.Greater(t, len(lines), 5)
	slices.SortStableFunc(lines[1:5], func(a, b string) int {
		return strings.Compare(strings.Fields(a)[1], strings.Fields(b)[1])
	})
	assert.Equal(t, []string{
		"2 folders under " + dir + ", 1 at a time",
		"started    a",
		"completed  a      0.0s  1 file, 6 lines",
		"started    b/c",
		"completed  b/c    0.0s  1 file, 6 lines, 1 without doc, 1 TODO",
		"",
		"2 folders in 0.0s: 2 completed",
		"  packages     2",
		"  files        2",
		"  lines        12",
		"  without doc  1",
		"  TODOs        1",
		"  longest      F, 2 lines, a/good.go:5",
		"",
		"a",
		"  read         1 file, 6 lines",
		"  package      good",
		"  longest      F, 2 lines, good.go:5",
		"",
		"b/c",
		"  read         1 file, 6 lines, 1 without doc, 1 TODO",
		"  package      loud",
		"  without doc  loud.go:3  Loud",
		"  TODO         loud.go:5  be quiet",
		"  longest      Loud, 1 line, loud.go:3",
		"",
	}, lines)
}

// timeless replaces the durations of a run, at the width that most have.
func timeless(s string) string { return clock.ReplaceAllString(s, "0.0s") }

var clock = regexp.MustCompile(` ?\d\d\.\ds|\d\.\ds`)

func TestABrokenFileIsOneTasksErrorAndTheOthersGoOn(t *testing.T) {
	dir := tree(t, map[string]string{
		"a/good.go": goodFile, "b/broken.go": "package b\n\nfunc {", "b/good.go": goodFile, "c/good.go": goodFile,
	})
	code, stdout, _ := call(t, dir)

	assert.Equal(t, exitErrored, code)
	assert.Contains(t, stdout, "3 folders in ")
	assert.Contains(t, stdout, "2 completed, 1 errored")
	assert.Contains(t, stdout, "b  errored, error\n  read         1 file, 6 lines\n")
	assert.Contains(t, stdout, "  error        broken.go:3:6: expected 'IDENT', found '{'")
}

func TestJSONIsTheFinalTasksAndNothingElse(t *testing.T) {
	dir := tree(t, map[string]string{"a/good.go": goodFile, "b/broken.go": "what?", "c/loud.go": strings.Repeat(" ", 3000) + loudFile})
	code, stdout, stderr := call(t, "-json", dir)

	assert.Equal(t, exitErrored, code)
	assert.Contains(t, stderr, "3 folders in ", "the rest goes to stderr")
	tasks := decode(t, stdout)
	require.Len(t, tasks, 3)
	for i, want := range []subagent.Status{subagent.StatusCompleted, subagent.StatusErrored, subagent.StatusCompleted} {
		assert.Equal(t, want, tasks[i].Status)
		assert.Equal(t, string('a'+rune(i)), tasks[i].Subject)
		assert.Equal(t, 1, tasks[i].Progress.ToolUses)
		assert.False(t, tasks[i].ResultTruncated)
	}
	assert.Equal(t, subagent.ReasonError, tasks[1].Reason)
	assert.Equal(t, "file\tgood.go\tgood\t6\nfunc\tgood.go:5\tF\t2\n", tasks[0].ResultText)
}

func decode(t *testing.T, stdout string) []subagent.Task {
	t.Helper()
	lines := json.NewDecoder(strings.NewReader(stdout))
	lines.DisallowUnknownFields()
	var tasks []subagent.Task
	for range 1000 {
		var task subagent.Task
		err := lines.Decode(&task)
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		tasks = append(tasks, task)
	}
	return tasks
}

func TestALongReportIsWhole(t *testing.T) {
	var src strings.Builder
	src.WriteString("package long\n")
	for range 400 {
		src.WriteString("// TODO: a line that makes the report longer than a preview\n")
	}
	code, stdout, _ := call(t, tree(t, map[string]string{"long.go": src.String()}))
	assert.Equal(t, exitDone, code)
	assert.Contains(t, stdout, "  TODOs        400\n")
	assert.Contains(t, stdout, "               and 397 more\n")
}

func TestBadUseExitsWithTwo(t *testing.T) {
	dir := tree(t, map[string]string{"a.go": goodFile})
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"missing":          {[]string{filepath.Join(dir, "none")}, "quickstart: cannot read " + filepath.Join(dir, "none") + ": no such file or directory"},
		"empty":            {[]string{""}, "quickstart: cannot read : no such file or directory"},
		"a file":           {[]string{filepath.Join(dir, "a.go")}, "a.go is not a directory"},
		"unknown flag":     {[]string{"-fast"}, "flag provided but not defined: -fast"},
		"no worker":        {[]string{"-workers", "0", dir}, "-workers must be at least 1, not 0"},
		"no number":        {[]string{"-workers", "many", dir}, "invalid value \"many\" for flag -workers"},
		"negative timeout": {[]string{"-timeout", "-1s", dir}, "-timeout must not be negative, not -1s"},
		"two dirs":         {[]string{dir, dir}, "give one directory, and the flags before it"},
		"flag after dir":   {[]string{dir, "-json"}, "give one directory, and the flags before it"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, c.args...)
			assert.Equal(t, exitUsage, code)
			assert.Empty(t, stdout)
			assert.Contains(t, stderr, c.says)
		})
	}
}

func TestHelpIsNoError(t *testing.T) {
	code, stdout, stderr := call(t, "-h")
	assert.Equal(t, exitDone, code)
	assert.Empty(t, stdout)
	assert.Contains(t, stderr, "usage: quickstart")
}

func TestNoGoFilesIsSaidPlainly(t *testing.T) {
	dir := tree(t, map[string]string{"README.md": "no Go", "vendor/v/v.go": goodFile})
	code, stdout, stderr := call(t, dir)
	assert.Equal(t, exitDone, code)
	assert.Equal(t, "no Go files under "+dir+"\n", stdout)
	assert.Empty(t, stderr)

	code, stdout, stderr = call(t, "-json", dir)
	assert.Equal(t, exitDone, code)
	assert.Empty(t, stdout)
	assert.Equal(t, "no Go files under "+dir+"\n", stderr)
}

func TestWithoutADirItReadsTheEnclosingModule(t *testing.T) {
	dir := tree(t, map[string]string{"go.mod": "module m", "a/b/b.go": goodFile, "c/c.go": goodFile})
	t.Chdir(filepath.Join(dir, "a", "b"))
	code, stdout, _ := call(t)
	assert.Equal(t, exitDone, code)
	assert.Contains(t, stdout, "\nc\n")
	assert.Contains(t, stdout, "2 folders under ")
}

func TestAnInterruptDuringTheSurvey(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	assert.Equal(t, exitInterrupted, run(ctx, []string{tree(t, map[string]string{"a.go": goodFile})}, &out, &errs))
	assert.Equal(t, "quickstart: interrupted\n", errs.String())
}
