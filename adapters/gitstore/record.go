package gitstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// record is one task as tasks.json has it. It is immutable: a change makes
// another. Two records are the same one if their pointers are, which is what
// makes a compare-and-set of a whole task one comparison.
type record struct {
	task    subagent.Task // ResultText is empty if text is set
	text    *textRef
	unknown object // keys that a newer version wrote, those within known objects included
	foreign bool   // of another session: kept in the file, and not served

	encode sync.Once
	data   []byte // see raw
}

// textRef says where a long ResultText is. A file that is referred to never
// changes: another text gets another file.
type textRef struct {
	Name     string `json:"name"` // below the session's folder, with slashes
	Size     int    `json:"size"`
	Checksum string `json:"checksum"`
}

// object is a JSON object whose values are not looked into.
type object = map[string]json.RawMessage

// Keys that the store adds to those of a task.
const (
	keyChecksum = "checksum"         // of the task without it: a flipped bit is noticed
	keyTextFile = "result_text_file" // textRef, in the place of result_text
	keyText     = "result_text"
)

// maxInline is the longest ResultText, in bytes, that stays in tasks.json.
const maxInline = 4 << 10

// newRecord makes the record of t, which is t's state after old (nil if it is
// new). If text is not empty it is to be stored in the file that the record
// names before the record is. It takes t over, and brings it into the form in
// which it is read back.
func newRecord(t subagent.Task, old *record) (r *record, text string) {
	r = &record{task: t}
	if old != nil {
		r.unknown = old.unknown
	}
	if len(t.ResultText) > maxInline {
		text, r.task.ResultText = t.ResultText, ""
		r.text = &textRef{Name: textName(&t, old), Size: len(text), Checksum: textSum([]byte(text))}
		if old != nil && old.text != nil && old.text.Size == r.text.Size && old.text.Checksum == r.text.Checksum {
			r.text, text = old.text, "" // it is there already
		}
	}
	return r, text
}

// raw is the lines that tasks.json has of r. They are made when they are first
// asked for: of the many records that are replaced before they are written only
// the history asks, which has time.
func (r *record) raw() []byte {
	r.encode.Do(func() {
		if r.data != nil { // it was read
			return
		}
		members := split(marshal(&r.task))
		if r.text != nil {
			members = append(members, member{keyTextFile, marshal(r.text)})
		}
		if r.unknown != nil {
			m := make(object)
			for _, f := range members {
				m[f.key] = f.value
			}
			mergeUnknown(m, r.unknown)
			members = membersOf(m)
		}
		r.data = seal(r.task.ID.String(), members)
	})
	return r.data
}

// textName is a name that old, which is to stay whole until t's record is
// stored, does not use.
func textName(t *subagent.Task, old *record) string {
	name := textFolder + "/" + t.ID.String()
	if old != nil && old.text != nil {
		return fmt.Sprintf("%s.%d.txt", name, t.Version)
	}
	return name + ".txt"
}

// textSuffix is what textName adds to an ID. A name is a path that is read and
// removed, and a line of what git is told: no other is taken from a file.
var textSuffix = regexp.MustCompile(`^(\.[0-9]+)?\.txt$`)

// readRecord reads what tasks.json has under key. What it does not know it
// keeps; what cannot be is an error.
func readRecord(session, key string, raw json.RawMessage) (*record, error) {
	var m object
	if err := json.Unmarshal(compact(raw), &m); err != nil {
		return nil, err
	}
	r := &record{data: row(key, raw)}
	sum, summed := m[keyChecksum]
	delete(m, keyChecksum)
	if !summed { // written by hand, or by a tool
		r.data = seal(key, membersOf(m))
	} else if want := string(marshal(checksum(join(membersOf(m))))); want != string(sum) {
		return nil, fmt.Errorf("task %s: its checksum is %s, which should be %s", key, want, sum)
	}
	if ref, ok := m[keyTextFile]; ok {
		r.text = new(textRef)
		if err := json.Unmarshal(ref, r.text); err != nil {
			return nil, fmt.Errorf("task %s: %s: %w", key, keyTextFile, err)
		}
		if rest, ok := strings.CutPrefix(r.text.Name, textFolder+"/"+key); !ok || !textSuffix.MatchString(rest) {
			return nil, fmt.Errorf("task %s: %s is %q, which cannot be", key, keyTextFile, r.text.Name)
		}
		delete(m, keyTextFile)
	}
	r.unknown = splitUnknown(m, taskShape)
	// Only exact keys are left: encoding/json would take "Subject", too.
	if err := json.Unmarshal(join(membersOf(m)), &r.task); err != nil {
		return nil, fmt.Errorf("task %s: %w", key, err)
	}
	if r.task.ID.String() != key {
		return nil, fmt.Errorf("task %s says that its task_id is %s", key, r.task.ID)
	}
	if err := normalise(&r.task); err != nil {
		return nil, err
	}
	r.foreign = r.task.ParentSessionID != session
	return r, nil
}

// normalise brings t into the form in which it is read back: its maps its own,
// its times UTC and without a monotonic clock. What JSON cannot carry is
// refused: text would come back as another text.
func normalise(t *subagent.Task) error {
	t.Metadata = maps.Clone(t.Metadata)
	if len(t.Metadata) == 0 {
		t.Metadata = nil
	}
	for k, v := range t.Metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return invalidText(t.ID, "Metadata")
		}
	}
	return normaliseFields(t.ID, reflect.ValueOf(t).Elem())
}

