package schematest_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

var profiles = []agenttool.Agent{{ID: "reviewer", Description: "reads \"code\""}, {ID: "<writer>\n"}}

func forTools(t *testing.T, f func(t *testing.T, tool agenttool.Tool)) {
	for _, agents := range [][]agenttool.Agent{nil, profiles} {
		for _, tool := range newTools(t, subagent.Config{}, agenttool.Options{Agents: agents}).Tools() {
			t.Run(fmt.Sprintf("%s of %d profiles", tool.Name, len(agents)), func(t *testing.T) { f(t, tool) })
		}
	}
}

// The keywords that OpenAI's strict mode takes are more; these are known to
// all strict modes. https://developers.openai.com/api/docs/guides/structured-outputs
var strictKeywords = []string{"type", "properties", "required", "additionalProperties", "description", "enum", "items"}

// checkStrict reports where a schema breaks the rules of strict modes: each
// object closed, each of its keys required, and no other keywords.
func checkStrict(at string, schema map[string]any) (wrong []string) {
	for keyword := range schema {
		if !slices.Contains(strictKeywords, keyword) {
			wrong = append(wrong, fmt.Sprintf("%s: keyword %s", at, keyword))
		}
	}
	if _, ok := schema["type"]; !ok {
		wrong = append(wrong, at+": no type")
	}
	if properties, ok := schema["properties"].(map[string]any); ok {
		if schema["additionalProperties"] != false {
			wrong = append(wrong, at+": additionalProperties is not false")
		}
		required, _ := schema["required"].([]any)
		if len(required) != len(properties) {
			wrong = append(wrong, fmt.Sprintf("%s: %d keys, %d of them required", at, len(properties), len(required)))
		}
		for key, sub := range properties {
			if !slices.Contains(required, any(key)) {
				wrong = append(wrong, fmt.Sprintf("%s.%s is not required", at, key))
			}
			wrong = append(wrong, checkStrict(at+"."+key, sub.(map[string]any))...)
		}
	}
	if items, ok := schema["items"].(map[string]any); ok {
		wrong = append(wrong, checkStrict(at+"[]", items)...)
	}
	return wrong
}

func TestStrictSchemasObeyTheRulesOfStrictModes(t *testing.T) {
	forTools(t, func(t *testing.T, tool agenttool.Tool) {
		resolve(t, tool.StrictSchema)
		var strict, plain map[string]any
		must(t, json.Unmarshal(tool.StrictSchema, &strict))
		must(t, json.Unmarshal(tool.Schema, &plain))
		for _, wrong := range checkStrict(tool.Name, strict) {
			t.Error(wrong)
		}
		if strict["type"] != "object" {
			t.Errorf("the root is of type %v", strict["type"])
		}
		required, _ := plain["required"].([]any)
		for key, sub := range strict["properties"].(map[string]any) {
			_, nullable := sub.(map[string]any)["type"].([]any)
			if optional := !slices.Contains(required, any(key)); optional != nullable {
				t.Errorf("%s: optional %v, nullable %v", key, optional, nullable)
			}
		}
		if len(checkStrict(tool.Name, plain)) == 0 {
			t.Error("the check finds nothing in a schema that is not strict")
		}
	})
}

