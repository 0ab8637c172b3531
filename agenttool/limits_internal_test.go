package agenttool

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// The README's table of limits says what the constants do.
func TestReadmeLimitsAreTrue(t *testing.T) {
	page, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	for _, row := range []string{
		fmt.Sprintf("| text of one tool answer (`agenttool.Options.MaxText`) | %d %03d bytes", defaultMaxText/1000, defaultMaxText%1000),
		fmt.Sprintf("| tasks in one `list_tasks`, `await_tasks` | %d, at most %d; at most %d |", defaultListed, maxListed, maxAwaited),
		fmt.Sprintf("| wait of `task_output` and `await_tasks` | %.0f s; at most %.0f s,", defaultWait.Seconds(), longestWait.Seconds()),
	} {
		require.Contains(t, string(page), row)
	}
}
