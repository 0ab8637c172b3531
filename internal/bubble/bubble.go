// Package bubble runs the tests of this module in synctest bubbles.
package bubble

import (
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