// arguments are some that a tool takes, and some that it refuses, for each
// tool. Those of a task go to one that has ended.
func arguments(id string) map[string]struct{ good, bad []string } {
	quoted := `"` + id + `"`
	return map[string]struct{ good, bad []string }{
		"agent": {
			good: []string{`{"prompt":"p","description":"d"}`, `{"prompt":"p","description":"d","context":"inherit","run_in_background":true}`},
			bad:  []string{`{}`, `{"prompt":"p"}`, `{"prompt":5,"description":"d"}`, `{"prompt":"p","description":"d","context":"x"}`, `{"prompt":"p","description":"d","run_in_background":"yes"}`, `{"prompt":"p","description":"d","agent_id":7}`, `[]`, `null`},
		},
		"task_output": {
			good: []string{`{"task_id":` + quoted + `}`, `{"task_id":` + quoted + `,"block":false,"timeout":0}`, `{"task_id":` + quoted + `,"timeout":600000}`},
			bad:  []string{`{}`, `{"task_id":5}`, `{"task_id":` + quoted + `,"block":1}`, `{"task_id":` + quoted + `,"timeout":-1}`, `{"task_id":` + quoted + `,"timeout":1.5}`, `{"task_id":` + quoted + `,"timeout":"1"}`},
		},
		"task_stop": {
			good: []string{`{"task_id":` + quoted + `}`, `{"task_id":` + quoted + `,"reason":"r"}`},
			bad:  []string{`{}`, `{"task_id":[]}`, `{"task_id":` + quoted + `,"reason":{}}`},
		},
		"list_tasks": {
			good: []string{`{}`, `{"status":"all"}`, `{"status":"running","limit":1}`, `{"limit":200}`, `{"limit":2.0}`},
			bad:  []string{`{"status":"x"}`, `{"limit":0}`, `{"limit":201}`, `{"limit":1.5}`, `{"limit":"5"}`},
		},
		"await_tasks": {
			good: []string{`{"task_ids":[` + quoted + `]}`, `{"task_ids":[` + quoted + `,` + quoted + `],"mode":"any","timeout":0}`},
			bad:  []string{`{}`, `{"task_ids":[]}`, `{"task_ids":[5]}`, `{"task_ids":` + quoted + `}`, `{"task_ids":[` + quoted + `],"mode":"some"}`, `{"task_ids":[` + strings.Repeat(quoted+",", 100) + quoted + `]}`},
		},
	}
}

// What a schema allows is what the tool takes, and the other way round; strict
// arguments are the plain ones with null for what was left out.
func TestSchemasAllowWhatTheToolsTake(t *testing.T) {
	tools := newTools(t, subagent.Config{Func: quick}, agenttool.Options{})
	call := func(name, raw string) agenttool.Answer {
		return tools.Call(t.Context(), agenttool.Call{Name: name, Arguments: json.RawMessage(raw), SessionID: "s"})
	}
	id := call("agent", `{"prompt":"p","description":"d"}`).TaskID.String()
	for _, tool := range tools.Tools() {
		plain, strict := resolve(t, tool.Schema), resolve(t, tool.StrictSchema)
		cases := arguments(id)[tool.Name]
		for _, raw := range cases.good {
			if err := validate(t, plain, []byte(raw)); err != nil {
				t.Errorf("%s %s: %v", tool.Name, raw, err)
			}
			full := filled(t, tool, raw)
			if err := validate(t, strict, full); err != nil {
				t.Errorf("%s %s: %v", tool.Name, full, err)
			}
			for _, a := range []agenttool.Answer{call(tool.Name, raw), call(tool.Name, string(full))} {
				if a.IsError {
					t.Errorf("%s %s: %s", tool.Name, raw, a.Text)
				}
			}
		}
		for _, raw := range cases.bad {
			if validate(t, plain, []byte(raw)) == nil {
				t.Errorf("%s: the schema allows %s", tool.Name, raw)
			}
			if a := call(tool.Name, raw); !a.IsError {
				t.Errorf("%s takes %s: %s", tool.Name, raw, a.Text)
			}
		}
		if validate(t, strict, []byte(strings.Replace(string(filled(t, tool, cases.good[0])), "{", `{"extra":1,`, 1))) == nil {
			t.Errorf("%s: the strict schema allows extra keys", tool.Name)
		}
	}
}

// filled is raw with null for each key that it leaves out.
func filled(t *testing.T, tool agenttool.Tool, raw string) []byte {
	t.Helper()
	var s jsonschema.Schema
	must(t, json.Unmarshal(tool.StrictSchema, &s))
	all := make(map[string]any)
	for key := range s.Properties {
		all[key] = nil
	}
	must(t, json.Unmarshal([]byte(raw), &all))
	full, err := json.Marshal(all)
	must(t, err)
	return full
}
