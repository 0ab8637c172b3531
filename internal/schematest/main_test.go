package schematest_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// resolve makes a schema ready to validate; it is checked itself with that.
func resolve(t *testing.T, data []byte) *jsonschema.Resolved {
	t.Helper()
	var s jsonschema.Schema
	must(t, json.Unmarshal(data, &s))
	r, err := s.Resolve(nil)
	must(t, err)
	return r
}

func schemaFile(t *testing.T, name string) *jsonschema.Resolved {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	must(t, err)
	return resolve(t, data)
}

// validate returns what r says of a JSON text.
func validate(t *testing.T, r *jsonschema.Resolved, data []byte) error {
	t.Helper()
	var v any
	must(t, json.Unmarshal(data, &v))
	return r.Validate(v)
}

// newTools makes the tools of a Runner that is shut down with the test.
func newTools(t *testing.T, cfg subagent.Config, o agenttool.Options) *agenttool.Toolset {
	t.Helper()
	r, err := subagent.New(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() { must(t, r.Shutdown(context.Background())) })
	o.PlanTools = true
	return agenttool.New(r, o)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
