package main

import (
	"encoding/json"

	"github.com/go-subagent/subagent"
)

// The wire format is that of OpenAI's chat completions, which most providers
// speak: these are the parts of it that an agent loop needs. The client sends
// and reads them, and so does the scripted model's server.

// chatRequest is the body of POST …/chat/completions.
type chatRequest struct {
	Model         string         `json:"model"`
	Messages      []chatMessage  `json:"messages"`
	Tools         []toolOffer    `json:"tools,omitempty"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options,omitempty"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"` // without it a stream does not say what it cost
}

// The roles of a message.
const (
	roleSystem    = "system"
	roleUser      = "user"
	roleAssistant = "assistant"
	roleTool      = "tool"
)

type chatMessage struct {
	Role       string     `json:"role"`
	Content    string     `json:"content"`
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`   // an assistant's
	ToolCallID string     `json:"tool_call_id,omitempty"` // a tool's: the call that it answers
}

// toolCall is what the model asks for. In a stream it comes in fragments, of
// which only the first has ID, Type and Name.
type toolCall struct {
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"` // always "function"
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"` // JSON, as text: the model wrote it, so it need not be valid
}

// toolOffer tells the model of a tool that it may call.
type toolOffer struct {
	Type     string   `json:"type"` // always "function"
	Function function `json:"function"`
}

type function struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"` // a JSON Schema
}

// completion is an answer, or one chunk of a streamed one.
type completion struct {
	ID      string     `json:"id"`
	Object  string     `json:"object"`
	Created int64      `json:"created"` // Unix seconds
	Model   string     `json:"model"`
	Choices []choice   `json:"choices"` // empty in the chunk that carries the usage
	Usage   *wireUsage `json:"usage"`   // null in the chunks before that
	Error   *wireError `json:"error,omitempty"`
}

// The values of completion.Object.
const (
	objectWhole = "chat.completion"
	objectChunk = "chat.completion.chunk"
)

type choice struct {
	Index        int          `json:"index"`
	Message      *chatMessage `json:"message,omitempty"` // of a whole answer
	Delta        *delta       `json:"delta,omitempty"`   // of a chunk
	FinishReason *string      `json:"finish_reason"`     // null until the last chunk with a choice
}

type delta struct {
	Role      string     `json:"role,omitempty"`
	Content   string     `json:"content,omitempty"`
	ToolCalls []callPart `json:"tool_calls,omitempty"`
}

// callPart is a fragment of the tool call that stands at Index.
type callPart struct {
	Index int `json:"index"`
	toolCall
}

type wireUsage struct {
	PromptTokens        int64 `json:"prompt_tokens"` // cached ones included
	CompletionTokens    int64 `json:"completion_tokens"`
	TotalTokens         int64 `json:"total_tokens"`
	PromptTokensDetails struct {
		CachedTokens int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionTokensDetails struct {
		ReasoningTokens int64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// usage is u in the library's words. The library counts cached input as input,
// as this format does; other providers' counts may have to be added up first. A
// negative count is none: it would be taken off what others cost.
func (u wireUsage) usage() subagent.Usage {
	return subagent.Usage{
		InputTokens:     max(0, u.PromptTokens),
		OutputTokens:    max(0, u.CompletionTokens),
		TotalTokens:     max(0, u.TotalTokens),
		CacheReadTokens: max(0, u.PromptTokensDetails.CachedTokens),
		ReasoningTokens: max(0, u.CompletionTokensDetails.ReasoningTokens),
		Calls:           1,
	}
}

type wireError struct {
	Message string `json:"message"`
	Type    string `json:"type"`
}
