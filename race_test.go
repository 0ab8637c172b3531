//go:build race

package subagent_test

const raceEnabled = true
