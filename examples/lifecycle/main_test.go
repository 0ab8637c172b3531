package main

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent/internal/bubble"
)

var update = flag.Bool("update", false, "rewrite testdata/tour.txt")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTour(t *testing.T) {
	var out bytes.Buffer
	bubble.Test(t, func(t *testing.T) { require.NoError(t, tour(&out)) })
	if *update {
		require.NoError(t, os.WriteFile("testdata/tour.txt", out.Bytes(), 0o644))
	}
	want, err := os.ReadFile("testdata/tour.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), out.String())
}
