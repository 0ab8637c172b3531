package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent/adapters/sqlstore"
)

// childVariable makes the test's program the command.
const childVariable = "SQLSTORE_EXAMPLE"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

func command(t *testing.T, args ...string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	return cmd
}

// TestKilledAndStartedAgain does what the command's comment says.
func TestKilledAndStartedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks.db")
	first := command(t, "-db", path, "-work", "1h", "-n", "3")
	out, err := first.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, first.Start())
	lines := bufio.NewScanner(out)
	owner, running := "", 0
	for running < 2 && lines.Scan() {
		words := strings.Fields(lines.Text())
		if words[0] == "runner" {
			owner = strings.TrimSuffix(words[1], ",")
		}
		if strings.Contains(lines.Text(), " running ") {
			running++
		}
	}
	require.Equal(t, 2, running, "both of its slots are taken")
	require.NoError(t, first.Process.Kill())
	_, _ = io.Copy(io.Discard, out)
	require.Error(t, first.Wait())

	// Half a minute later its lease would be over; whoever knows that it is
	// dead may say so.
	s, err := sqlstore.OpenSQLite(path, sqlstore.Options{})
	require.NoError(t, err)
	require.NoError(t, s.Release(context.Background(), owner))
	require.NoError(t, s.Close())

	again, err := command(t, "-db", path, "-work", "1ms", "-n", "1").Output()
	require.NoError(t, err)
	t.Logf("%s", again)
	require.Equal(t, 3, countLines(string(again), "from before", "errored lost worker died before completion"), "what became of each")
	require.Equal(t, 3, countLines(string(again), "notice", "errored lost"), "and a notice of each")
	require.Contains(t, string(again), "completed  worked for 1ms")
}

// countLines counts the lines that begin so and have text in them.
func countLines(out, prefix, text string) (n int) {
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, prefix) && strings.Contains(line, text) {
			n++
		}
	}
	return n
}