func normaliseFields(id uuid.UUID, v reflect.Value) error {
	for i := range v.NumField() {
		f := v.Field(i)
		switch p := f.Addr().Interface().(type) {
		case *time.Time:
			if *p = p.UTC().Round(0); p.Year() < 0 || p.Year() > 9999 {
				return fmt.Errorf("%w: %s of task %s is in the year %d", subagent.ErrInvalidRequest, v.Type().Field(i).Name, id, p.Year())
			}
			continue
		case *string:
			if !utf8.ValidString(*p) {
				return invalidText(id, v.Type().Field(i).Name)
			}
		}
		if f.Kind() == reflect.String && !utf8.ValidString(f.String()) {
			return invalidText(id, v.Type().Field(i).Name)
		}
		if f.Kind() == reflect.Struct {
			if err := normaliseFields(id, f); err != nil {
				return err
			}
		}
	}
	return nil
}

func invalidText(id uuid.UUID, field string) error {
	return fmt.Errorf("%w: %s of task %s is not valid UTF-8", subagent.ErrInvalidRequest, field, id)
}

// member is one of an object. Its value is compact.
type member struct {
	key   string
	value json.RawMessage
}

func membersOf(m object) []member {
	members := make([]member, 0, len(m)+1) // and a checksum
	for k, v := range m {
		members = append(members, member{k, v})
	}
	sortMembers(members)
	return members
}

func sortMembers(members []member) {
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.key, b.key) })
}

// split returns the members of a compact object whose keys are plain.
func split(data []byte) (members []member) {
	members = make([]member, 0, 32)
	for data = data[1:]; len(data) > 1; data = data[1:] { // the brace or the comma in front
		end := bytes.IndexByte(data[1:], '"') + 1
		size := valueSize(data[end+2:])
		members = append(members, member{string(data[1:end]), data[end+2 : end+2+size]})
		data = data[end+2+size:]
	}
	return members
}

// valueSize is where the value ends that data begins with.
func valueSize(data []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++ // what follows is no end
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case depth == 0 && (c == ',' || c == '}'):
			return i
		case c == '}' || c == ']':
			depth--
		}
	}
	return len(data)
}

// seal adds a checksum to members and returns the lines of the task, keys
// sorted.
func seal(id string, members []member) []byte {
	sortMembers(members)
	sum := member{keyChecksum, marshal(checksum(join(members)))}
	at, _ := slices.BinarySearchFunc(members, keyChecksum, func(f member, key string) int { return strings.Compare(f.key, key) })
	var b bytes.Buffer
	if err := json.Indent(&b, join(slices.Insert(members, at, sum)), "  ", "  "); err != nil {
		panic(err) // it comes from an encoder
	}
	return row(id, b.Bytes())
}

// row is a task in tasks.json.
func row(id string, value []byte) []byte {
	return slices.Concat([]byte("  \""), []byte(id), []byte("\": "), value)
}

// join is the compact object of members.
func join(members []member) []byte {
	size := 2
	for _, f := range members {
		size += len(f.key) + len(f.value) + 4
	}
	b := append(make([]byte, 0, size), '{')
	for i, f := range members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(appendKey(b, f.key), ':'), f.value...)
	}
	return append(b, '}')
}

// appendKey is quick for the keys that there are.
func appendKey(b []byte, key string) []byte {
	for _, c := range []byte(key) {
		if (c < 'a' || c > 'z') && c != '_' {
			return append(b, marshal(key)...)
		}
	}
	return append(append(append(b, '"'), key...), '"')
}

func compact(raw json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw // whoever reads it will say what is wrong
	}
	return b.Bytes()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(data []byte) string {
	return fmt.Sprintf("crc32c:%08x", crc32.Checksum(data, castagnoli))
}

// textSum is wider than checksum, for the same sum is taken for the same text.
func textSum(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// marshal is for values that JSON can carry. It leaves <, > and & as they are:
// people read it.
func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// shape has the keys of a struct's JSON; the value is the shape of a struct
// within it, nil for all else.
type shape map[string]shape

var taskShape = shapeOf(reflect.TypeFor[subagent.Task]())

func shapeOf(t reflect.Type) shape {
	s := shape{}
	for i := range t.NumField() {
		f := t.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		var inner shape
		if f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[time.Time]() {
			inner = shapeOf(f.Type)
		}
		s[key] = inner
	}
	return s
}

// splitUnknown takes out of m, and returns, what s does not know.
func splitUnknown(m object, s shape) object {
	var unknown object
	keep := func(k string, v json.RawMessage) {
		if unknown == nil {
			unknown = object{}
		}
		unknown[k] = v
	}
	for k, v := range m {
		inner, known := s[k]
		if !known {
			keep(k, v)
			delete(m, k)
			continue
		}
		var within object
		if inner == nil || json.Unmarshal(v, &within) != nil {
			continue
		}
		if u := splitUnknown(within, inner); u != nil {
			keep(k, join(membersOf(u)))
			m[k] = join(membersOf(within))
		}
	}
	return unknown
}

// mergeUnknown puts back into m what splitUnknown took out.
func mergeUnknown(m, unknown object) {
	for k, v := range unknown {
		if _, known := taskShape[k]; !known {
			m[k] = v
			continue
		}
		var into, from object
		if m[k] != nil && json.Unmarshal(m[k], &into) != nil || json.Unmarshal(v, &from) != nil {
			continue
		}
		if into == nil {
			into = object{}
		}
		maps.Copy(into, from)
		m[k] = join(membersOf(into))
	}
}
