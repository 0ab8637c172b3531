package sqlstore_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
	"github.com/go-subagent/subagent/subagenttest"
)

// childVariable makes the test's program play a part in another test.
const childVariable = "SQLSTORE_CHILD"

var children = map[string]func(args []string) error{
	"write": writeUntilKilled,
	"run":   runUntilTold,
	"open":  openOnce,
}

func TestMain(m *testing.M) {
	if part := children[os.Getenv(childVariable)]; part != nil {
		if err := part(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child is a process that plays a part; it is started by the caller.
func child(t *testing.T, part string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), childVariable+"="+part)
	cmd.Stderr = os.Stderr
	return cmd
}

func open(t testing.TB, path string) *sqlstore.Store {
	t.Helper()
	s, err := sqlstore.OpenSQLite(path, sqlstore.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func file(t testing.TB) string { return filepath.Join(t.TempDir(), "tasks.db") }

func fresh(t testing.TB) *sqlstore.Store { return open(t, file(t)) }

// patience bounds what must not hang.
const patience = time.Minute

// seeded is a source of chance that SUBAGENT_TEST_SEED repeats.
func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	if s := os.Getenv("SUBAGENT_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SUBAGENT_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

func TestStoreConforms(t *testing.T) {
	subagenttest.TestStore(t, func(t *testing.T) subagent.Store { return fresh(t) })
}

func TestSharedFileConforms(t *testing.T) {
	subagenttest.TestSharedStore(t, func(t *testing.T) (a, b subagent.Store) {
		path := file(t)
		return open(t, path), open(t, path)
	})
}
