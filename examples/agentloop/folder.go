package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode/utf8"
)

// Limits of one answer of a directory tool.
const (
	maxListed = 200
	maxRead   = 32 << 10 // bytes
	maxHits   = 50
	maxLine   = 200     // runes of a line with a hit
	maxSearch = 1 << 20 // bytes of a file that are searched
)

// folder is the directory that the agents may look at. All of it goes through
// an os.Root, which refuses whatever leads out of the directory: "..", absolute
// paths, and symbolic links, also those that are put there while it looks.
type folder struct {
	root *os.Root
}

func openFolder(dir string) (*folder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open the directory %s: %w", dir, cause(err))
	}
	return &folder{root}, nil
}

func (f *folder) close() { _ = f.root.Close() } // it was only read

// folderTools are what the directory offers to a model.
var folderTools = []toolOffer{
	offer("list_files", "List a directory: one name a line, those of directories end in /.",
		`{"type":"object","properties":{"path":{"type":"string","description":"Relative to the directory; . is the directory itself (default)."}},"additionalProperties":false}`),
	offer("read_file", "Read a text file, the first 32 KiB of it.",
		`{"type":"object","properties":{"path":{"type":"string","description":"Relative to the directory."}},"required":["path"],"additionalProperties":false}`),
	offer("search_files", "Find lines that contain a text, whatever its case, in all files below a path: path:line: text.",
		`{"type":"object","properties":{"query":{"type":"string","description":"The text to find."},"path":{"type":"string","description":"Where to look; . is everywhere (default)."}},"required":["query"],"additionalProperties":false}`),
}

func offer(name, description, schema string) toolOffer {
	return toolOffer{"function", function{name, description, json.RawMessage(schema)}}
}

// call answers a tool call; false if it is for none of the directory's tools.
// What went wrong is part of the answer, for the model is to read it.
func (f *folder) call(ctx context.Context, call functionCall) (string, bool) {
	args := struct{ Path, Query string }{Path: "."}
	var use func() (string, error)
	switch call.Name {
	case "list_files":
		use = func() (string, error) { return f.list(args.Path) }
	case "read_file":
		use = func() (string, error) { return f.read(args.Path) }
	case "search_files":
		use = func() (string, error) { return f.search(ctx, args.Path, args.Query) }
	default:
		return "", false
	}
	decoder := json.NewDecoder(strings.NewReader(call.Arguments))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&args); err != nil {
		return fmt.Sprintf("[tool error] the arguments of %s are no good: %v; they are a JSON object of path and, to search, query", call.Name, err), true
	}
	text, err := use()
	if err != nil {
		return fmt.Sprintf("[tool error] %s %q: %v", call.Name, args.Path, cause(err)), true
	}
	return text, true
}

// cause is err without the operation and the path, which the message that it
// goes into names itself; for a path that leads out it says what is allowed.
func cause(err error) error {
	p := (*fs.PathError)(nil)
	switch {
	case !errors.As(err, &p):
		return err
	case strings.Contains(p.Err.Error(), "escapes"): // os.Root's error has no name to compare with
		return errOutside
	}
	return p.Err
}

var errOutside = errors.New("leads out of the directory; paths are relative to it, with slashes")

const emptyFolder = "(empty)" // the listing of one

func (f *folder) list(dir string) (string, error) {
	entries, err := fs.ReadDir(f.root.FS(), path.Clean(dir))
	if errors.Is(err, fs.ErrInvalid) {
		return "", errOutside
	}
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for i, e := range entries {
		if i == maxListed {
			fmt.Fprintf(&b, "(%d more)\n", len(entries)-maxListed)
			break
		}
		b.WriteString(e.Name())
		if e.IsDir() {
			b.WriteString("/")
		}
		b.WriteString("\n")
	}
	if len(entries) == 0 {
		return emptyFolder + "\n", nil
	}
	return b.String(), nil
}

func (f *folder) read(name string) (string, error) {
	file, err := f.open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxRead+1))
	if err != nil {
		return "", err
	}
	cut := len(data) > maxRead
	data = data[:min(len(data), maxRead)]
	if bytes.IndexByte(data, 0) >= 0 {
		return "", errors.New("is not a text file")
	}
	text := strings.ToValidUTF8(string(data), "\uFFFD")
	if cut {
		text += fmt.Sprintf("\n(cut after %d bytes)\n", maxRead)
	}
	return text, nil
}

// open opens a regular file. Anything else, a pipe for example, might block.
func (f *folder) open(name string) (*os.File, error) {
	stat, err := f.root.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case stat.IsDir():
		return nil, errors.New("is a directory; list_files reads it")
	case !stat.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	}
	return f.root.Open(name)
}

// search goes through the files in the order of their paths. It follows no link
// to a directory, leaves hidden directories out, and passes over what it cannot
// read.
func (f *folder) search(ctx context.Context, dir, query string) (string, error) {
	if query == "" {
		return "", errors.New("the query is empty")
	}
	if _, err := f.root.Stat(dir); err != nil {
		return "", err
	}
	var hits []string
	err := fs.WalkDir(f.root.FS(), path.Clean(dir), func(name string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return nil // not to be read
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		hits = append(hits, f.grep(name, query)...)
		if len(hits) >= maxHits {
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if len(hits) == 0 {
		return "(nothing found)\n", nil
	}
	return strings.Join(hits[:min(len(hits), maxHits)], ""), nil
}

func (f *folder) grep(name, query string) []string {
	file, err := f.open(name)
	if err != nil {
		return nil
	}
	defer file.Close()
	var hits []string
	lines := bufio.NewScanner(io.LimitReader(file, maxSearch))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if !utf8.ValidString(line) || strings.Contains(line, "\x00") {
			return nil // not a text file
		}
		if strings.Contains(strings.ToLower(line), strings.ToLower(query)) {
			hits = append(hits, fmt.Sprintf("%s:%d: %s\n", name, n, clip(strings.TrimSpace(line), maxLine)))
		}
	}
	return hits
}
