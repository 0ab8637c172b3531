package agenttool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-subagent/subagent/internal/runes"
)

// arguments are what a model wrote, key by key; null is as if a key was not
// given. The getters keep the first mistake in err and then return zero
// values, so that a tool reads all it needs and looks at err once.
type arguments struct {
	values map[string]json.RawMessage
	err    error
}

// parseArguments goes token by token: decoding into a struct would match keys
// regardless of case, drop unknown ones and take the last of two.
func parseArguments(data json.RawMessage, keys []string) (*arguments, error) {
	a := &arguments{values: make(map[string]json.RawMessage)}
	if len(bytes.TrimSpace(data)) == 0 {
		return a, nil
	}
	allowed := strings.Join(keys, ", ")
	if err := json.Unmarshal(data, new(json.RawMessage)); err != nil { // syntax and trailing data
		return nil, fmt.Errorf("the arguments are not valid JSON (%w); send one object with the keys %s", err, allowed)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("the arguments are %s; send one JSON object with the keys %s", kindOf(data), allowed)
	}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		key := token.(string)
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		if !slices.Contains(keys, key) {
			return nil, fmt.Errorf("there is no argument %q; the arguments are %s", brief(key), allowed)
		}
		if _, twice := a.values[key]; twice {
			return nil, fmt.Errorf("%s is given twice; give it once", key)
		}
		a.values[key] = value
	}
	return a, nil
}

func (a *arguments) has(key string) bool {
	value, ok := a.values[key]
	return ok && string(value) != "null"
}

// get decodes a key into v and reports whether it was there and could be.
func (a *arguments) get(key string, v any, want string) bool {
	if a.err != nil || !a.has(key) {
		return false
	}
	value := a.values[key]
	if err := json.Unmarshal(value, v); err != nil {
		a.wrong(key, value, want)
		return false
	}
	return true
}

func (a *arguments) wrong(key string, value json.RawMessage, want string) {
	if a.err == nil {
		a.err = fmt.Errorf("%s is %s; it must be %s", key, kindOf(value), want)
	}
}

// required is a string that is not blank.
func (a *arguments) required(key, want string) string {
	var s string
	if !a.get(key, &s, want) {
		if a.err == nil {
			a.err = fmt.Errorf("%s is missing; it must be %s", key, want)
		}
	} else if strings.TrimSpace(s) == "" {
		a.err = fmt.Errorf("%s is empty; it must be %s", key, want)
	}
	return s
}

func (a *arguments) text(key string) (s string) {
	a.get(key, &s, "a string")
	return s
}

func (a *arguments) flag(key string, def bool) bool {
	a.get(key, &def, "true or false")
	return def
}

// choice is one of the options, the first by default.
func (a *arguments) choice(key string, options ...string) string {
	want := "one of " + strings.Join(options, ", ")
	s := options[0]
	if a.get(key, &s, want) && !slices.Contains(options, s) {
		a.wrong(key, a.values[key], want)
	}
	return s
}

// whole is a number without fraction, however it is written; one that is too
// large for an int is the largest.
func (a *arguments) whole(key string, def, least int, want string) int {
	var n json.Number
	if !a.get(key, &n, want) {
		return def
	}
	value := a.values[key]
	f, err := strconv.ParseFloat(n.String(), 64)
	if errors.Is(err, strconv.ErrRange) {
		err = nil // f is infinite
	}
	if value[0] == '"' || err != nil || !isWhole(n.String()) || f < float64(least) {
		a.wrong(key, value, want)
		return def
	}
	return int(min(f, math.MaxInt32))
}

// isWhole reports whether a JSON number has no fraction. It looks at the
// digits: as a float64 a fraction may be too small to be seen.
func isWhole(n string) bool {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(n), "e")
	before, after, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimRight(before+after, "0")
	shift, _ := strconv.Atoi(exponent) // 0 if there is none, the nearest int if it is out of range
	return strings.Trim(digits, "-0") == "" || len(digits)-len(before) <= shift
}

const (
	defaultWait = 30 * time.Second
	longestWait = 10 * time.Minute
)

// timeout is how long a call may wait, and whether the model asked for longer.
func (a *arguments) timeout() (d time.Duration, clamped bool) {
	ms := a.whole("timeout", int(defaultWait.Milliseconds()), 0, "a whole number of milliseconds, 0 to 600000")
	d = time.Duration(ms) * time.Millisecond
	return min(d, longestWait), d > longestWait
}

// kindOf says what a value is, in so many words that a model finds it again.
func kindOf(value json.RawMessage) string {
	value = bytes.TrimSpace(value)
	switch value[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "the string " + runes.Clean(brief(string(value)))
	default:
		return runes.Clean(brief(string(value)))
	}
}
