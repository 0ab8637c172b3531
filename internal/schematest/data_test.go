package schematest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/internal/bubble"
)

func quick(context.Context, *subagent.Run) (subagent.Result, error) {
	return subagent.Result{Text: "done"}, nil
}

// ends are the ways in which a task may end, by its prompt.
func ends(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
	run.ReportUsage("m", subagent.Usage{InputTokens: 9, OutputTokens: 8, TotalTokens: 17, CacheReadTokens: 3, CacheWriteTokens: 2, ReasoningTokens: 1})
	run.ToolUse("grep")
	run.Progress("at it")
	fmt.Fprint(run, "half")
	switch run.Task().Description {
	case "complete":
		return subagent.Result{Text: "whole", HeadID: "head", SourceCommitID: "commit", StopReason: "capped"}, nil
	case "fail":
		return subagent.Result{}, errors.New("no model")
	case "panic":
		panic("nil map")
	case "deaf":
		time.Sleep(time.Hour)
	case "nothing":
		return subagent.Result{}, nil
	}
	<-ctx.Done()
	return subagent.Result{}, ctx.Err()
}

// checker validates the Data of each answer.
type checker struct {
	t                 *testing.T
	tools             *agenttool.Toolset
	task, tasks, stop *jsonschema.Resolved
	seen              map[string]int // answers of each tool
	statuses          map[subagent.Status]int
}

func (c *checker) call(tool, raw string) agenttool.Answer {
	c.t.Helper()
	a := c.tools.Call(c.t.Context(), agenttool.Call{ID: "call_1", Name: tool, Arguments: json.RawMessage(raw), SessionID: "s", MessageID: "m"})
	c.seen[tool]++
	if a.Data == nil {
		c.t.Fatalf("%s %s has no data: %s", tool, raw, a.Text)
	}
	var err error
	switch tool {
	case "task_stop":
		err = validate(c.t, c.stop, a.Data)
	case "list_tasks", "await_tasks":
		err = errors.Join(validate(c.t, c.tasks, a.Data), c.each(tool, a.Data))
	default:
		err = c.one(a.Data)
	}
	if err != nil {
		c.t.Errorf("%s %s: %v\n%s", tool, raw, err, a.Data)
	}
	return a
}

func (c *checker) one(data []byte) error {
	var t subagent.Task
	must(c.t, json.Unmarshal(data, &t))
	c.statuses[t.Status]++
	return validate(c.t, c.task, data)
}

func (c *checker) each(tool string, data []byte) (err error) {
	var list struct {
		Done  *bool             `json:"done"`
		Tasks []json.RawMessage `json:"tasks"`
	}
	must(c.t, json.Unmarshal(data, &list))
	if (list.Done != nil) != (tool == "await_tasks") {
		err = errors.New("done belongs to await_tasks")
	}
	for _, task := range list.Tasks {
		err = errors.Join(err, c.one(task))
	}
	return err
}

func TestDataOfEveryAnswer(t *testing.T) {
	task, tasks, stop := schemaFile(t, "task.json"), schemaFile(t, "tasks.json"), schemaFile(t, "stop.json")
	bubble.Test(t, func(t *testing.T) {
		tools := newTools(t, subagent.Config{Func: ends, Workers: 8, Timeout: 10 * time.Minute}, agenttool.Options{})
		c := &checker{t, tools, task, tasks, stop, map[string]int{}, map[subagent.Status]int{}}
		c.call("list_tasks", `{}`)
		var ids []string
		for _, prompt := range []string{"complete", "fail", "panic", "nothing", "wait", "stop me", "deaf", "time out", "queue", "queue"} {
			a := c.call("agent", fmt.Sprintf(`{"prompt":%q,"description":"d","agent_id":"a","context":"inherit","run_in_background":true}`, prompt))
			ids = append(ids, a.TaskID.String())
		}
		synctest.Wait()
		all, _ := json.Marshal(ids)
		for _, prompt := range []string{"complete", "fail", "panic", "nothing"} {
			c.call("agent", fmt.Sprintf(`{"prompt":%q,"description":"d"}`, prompt))
		}
		c.call("list_tasks", `{}`)
		c.call("await_tasks", fmt.Sprintf(`{"task_ids":%s,"mode":"any"}`, all))
		for range 2 { // the first delivery, and another
			for _, id := range ids {
				c.call("task_output", fmt.Sprintf(`{"task_id":%q,"block":false}`, id))
			}
		}
		for range 2 {
			for _, id := range append(ids[5:7], ids[8]) {
				c.call("task_stop", fmt.Sprintf(`{"task_id":%q,"reason":"enough"}`, id))
			}
		}
		for _, id := range ids {
			c.call("task_output", fmt.Sprintf(`{"task_id":%q,"timeout":600000}`, id))
		}
		c.call("await_tasks", fmt.Sprintf(`{"task_ids":%s,"timeout":600000}`, all))
		c.call("list_tasks", `{"limit":200}`)
		time.Sleep(time.Hour) // until the deaf one has returned
		for _, tool := range []string{"agent", "task_output", "task_stop", "list_tasks", "await_tasks"} {
			if c.seen[tool] == 0 {
				t.Errorf("no answer of %s", tool)
			}
		}
		for _, status := range []subagent.Status{"queued", "running", "completed", "cancelled", "errored"} {
			if c.statuses[status] == 0 {
				t.Errorf("no task that is %s", status)
			}
		}
	})
}

// The schemas refuse what is not so: a prompt, a result, usage of a live task.
func TestTheSchemasOfDataRefuseOthers(t *testing.T) {
	task := schemaFile(t, "task.json")
	good := `{"task_id":"00000000-0000-7000-8000-000000000000","subject":"s","status":"running","created_at":"2000-01-01T00:00:00Z","parent_session_id":"s","attempt":0,"version":1`
	must(t, validate(t, task, []byte(good+`}`)))
	for _, more := range []string{`,"description":"p"`, `,"result_text":"r"`, `,"usage":{"input_tokens":1,"output_tokens":1,"total_tokens":2}`, `,"x":1`} {
		if validate(t, task, []byte(good+more+`}`)) == nil {
			t.Errorf("allows %s", more)
		}
	}
}
