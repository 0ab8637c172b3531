package subagent_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// Every Go block of the pages is code of the examples, which the tests run;
// the README's first is a whole program around one of them.
func TestReadmeShowsWhatTheExamplesDo(t *testing.T) {
	code := unindented(readPage(t, "example_test.go") + readPage(t, "agenttool/example_test.go"))
	for _, page := range []string{"README.md", "docs/stores.md", "docs/integrate.md"} {
		blocks := goBlock.FindAllStringSubmatch(readPage(t, page), -1)
		require.NotEmpty(t, blocks, page)
		for _, block := range blocks {
			if program, ok := strings.CutPrefix(block[1], "package main\n"); ok {
				_, body, found := strings.Cut(program, "\nfunc main() {\n")
				require.True(t, found, page)
				block[1] = "func Example() {\n" + body
			}
			require.Contains(t, code, "\n"+unindented(block[1]), page)
		}
	}
}

// The body of the README's program compiles as an example does; with the
// imports that it names, and no other, it compiles as a program.
func TestReadmeProgramImportsWhatItUses(t *testing.T) {
	program := goBlock.FindStringSubmatch(readPage(t, "README.md"))[1]
	file, err := parser.ParseFile(token.NewFileSet(), "main.go", program, 0)
	require.NoError(t, err)
	var imported, used []string
	for _, spec := range file.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		imported = append(imported, path.Base(name))
	}
	seen := make(map[string]bool)
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		id, ok := sel.X.(*ast.Ident)
		if ok && id.Obj == nil && types.Universe.Lookup(id.Name) == nil && !seen[id.Name] {
			seen[id.Name] = true
			used = append(used, id.Name)
		}
		return true
	})
	require.ElementsMatch(t, imported, used)
}

// The pages lead to files that exist, and the README to each source file.
func TestPagesLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)\)`)
	led := make(map[string]bool)
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	for _, page := range append(pages, "README.md", "CONTRIBUTING.md", "CHANGELOG.md") {
		for _, m := range link.FindAllStringSubmatch(readPage(t, page), -1) {
			to := path.Join(path.Dir(page), m[1])
			_, err := os.Stat(to)
			require.NoError(t, err, page)
			led[to] = true
		}
	}
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, source := range sources {
		if !strings.HasSuffix(source, "_test.go") {
			require.True(t, led[source], "README.md says nothing about %s", source)
		}
	}
}

// A test that docs/guarantees.md names for a guarantee exists, and each
// guarantee has one.
func TestGuaranteesNameTheirTests(t *testing.T) {
	const last = 17
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var code strings.Builder
	for _, file := range files {
		code.WriteString(readPage(t, file))
	}
	rows := regexp.MustCompile(`(?m)^\| (G\d+) \|.*$`).FindAllStringSubmatch(readPage(t, "docs/guarantees.md"), -1)
	require.Len(t, rows, last)
	for i, row := range rows {
		require.Equal(t, "G"+strconv.Itoa(i+1), row[1])
		tests := regexp.MustCompile("`(Test"+row[1]+"_\\w+)`").FindAllStringSubmatch(row[0], -1)
		require.NotEmpty(t, tests, row[1])
		for _, test := range tests {
			require.Contains(t, code.String(), "\nfunc "+test[1]+"(t *testing.T) {", row[1])
		}
	}
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

func unindented(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimLeft(line, "\t")
	}
	return strings.Join(lines, "\n")
}
