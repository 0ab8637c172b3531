package agenttool

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"strings"
	"text/template"
)

//go:embed tools.tmpl
var toolTexts string

// toolTemplates has for each tool its description, under the tool's name, and
// its schema, under "name schema".
var toolTemplates = template.Must(template.New("tools").Parse(toolTexts))

// toolNames is the order in which the tools are offered; the last is for plans.
var toolNames = [...]string{"agent", "task_output", "task_stop", "list_tasks", "await_tasks"}

func define(agents []Agent, plan bool) (tools []Tool) {
	for _, name := range toolNames {
		if name == "await_tasks" && !plan {
			continue
		}
		tools = append(tools, Tool{
			Name:         name,
			Description:  strings.TrimSpace(string(render(name, definition{agents, plan, false}))),
			Schema:       schema(name, definition{agents, plan, false}),
			StrictSchema: schema(name, definition{agents, plan, true}),
		})
	}
	return tools
}

func schema(name string, d definition) json.RawMessage {
	var b bytes.Buffer
	if err := json.Compact(&b, render(name+" schema", d)); err != nil {
		panic(err) // the templates are ours
	}
	return b.Bytes()
}

func render(name string, d definition) []byte {
	var b bytes.Buffer
	if err := toolTemplates.ExecuteTemplate(&b, name, d); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// definition is what the templates know. Its methods write JSON, each for
// either kind of schema.
type definition struct {
	Agents []Agent
	Plan   bool
	Strict bool
}

// Type is the type of an optional key.
func (d definition) Type(name string) string {
	if d.Strict {
		return toJSON([]string{name, "null"})
	}
	return toJSON(name)
}

// Enum is the values of an optional key.
func (d definition) Enum(values ...string) string {
	all := make([]any, 0, len(values)+1)
	for _, v := range values {
		all = append(all, v)
	}
	if d.Strict {
		all = append(all, nil)
	}
	return toJSON(all)
}

// Profiles is the enum of agent_id.
func (d definition) Profiles() string { return d.Enum(agentIDs(d.Agents)...) }

// ProfileText is the description of agent_id.
func (d definition) ProfileText() string {
	s := "The profile of the sub-agent. Optional."
	for _, a := range d.Agents {
		s += "\n- " + a.ID
		if a.Description != "" {
			s += ": " + a.Description
		}
	}
	return toJSON(s)
}

// Range is a key's own limits, beside its description. Strict modes refuse
// such keywords.
func (d definition) Range(keywords string) string {
	if d.Strict {
		return ""
	}
	return ", " + keywords
}

// Required closes an object: with the keys that must be given, and for strict
// modes the optional ones too.
func (d definition) Required(keys, optional string) string {
	names := strings.Fields(keys)
	if !d.Strict {
		if len(names) == 0 {
			return ""
		}
		return `, "required": ` + toJSON(names)
	}
	return `, "required": ` + toJSON(append(names, strings.Fields(optional)...)) + `, "additionalProperties": false`
}

// toJSON is v for a template. It leaves <, > and & readable.
func toJSON(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return b.String()
}
