package main

import "github.com/go-subagent/subagent/agenttool"

// profile is a kind of agent: what it is told about itself, and what the model
// that may start it is told.
type profile struct {
	id           string
	description  string
	instructions string
}

const common = ` The directory tools look at one directory; their paths are relative to it. What another agent must know has to be in the prompt that you give it. Answer in a few sentences.`

var lead = profile{
	id: "lead",
	instructions: `You are the lead. You answer a question about a directory of files.` +
		` Let sub-agents do the reading: start those whose answers can wait in the background, read their results with task_output, and stop those that take too long.` + common,
}

// profiles are the sub-agents.
var profiles = []profile{
	{
		id:           "surveyor",
		description:  "Says what is in a directory.",
		instructions: `You are the surveyor. Say what is in the directory that you are asked about.` + common,
	},
	{
		id:           "searcher",
		description:  "Finds where something is mentioned, and has a reader look at the best place.",
		instructions: `You are the searcher. Find where something is mentioned and let a reader, started with the agent tool, read the best file. Then report both.` + common,
	},
	{
		id:           "reader",
		description:  "Reads files in full and says what is in them.",
		instructions: `You are the reader. Read the files that you are asked about and say what is in them.` + common,
	},
	{
		id:           "critic",
		description:  "Looks for what is missing in the conversation; give it the context.",
		instructions: `You are the critic. Say what is missing in the conversation so far.` + common,
	},
}

// planning is what the lead is asked after it has answered.
const planning = `Plan mode: do not answer yet. Let sub-agents find out, in the background, what a thorough answer to my question still needs; wait for all of them with await_tasks. Then give me a plan.`

// choices are the profiles, as the agent tool offers them.
func choices() []agenttool.Agent {
	var agents []agenttool.Agent
	for _, p := range profiles {
		agents = append(agents, agenttool.Agent{ID: p.id, Description: p.description})
	}
	return agents
}

// profileOf finds a sub-agent's profile. The agent tool has refused ids that it
// does not offer; without one the sub-agent is a reader.
func profileOf(id string) profile {
	for _, p := range profiles {
		if p.id == id {
			return p
		}
	}
	return profileOf("reader")
}
