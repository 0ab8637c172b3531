package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds each single thing that must come to pass.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if options, ok := os.LookupEnv(hostVariable); ok {
		if err := beHost(options); err != nil {
			fmt.Fprintln(os.Stderr, "host:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// seed is where all choices of the soak come from. The same seed makes the same
// choices; what they meet is decided by the machine.
func seed(t *testing.T) uint64 {
	s := os.Getenv("SUBAGENT_TEST_SEED")
	if s == "" {
		return rand.Uint64()
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal("SUBAGENT_TEST_SEED:", err)
	}
	return n
}

// soakTime is how long the soak lasts, all stores together.
func soakTime(t *testing.T) time.Duration {
	s := os.Getenv("SUBAGENT_SOAK_TIME")
	if s == "" {
		return 40 * time.Second
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal("SUBAGENT_SOAK_TIME:", err)
	}
	return d
}
