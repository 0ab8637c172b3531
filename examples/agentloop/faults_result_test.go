package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A sub-agent says its answer together with its last tool call; the tool
// answers, and the model says nothing more: the result is what it said, not what
// the tool did, and not nothing.
func TestB089_B090_TheAnswerComesWithTheLastCall(t *testing.T) {
	env := fake(t, func(req chatRequest) speech {
		switch c := read(req); {
		case !isLead(req) && c.turn == 0:
			return say("Melville does.").call("list_files", args{})
		case !isLead(req):
			return say("")
		case c.turn == 0:
			return start("whales", false)
		default:
			return say("It says: " + c.last())
		}
	})
	code, stdout, stderr := chat(t, env)
	assert.Equal(t, exitDone, code, stderr)
	assert.Regexp(t, `It says: Melville does\.\s+task_id=\S+ status=completed`, stdout)
}
