//go:build race

package agenttool_test

// rounds of a race: the detector makes each of them many times as long.
const rounds = 2_000
