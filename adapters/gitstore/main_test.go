package gitstore_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(loadVariable); dir != "" {
		load(dir) // until it is killed
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
