package subagent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-subagent/subagent/internal/runes"
)

// Usage counts tokens. Input counts cached input too.
type Usage struct {
	InputTokens      int64 `json:"input_tokens"`
	OutputTokens     int64 `json:"output_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
	CacheReadTokens  int64 `json:"cache_read_tokens,omitempty"`
	CacheWriteTokens int64 `json:"cache_write_tokens,omitempty"`
	ReasoningTokens  int64 `json:"reasoning_tokens,omitempty"`
	Calls            int64 `json:"calls,omitempty"` // model calls; a report with 0 counts as 1
}

// Add returns the sum, count by count. A sum that does not fit stays at the
// largest, or for negative counts the smallest, int64: it never wraps around.
func (u Usage) Add(v Usage) Usage {
	sum, more := u.counts(), v.counts()
	for i := range sum {
		*sum[i] = addSaturating(*sum[i], *more[i])
	}
	return u
}

// IsZero reports whether every count is zero.
func (u Usage) IsZero() bool { return u == Usage{} }

func (u *Usage) counts() [7]*int64 {
	return [...]*int64{
		&u.InputTokens, &u.OutputTokens, &u.TotalTokens,
		&u.CacheReadTokens, &u.CacheWriteTokens, &u.ReasoningTokens, &u.Calls,
	}
}

func addSaturating(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	if b < 0 && a < math.MinInt64-b {
		return math.MinInt64
	}
	return a + b
}

// atLeastZero is u with 0 for its negative counts.
func (u Usage) atLeastZero() Usage {
	for _, n := range u.counts() {
		*n = max(*n, 0)
	}
	return u
}

func (u *Usage) malformed() bool {
	for _, n := range u.counts() {
		if *n < 0 {
			return true
		}
	}
	return false
}

// Message is the view of one persisted conversation message that attribution
// needs. Which of its fields are set says what kind of message it is.
type Message struct {
	ToolCalls       []string // an assistant message: ids of the tool calls it dispatched
	ToolCallID      string   // a tool result: the call it answers
	Usage           Usage    // an assistant message's usage
	SubagentUsage   *Usage   // a tool result's; persisted as subagent_token_usage
	UsageAttributed bool     // a tool result's marker; persisted as subagent_token_usage_attributed
}

// AttributeUsage adds each unattributed tool result's usage to the message
// that dispatched it and marks the result, in place, and returns the indexes
// of the messages it changed, ascending. The dispatcher is the nearest earlier
// message whose ToolCalls contain the result's ToolCallID: position decides,
// since call ids may repeat. Zero usage is attributed too. A result without
// dispatcher, or with a negative count, stays unmarked for a later pass.
//
// Sum and marker change together, so a host that saves the changed messages
// together may run this over the same history any number of times: running it
// again changes nothing. It takes time linear in the history.
func AttributeUsage(history []Message) []int {
	if !slices.ContainsFunc(history, func(m Message) bool { return m.unattributed() }) {
		return nil // the usual case, and no index is needed to see it
	}
	var changed []int
	dispatcher := make(map[string]int)
	for i := range history {
		m := &history[i]
		if from, ok := dispatcher[m.ToolCallID]; ok && m.unattributed() {
			history[from].Usage = history[from].Usage.Add(*m.SubagentUsage)
			m.UsageAttributed = true
			changed = append(changed, from, i)
		}
		// Only now: a message does not dispatch what it answers itself.
		for _, call := range m.ToolCalls {
			dispatcher[call] = i
		}
	}
	slices.Sort(changed)
	return slices.Compact(changed)
}

func (m *Message) unattributed() bool {
	// An empty id names no call, so it has no dispatcher either.
	return m.SubagentUsage != nil && !m.UsageAttributed && m.ToolCallID != "" && !m.SubagentUsage.malformed()
}

// usageKeys are the JSON names of Usage.counts, in the same order; the first
// three are required.
var usageKeys = [7]string{
	"input_tokens", "output_tokens", "total_tokens",
	"cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "calls",
}

const requiredUsageKeys = 3

// ParseUsage reads one JSON object of counts. input_tokens, output_tokens and
// total_tokens are required, the other counts are optional (null is absent)
// and unknown keys are ignored. A count is a plain non-negative integer that
// fits an int64: no sign, fraction, exponent, string or boolean. A count that
// is given twice is refused, and so is anything after the object. The error
// names the key. Whatever it refuses must not be counted: a guess would be
// added up for good.
func ParseUsage(data []byte) (*Usage, error) {
	u, err := parseUsage(data)
	if err != nil {
		return nil, fmt.Errorf("subagent: usage: %w", err)
	}
	return u, nil
}

func parseUsage(data []byte) (*Usage, error) {
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		return nil, err // syntax and trailing data are settled here
	}
	if !bytes.HasPrefix(bytes.TrimSpace(whole), []byte("{")) {
		return nil, errors.New("not a JSON object")
	}
	var (
		u    Usage
		seen [len(usageKeys)]bool
		dec  = json.NewDecoder(bytes.NewReader(whole))
	)
	if _, err := dec.Token(); err != nil { // the opening brace
		return nil, err
	}
	for dec.More() {
		if err := u.parseMember(dec, &seen); err != nil {
			return nil, err
		}
	}
	for i, key := range usageKeys[:requiredUsageKeys] {
		if !seen[i] {
			return nil, fmt.Errorf("%s is missing", key)
		}
	}
	return &u, nil
}

// parseMember goes token by token: decoding into a struct would match keys
// regardless of case, take the last of two, and let null pass.
func (u *Usage) parseMember(dec *json.Decoder, seen *[len(usageKeys)]bool) error {
	key, err := dec.Token()
	if err != nil {
		return err
	}
	var value json.RawMessage
	if err := dec.Decode(&value); err != nil {
		return err
	}
	i := slices.Index(usageKeys[:], key.(string))
	if i < 0 {
		return nil
	}
	if seen[i] {
		return fmt.Errorf("%s is given twice", usageKeys[i])
	}
	seen[i] = true
	if string(value) == "null" && i >= requiredUsageKeys {
		return nil
	}
	return parseCount(usageKeys[i], string(value), u.counts()[i])
}

func parseCount(key, text string, n *int64) error {
	if strings.Trim(text, "0123456789") != "" {
		return fmt.Errorf("%s is %s; it must be a non-negative integer", key, runes.Cut(text, 64))
	}
	count, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%s is too large", key)
	}
	*n = count
	return nil
}
