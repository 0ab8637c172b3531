package sqlstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// record is a row: the task as JSON, which is the truth, and in columns what
// filters need. Once it is stored it is not changed: several may read it.
type record struct {
	task    subagent.Task
	place   int64 // the row's number in the table: it is found at once by it
	birth   int64 // random: a row that is created anew in the same place has another
	json    string
	foreign bool // json has keys that this version does not know
}

// The statements that insert and read a record. Those that write name the
// columns that they write: what a newer version has added keeps what it has.
const (
	insertSQL = `INSERT INTO tasks (task, version, status, ended, owed, parent_task_id, external_task_id, agent_id, parent_msg_id, id, birth, session_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT DO NOTHING`

	columns = `place, id, birth, version, task` // as scanRecord reads them
	getSQL  = `SELECT ` + columns + ` FROM tasks WHERE id = $1`
)

// keyColumns are the columns, beside task and version, that a change may touch.
var keyColumns = [...]string{"status", "ended", "owed", "parent_task_id", "external_task_id", "agent_id", "parent_msg_id"}

// updateSQL is the statement that puts next in the place of old if that is still
// what is stored. It sets only the keys that differ, because an index is kept up
// where a column of it is set.
func updateSQL(old, next *record) (text string, args []any) {
	text, args = `UPDATE tasks SET task = $1, version = $2`, []any{next.json, next.task.Version}
	was, is := old.keys(), next.keys()
	for i, column := range keyColumns {
		if was[i] != is[i] {
			args = append(args, bind(is[i]))
			text += fmt.Sprintf(`, %s = $%d`, column, len(args))
		}
	}
	n := len(args)
	text += fmt.Sprintf(` WHERE place = $%d AND version = $%d AND birth = $%d`, n+1, n+2, n+3)
	return text, append(args, old.place, old.task.Version, old.birth)
}

// maxRecord bounds a task's JSON. A Runner stays below it. SQLite takes twice as
// much memory to write one, of the 256 MiB that the driver gives a connection.
const maxRecord = 104 << 20

// newRecord is a task that is about to be created.
func newRecord(t *subagent.Task) (*record, error) {
	r := &record{task: clone(t), birth: rand.Int64()}
	r.task.Version = 1
	return r, r.encode()
}

// edited is what edit makes of r: r itself if it changes nothing. The edit's
// error is returned unchanged.
func (r *record) edited(edit func(*subagent.Task) error) (*record, error) {
	t := clone(&r.task)
	if err := edit(&t); err != nil {
		return nil, err
	}
	switch changed, err := subagent.CheckUpdate(r.task, t); {
	case err != nil:
		return nil, err
	case !changed:
		return r, nil
	}
	return r.next(&t)
}

// next is r with what has become of its task. What a newer version has written
// into it stays.
func (r *record) next(t *subagent.Task) (*record, error) {
	next := &record{place: r.place, birth: r.birth, task: clone(t), foreign: r.foreign}
	next.task.Version = r.task.Version + 1
	if err := next.encode(); err != nil {
		return nil, err
	}
	if r.foreign {
		merged, err := mergeUnknown([]byte(r.json), []byte(next.json), taskType)
		if err != nil {
			return nil, fmt.Errorf("sqlstore: task %s: %w", r.task.ID, err)
		}
		next.json = string(merged)
	}
	return next, nil
}

func (r *record) encode() error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&r.task); err != nil {
		return fmt.Errorf("%w: task %s cannot be stored: %w", subagent.ErrInvalidRequest, r.task.ID, err)
	}
	if b.Len() > maxRecord {
		return fmt.Errorf("%w: task %s is larger than %d MiB", subagent.ErrInvalidRequest, r.task.ID, maxRecord>>20)
	}
	r.json = strings.TrimSuffix(b.String(), "\n")
	return nil
}

