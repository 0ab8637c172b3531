package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

func decode(t *testing.T, r *http.Request) (req chatRequest) {
	t.Helper()
	assert.NoError(t, json.NewDecoder(r.Body).Decode(&req))
	return req
}

// ask sends one message to a server that answers with a body of some type.
func ask(t *testing.T, kind, body string) (reply, string, error) {
	t.Helper()
	env := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind)
		fmt.Fprint(w, body)
	})
	return complete(t.Context(), env)
}

func complete(ctx context.Context, env map[string]string) (reply, string, error) {
	m := newModel(env["OPENAI_BASE_URL"], env["OPENAI_API_KEY"], env["OPENAI_MODEL"])
	defer m.http.CloseIdleConnections()
	var text strings.Builder
	r, err := m.complete(ctx, []chatMessage{{Role: roleUser, Content: "hi"}}, folderTools, func(s string) { text.WriteString(s) })
	return r, text.String(), err
}

const events = "text/event-stream; charset=utf-8"

// These are answers as providers send them, with all the keys that this program
// does not read.
const (
	wholeText = `{"id":"chatcmpl-1","object":"chat.completion","created":1741569952,"model":"gpt","choices":[{"index":0,"message":{"role":"assistant","content":"Hello!","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":3,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":4,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}},"service_tier":"default","system_fingerprint":null}`
	wholeCall = `{"id":"chatcmpl-2","object":"chat.completion","created":1699896916,"model":"gpt","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_abc","type":"function","function":{"name":"list_files","arguments":"{\"path\": \".\"}"}}]},"logprobs":null,"finish_reason":"tool_calls"}],"usage":null}`
	streamed  = `: keep-alive

data: {"id":"chatcmpl-3","object":"chat.completion.chunk","created":1694268190,"model":"gpt","system_fingerprint":"fp","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-3","object":"chat.completion.chunk","created":1694268190,"model":"gpt","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}],"usage":null}

data:{"id":"chatcmpl-3","object":"chat.completion.chunk","created":1694268190,"model":"gpt","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_abc","type":"function","function":{"name":"read_file","arguments":""}}]},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"type":"function","function":{"name":"list_files"}}]},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"path\""}}]},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":\"a\"}"}}]},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"id":"chatcmpl-3","object":"chat.completion.chunk","created":1694268190,"model":"gpt","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12,"prompt_tokens_details":null}}

data: [DONE]

`
)

func TestClientReadsWhatProvidersSend(t *testing.T) {
	t.Run("a whole text", func(t *testing.T) {
		r, text, err := ask(t, "application/json", wholeText)
		require.NoError(t, err)
		assert.Equal(t, "Hello!", text)
		assert.Equal(t, chatMessage{Role: roleAssistant, Content: "Hello!"}, r.message)
		assert.Equal(t, subagent.Usage{InputTokens: 19, OutputTokens: 10, TotalTokens: 29, CacheReadTokens: 3, ReasoningTokens: 4, Calls: 1}, r.usage)
	})
	t.Run("a whole call", func(t *testing.T) {
		r, text, err := ask(t, "application/json", wholeCall)
		require.NoError(t, err)
		assert.Empty(t, text)
		assert.Equal(t, []toolCall{{"call_abc", "function", functionCall{"list_files", `{"path": "."}`}}}, r.message.ToolCalls)
		assert.Equal(t, subagent.Usage{Calls: 1}, r.usage, "a server that does not say")
	})
	t.Run("a byte order mark", func(t *testing.T) {
		_, text, err := ask(t, events, "\ufeffdata: {\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}\n\ndata: [DONE]\n\n")
		require.NoError(t, err)
		assert.Equal(t, "Hello", text)
	})
	t.Run("negative counts", func(t *testing.T) {
		body := strings.NewReplacer(`"prompt_tokens":19`, `"prompt_tokens":-19`, `_tokens":10`, `_tokens":-10`, `:29`, `:-29`, `:3,`, `:-3,`, `:4,`, `:-4,`).Replace(wholeText)
		r, _, err := ask(t, "application/json", body)
		require.NoError(t, err)
		assert.Equal(t, subagent.Usage{Calls: 1}, r.usage)
	})
	for name, body := range map[string]string{"a stream": streamed, "a stream with CR": strings.ReplaceAll(streamed, "\n", "\r\n")} {
		t.Run(name, func(t *testing.T) {
			r, text, err := ask(t, events, body)
			require.NoError(t, err)
			assert.Equal(t, "Hello", text)
			assert.Equal(t, chatMessage{Role: roleAssistant, Content: "Hello", ToolCalls: []toolCall{
				{"call_abc", "function", functionCall{"read_file", `{"path":"a"}`}},
				{"call_1", "function", functionCall{"list_files", "{}"}}, // it was sent without an id and without arguments
			}}, r.message)
			assert.Equal(t, subagent.Usage{InputTokens: 5, OutputTokens: 7, TotalTokens: 12, Calls: 1}, r.usage)
		})
	}
}

