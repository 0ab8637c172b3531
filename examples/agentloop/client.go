package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-subagent/subagent"
)

// Limits of one call to the model.
const (
	connectTimeout = 10 * time.Second
	headerTimeout  = time.Minute     // until the model begins to answer
	answerTimeout  = 5 * time.Minute // until it has finished
	answerLimit    = 16 << 20        // bytes
)

// model is a chat completions endpoint. It does not care who is behind it: a
// provider, or the scripted server of this program.
type model struct {
	url  string // of the endpoint's root: …/v1
	key  string // "": none is sent
	name string
	http *http.Client
}

func newModel(url, key, name string) *model {
	return &model{
		url:  strings.TrimRight(url, "/"),
		key:  key,
		name: name,
		http: &http.Client{
			Timeout: answerTimeout,
			Transport: &http.Transport{
				Proxy:                 http.ProxyFromEnvironment, // which leaves loopback alone
				DialContext:           (&net.Dialer{Timeout: connectTimeout}).DialContext,
				TLSHandshakeTimeout:   connectTimeout,
				ResponseHeaderTimeout: headerTimeout,
				IdleConnTimeout:       time.Minute,
				ForceAttemptHTTP2:     true,
			},
		},
	}
}

// reply is what the model said, and what that cost.
type reply struct {
	message chatMessage
	usage   subagent.Usage
}

// complete asks for the next message of a conversation and hands its text to
// write as it streams in. An error means that there is no such message; the
// text that came before it was written nevertheless. It does not try again.
func (m *model) complete(ctx context.Context, messages []chatMessage, tools []toolOffer, write func(string)) (reply, error) {
	body, err := json.Marshal(chatRequest{
		Model: m.name, Messages: messages, Tools: tools,
		Stream: true, StreamOptions: &streamOptions{IncludeUsage: true},
	})
	if err != nil {
		return reply{}, err
	}
	resp, err := m.post(ctx, body)
	if err != nil {
		return reply{}, fmt.Errorf("model: %w", err)
	}
	defer resp.Body.Close()
	r, err := readAnswer(resp, write)
	if err != nil {
		return reply{}, fmt.Errorf("model: %w", err)
	}
	return r, nil
}

func (m *model) post(ctx context.Context, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream, application/json")
	if m.key != "" {
		req.Header.Set("Authorization", "Bearer "+m.key)
	}
	return m.http.Do(req)
}

func readAnswer(resp *http.Response, write func(string)) (reply, error) {
	body := io.LimitReader(resp.Body, answerLimit)
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // one that makes no sense is none that we know
	switch {
	case resp.StatusCode != http.StatusOK:
		return reply{}, refusal(resp.Status, body)
	case kind == "text/event-stream":
		return readStream(body, write)
	case kind == "application/json": // a server that does not stream
		return readWhole(body, write)
	}
	return reply{}, fmt.Errorf("the answer is %q; it must be text/event-stream or application/json", kind)
}

// refusal is the error of an answer that is none: the status, and what the
// server says about it, in its words if it uses the format's.
func refusal(status string, body io.Reader) error {
	text, _ := io.ReadAll(io.LimitReader(body, 2000)) // what could be read of it is all that there is
	var said completion
	if json.Unmarshal(text, &said) == nil && said.Error != nil {
		return fmt.Errorf("%s: %s", status, said.Error.Message)
	}
	return fmt.Errorf("%s: %s", status, bytes.TrimSpace(text))
}

func readWhole(body io.Reader, write func(string)) (reply, error) {
	var c completion
	if err := json.NewDecoder(body).Decode(&c); err != nil {
		return reply{}, fmt.Errorf("the answer is not JSON: %w", err)
	}
	if c.Error != nil {
		return reply{}, fmt.Errorf("the answer is an error: %s", c.Error.Message)
	}
	if len(c.Choices) == 0 || c.Choices[0].Message == nil {
		return reply{}, errors.New("the answer has no choices[0].message")
	}
	var a answer
	said := c.Choices[0].Message
	whole := delta{Content: said.Content}
	for i, call := range said.ToolCalls {
		whole.ToolCalls = append(whole.ToolCalls, callPart{i, call})
	}
	a.usage = c.Usage
	err := a.add(whole, write)
	return a.reply(), err
}

// readStream reads server-sent events, one chunk in each, up to [DONE]. A
// stream that ends before that was cut off, and what it said may be half a
// sentence, or half a tool call: it is not used.
func readStream(body io.Reader, write func(string)) (reply, error) {
	var a answer
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 4<<20)
	for first := true; lines.Scan(); first = false {
		line := lines.Text()
		if first {
			line = strings.TrimPrefix(line, "\ufeff") // a byte order mark is allowed there
		}
		data, ok := strings.CutPrefix(line, "data:")
		if !ok {
			continue // blank lines, comments and fields that this format does not use
		}
		data = strings.TrimSpace(data)
		if data == "[DONE]" {
			return a.reply(), nil
		}
		var c completion
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return reply{}, fmt.Errorf("a chunk of the stream is not JSON: %w", err)
		}
		if c.Error != nil {
			return reply{}, fmt.Errorf("the stream broke off: %s", c.Error.Message)
		}
		if c.Usage != nil {
			a.usage = c.Usage
		}
		if len(c.Choices) > 0 && c.Choices[0].Delta != nil {
			if err := a.add(*c.Choices[0].Delta, write); err != nil {
				return reply{}, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return reply{}, fmt.Errorf("the stream broke off: %w", err)
	}
	return reply{}, errors.New("the stream ended before [DONE]")
}
