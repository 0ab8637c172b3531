package main

import (
	"fmt"
	"strings"

	"github.com/go-subagent/subagent"
)

// answer is a message that is being put together.
type answer struct {
	text  strings.Builder
	calls []toolCall
	usage *wireUsage
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
			a.calls = append(a.calls, toolCall{Type: "function"})
		}
		call := &a.calls[part.Index]
		if part.ID != "" {
			call.ID = part.ID
		}
		call.Function.Name += part.Function.Name
		call.Function.Arguments += part.Function.Arguments
	}
	return nil
}

func (a *answer) reply() reply {
	a.identify()
	for i := range a.calls {
		if f := &a.calls[i].Function; strings.TrimSpace(f.Arguments) == "" {
			f.Arguments = "{}" // some models say nothing when there is nothing to say
		}
	}
	r := reply{
		message: chatMessage{Role: roleAssistant, Content: a.text.String(), ToolCalls: a.calls},
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
		if taken[call.ID] {
			without = append(without, i)
		}
		taken[call.ID] = true
	}
	for _, i := range without {
		id := fmt.Sprintf("call_%d", i)
		for n := 2; taken[id]; n++ {
			id = fmt.Sprintf("call_%d_%d", i, n)
		}
		a.calls[i].ID, taken[id] = id, true
	}
}
