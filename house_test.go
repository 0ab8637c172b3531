package subagent_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// house calls f with each Go file of the module; those of nested modules are
// not among them.
func house(t *testing.T, f func(name string, fset *token.FileSet, file *ast.File)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			nested, err := filepath.Glob(filepath.Join(name, "go.mod"))
			if base := d.Name(); err == nil && name != "." && (len(nested) > 0 || base == "testdata" || strings.HasPrefix(base, ".")) {
				return filepath.SkipDir
			}
			return err
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err == nil {
			f(filepath.ToSlash(name), fset, file)
		}
		return err
	}))
}

func isTest(name string) bool { return strings.HasSuffix(name, "_test.go") }

// Every exported name has a comment, methods of interfaces and of errors
// included.
func TestHouse_ExportedNamesAreDocumented(t *testing.T) {
	house(t, func(name string, fset *token.FileSet, file *ast.File) {
		if isTest(name) || file.Name.Name == "main" {
			return
		}
		need := func(id *ast.Ident, docs ...*ast.CommentGroup) {
			for _, doc := range docs {
				if doc.Text() != "" {
					return
				}
			}
			if id.IsExported() {
				t.Errorf("%s: %s has no comment", fset.Position(id.Pos()), id.Name)
			}
		}
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil || ofExported(d.Recv.List[0].Type) {
					need(d.Name, d.Doc)
				}
			case *ast.GenDecl:
				documentedSpecs(d, need)
			}
		}
	})
}

func documentedSpecs(d *ast.GenDecl, need func(*ast.Ident, ...*ast.CommentGroup)) {
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.ValueSpec:
			for _, id := range s.Names {
				need(id, d.Doc, s.Doc, s.Comment)
			}
		case *ast.TypeSpec:
			need(s.Name, d.Doc, s.Doc)
			if face, ok := s.Type.(*ast.InterfaceType); ok && s.Name.IsExported() {
				for _, m := range face.Methods.List {
					for _, id := range m.Names {
						need(id, m.Doc)
					}
				}
			}
		}
	}
}

// ofExported reports whether a receiver's type is exported.
func ofExported(t ast.Expr) bool {
	switch x := t.(type) {
	case *ast.StarExpr:
		return ofExported(x.X)
	case *ast.IndexExpr:
		return ofExported(x.X)
	case *ast.Ident:
		return x.IsExported()
	}
	return false
}

// Every goroutine that the library starts, and every timer that will start one,
// has a comment beside it or above it: whose it is, and when it ends.
func TestHouse_GoroutinesAreAccountedFor(t *testing.T) {
	house(t, func(name string, fset *token.FileSet, file *ast.File) {
		if isTest(name) || strings.Contains(name, "/") {
			return
		}
		said := map[int]bool{}
		for _, group := range file.Comments {
			said[fset.Position(group.Pos()).Line] = true // beside it
			said[fset.Position(group.End()).Line+1] = true
		}
		ast.Inspect(file, func(n ast.Node) bool {
			starts := false
			switch n := n.(type) {
			case *ast.GoStmt:
				starts = true
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				starts = ok && (sel.Sel.Name == "Go" || sel.Sel.Name == "AfterFunc")
			}
			if starts && !said[fset.Position(n.Pos()).Line] {
				t.Errorf("%s: whose goroutine is it, and when does it end?", fset.Position(n.Pos()))
			}
			return true
		})
	})
}

// No file is so long that nobody reads it.
func TestHouse_FilesAreShort(t *testing.T) {
	house(t, func(name string, _ *token.FileSet, _ *ast.File) {
		assert.LessOrEqual(t, strings.Count(readPage(t, name), "\n"), 500, name)
	})
}

// Every package with tests looks for goroutines that they leave behind.
func TestHouse_EveryPackageLooksForLeaks(t *testing.T) {
	looks := map[string]bool{}
	house(t, func(name string, _ *token.FileSet, file *ast.File) {
		if !isTest(name) {
			return
		}
		dir := filepath.Dir(name)
		looks[dir] = looks[dir] || strings.Contains(readPage(t, name), "goleak.VerifyTestMain(m")
	})
	require.Greater(t, len(looks), 3)
	for dir, ok := range looks {
		require.True(t, ok, "%s has no TestMain with goleak", dir)
	}
}

// Each test that a page names is there, also those of nested modules; of a name
// that ends in "_" at least one.
func TestHouse_PagesNameTestsThatAreThere(t *testing.T) {
	tests := "\n" + strings.Join(everyTest(t), "\n\n") + "\n" // each in a line of its own
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	named := regexp.MustCompile(`\bTest[A-Z]\w+`)
	for _, page := range append(pages, "README.md", "CONTRIBUTING.md") {
		for _, name := range named.FindAllString(readPage(t, page), -1) {
			end := "\n"
			if strings.HasSuffix(name, "_") {
				end = ""
			}
			assert.True(t, strings.Contains(tests, "\n"+name+end), "%s names %s", page, name)
		}
	}
}

// Each test that is named after a fault, in nested modules too, stands in a row
// of the register of faults, and each row names a test.
func TestHouse_TheRegisterNamesEachTestOfAFault(t *testing.T) {
	named := map[string]bool{}
	rows := regexp.MustCompile(`(?m)^- .+$`).FindAllString(readPage(t, "docs/faults.md"), -1)
	require.Greater(t, len(rows), 100)
	for _, row := range rows {
		tests := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(row, -1)
		assert.NotEmpty(t, tests, row)
		for _, m := range tests {
			named[m[1]] = true
		}
	}
	ofFault := regexp.MustCompile(`^TestB\d{3}_`)
	for _, name := range everyTest(t) {
		if ofFault.MatchString(name) {
			assert.True(t, named[name], "docs/faults.md does not name %s", name)
		}
	}
}

// everyTest is the name of each test, also of those of nested modules.
func everyTest(t *testing.T) (names []string) {
	t.Helper()
	test := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	require.NoError(t, filepath.WalkDir(".", func(name string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(name) == ".go" {
			for _, m := range test.FindAllStringSubmatch(readPage(t, name), -1) {
				names = append(names, m[1])
			}
		}
		return err
	}))
	return names
}
