package subagent_test

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// tokens is a usage of n in every count.
func tokens(n int64) subagent.Usage {
	return subagent.Usage{n, n, n, n, n, n, n}
}

func TestUsageAdd(t *testing.T) {
	require.Equal(t, 7, reflect.TypeFor[subagent.Usage]().NumField(), "Add knows every count")
	sum := subagent.Usage{1, 2, 3, 4, 5, 6, 7}.Add(subagent.Usage{10, 20, 30, 40, 50, 60, 70})
	require.Equal(t, subagent.Usage{11, 22, 33, 44, 55, 66, 77}, sum)
	for _, c := range []struct{ a, b, want int64 }{
		{0, 0, 0},
		{math.MaxInt64, 0, math.MaxInt64},
		{math.MaxInt64, 1, math.MaxInt64},
		{math.MaxInt64 - 1, 1, math.MaxInt64},
		{math.MaxInt64, math.MaxInt64, math.MaxInt64},
		{5, -7, -2},
		{math.MaxInt64, math.MinInt64, -1},
		{math.MinInt64, 0, math.MinInt64},
		{math.MinInt64, -1, math.MinInt64},
		{math.MinInt64, math.MinInt64, math.MinInt64},
	} {
		require.Equal(t, tokens(c.want), tokens(c.a).Add(tokens(c.b)), "%d + %d", c.a, c.b)
		require.Equal(t, tokens(c.want), tokens(c.b).Add(tokens(c.a)), "%d + %d", c.b, c.a)
	}
	a := tokens(1)
	a.Add(tokens(1))
	require.Equal(t, tokens(1), a, "a value stays what it is")
}

func TestUsageIsZero(t *testing.T) {
	require.True(t, subagent.Usage{}.IsZero())
	for i := range 7 {
		var u subagent.Usage
		reflect.ValueOf(&u).Elem().Field(i).SetInt(-1)
		require.False(t, u.IsZero())
	}
}

// dispatch is an assistant message that calls, answer the result of a call.
func dispatch(calls ...string) subagent.Message { return subagent.Message{ToolCalls: calls} }

func answer(call string, n int64) subagent.Message {
	u := tokens(n)
	return subagent.Message{ToolCallID: call, SubagentUsage: &u}
}

func TestG14_AttributeUsage(t *testing.T) {
	for _, c := range []struct {
		name    string
		history []subagent.Message
		changed []int
		usage   []int64 // per message, after
	}{
		{"empty", nil, nil, nil},
		{"no usage", []subagent.Message{dispatch("a"), {ToolCallID: "a"}}, nil, []int64{0, 0}},
		{"one", []subagent.Message{dispatch("a"), answer("a", 5)}, []int{0, 1}, []int64{5, 0}},
		{"zero usage too", []subagent.Message{dispatch("a"), answer("a", 0)}, []int{0, 1}, []int64{0, 0}},
		{"others in between", []subagent.Message{dispatch("a"), {}, dispatch("b"), answer("a", 5)}, []int{0, 3}, []int64{5, 0, 0, 0}},
		{"several calls", []subagent.Message{dispatch("a", "b"), answer("b", 1), answer("a", 2)}, []int{0, 1, 2}, []int64{3, 0, 0}},
		{"repeated id: the nearest", []subagent.Message{dispatch("a"), dispatch("a"), answer("a", 5)}, []int{1, 2}, []int64{0, 5, 0}},
		{
			"numbering that restarts each turn",
			[]subagent.Message{dispatch("a"), answer("a", 1), dispatch("a"), answer("a", 2)},
			[]int{0, 1, 2, 3},
			[]int64{1, 0, 2, 0},
		},
		{"two results of one call", []subagent.Message{dispatch("a"), answer("a", 1), answer("a", 2)}, []int{0, 1, 2}, []int64{3, 0, 0}},
		{"dispatch after it does not count", []subagent.Message{answer("a", 5), dispatch("a")}, nil, []int64{0, 0}},
		{"unknown call", []subagent.Message{dispatch("a"), answer("b", 5)}, nil, []int64{0, 0}},
		{"empty id", []subagent.Message{dispatch(""), answer("", 5)}, nil, []int64{0, 0}},
		{"malformed", []subagent.Message{dispatch("a"), answer("a", -1)}, nil, []int64{0, 0}},
		{"not its own dispatcher", []subagent.Message{func() subagent.Message { m := answer("a", 5); m.ToolCalls = []string{"a"}; return m }()}, nil, []int64{0}},
		{
			"a result that dispatches, too",
			[]subagent.Message{dispatch("a"), func() subagent.Message { m := answer("a", 5); m.ToolCalls = []string{"a"}; return m }(), answer("a", 7)},
			[]int{0, 1, 2},
			[]int64{5, 7, 0},
		},
		{"the same call twice in one message", []subagent.Message{dispatch("a", "a"), answer("a", 5)}, []int{0, 1}, []int64{5, 0}},
	} {
		require.Equal(t, c.changed, subagent.AttributeUsage(c.history), c.name)
		for i, n := range c.usage {
			require.Equal(t, tokens(n), c.history[i].Usage, "%s: message %d", c.name, i)
		}
		for i, m := range c.history {
			require.Equal(t, m.SubagentUsage != nil && slices.Contains(c.changed, i), m.UsageAttributed, "%s: message %d", c.name, i)
		}
		checkAgain(t, c.history)
	}
}

