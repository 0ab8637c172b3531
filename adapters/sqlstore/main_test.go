package sqlstore_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
	"github.com/go-subagent/subagent/subagenttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, path string) *sqlstore.Store {
	t.Helper()
	s, err := sqlstore.OpenSQLite(path, sqlstore.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func fresh(t testing.TB) *sqlstore.Store { return open(t, filepath.Join(t.TempDir(), "tasks.db")) }

func TestStoreConforms(t *testing.T) {
	subagenttest.TestStore(t, func(t *testing.T) subagent.Store { return fresh(t) })
}

func TestSharedFileConforms(t *testing.T) {
	subagenttest.TestSharedStore(t, func(t *testing.T) (a, b subagent.Store) {
		path := filepath.Join(t.TempDir(), "tasks.db")
		return open(t, path), open(t, path)
	})
}
