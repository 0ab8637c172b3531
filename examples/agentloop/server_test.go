package main

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// collect adds the paths of all keys in a JSON value, but for those within a
// schema, which are not the format's.
func collect(keys map[string]bool, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, value := range v {
			below := strings.TrimPrefix(path+"."+key, ".")
			keys[below] = true
			if key != "parameters" {
				collect(keys, below, value)
			}
		}
	case []any:
		for _, value := range v {
			collect(keys, path+"[]", value)
		}
	}
}

func listed(keys map[string]bool) []string { return slices.Collect(maps.Keys(keys)) }

func startServer(t *testing.T) *scripted {
	t.Helper()
	s, err := startScripted()
	require.NoError(t, err)
	t.Cleanup(s.close)
	return s
}

func post(t *testing.T, url, body string) (status int, kind, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/chat/completions", strings.NewReader(body))
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, resp.Header.Get("Content-Type"), string(data)
}

// request is the start of the lead's conversation: it is answered with text and
// two tool calls.
func request(more string) string {
	return `{"model":"m","messages":[{"role":"system","content":"You are the lead."},{"role":"user","content":"Who writes about whales?"}]` + more + `}`
}

var usageKeys = []string{
	"usage", "usage.prompt_tokens", "usage.completion_tokens", "usage.total_tokens",
	"usage.prompt_tokens_details", "usage.prompt_tokens_details.cached_tokens",
	"usage.completion_tokens_details", "usage.completion_tokens_details.reasoning_tokens",
}

func TestServerSendsPublishedFields(t *testing.T) {
	s := startServer(t)
	status, kind, body := post(t, s.url, request(""))
	require.Equal(t, http.StatusOK, status)
	assert.Equal(t, "application/json", kind)
	var answer any
	require.NoError(t, json.Unmarshal([]byte(body), &answer))
	keys := map[string]bool{}
	collect(keys, "", answer)
	assert.ElementsMatch(t, append([]string{
		"id", "object", "created", "model", "choices", "choices[].index", "choices[].finish_reason",
		"choices[].message", "choices[].message.role", "choices[].message.content", "choices[].message.tool_calls",
		"choices[].message.tool_calls[].id", "choices[].message.tool_calls[].type", "choices[].message.tool_calls[].function",
		"choices[].message.tool_calls[].function.name", "choices[].message.tool_calls[].function.arguments",
	}, usageKeys...), listed(keys))

	whole := answer.(map[string]any)
	assert.Equal(t, "chat.completion", whole["object"])
	assert.Equal(t, "m", whole["model"])
	assert.IsType(t, 1.0, whole["created"])
	first := whole["choices"].([]any)[0].(map[string]any)
	assert.Equal(t, "tool_calls", first["finish_reason"])
	call := first["message"].(map[string]any)["tool_calls"].([]any)[1].(map[string]any)
	assert.Equal(t, "call_1", call["id"])
	assert.Equal(t, "function", call["type"])
	arguments, ok := call["function"].(map[string]any)["arguments"].(string)
	assert.True(t, ok && json.Valid([]byte(arguments)), "JSON, as text")
}

