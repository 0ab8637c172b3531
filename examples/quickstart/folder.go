package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// folder is one folder of Go files: the work of one sub-agent.
type folder struct {
	name string // relative to the tree's root, with slashes; "." is the root
	path string
}

// survey finds the folders of Go files under root, in order of their paths. A
// folder that cannot be listed is among them: the sub-agent that gets it says
// why. The error is about root itself, or ctx's.
func survey(ctx context.Context, root string) ([]folder, error) {
	if err := checkRoot(root); err != nil {
		return nil, err
	}
	// WalkDir would not walk a root that is a symbolic link. Below the root it
	// never follows one, so that no loop of links can hold it.
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, err
	}
	var found []folder
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return errors.New("interrupted")
		case d == nil: // the root has gone meanwhile
			return err
		case !d.IsDir():
			return nil
		case path != root && skipped(path, d.Name()):
			return fs.SkipDir
		}
		// A folder that cannot be listed is visited a second time, with the
		// error; it was added the first time.
		if err == nil && hasWork(path) {
			found = append(found, folder{relative(root, path), path})
		}
		return nil
	})
	return found, err
}

func checkRoot(root string) error {
	stat, err := os.Stat(root)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", root, cause(err))
	}
	if !stat.IsDir() {
		return fmt.Errorf("%s is not a directory", root)
	}
	if _, err := os.ReadDir(root); err != nil {
		return fmt.Errorf("cannot read %s: %w", root, cause(err))
	}
	return nil
}

// cause is err without the operation and the path, for messages that name the
// path themselves.
func cause(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

func skipped(path, name string) bool {
	switch {
	case name == "vendor", name == "testdata", name == "node_modules":
		return true
	case strings.HasPrefix(name, "."), strings.HasPrefix(name, "_"):
		return true
	}
	// A .git, be it a folder or a worktree's file, makes it another repository.
	_, err := os.Lstat(filepath.Join(path, ".git"))
	return err == nil
}

func relative(root, path string) string {
	name, err := filepath.Rel(root, path)
	if err != nil {
		return path
	}
	return filepath.ToSlash(name)
}

func hasWork(path string) bool {
	names, err := goFiles(path)
	return err != nil || len(names) > 0
}

// goFiles names the Go files of one folder, in order. Like the go command it
// leaves out names that begin with a dot or an underscore.
func goFiles(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the folder: %w", cause(err))
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".go") && !strings.HasPrefix(e.Name(), ".") &&
			!strings.HasPrefix(e.Name(), "_") && !isDir(path, e) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func isDir(path string, e fs.DirEntry) bool {
	if e.Type()&fs.ModeSymlink == 0 {
		return e.IsDir()
	}
	target, err := os.Stat(filepath.Join(path, e.Name()))
	return err == nil && target.IsDir()
}
