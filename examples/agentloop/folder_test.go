package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// shelf is a directory of files, beside one that holds a secret.
func shelf(t *testing.T, files map[string]string) (f *folder, dir string) {
	t.Helper()
	top := t.TempDir()
	dir = filepath.Join(top, "shelf")
	files["../outside/secret.txt"] = "the secret"
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	f, err := openFolder(dir)
	require.NoError(t, err)
	t.Cleanup(f.close)
	return f, dir
}

func (f *folder) use(t *testing.T, tool string, arguments args) string {
	t.Helper()
	data, err := json.Marshal(arguments)
	require.NoError(t, err)
	text, ok := f.call(t.Context(), functionCall{tool, string(data)})
	require.True(t, ok)
	return text
}

func TestFolderTools(t *testing.T) {
	f, _ := shelf(t, map[string]string{
		"a.txt": "one Whale\nnone\nwhales\n", "b/c.txt": "a whale", ".hidden/d.txt": "whale",
		"bin": "whale\x00", "latin": "whale \xe9\n", "long.txt": strings.Repeat("é", maxRead),
	})
	assert.Equal(t, ".hidden/\na.txt\nb/\nbin\nlatin\nlong.txt\n", f.use(t, "list_files", args{}))
	assert.Equal(t, "c.txt\n", f.use(t, "list_files", args{"path": "./b/"}))
	assert.Equal(t, "a whale", f.use(t, "read_file", args{"path": "b/../b/c.txt"}))
	assert.Equal(t, "whale \uFFFD\n", f.use(t, "read_file", args{"path": "latin"}))
	assert.Equal(t, `[tool error] read_file "bin": is not a text file`, f.use(t, "read_file", args{"path": "bin"}))
	long := f.use(t, "read_file", args{"path": "long.txt"})
	assert.True(t, strings.HasSuffix(long, "é\n(cut after 32768 bytes)\n"))
	assert.Equal(t, "a.txt:1: one Whale\na.txt:3: whales\nb/c.txt:1: a whale\n", f.use(t, "search_files", args{"query": "whale"}))
	assert.Equal(t, "b/c.txt:1: a whale\n", f.use(t, "search_files", args{"query": "WHALE", "path": "b"}))
	assert.Equal(t, "a.txt:1: one Whale\na.txt:3: whales\n", f.use(t, "search_files", args{"query": "whale", "path": "a.txt"}))
	assert.Equal(t, "(nothing found)\n", f.use(t, "search_files", args{"query": "unicorn"}))

	assert.Contains(t, f.use(t, "search_files", args{"query": ""}), "the query is empty")
	assert.Contains(t, f.use(t, "read_file", args{"path": "b"}), "is a directory; list_files reads it")
	assert.Contains(t, f.use(t, "read_file", args{"path": "nowhere"}), "no such file")
	assert.Contains(t, f.use(t, "search_files", args{"query": "x", "path": "nowhere"}), "no such file")
	assert.Contains(t, f.use(t, "list_files", args{"path": "nowhere"}), "no such file")
	_, ok := f.call(t.Context(), functionCall{"agent", "{}"})
	assert.False(t, ok)
}

func TestFolderToolsAreBounded(t *testing.T) {
	files := map[string]string{"many.txt": strings.Repeat("x\n", 10*maxHits), "wide.txt": strings.Repeat("y", 1000)}
	for i := range maxListed {
		files["d/"+strings.Repeat("n", i+1)] = ""
	}
	files["d/last"] = ""
	f, _ := shelf(t, files)
	assert.Equal(t, maxHits, strings.Count(f.use(t, "search_files", args{"query": "x"}), "\n"))
	assert.Contains(t, f.use(t, "search_files", args{"query": "y"}), strings.Repeat("y", maxLine-1)+"…\n")
	assert.True(t, strings.HasSuffix(f.use(t, "list_files", args{"path": "d"}), "(1 more)\n"))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	text, _ := f.call(ctx, functionCall{"search_files", `{"query": "x"}`})
	assert.Contains(t, text, "context canceled")
}

func TestNothingLeadsOutOfTheFolder(t *testing.T) {
	f, dir := shelf(t, map[string]string{"in.txt": "inside"})
	for link, to := range map[string]string{
		"file": "../outside/secret.txt", "dir": "../outside", "absolute": filepath.Join(filepath.Dir(dir), "outside"), "good": "in.txt",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Skip("this system lets nobody make links: ", err)
		}
	}
	for _, path := range []string{
		"..", "../outside", "../outside/secret.txt", "in.txt/../../outside/secret.txt", "x/../../outside",
		"/", "/etc/passwd", dir, filepath.Join(filepath.Dir(dir), "outside", "secret.txt"),
		"file", "dir", "dir/secret.txt", "absolute", "absolute/secret.txt", "dir/../../outside/secret.txt", "\x00", "",
	} {
		for _, tool := range []string{"list_files", "read_file", "search_files"} {
			if path == "" && tool != "read_file" {
				continue // the directory itself
			}
			arguments := args{"path": path}
			if tool == "search_files" {
				arguments["query"] = "e"
			}
			text := f.use(t, tool, arguments)
			assert.True(t, strings.HasPrefix(text, "[tool error] "+tool), "%s %q: %s", tool, path, text)
			assert.NotContains(t, text, "secret\n")
			assert.NotContains(t, text, "the secret")
		}
	}
	assert.Contains(t, f.use(t, "read_file", args{"path": "../outside/secret.txt"}), errOutside.Error())
	assert.Contains(t, f.use(t, "read_file", args{"path": "file"}), errOutside.Error())
	assert.Contains(t, f.use(t, "list_files", args{"path": "dir"}), errOutside.Error())
	assert.Contains(t, f.use(t, "list_files", args{"path": ".."}), errOutside.Error())
	assert.Equal(t, "inside", f.use(t, "read_file", args{"path": "good"}))
	assert.NotContains(t, f.use(t, "search_files", args{"query": "secret"}), "secret.txt:")
}
