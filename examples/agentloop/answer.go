package main

import (
	"fmt"
	"strings"

	"github.com/go-subagent/subagent"
)

// answer is a message that is being put together.
type answer struct {
	text  strings.Builder
	calls []*callParts
	usage *wireUsage
}

// callParts is a tool call of it.
type callParts struct {
	id              string
	name, arguments strings.Builder
}

const maxCalls = 128 // in one message

func (a *answer) add(d delta, write func(string)) error {
	if d.Content != "" {
		a.text.WriteString(d.Content)
		write(d.Content)
	}
	for _, part := range d.ToolCalls {
		if part.Index < 0 || part.Index >= maxCalls {
			return fmt.Errorf("the answer has a tool call at index %d; 0 to %d are allowed", part.Index, maxCalls-1)
		}
		for len(a.calls) <= part.Index {
			a.calls = append(a.calls, new(callParts))
		}
		call := a.calls[part.Index]
		if part.ID != "" {
			call.id = part.ID
		}
		call.name.WriteString(part.Function.Name)
		call.arguments.WriteString(part.Function.Arguments)
	}
	return nil
}

func (a *answer) reply() reply {
	a.identify()
	var calls []toolCall
	for _, c := range a.calls {
		call := toolCall{c.id, "function", functionCall{c.name.String(), c.arguments.String()}}
		if strings.TrimSpace(call.Function.Arguments) == "" {
			call.Function.Arguments = "{}" // some models say nothing when there is nothing to say
		}
		calls = append(calls, call)
	}
	r := reply{
		message: chatMessage{Role: roleAssistant, Content: a.text.String(), ToolCalls: calls},
		usage:   subagent.Usage{Calls: 1}, // a server that does not say what it cost
	}
	if a.usage != nil {
		r.usage = a.usage.usage()
	}
	return r
}

// identify makes the ids of the calls unique. Some providers leave them out, or
// repeat one; but a result is found by its message and its call's id, and two
// calls with the same would be taken for one. The first keeps it.
func (a *answer) identify() {
	taken := map[string]bool{"": true}
	var without []int
	for i, call := range a.calls {
		if taken[call.id] {
			without = append(without, i)
		}
		taken[call.id] = true
	}
	for _, i := range without {
		id := fmt.Sprintf("call_%d", i)
		for n := 2; taken[id]; n++ {
			id = fmt.Sprintf("call_%d_%d", i, n)
		}
		a.calls[i].id, taken[id] = id, true
	}
}
