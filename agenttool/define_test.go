package agenttool_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

var profiles = []agenttool.Agent{
	{ID: "reviewer", Description: `reads code & says "no"`},
	{ID: "<writer>\n", Description: "writes\nprose"},
	{ID: "plain"},
}

func toolsOf(t *testing.T, o agenttool.Options) []agenttool.Tool {
	t.Helper()
	r, err := subagent.New(t.Context(), subagent.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Shutdown(t.Context())) })
	return agenttool.New(r, o).Tools()
}

func names(tools []agenttool.Tool) (names []string) {
	for _, tool := range tools {
		names = append(names, tool.Name)
	}
	return names
}

func TestDefinitions(t *testing.T) {
	var out bytes.Buffer
	for _, o := range []agenttool.Options{{}, {PlanTools: true, Agents: profiles}} {
		fmt.Fprintf(&out, "##### plan: %v, profiles: %d\n\n", o.PlanTools, len(o.Agents))
		for _, tool := range toolsOf(t, o) {
			fmt.Fprintf(&out, "=== %s\n%s\n--- schema\n", tool.Name, tool.Description)
			require.NoError(t, json.Indent(&out, tool.Schema, "", "  "))
			out.WriteString("\n--- strict schema\n")
			require.NoError(t, json.Indent(&out, tool.StrictSchema, "", "  "))
			out.WriteString("\n\n")
		}
	}
	golden(t, "definitions.txt", out.String())
}

func TestAwaitTasksIsForPlansOnly(t *testing.T) {
	four := []string{"agent", "task_output", "task_stop", "list_tasks"}
	require.Equal(t, four, names(toolsOf(t, agenttool.Options{})))
	require.Equal(t, append(four, "await_tasks"), names(toolsOf(t, agenttool.Options{PlanTools: true})))
	require.NotContains(t, toolsOf(t, agenttool.Options{})[0].Description, "await_tasks")
	require.Contains(t, toolsOf(t, agenttool.Options{PlanTools: true})[0].Description, "await_tasks")

	r, err := subagent.New(t.Context(), subagent.Config{})
	require.NoError(t, err)
	defer r.Shutdown(t.Context())
	a := agenttool.New(r, agenttool.Options{}).Call(t.Context(), agenttool.Call{Name: "await_tasks", Arguments: json.RawMessage(`{"task_ids":["x"]}`), SessionID: session})
	refused(t, a, `no tool "await_tasks"`, strings.Join(four, ", ")+".")
}

// schemaOf is what the rules below are about.
type schemaOf struct {
	Type       any                 `json:"type"`
	Properties map[string]schemaOf `json:"properties"`
	Required   []string            `json:"required"`
	Additional *bool               `json:"additionalProperties"`
	Items      *schemaOf           `json:"items"`
	Enum       []any               `json:"enum"`
}

func parseSchema(t *testing.T, data json.RawMessage) (s schemaOf) {
	t.Helper()
	require.NoError(t, json.Unmarshal(data, &s))
	return s
}

// The strict schema says the same as the plain one, but for what strict modes
// want otherwise.
func TestStrictSchemaIsThePlainOneMadeStrict(t *testing.T) {
	for _, tool := range toolsOf(t, agenttool.Options{PlanTools: true, Agents: profiles}) {
		plain, strict := parseSchema(t, tool.Schema), parseSchema(t, tool.StrictSchema)
		require.Nil(t, plain.Additional, tool.Name)
		require.False(t, *strict.Additional, tool.Name)
		require.Len(t, strict.Properties, len(plain.Properties))
		for key, p := range plain.Properties {
			s := strict.Properties[key]
			require.Contains(t, strict.Required, key)
			require.NotEmpty(t, p.Type, "%s.%s", tool.Name, key)
			if slices.Contains(plain.Required, key) {
				require.Equal(t, p.Type, s.Type)
				require.Equal(t, p.Enum, s.Enum)
				continue
			}
			require.Equal(t, []any{p.Type, "null"}, s.Type, "%s.%s", tool.Name, key)
			if p.Enum != nil {
				require.Equal(t, append(slices.Clone(p.Enum), nil), s.Enum)
			}
		}
	}
}

func TestProfilesAreTheEnumOfAgentID(t *testing.T) {
	agentID := func(o agenttool.Options) schemaOf {
		return parseSchema(t, toolsOf(t, o)[0].Schema).Properties["agent_id"]
	}
	require.Nil(t, agentID(agenttool.Options{}).Enum, "free text")
	require.Equal(t, []any{"reviewer", "<writer>\n", "plain"}, agentID(agenttool.Options{Agents: profiles}).Enum)
	require.Contains(t, string(toolsOf(t, agenttool.Options{Agents: profiles})[0].Schema), `reads code & says \"no\"`, "readable for a model")
}

func TestNothingOfAToolsetIsShared(t *testing.T) {
	r, err := subagent.New(t.Context(), subagent.Config{})
	require.NoError(t, err)
	defer r.Shutdown(t.Context())
	agents := slices.Clone(profiles)
	s := agenttool.New(r, agenttool.Options{Agents: agents})
	agents[0].ID = "changed"
	first := s.Tools()
	want := string(first[0].Schema)
	clear(first[0].Schema)
	clear(first[0].StrictSchema)
	first[1] = agenttool.Tool{}
	require.Equal(t, want, string(s.Tools()[0].Schema))
	require.Equal(t, "task_output", s.Tools()[1].Name)
	a := s.Call(t.Context(), agenttool.Call{Name: "agent", Arguments: json.RawMessage(`{"prompt":"p","description":"d","agent_id":"changed"}`), SessionID: session})
	refused(t, a, `"changed"`, "reviewer")
}

func TestNewPanicsOnOptionsThatNoModelCouldWorkWith(t *testing.T) {
	r, err := subagent.New(t.Context(), subagent.Config{})
	require.NoError(t, err)
	defer r.Shutdown(t.Context())
	require.PanicsWithValue(t, "agenttool: nil Runner", func() { agenttool.New(nil, agenttool.Options{}) })
	for _, o := range []agenttool.Options{
		{MaxText: -1},
		{Agents: []agenttool.Agent{{ID: ""}}},
		{Agents: []agenttool.Agent{{ID: "a"}, {ID: "a"}}},
		{Agents: []agenttool.Agent{{ID: strings.Repeat("a", 257)}}},
		{Agents: []agenttool.Agent{{ID: "a\xff"}}},
		{Agents: []agenttool.Agent{{ID: "a\x00"}}},
	} {
		require.Panics(t, func() { agenttool.New(r, o) }, "%+v", o)
	}
	agenttool.New(r, agenttool.Options{Agents: []agenttool.Agent{{ID: strings.Repeat("a", 256)}}})
}
