package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// built is the program's folder, empty until a test needs it.
var built string

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "quickstart")
	if err != nil {
		return "", err
	}
	built = dir
	// Everybody may run it: a test does so as another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "quickstart"), ".").CombinedOutput()
	return string(out), err
})

// program returns the path of the built program.
func program(t *testing.T) string {
	t.Helper()
	out, err := build()
	require.NoError(t, err, out)
	return filepath.Join(built, "quickstart")
}

func removeProgram() { _ = os.RemoveAll(built) }
