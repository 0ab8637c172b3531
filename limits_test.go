package subagent

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// inBytes is a number of bytes as people write it.
func inBytes(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

// The README's table of limits says what the constants do, row by row.
func TestReadmeLimitsAreTrue(t *testing.T) {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "## Limits and defaults\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n## ")
	said := map[string]string{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(strings.TrimSpace(line), "|"); len(cells) == 4 {
			said[strings.TrimSpace(cells[1])] = strings.TrimSpace(cells[2])
		}
	}
	delete(said, "what")
	delete(said, "---")
	spaced := func(n int) string { return fmt.Sprintf("%d %03d", n/1000, n%1000) }
	want := map[string]string{
		"slots (`Workers`)":                                              fmt.Sprintf("`$%s`, else %d", workersVariable, defaultWorkers),
		"queue (`MaxQueued`)":                                            fmt.Sprintf("%d;", defaultMaxQueued),
		"layers of sub-agents (`MaxDepth`)":                              fmt.Sprintf("%d;", defaultMaxDepth),
		"run time, queue time":                                           "none",
		"time to obey a cancel (`CancelGrace`)":                          fmt.Sprintf("%.0f s", defaultCancelGrace.Seconds()),
		"time to finish at `Shutdown` (`ShutdownGrace`)":                 fmt.Sprintf("%.0f s", defaultShutdownGrace.Seconds()),
		"one call of the store, a sink or the notifier (`StoreTimeout`)": fmt.Sprintf("%.0f s", defaultStoreTimeout.Seconds()),
		"retries of writes, cards and notices":                           fmt.Sprintf("after %.1f s, doubling up to %.0f s", firstPause.Seconds(), longestPause.Seconds()),
		"prompt (`Description`)":                                         inBytes(maxDescription),
		"`Subject`":                                                      fmt.Sprintf("cut to %d runes; default: the first line of the prompt, at most %d", maxSubjectRunes, maxFirstLineRunes),
		"each id string of a request, and the `Reason` of a cancel":      inBytes(maxID),
		"`HeadID`, `SourceCommitID`, `StopReason` of a result":           "cut to " + inBytes(maxPreview),
		"`Metadata`":              fmt.Sprintf("%d keys, %s in all", maxMetadataKeys, inBytes(maxMetadata)),
		"result and partial text": "kept up to " + inBytes(maxText),
		"error text":              inBytes(maxError),
		"`ResultText` in lists and events; prompt and content of a card": inBytes(maxPreview),
		"progress and cancel messages":                                   inBytes(maxPreview),
		"unread tasks of a subscription":                                 fmt.Sprintf("%d,", maxUnread),
		"ended tasks in a `MemoryStore`":                                 spaced(defaultRetention),
		"lease of a Runner on a shared store":                            fmt.Sprintf("%.0f s, renewed every %.0f s", leaseTTL.Seconds(), leaseRenew.Seconds()),
		"a wait for another Runner's task":                               fmt.Sprintf("looks every %d ms", pollEvery.Milliseconds()),
		"lines that a slow `Logger` has yet to take":                     fmt.Sprintf("%d,", maxLines),
	}
	for what, limit := range want {
		require.Contains(t, said, what)
		require.True(t, strings.HasPrefix(said[what], limit), "%s: %q, and the constants say %q", what, said[what], limit)
		delete(said, what)
	}
	for what := range said { // package agenttool's own test has these
		if strings.Contains(what, "agenttool.") || strings.Contains(what, "_") {
			delete(said, what)
		}
	}
	require.Empty(t, said, "nothing shows that these are true")
}