// scanRecord reads a row of columns.
func scanRecord(row interface{ Scan(...any) error }) (*record, error) {
	r := new(record)
	var (
		id      []byte
		version int64
	)
	if err := row.Scan(&r.place, &id, &r.birth, &version, &r.json); err != nil {
		return nil, err
	}
	if err := r.decode(); err != nil {
		return nil, fmt.Errorf("%w: row with id %x: %w", errRow, id, err)
	}
	if !bytes.Equal(id, r.task.ID[:]) {
		return nil, fmt.Errorf("%w: row with id %x has that of task %s", errRow, id, r.task.ID)
	}
	r.task.Version = version
	return r, nil
}

// errRow marks a row whose JSON cannot be read.
var errRow = errors.New("the task's JSON is damaged")

func (r *record) decode() error {
	dec := json.NewDecoder(strings.NewReader(r.json))
	dec.DisallowUnknownFields()
	err := dec.Decode(&r.task)
	if err == nil {
		_, err = dec.Token()
		if err == io.EOF {
			return nil
		}
		return errors.New("something follows the object")
	}
	// Either it has keys that are not known, or it is damaged: the second
	// reading, which only says the latter, tells.
	r.task, r.foreign = subagent.Task{}, true
	return json.Unmarshal([]byte(r.json), &r.task)
}

// args are insertSQL's.
func (r *record) args() []any {
	args := []any{r.json, r.task.Version}
	for _, key := range r.keys() {
		args = append(args, bind(key))
	}
	return append(args, r.task.ID[:], r.birth, r.task.ParentSessionID)
}

// keys are what keyColumns hold. What is not set is NULL, and not in the index.
func (r *record) keys() [len(keyColumns)]any {
	t := &r.task
	var ended subagent.Status
	if t.Status.Terminal() {
		ended = t.Status
	}
	return [...]any{string(t.Status), orNull(string(ended)), owed(t),
		orNull(t.ParentTaskID), orNull(t.ExternalTaskID), orNull(t.AgentID), orNull(t.ParentMsgID)}
}

func orNull[T comparable](key T) any {
	var unset T
	if key == unset {
		return nil
	}
	return key
}

// bind is key as the driver takes it.
func bind(key any) any {
	if id, ok := key.(uuid.UUID); ok {
		return id[:]
	}
	return key
}

// owed is 1 if a notice of t's end is owed.
func owed(t *subagent.Task) int64 {
	if (subagent.Filter{Undelivered: true}).Match(*t) {
		return 1
	}
	return 0
}

func clone(t *subagent.Task) subagent.Task {
	c := *t
	c.Metadata = maps.Clone(t.Metadata)
	return c
}

var taskType = reflect.TypeFor[subagent.Task]()

// mergeUnknown adds to the object next, which holds a value of typ, the keys of
// the object old that typ does not know, at every depth.
func mergeUnknown(old, next []byte, typ reflect.Type) ([]byte, error) {
	var was, is map[string]json.RawMessage
	if err := json.Unmarshal(old, &was); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(next, &is); err != nil {
		return nil, err
	}
	fields := fieldsOf(typ)
	for key, value := range was {
		field, known := fields[key]
		switch {
		case !known:
			is[key] = value
		case isObject(field, value):
			inner := is[key]
			if inner == nil {
				inner = []byte("{}")
			}
			merged, err := mergeUnknown(value, inner, field)
			if err != nil {
				return nil, err
			}
			if is[key] != nil || string(merged) != "{}" {
				is[key] = merged
			}
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(is); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// isObject reports whether a field of typ holds an object with keys of its own
// that a newer version may have added to.
func isObject(typ reflect.Type, value json.RawMessage) bool {
	return typ.Kind() == reflect.Struct && bytes.HasPrefix(value, []byte("{"))
}

// fieldsOf are the JSON keys of a struct.
func fieldsOf(typ reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type, typ.NumField())
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		fields[name] = typ.Field(i).Type
	}
	return fields
}
