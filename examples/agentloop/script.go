package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// speech is what the scripted model says next.
type speech struct {
	text  string
	calls []toolCall
	lost  bool // it says nothing, for ever
	late  bool // it comes when another conversation is lost, so that the run is the same each time
}

func (s speech) finish() *string {
	reason := "stop"
	if len(s.calls) > 0 {
		reason = "tool_calls"
	}
	return &reason
}

func say(text string) speech { return speech{text: text} }

// call adds a tool call. Its id is the same in each message of each agent, as
// with some providers: ids tell the calls of one message apart and no more.
func (s speech) call(tool string, arguments map[string]any) speech {
	data, err := json.Marshal(arguments)
	if err != nil {
		panic(err) // the script's own
	}
	id := fmt.Sprintf("call_%d", len(s.calls))
	s.calls = append(s.calls, toolCall{id, "function", functionCall{tool, string(data)}})
	return s
}

type args = map[string]any // shorter

// decide is the whole of the scripted model: who am I, and how far have I come?
// All that it knows is in the request.
func decide(req chatRequest) speech {
	c := read(req)
	switch {
	case strings.HasPrefix(c.system, "You are the lead") && c.offered["await_tasks"]:
		return c.leadPlans()
	case strings.HasPrefix(c.system, "You are the lead"):
		return c.leadAnswers()
	case strings.HasPrefix(c.system, "You are the surveyor"):
		return c.surveyor()
	case strings.HasPrefix(c.system, "You are the searcher"):
		return c.searcher()
	case strings.HasPrefix(c.system, "You are the reader"):
		return c.reader()
	case strings.HasPrefix(c.system, "You are the critic"):
		return c.critic()
	}
	return say("I am a script, and none of the agents that I know is told so: " + c.system)
}

// conversation is a request, as the script looks at it.
type conversation struct {
	system  string
	before  []chatMessage // up to the prompt
	prompt  string        // the last that a user said
	turn    int           // answers since then
	results []result      // tool results since then
	offered map[string]bool
}

type result struct {
	tool      string
	arguments string
	text      string
}

func read(req chatRequest) conversation {
	c := conversation{offered: map[string]bool{}}
	for _, t := range req.Tools {
		c.offered[t.Function.Name] = true
	}
	var calls []toolCall // of the last answer: ids are good for that long
	for i, m := range req.Messages {
		switch m.Role {
		case roleSystem:
			c.system = m.Content
		case roleUser:
			c.before, c.prompt, c.turn, c.results = req.Messages[:i], m.Content, 0, nil
		case roleAssistant:
			c.turn++
			calls = m.ToolCalls
		case roleTool:
			from := slices.IndexFunc(calls, func(call toolCall) bool { return call.ID == m.ToolCallID })
			if from >= 0 {
				c.results = append(c.results, result{calls[from].Function.Name, calls[from].Function.Arguments, m.Content})
			}
		}
	}
	return c
}

func (c conversation) last() string {
	if len(c.results) == 0 {
		return ""
	}
	return strings.TrimSpace(c.results[len(c.results)-1].text)
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// task is the id of the sub-agent that was started with this description.
func (c conversation) task(description string) string {
	for _, r := range c.results {
		if r.tool == "agent" && strings.Contains(r.arguments, `"description":"`+description+`"`) {
			return uuids.FindString(r.text)
		}
	}
	return ""
}

// output is what was last heard of that sub-agent, without ids and states.
func (c conversation) output(description string) string {
	id := c.task(description)
	for _, r := range slices.Backward(c.results) {
		if id != "" && strings.Contains(r.text, id) {
			text, _, _ := strings.Cut(r.text, "\n\ntask_id=")
			return text
		}
	}
	return c.last()
}

// The lead.

const (
	surveyIt = "Survey the directory"
	readAll  = "Read everything"
)

func (c conversation) leadAnswers() speech {
	topic := c.topic()
	switch c.turn {
	case 0:
		return say("Two sub-agents can begin in the background.").
			call("agent", args{"agent_id": "surveyor", "description": surveyIt, "prompt": "Say what is in the directory.", "run_in_background": true}).
			call("agent", args{"agent_id": "reader", "description": readAll, "prompt": "Read each file of the directory, word by word.", "run_in_background": true})
	case 1:
		if c.task(surveyIt) == "" || c.task(readAll) == "" {
			return say("I could not start my sub-agents: " + c.last())
		}
		return say("First the survey.").call("task_output", args{"task_id": c.task(surveyIt)})
	case 2:
		s := say("And how far is the reader?").call("task_output", args{"task_id": c.task(readAll), "block": false})
		s.late = true // by then it is at work
		return s
	case 3:
		return say("It is still at work, and a search will do. I stop it.").
			call("task_stop", args{"task_id": c.task(readAll), "reason": "a search will do"})
	case 4:
		return say("What it has so far may be of use.").call("task_output", args{"task_id": c.task(readAll)})
	case 5:
		return say(fmt.Sprintf("Now I need to know where %q is mentioned, and wait for it.", topic)).
			call("agent", args{"agent_id": "searcher", "description": "Search for " + topic, "prompt": fmt.Sprintf("Find out where %q is mentioned.", topic)})
	}
	return say(fmt.Sprintf("%s\n%s", c.output("Search for "+topic), c.output(surveyIt)))
}

func (c conversation) leadPlans() speech {
	switch c.turn {
	case 0:
		return say("Two sub-agents look into it.").
			call("agent", args{"agent_id": "surveyor", "description": "Count the files", "prompt": "Say what is in the directory.", "run_in_background": true}).
			call("agent", args{"agent_id": "critic", "description": "Find gaps", "prompt": "What is missing in the answer above?", "context": "inherit", "run_in_background": true})
	case 1:
		ids := []string{c.task("Count the files"), c.task("Find gaps")}
		return say("I wait for both.").call("await_tasks", args{"task_ids": ids, "mode": "all"})
	}
	var plan []string
	for _, r := range c.results {
		if r.tool == "await_tasks" {
			for _, block := range strings.Split(r.text, "\n\n")[1:] {
				_, text, _ := strings.Cut(block, "\n")
				plan = append(plan, fmt.Sprintf("%d. %s", len(plan)+1, text))
			}
		}
	}
	return say("The plan:\n" + strings.Join(plan, "\n"))
}

// topic is the last word of the question.
func (c conversation) topic() string {
	words := strings.FieldsFunc(c.prompt, func(r rune) bool { return strings.ContainsRune(" \t\n.,;:?!\"'", r) })
	if len(words) == 0 {
		return c.prompt
	}
	return words[len(words)-1]
}
