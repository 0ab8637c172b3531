package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// work is what the sub-agents do. The tokens that a model would be charged for
// are here those of the Go language: what a file holds is input, the words of
// the report are output, and a file that was read before comes from the cache.
type work struct {
	root   string
	pause  time.Duration
	runner *subagent.Runner // set before the first task is spawned
	turns  atomic.Int64

	mu   sync.Mutex // guards seen, for a moment at a time
	seen map[string]bool
}

func newWork(o options) *work {
	return &work{root: o.dir, pause: o.pause, seen: make(map[string]bool)}
}

// Notify implements subagent.Notifier. The page shows each end; but a task of
// whose end nobody was told is never forgotten.
func (w *work) Notify(context.Context, subagent.Task) error { return nil }

// request is what a button of the page spawns.
func (w *work) request(kind string) (subagent.Request, bool) {
	switch kind {
	case "tree":
		return subagent.Request{
			ParentSessionID: fmt.Sprintf("reading-%d", w.turns.Add(1)),
			AgentID:         "reader",
			Subject:         "Read " + filepath.Base(w.root),
			Description:     "Read the Go files under " + w.root + ", one sub-agent for each folder, and report what is in them.",
			Func:            w.readTree,
		}, true
	case "deaf":
		return subagent.Request{
			ParentSessionID: "trouble",
			AgentID:         "deaf",
			Subject:         "Does not obey its stop",
			Description:     "Read the folder again and again, and never look whether to stop.",
			Func:            w.deaf,
		}, true
	case "failing":
		return subagent.Request{
			ParentSessionID: "trouble",
			AgentID:         "failing",
			Subject:         "Reads what is not there",
			Description:     "Read a folder that does not exist.",
			Func:            w.failing,
		}, true
	}
	return subagent.Request{}, false
}

// readTree spawns a sub-agent for each folder of Go files and waits for them.
// Its slot is lent to them while it waits.
func (w *work) readTree(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
	folders, err := w.survey(ctx)
	if err != nil {
		return subagent.Result{}, err
	}
	run.Progress(fmt.Sprintf("%d folders", len(folders)))
	var ids []uuid.UUID
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		t, err := w.runner.Spawn(ctx, subagent.Request{
			AgentID:     "folder",
			Subject:     folder,
			Description: fmt.Sprintf("Read the %d Go files of %s and report what they declare.", len(folders[folder]), folder),
			Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
				return subagent.Result{}, w.readFiles(ctx, run, folders[folder])
			},
		})
		if err != nil {
			return subagent.Result{}, err
		}
		ids = append(ids, t.ID)
	}
	done, err := w.runner.Await(ctx, subagent.AwaitAll, ids...)
	for _, t := range done {
		fmt.Fprintf(run, "%s: %s\n", t.Subject, t.Status)
	}
	return subagent.Result{}, err
}

// survey finds the Go files by folder, relative to the root.
func (w *work) survey(ctx context.Context) (map[string][]string, error) {
	folders := make(map[string][]string)
	err := filepath.WalkDir(w.root, func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case d.IsDir() && path != w.root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules"):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(name, ".go"):
			folder, err := filepath.Rel(w.root, filepath.Dir(path))
			if err != nil {
				return err
			}
			folders[folder] = append(folders[folder], path)
		}
		return nil
	})
	return folders, err
}

// readFiles reads and reports file by file, so that what it has is kept when it
// is stopped half-way.
func (w *work) readFiles(ctx context.Context, run *subagent.Run, paths []string) error {
	for i, path := range paths {
		run.Progress(fmt.Sprintf("%d/%d %s", i+1, len(paths), filepath.Base(path)))
		run.ToolUse("parse")
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		report, err := declared(path, source)
		if err != nil {
			return err
		}
		fmt.Fprintf(run, "%s: %s\n", filepath.Base(path), report)
		run.ReportUsage(path, w.usage(path, source, report))
		if !rest(ctx, w.pause) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// declared says what a file declares.
func declared(path string, source []byte) (string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	funcs, types := 0, 0
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			funcs++
		case *ast.GenDecl:
			if d.Tok == token.TYPE {
				types += len(d.Specs)
			}
		}
	}
	return fmt.Sprintf("package %s, %d functions, %d types", file.Name.Name, funcs, types), nil
}

func (w *work) usage(path string, source []byte, report string) subagent.Usage {
	in, out := tokens(source), int64(len(strings.Fields(report)))
	u := subagent.Usage{InputTokens: in, OutputTokens: out, TotalTokens: in + out}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[path] {
		u.CacheReadTokens = in
	}
	w.seen[path] = true
	return u
}

func tokens(source []byte) (n int64) {
	set := token.NewFileSet()
	var s scanner.Scanner
	s.Init(set.AddFile("", set.Base(), len(source)), source, nil, 0)
	for {
		if _, tok, _ := s.Scan(); tok == token.EOF {
			return n
		}
		n++
	}
}

// rest waits a while; false if ctx ended.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// deaf reads on for a minute, whatever it is told: a stop of it is forced when
// the grace is over, and it is settled without it.
func (w *work) deaf(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		folders, err := w.survey(context.WithoutCancel(ctx))
		if err != nil {
			return subagent.Result{}, err
		}
		run.Progress(fmt.Sprintf("there are still %d folders", len(folders)))
		rest(context.WithoutCancel(ctx), w.pause)
	}
	return subagent.Result{Text: "Nobody could stop me."}, nil
}

func (w *work) failing(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
	missing := filepath.Join(w.root, "no-such-folder")
	run.Progress("opening " + missing)
	if !rest(ctx, 3*w.pause) {
		return subagent.Result{}, context.Cause(ctx)
	}
	_, err := os.ReadDir(missing)
	return subagent.Result{}, err
}