// clone is a copy as a checkpoint would make it.
func clone(history []subagent.Message) []subagent.Message {
	c := slices.Clone(history)
	for i := range c {
		c[i].ToolCalls = slices.Clone(c[i].ToolCalls)
		if u := c[i].SubagentUsage; u != nil {
			copied := *u
			c[i].SubagentUsage = &copied
		}
	}
	return c
}

func TestB172_ReplayedHistoryCountsOnce(t *testing.T) {
	history := []subagent.Message{dispatch("a"), {ToolCallID: "a"}, {}}
	require.Empty(t, subagent.AttributeUsage(history), "a background task has not ended yet")
	u := tokens(70)
	history[1].SubagentUsage = &u
	early := clone(history)
	require.Equal(t, []int{0, 1}, subagent.AttributeUsage(history))
	saved := clone(history)
	for range 3 {
		require.Empty(t, subagent.AttributeUsage(saved))
		require.Equal(t, tokens(70), saved[0].Usage)
	}
	require.Equal(t, []int{0, 1}, subagent.AttributeUsage(early), "saved before the pass: counted now, once")
	require.Equal(t, history, early)
}

func TestB167_ResultWithoutItsDispatcherWaits(t *testing.T) {
	history := []subagent.Message{answer("a", 5)}
	require.Empty(t, subagent.AttributeUsage(history))
	require.False(t, history[0].UsageAttributed)
	whole := append([]subagent.Message{dispatch("a")}, history...)
	require.Equal(t, []int{0, 1}, subagent.AttributeUsage(whole))
	require.Equal(t, tokens(5), whole[0].Usage)
}

func TestAttributeUsageLeavesMarkedAndForeignFieldsAlone(t *testing.T) {
	marked := answer("a", 5)
	marked.UsageAttributed = true
	first := dispatch("a")
	first.Usage = tokens(100)
	history := []subagent.Message{first, marked, answer("a", 7)}
	require.Equal(t, []int{0, 2}, subagent.AttributeUsage(history))
	require.Equal(t, tokens(107), history[0].Usage)
	require.Equal(t, tokens(7), *history[2].SubagentUsage, "a result keeps its own")
}

func TestAttributeUsageOfALongHistory(t *testing.T) {
	const turns = 100_000
	history := make([]subagent.Message, 0, 2*turns)
	for i := range turns {
		history = append(history, dispatch(fmt.Sprint(i)))
	}
	for i := range turns {
		history = append(history, answer(fmt.Sprint(i), int64(i)))
	}
	require.Len(t, subagent.AttributeUsage(history), 2*turns)
	require.Equal(t, tokens(turns-1), history[turns-1].Usage)
}

const required = `"input_tokens":1,"output_tokens":2,"total_tokens":3`

func TestParseUsage(t *testing.T) {
	for data, want := range map[string]subagent.Usage{
		`{` + required + `}`: {InputTokens: 1, OutputTokens: 2, TotalTokens: 3},
		` { "calls": 7, "reasoning_tokens":6,"cache_write_tokens":5,"cache_read_tokens":4,` + required + "}\n": {1, 2, 3, 4, 5, 6, 7},
		`{"input_tokens":0,"output_tokens":0,"total_tokens":9223372036854775807}`:                              {TotalTokens: math.MaxInt64},
		`{` + required + `,"cost":1.5,"details":{"input_tokens":-1},"x":null,"x":[{}]}`:                        {InputTokens: 1, OutputTokens: 2, TotalTokens: 3},
		`{` + required + `,"Calls":true,"INPUT_TOKENS":-1}`:                                                    {InputTokens: 1, OutputTokens: 2, TotalTokens: 3},
		`{` + required + `,"calls":null}`:                                                                      {InputTokens: 1, OutputTokens: 2, TotalTokens: 3},
		`{"input\u005ftokens":1,"output_tokens":2,"total_tokens":3}`:                                           {InputTokens: 1, OutputTokens: 2, TotalTokens: 3},
	} {
		got, err := subagent.ParseUsage([]byte(data))
		require.NoError(t, err, data)
		require.Equal(t, &want, got, data)
	}
}

