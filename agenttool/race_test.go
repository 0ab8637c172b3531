//go:build race

package agenttool_test

import "testing"

// rounds of a race: the detector makes each of them many times as long.
const rounds = 2_000

// skipWhereTheDetectorCrashes skips a test in which many ctx timers of a
// synctest bubble fire: the race detector of go1.26.8 may die of it.
func skipWhereTheDetectorCrashes(t *testing.T) {
	t.Helper()
	t.Skip("the race detector itself may crash here; run without -race")
}