func TestServerStreamsPublishedFields(t *testing.T) {
	s := startServer(t)
	status, kind, body := post(t, s.url, request(`,"stream":true,"stream_options":{"include_usage":true}`))
	require.Equal(t, http.StatusOK, status)
	assert.Equal(t, "text/event-stream", kind)
	keys := map[string]bool{}
	var lines []string
	var chunks []map[string]any
	for scanner := bufio.NewScanner(strings.NewReader(body)); scanner.Scan(); {
		data, ok := strings.CutPrefix(scanner.Text(), "data: ")
		if !ok {
			assert.Empty(t, scanner.Text(), "between events there is an empty line")
			continue
		}
		lines = append(lines, data)
		if data == "[DONE]" {
			continue
		}
		var chunk map[string]any
		require.NoError(t, json.Unmarshal([]byte(data), &chunk))
		assert.Equal(t, "chat.completion.chunk", chunk["object"])
		collect(keys, "", chunk)
		chunks = append(chunks, chunk)
	}
	assert.ElementsMatch(t, append([]string{
		"id", "object", "created", "model", "choices", "choices[].index", "choices[].finish_reason",
		"choices[].delta", "choices[].delta.role", "choices[].delta.content", "choices[].delta.tool_calls",
		"choices[].delta.tool_calls[].index", "choices[].delta.tool_calls[].id", "choices[].delta.tool_calls[].type",
		"choices[].delta.tool_calls[].function", "choices[].delta.tool_calls[].function.name",
		"choices[].delta.tool_calls[].function.arguments",
	}, usageKeys...), listed(keys))
	assert.Equal(t, "[DONE]", lines[len(lines)-1])
	for i, chunk := range chunks {
		assert.Equal(t, chunks[0]["id"], chunk["id"])
		last := i == len(chunks)-1
		assert.Equal(t, last, chunk["usage"] != nil, "only the last has the usage")
		assert.Equal(t, last, len(chunk["choices"].([]any)) == 0, "and only that has no choices")
	}
	before := chunks[len(chunks)-2]["choices"].([]any)[0].(map[string]any)
	assert.Equal(t, "tool_calls", before["finish_reason"])
}

func TestServerTellsNoUsageUnasked(t *testing.T) {
	_, _, body := post(t, startServer(t).url, request(`,"stream":true`))
	assert.NotContains(t, body, "prompt_tokens")
	assert.True(t, strings.HasSuffix(body, "data: [DONE]\n\n"))
}

func TestServerRefuses(t *testing.T) {
	s := startServer(t)
	call := `{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}},{"id":"b","function":{"name":"f","arguments":"{}"}}]}`
	for name, c := range map[string]struct{ body, want string }{
		"no JSON":         {`{`, "no chat completions request"},
		"nothing":         {`{}`, "model and messages are required"},
		"a strange role":  {`{"model":"m","messages":[{"role":"robot"}]}`, `messages[0] has the role \"robot\"`},
		"a lone answer":   {`{"model":"m","messages":[{"role":"tool","tool_call_id":"a"}]}`, `messages[0] answers the tool call \"a\"`},
		"half an answer":  {`{"model":"m","messages":[` + call + `,{"role":"tool","tool_call_id":"a"}]}`, "not all answered"},
		"an early next":   {`{"model":"m","messages":[` + call + `,{"role":"user"}]}`, "messages[1] follows tool calls that are not all answered"},
		"a second answer": {`{"model":"m","messages":[` + call + `,{"role":"tool","tool_call_id":"a"},{"role":"tool","tool_call_id":"a"}]}`, "messages[2] answers"},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, body := post(t, s.url, c.body)
			assert.Equal(t, http.StatusBadRequest, status)
			assert.Contains(t, body, c.want)
			assert.Contains(t, body, `{"error":{"message":`)
		})
	}
}

// The script goes by the conversation: the same messages are answered the same,
// others differently.
func TestScriptLooksAtTheConversation(t *testing.T) {
	lead := []chatMessage{{Role: roleSystem, Content: "You are the lead."}, {Role: roleUser, Content: "Who writes about whales?"}}
	first := decide(chatRequest{Messages: lead})
	assert.Equal(t, first, decide(chatRequest{Messages: lead}))
	refused := append(slices.Clone(lead), chatMessage{Role: roleAssistant, ToolCalls: first.calls},
		chatMessage{Role: roleTool, ToolCallID: "call_0", Content: "no"}, chatMessage{Role: roleTool, ToolCallID: "call_1", Content: "queue full"})
	assert.Equal(t, "I could not start my sub-agents: queue full", decide(chatRequest{Messages: refused}).text)
	assert.Contains(t, decide(chatRequest{Messages: []chatMessage{{Role: roleUser, Content: "hi"}}}).text, "I am a script")
	assert.Equal(t, "I was told nothing of a conversation.", decide(chatRequest{Messages: []chatMessage{{Role: roleSystem, Content: "You are the critic."}, {Role: roleUser}}}).text)
	assert.NotEmpty(t, decide(chatRequest{Messages: []chatMessage{{Role: roleSystem, Content: "You are the lead."}, {Role: roleUser, Content: "?"}}}).calls)
}
