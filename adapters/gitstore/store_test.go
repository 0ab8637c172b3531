package gitstore_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
	"github.com/go-subagent/subagent/subagenttest"
)

func TestConformance(t *testing.T) {
	subagenttest.TestStore(t, func(t *testing.T) subagent.Store {
		dir := t.TempDir()
		s, err := gitstore.Open(dir, gitstore.Options{})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, s.Close())
			fsck(t, dir)
		})
		return s
	})
}

// fsck checks every repository below dir.
func fsck(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(dir, e.Name(), ".git")); err == nil {
			out, err := exec.Command("git", "-C", filepath.Join(dir, e.Name()), "fsck", "--strict", "--no-dangling").CombinedOutput()
			require.NoError(t, err, "%s", out)
			for line := range strings.Lines(string(out)) { // HEAD is the host's, who may not have committed yet
				require.True(t, strings.HasPrefix(line, "notice: "), line)
			}
		}
	}
}
