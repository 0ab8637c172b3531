package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const sample = `// Package sample has something of everything.
package sample

import "fmt" // TODO no import comment is a doc

// Documented is.
type Documented struct{}

type Bare struct{}

func (Documented) Method()      {}
func (b *Bare) Pointer()        {}
func (h hidden) NotReachable()  {}
func (g *Generic[K, V]) Typed() {}

type hidden struct{}

type Generic[K comparable, V any] struct{} // said at the end of the line

// A group's comment is enough.
const (
	One = 1
	Two = 2
)

var (
	Left, Right int
	// Said is.
	Said int
	Also int // at the end
	quiet int
)

//line elsewhere.go:1000
func long() {
	// prose may speak of a TODO
	/*
	   TODO(ann): in a block
	*/
	fmt.Println() // see the TODO: first
}
`

func TestReportOfAFile(t *testing.T) {
	dir := tree(t, map[string]string{"sample.go": sample})
	assert.Equal(t, strings.Join([]string{
		"file	sample.go	sample	41",
		"nodoc	sample.go:9	Bare",
		"nodoc	sample.go:11	Documented.Method",
		"nodoc	sample.go:12	Bare.Pointer",
		"nodoc	sample.go:14	Generic.Typed",
		"nodoc	sample.go:27	Left",
		"nodoc	sample.go:27	Right",
		"todo	sample.go:4	no import comment is a doc",
		"todo	sample.go:38	in a block",
		"todo	sample.go:40	first",
		"func	sample.go:35	long	7",
		"",
	}, "\n"), inspectFile(dir, "sample.go"))
}

func TestReportOfFilesThatAreNoPackageForOthers(t *testing.T) {
	for name, src := range map[string]string{"x_test.go": "package x_test\n\nfunc TestX() {}", "main.go": "package main\n\nvar X int"} {
		found, err := analyse(name, []byte(src))
		require.NoError(t, err)
		assert.Empty(t, found.undocumented)
		assert.Equal(t, 3, found.lines, "a last line without its end counts")
		assert.NotContains(t, found.pkg, "_test")
	}
}

func TestReportReadsWhatWasWritten(t *testing.T) {
	dir := tree(t, map[string]string{"a.go": sample, "b.go": "package other\n", "c.go": "packag"})
	r := readReport(inspectFile(dir, "a.go") + inspectFile(dir, "b.go") + inspectFile(dir, "c.go") + inspectFile(dir, "none.go"))
	assert.Equal(t, []string{"sample", "other"}, r.packages)
	assert.Equal(t, "2 files, 42 lines, 6 without doc, 3 TODOs", r.brief())
	assert.Equal(t, place{"a.go:35", "long", 7}, r.longest)
	assert.Equal(t, []string{"c.go:1:1: expected 'package', found packag", "none.go: no such file or directory"}, r.problems)
	assert.EqualError(t, r.err(), "c.go:1:1: expected 'package', found packag (and 1 more file)")
}

func TestReportSurvivesATextThatWasCut(t *testing.T) {
	whole := inspectFile(tree(t, map[string]string{"a.go": sample}), "a.go")
	for n := range len(whole) {
		r := readReport(whole[:n])
		assert.LessOrEqual(t, r.files, 1)
	}
	assert.Equal(t, report{}, readReport("no\treport\x00\n\n\t\t\t"))
}

func TestAFileCannotForgeFindingsOrDraw(t *testing.T) {
	text := inspectFile(tree(t, map[string]string{"a.go": "package a\n// TODO: x\ty\x1b[2J\x07\nconst a = 1\n"}), "a.go")
	assert.NotContains(t, text, "\x1b")
	assert.Equal(t, []note{{"a.go:2", "x y\ufffd[2J\ufffd"}}, readReport(text).todos)
}
