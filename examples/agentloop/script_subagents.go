package main

import (
	"fmt"
	"regexp"
	"strings"
)

// The sub-agents of the scripted model.

func (c conversation) surveyor() speech {
	if c.turn == 0 {
		return say("Let me look.").call("list_files", args{"path": "."})
	}
	if strings.TrimSpace(c.last()) == emptyFolder {
		return say("It is empty.")
	}
	names := strings.Fields(c.last())
	return say(fmt.Sprintf("It has %s: %s.", plural(len(names), "name"), strings.Join(names, ", ")))
}

// quoted is what stands in quotation marks in the prompt.
func (c conversation) quoted() string {
	_, rest, _ := strings.Cut(c.prompt, `"`)
	text, _, _ := strings.Cut(rest, `"`)
	return text
}

var hit = regexp.MustCompile(`(?m)^(.+?):\d+: `)

func (c conversation) searcher() speech {
	topic := c.quoted()
	switch c.turn {
	case 0:
		return say("Let me search.").call("search_files", args{"query": topic})
	case 1:
		first := hit.FindStringSubmatch(c.last())
		if first == nil {
			return say(fmt.Sprintf("%q is not mentioned.", topic))
		}
		return say("A reader shall look at the first file.").
			call("agent", args{"agent_id": "reader", "description": "Read " + first[1], "prompt": fmt.Sprintf("Say what is in %q.", first[1])})
	}
	hits := hit.FindAllStringSubmatch(c.results[0].text, -1)
	text, _, _ := strings.Cut(c.last(), "\n\ntask_id=")
	return say(fmt.Sprintf("%q is mentioned in %s, first in %s. %s", topic, plural(len(hits), "line"), hits[0][1], text))
}

func (c conversation) reader() speech {
	name := c.quoted()
	switch {
	case c.turn == 0 && name == "":
		return say("All of it, then; from the top.").call("list_files", args{"path": "."})
	case c.turn == 0:
		return say("Let me read.").call("read_file", args{"path": name})
	case name == "":
		return speech{lost: true} // there is always more to read
	}
	text := strings.TrimSpace(c.last())
	title, _, _ := strings.Cut(text, "\n")
	return say(fmt.Sprintf("%s has %s and begins: %s", name, plural(len(strings.Fields(text)), "word"), strings.Trim(title, "# ")))
}

func (c conversation) critic() speech {
	looked, stopped := 0, 0
	for _, m := range c.before {
		if m.Role == roleTool {
			looked++
		}
		if strings.Contains(m.Content, "[cancelled]") {
			stopped++
		}
	}
	if looked == 0 {
		return say("I was told nothing of a conversation.")
	}
	return say(fmt.Sprintf("The answer rests on %s; %s was stopped, so not all was read.", plural(looked, "tool result"), plural(stopped, "sub-agent")))
}

// cost counts words for tokens. What the model has read in the turn before
// counts as cached, and two words of thinking go before each answer. Of a tool
// result only the first words count: the rest may tell of states that differ
// from run to run, and the cost must not.
func cost(req chatRequest, says speech) wireUsage {
	const thinking, heard = 2, 6
	var u wireUsage
	for _, m := range req.Messages {
		if m.Role == roleAssistant {
			u.PromptTokensDetails.CachedTokens = u.PromptTokens
		}
		n := words(m.Content, m.ToolCalls)
		if m.Role == roleTool {
			n = min(n, heard)
		}
		u.PromptTokens += n
	}
	u.CompletionTokens = thinking + words(says.text, says.calls)
	u.CompletionTokensDetails.ReasoningTokens = thinking
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

func words(text string, calls []toolCall) int64 {
	n := len(strings.Fields(text))
	for _, c := range calls {
		n += 1 + len(strings.Fields(c.Function.Arguments))
	}
	return int64(n)
}
