//go:build !race

package agenttool_test

// rounds of a race.
const rounds = 10_000
