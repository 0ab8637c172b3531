//go:build unix

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A pipe that nobody writes to would hold its reader for ever.
func TestPipesAreNotOpened(t *testing.T) {
	f, dir := shelf(t, map[string]string{"a.txt": "whale"})
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	assert.Contains(t, f.use(t, "read_file", args{"path": "pipe"}), "is not a regular file")
	assert.Equal(t, "a.txt:1: whale\n", f.use(t, "search_files", args{"query": "whale"}))
}

func TestAHistoryReplacesRegularFilesAlone(t *testing.T) {
	file := saved(t)
	change(t, file, unattribute) // so that a replay has something to save
	before := read1(t, file)
	dir := t.TempDir()
	link, dangling, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "dangling"), filepath.Join(dir, "pipe")
	require.NoError(t, os.Symlink(file, link))
	require.NoError(t, os.Symlink("nowhere", dangling))
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, args := range [][]string{
		{"-save", link, "Who?", library}, {"-save", dangling, "Who?", library}, {"-save", pipe, "Who?", library},
		{"-save", dir, "Who?", library}, {"-replay", link},
	} {
		code, _, stderr := call(t, nil, args...)
		assert.Equal(t, exitUsage, code, args)
		assert.Contains(t, stderr, args[1]+" is not a regular file, and symbolic links are not followed")
		assert.Equal(t, before, read1(t, file))
	}
	for name, kind := range map[string]os.FileMode{link: os.ModeSymlink, dangling: os.ModeSymlink, pipe: os.ModeNamedPipe} {
		info, err := os.Lstat(name)
		require.NoError(t, err)
		assert.Equal(t, kind, info.Mode().Type())
	}
}