var usageKeys = []string{
	"input_tokens", "output_tokens", "total_tokens",
	"cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "calls",
}

// counts is the JSON of a usage in which one key has another value.
func counts(key, value string) string {
	var members []string
	for _, k := range usageKeys {
		v := "1"
		if k == key {
			v = value
		}
		members = append(members, fmt.Sprintf("%q:%s", k, v))
	}
	return "{" + strings.Join(members, ",") + "}"
}

func TestParseUsageRefusesCounts(t *testing.T) {
	for i, key := range usageKeys {
		for _, value := range []string{
			"-1", "-0", "1.0", "1.5", "1e3", "1E0", "0.0", "true", "false", `"1"`, `""`, "[]", "[1]", "{}",
			"9223372036854775808", "99999999999999999999999999", "1" + strings.Repeat("0", 1000),
		} {
			refuseUsage(t, counts(key, value), key)
		}
		refuseUsage(t, strings.Replace(counts("", ""), "{", `{"`+key+`":1,`, 1), key+" is given twice")
		if i < 3 {
			refuseUsage(t, counts(key, "null"), key)
			refuseUsage(t, strings.Replace(counts("", ""), key, "other", 1), key+" is missing")
		} else {
			refuseUsage(t, strings.Replace(counts(key, "null"), "{", `{"`+key+`":1,`, 1), key+" is given twice")
		}
	}
}

func TestParseUsageRefusesWhatIsNoObject(t *testing.T) {
	for _, data := range []string{
		"", " ", "null", "5", `"x"`, "true", "[]", `[{` + required + `}]`,
		`{` + required, `{` + required + `,}`, `{` + required + `}}`, `{` + required + `} {}`, `{` + required + `}x`,
		`{input_tokens:1}`, `{"input_tokens":01,"output_tokens":2,"total_tokens":3}`, `{"input_tokens":+1,"output_tokens":2,"total_tokens":3}`,
		"\ufeff{" + required + "}", strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 100_000),
	} {
		refuseUsage(t, data, "")
	}
}

func refuseUsage(t *testing.T, data, says string) {
	t.Helper()
	got, err := subagent.ParseUsage([]byte(data))
	require.ErrorContains(t, err, says, data)
	require.ErrorContains(t, err, "subagent: usage: ")
	require.Less(t, len(err.Error()), 300)
	require.Nil(t, got)
}