func TestClientRefusesWhatIsNoAnswer(t *testing.T) {
	cut := streamed[:strings.Index(streamed, "data: [DONE]")]
	for name, c := range map[string]struct{ kind, body, want string }{
		"a stream without its end": {events, cut, "the stream ended before [DONE]"},
		"an empty stream":          {events, "", "the stream ended before [DONE]"},
		"a chunk cut in half":      {events, `data: {"choices":[{"in` + "\n\n", "a chunk of the stream is not JSON"},
		"an error in the stream":   {events, `data: {"error":{"message":"out of luck"}}` + "\n\n", "the stream broke off: out of luck"},
		"a call far out":           {events, `data: {"choices":[{"delta":{"tool_calls":[{"index":999999999,"function":{}}]}}]}` + "\n\n", "a tool call at index 999999999; 0 to 127 are allowed"},
		"a call before the first":  {events, `data: {"choices":[{"delta":{"tool_calls":[{"index":-1,"function":{}}]}}]}` + "\n\n", "a tool call at index -1"},
		"an endless line":          {events, "data: " + strings.Repeat("x", 5<<20), "the stream broke off: bufio.Scanner: token too long"},
		"no choices":               {"application/json", `{"choices":[]}`, "no choices[0].message"},
		"an error":                 {"application/json", `{"error":{"message":"overloaded"}}`, "the answer is an error: overloaded"},
		"half an answer":           {"application/json", wholeText[:100], "the answer is not JSON"},
		"a page":                   {"text/html", "<html>", `the answer is "text/html"; it must be text/event-stream or application/json`},
	} {
		t.Run(name, func(t *testing.T) {
			r, _, err := ask(t, c.kind, c.body)
			assert.ErrorContains(t, err, c.want)
			assert.Zero(t, r)
		})
	}
}

// The text that came before the stream was cut has been handed on: it is what a
// stopped sub-agent leaves.
func TestCutStream(t *testing.T) {
	env := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", events)
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"so far\"}}]}\n\n")
		assert.NoError(t, http.NewResponseController(w).Flush())
		panic(http.ErrAbortHandler) // the connection is cut
	})
	_, text, err := complete(t.Context(), env)
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.Equal(t, "so far", text)
}

func TestClientHangsUpWhenItsCtxEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	env := serve(t, func(w http.ResponseWriter, r *http.Request) {
		decode(t, r)
		line{w: w}.begin()
		cancel()
		<-r.Context().Done()
		close(gone)
	})
	_, _, err := complete(ctx, env)
	assert.ErrorIs(t, err, context.Canceled)
	<-gone
}

func TestClientSendsPublishedFields(t *testing.T) {
	keys := map[string]bool{}
	var header http.Header
	var path string
	env := serve(t, func(w http.ResponseWriter, r *http.Request) {
		header, path = r.Header, r.URL.Path
		var body any
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&body))
		collect(keys, "", body)
		line{w: w, usage: true}.stream(say("hi"), wireUsage{})
	})
	m := newModel(env["OPENAI_BASE_URL"], "secret", "m")
	defer m.http.CloseIdleConnections()
	_, err := m.complete(t.Context(), []chatMessage{
		{Role: roleSystem, Content: "s"},
		{Role: roleAssistant, ToolCalls: []toolCall{{"call_0", "function", functionCall{"f", "{}"}}}},
		{Role: roleTool, Content: "r", ToolCallID: "call_0"},
	}, folderTools, func(string) {})
	require.NoError(t, err)
	assert.Equal(t, "/v1/chat/completions", path)
	assert.Equal(t, "Bearer secret", header.Get("Authorization"))
	assert.Equal(t, "application/json", header.Get("Content-Type"))
	assert.ElementsMatch(t, []string{
		"model", "messages", "messages[].role", "messages[].content", "messages[].tool_calls", "messages[].tool_calls[].id",
		"messages[].tool_calls[].type", "messages[].tool_calls[].function", "messages[].tool_calls[].function.name",
		"messages[].tool_calls[].function.arguments", "messages[].tool_call_id",
		"tools", "tools[].type", "tools[].function", "tools[].function.name", "tools[].function.description", "tools[].function.parameters",
		"stream", "stream_options", "stream_options.include_usage",
	}, listed(keys))
}

// Results are found by the ids of their calls: two with the same would be one.
func TestCallIDsAreUniqueInAMessage(t *testing.T) {
	for _, c := range []struct{ sent, want []string }{
		{[]string{"x", "x", "x"}, []string{"x", "call_1", "call_2"}},
		{[]string{"call_1", ""}, []string{"call_1", "call_1_2"}},
		{[]string{"", "call_0"}, []string{"call_0_2", "call_0"}},
		{[]string{"", "", "a"}, []string{"call_0", "call_1", "a"}},
		{[]string{"call_1", "call_1", "call_1_2"}, []string{"call_1", "call_1_3", "call_1_2"}},
	} {
		var a answer
		for i, id := range c.sent {
			require.NoError(t, a.add(delta{ToolCalls: []callPart{{i, toolCall{ID: id}}}}, nil))
		}
		var got []string
		for _, call := range a.reply().message.ToolCalls {
			got = append(got, call.ID)
		}
		assert.Equal(t, c.want, got)
	}
}

// The time for a call grows with its length, not with its square.
func TestManyFragmentsAreJoinedAtOnce(t *testing.T) {
	part := delta{ToolCalls: []callPart{{0, toolCall{Function: functionCall{"n", "0123456789"}}}}}
	const fragments = 10_000
	allocs := testing.AllocsPerRun(1, func() {
		var a answer
		for range fragments {
			_ = a.add(part, nil)
		}
		assert.Len(t, a.reply().message.ToolCalls[0].Function.Arguments, 10*fragments)
	})
	assert.Less(t, allocs, 1000.0)
}
