package sqlstore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
)

func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	work := func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
		return subagent.Result{Text: strings.ToUpper(run.Task().Description)}, nil
	}
	if err := useFile(context.Background(), filepath.Join(dir, "tasks.db"), work, nobody{}); err != nil {
		panic(err)
	}
	// Output: completed WHALES
}

func useFile(ctx context.Context, path string, work subagent.Func, notifier subagent.Notifier) error {
	store, err := sqlstore.OpenSQLite(path, sqlstore.Options{})
	if err != nil {
		return err
	}
	defer store.Close() // after the Runner's Shutdown
	runner, err := subagent.New(ctx, subagent.Config{Store: store, Func: work, Notifier: notifier})
	if err != nil {
		return err
	}
	defer runner.Shutdown(ctx)

	task, err := runner.Run(ctx, subagent.Request{ParentSessionID: "chat-1", Description: "whales"})
	fmt.Println(task.Status, task.ResultText)
	return err
}

// TestPageShowsTheExample: the Go blocks of the page are code that runs.
func TestPageShowsTheExample(t *testing.T) {
	page, err := os.ReadFile("../../docs/sqlstore.md")
	require.NoError(t, err)
	code, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		require.Contains(t, strings.ReplaceAll(string(code), "\n\t", "\n"), block[1])
	}
}