func FuzzParseUsage(f *testing.F) {
	f.Add([]byte(`{` + required + `}`))
	f.Add([]byte(counts("calls", "null")))
	f.Add([]byte(counts("input_tokens", "1e3")))
	f.Add([]byte(`{` + required + `,"x":{"calls":[1,2,{}]},"calls":9}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := subagent.ParseUsage(data)
		if err != nil {
			require.Nil(t, got)
			return
		}
		// What is accepted is what a lenient reader finds, and survives a round trip.
		var lenient map[string]any
		require.NoError(t, json.Unmarshal(data, &lenient))
		fields := reflect.ValueOf(*got)
		for i, key := range usageKeys {
			if n, ok := lenient[key].(float64); ok {
				require.InEpsilon(t, n+1, float64(fields.Field(i).Int())+1, 1e-9, key)
			} else {
				require.Zero(t, fields.Field(i).Int(), key)
			}
			require.GreaterOrEqual(t, fields.Field(i).Int(), int64(0))
		}
		again, err := json.Marshal(got)
		require.NoError(t, err)
		parsed, err := subagent.ParseUsage(again)
		require.NoError(t, err)
		require.Equal(t, got, parsed)
	})
}

// historyOf makes a history of bytes, two a message.
func historyOf(ops []byte) (history []subagent.Message) {
	for i := 0; i+1 < len(ops); i += 2 {
		var m subagent.Message
		call := string('a' + rune(ops[i]>>4&3))
		switch ops[i] & 7 {
		case 0, 1, 2:
			m = dispatch(call)
		case 3:
			m = dispatch(call, string('a'+rune(ops[i+1]&3)))
		case 4, 5:
			m = answer(call, int64(ops[i+1]))
		case 6:
			m = answer(call, int64(int8(ops[i+1])))
		case 7:
			m = answer(call, int64(ops[i+1]))
			m.UsageAttributed = true
		}
		history = append(history, m)
	}
	return history
}

// charged is all usage that a history shows: what messages carry, and what is
// still to be added to one.
func charged(history []subagent.Message) (sum subagent.Usage) {
	for _, m := range history {
		sum = sum.Add(m.Usage)
		if m.SubagentUsage != nil && !m.UsageAttributed {
			sum = sum.Add(*m.SubagentUsage)
		}
	}
	return sum
}

func checkAttribution(t *testing.T, history []subagent.Message) {
	t.Helper()
	before := clone(history)
	changed := subagent.AttributeUsage(history)
	require.Equal(t, charged(before), charged(history), "nothing is lost or counted twice")
	require.True(t, slices.IsSorted(changed))
	require.Len(t, slices.Compact(slices.Clone(changed)), len(changed))
	for i := range history {
		differs := !reflect.DeepEqual(before[i], history[i])
		if differs {
			require.Contains(t, changed, i)
		}
		require.Equal(t, wantDispatcher(before, i) >= 0, history[i].UsageAttributed && !before[i].UsageAttributed)
	}
	checkAgain(t, history)
}

// checkAgain checks that another pass changes nothing.
func checkAgain(t *testing.T, history []subagent.Message) {
	t.Helper()
	before := clone(history)
	require.Empty(t, subagent.AttributeUsage(history))
	require.Equal(t, before, history)
}

// wantDispatcher is the rule, taken literally: -1 if message i is not to be
// attributed.
func wantDispatcher(history []subagent.Message, i int) int {
	m := history[i]
	if m.SubagentUsage == nil || m.UsageAttributed || m.SubagentUsage.TotalTokens < 0 {
		return -1
	}
	for j := i - 1; j >= 0; j-- {
		if slices.Contains(history[j].ToolCalls, m.ToolCallID) {
			return j
		}
	}
	return -1
}

func FuzzAttributeUsage(f *testing.F) {
	f.Add([]byte{0x00, 0, 0x04, 9, 0x04, 3})
	f.Add([]byte{0x00, 0, 0x10, 0, 0x03, 1, 0x04, 9, 0x14, 8, 0x06, 0xff, 0x07, 5})
	f.Fuzz(func(t *testing.T, ops []byte) {
		checkAttribution(t, historyOf(ops[:min(len(ops), 400)]))
	})
}

func TestG14_AttributeUsageAtRandom(t *testing.T) {
	r := seeded(t)
	for range 500 {
		ops := make([]byte, r.IntN(80))
		for i := range ops {
			ops[i] = byte(r.Uint32())
		}
		checkAttribution(t, historyOf(ops))
	}
}

func TestG14_PassesBetweenAppendsEqualOnePass(t *testing.T) {
	r := seeded(t)
	for range 100 {
		ops := make([]byte, 60)
		for i := range ops {
			ops[i] = byte(r.Uint32())
		}
		whole, grown := historyOf(ops), []subagent.Message(nil)
		subagent.AttributeUsage(whole)
		for _, m := range historyOf(ops) {
			grown = append(grown, m)
			subagent.AttributeUsage(grown)
		}
		require.Equal(t, whole, grown)
	}
}

// Three background agents whose calls have the same id: their results were
// saved without usage, which comes later, in any order, with other messages in
// between. Each lands on the message that started its agent.
func TestG14_LateUsageOfEqualCallIDs(t *testing.T) {
	r := seeded(t)
	for range 20 {
		var history []subagent.Message
		var results []int
		for range 3 {
			history = append(history, subagent.Message{}, dispatch("call_0", "call_1"), subagent.Message{ToolCallID: "call_1"})
			results = append(results, len(history))
			history = append(history, subagent.Message{ToolCallID: "call_0"}, subagent.Message{})
		}
		require.Empty(t, subagent.AttributeUsage(history))
		for _, i := range r.Perm(3) {
			u := tokens(int64(10 * i)) // zero too
			history[results[i]].SubagentUsage = &u
			require.Equal(t, []int{results[i] - 2, results[i]}, subagent.AttributeUsage(history))
			checkAgain(t, history)
		}
		for i, at := range results {
			require.Equal(t, tokens(int64(10*i)), history[at-2].Usage)
		}
	}
}

// Malformed usage is not marked, and holds up nobody else's; once it is mended
// a later pass counts it.
func TestMalformedUsageIsCountedOnceItIsMended(t *testing.T) {
	history := []subagent.Message{dispatch("a", "b"), answer("a", -1), answer("b", 7)}
	require.Equal(t, []int{0, 2}, subagent.AttributeUsage(history))
	require.False(t, history[1].UsageAttributed)
	require.Equal(t, tokens(-1), *history[1].SubagentUsage, "left as it was")
	checkAgain(t, history)
	for i := range usageKeys { // one bad count is enough
		u := tokens(5)
		reflect.ValueOf(&u).Elem().Field(i).SetInt(-5)
		history[1].SubagentUsage = &u
		checkAgain(t, history)
	}
	mended, err := subagent.ParseUsage([]byte(counts("calls", "1")))
	require.NoError(t, err)
	history[1].SubagentUsage = mended
	require.Equal(t, []int{0, 1}, subagent.AttributeUsage(history))
	require.Equal(t, tokens(8), history[0].Usage)
	checkAgain(t, history)
}
