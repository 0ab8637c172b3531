//go:build !race

package subagent_test

const raceEnabled = false
