package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(hostVariable); dir != "" { // the host that the test kills
		if err := host(context.Background(), dir, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestExample(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(tempDir(t), &out))
	t.Log(out.String())
	before, after, ok := strings.Cut(out.String(), "== killed with SIGKILL")
	require.True(t, ok)
	require.Contains(t, before, "card: quick 2, completed: done: quick 2")
	require.Contains(t, before, "card: slow 5, queued: (queued)")
	require.NotContains(t, before, "notice:", "nothing in the background has ended")
	after, history, ok := strings.Cut(after, "== git log tasks --")
	require.True(t, ok)
	for _, prompt := range []string{"quick 1", "quick 2"} {
		require.Contains(t, after, "found: "+prompt+" is completed: done: "+prompt+"\n")
	}
	for _, prompt := range []string{"slow 3", "slow 4", "slow 5"} {
		require.Contains(t, after, "card: "+prompt+", errored: Error: worker died before completion\n")
		require.Contains(t, after, "found: "+prompt+" is errored: worker died before completion\n")
		require.Equal(t, 1, strings.Count(after, "notice: "+prompt+": "), after)
	}
	require.NotContains(t, after, "card: quick")
	require.Contains(t, history, " running→errored\n")
	require.Contains(t, history, " queued→errored\n")
}

// tempDir is one that is removed when the git of the killed host has ended.
func tempDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "gitstore-example")
	require.NoError(t, err)
	t.Cleanup(func() {
		again := time.NewTicker(10 * time.Millisecond)
		defer again.Stop()
		late := time.After(30 * time.Second)
		for err := os.RemoveAll(dir); err != nil; err = os.RemoveAll(dir) {
			select {
			case <-again.C:
			case <-late:
				t.Fatal(err)
			}
		}
	})
	return dir
}
