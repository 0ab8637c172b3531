// Package bubble runs the tests of this module in synctest bubbles, and says how
// much of a long one is to be done.
package bubble

import (
	"os"
	"runtime"
	"testing"
	"testing/synctest"
)

// Test is [synctest.Test], on one processor where the race detector is built
// in: with two, one goroutine may receive from a timer's channel while another
// runs the bubble's timers, and go1.26 lets both use one of the detector's
// threads, which dies of it (https://go.dev/issue/78156). What the detector
// finds does not depend on how many processors there are.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if Race {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	synctest.Test(t, f)
}

// Often is how many rounds a test makes: as many as its fault was met with, if
// SUBAGENT_TEST_WHOLE is set, else few enough to be fast.
func Often(whole, few int) int {
	if os.Getenv("SUBAGENT_TEST_WHOLE") != "" {
		return whole
	}
	return few
}
