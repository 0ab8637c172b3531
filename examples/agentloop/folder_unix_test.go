//go:build unix

package main

import (
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
