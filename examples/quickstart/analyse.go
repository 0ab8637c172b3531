package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
)

// findings is what one Go file shows.
type findings struct {
	file         string
	pkg          string // an external test package counts as the package it tests
	lines        int
	undocumented []mark
	todos        []mark
	longest      function // zero when the file has no function
}

type mark struct {
	line int
	text string
}

type function struct {
	name        string // Type.Name for a method
	line, lines int
}

// analyse parses one file. An error says where the file is not Go.
func analyse(name string, src []byte) (findings, error) {
	source := token.NewFileSet()
	tree, err := parser.ParseFile(source, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return findings{}, err
	}
	// Positions are those of the file itself, whatever its //line comments say.
	line := func(p token.Pos) int { return source.PositionFor(p, false).Line }
	f := findings{
		file:    name,
		pkg:     tree.Name.Name,
		lines:   countLines(src),
		todos:   todos(tree, line),
		longest: longest(tree, line),
	}
	if strings.HasSuffix(name, "_test.go") {
		f.pkg = strings.TrimSuffix(f.pkg, "_test")
	} else if f.pkg != "main" { // nobody can import what main or a test exports
		f.undocumented = undocumented(tree, line)
	}
	return f, nil
}

func countLines(src []byte) int {
	n := bytes.Count(src, []byte("\n"))
	if len(src) > 0 && src[len(src)-1] != '\n' {
		n++
	}
	return n
}

var todoText = regexp.MustCompile(`(?:^TODO\b(?:\([^)]*\))?|\sTODO(?:\([^)]*\))?:)[:\s]*(.*)`)

// todos finds the lines of comments that start with TODO or hold "TODO:" or
// "TODO(name):". Prose that merely speaks of them does not count.
func todos(tree *ast.File, line func(token.Pos) int) []mark {
	var found []mark
	for _, group := range tree.Comments {
		for _, c := range group.List {
			for i, text := range strings.Split(c.Text, "\n") {
				if m := todoText.FindStringSubmatch(strings.Trim(text, "/* \t\r")); m != nil {
					found = append(found, mark{line(c.Pos()) + i, m[1]})
				}
			}
		}
	}
	return found
}

func longest(tree *ast.File, line func(token.Pos) int) function {
	var top function
	for _, decl := range tree.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok {
			if n := line(fn.End()) - line(fn.Pos()) + 1; n > top.lines {
				top = function{funcName(fn), line(fn.Pos()), n}
			}
		}
	}
	return top
}

// undocumented finds the exported names that have neither a doc comment, nor
// one for their group, nor one at the end of their line.
func undocumented(tree *ast.File, line func(token.Pos) int) []mark {
	var found []mark
	for _, decl := range tree.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Doc == nil && d.Name.IsExported() && ast.IsExported(funcName(d)) {
				found = append(found, mark{line(d.Name.Pos()), funcName(d)})
			}
		case *ast.GenDecl:
			if d.Doc == nil {
				for _, name := range bare(d) {
					found = append(found, mark{line(name.Pos()), name.Name})
				}
			}
		}
	}
	return found
}

// bare returns the exported names that a group declares without a comment.
func bare(d *ast.GenDecl) []*ast.Ident {
	var names []*ast.Ident
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Doc == nil && s.Comment == nil && s.Name.IsExported() {
				names = append(names, s.Name)
			}
		case *ast.ValueSpec:
			for _, name := range s.Names {
				if s.Doc == nil && s.Comment == nil && name.IsExported() {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

func funcName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	return receiver(fn.Recv.List[0].Type) + "." + fn.Name.Name
}

func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.ParenExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return "?"
}
