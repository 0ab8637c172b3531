package gitstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// state is everything that one tasks.json says. It is immutable: a change
// makes another that shares the records.
type state struct {
	rows []*record // by ID
}

var empty = newState(nil)

func newState(rows []*record) *state { return &state{rows} }

func compareID(r *record, id uuid.UUID) int { return bytes.Compare(r.task.ID[:], id[:]) }

// find returns the record of id, nil if there is none.
func (st *state) find(id uuid.UUID) *record {
	if i, ok := slices.BinarySearchFunc(st.rows, id, compareID); ok {
		return st.rows[i]
	}
	return nil
}

// with returns st with records put in, or in the place of those of the same
// ID, and others taken out.
func (st *state) with(put, drop []*record) *state {
	n := len(st.rows)
	rows := slices.Grow(slices.Clone(st.rows), len(put))
	for _, r := range put {
		if i, ok := slices.BinarySearchFunc(rows[:n], r.task.ID, compareID); ok {
			rows[i] = r
		} else {
			rows = append(rows, r)
		}
	}
	if len(rows) > n {
		sortRows(rows)
	}
	for _, r := range drop {
		if i, ok := slices.BinarySearchFunc(rows, r.task.ID, compareID); ok {
			rows = slices.Delete(rows, i, i+1)
		}
	}
	return newState(rows)
}

func sortRows(rows []*record) {
	slices.SortFunc(rows, func(a, b *record) int { return compareID(a, b.task.ID) })
}

// parts are the pieces of the file.
func (st *state) parts() [][]byte {
	if len(st.rows) == 0 {
		return [][]byte{[]byte("{}\n")}
	}
	parts := make([][]byte, 0, 2*len(st.rows)+1)
	for i, r := range st.rows {
		parts = append(parts, between[min(i, 1)], r.raw())
	}
	return append(parts, []byte("\n}\n"))
}

// between is what stands in front of the first task, and of any other.
var between = [2][]byte{[]byte("{\n"), []byte(",\n")}

// size is about how long the file is.
func (st *state) size() (n int) {
	for _, r := range st.rows {
		n += len(r.raw())
	}
	return n
}

// is reports whether data is the file.
func (st *state) is(data []byte) bool { return bytes.Equal(data, st.bytes()) }

func (st *state) bytes() []byte { return bytes.Join(st.parts(), nil) }

// texts are the files that the records refer to.
func (st *state) texts() (refs []*textRef) {
	for _, r := range st.rows {
		if r.text != nil {
			refs = append(refs, r.text)
		}
	}
	return refs
}

// ErrDamaged is a file that cannot be what the store has written. The error
// that it is wrapped in names the file, and the line and column where reading
// had to stop. Nothing was changed.
var ErrDamaged = errors.New("gitstore: damaged file")

// parseState reads a tasks.json. path is for the error.
func parseState(session, path string, data []byte) (*state, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	var rows []*record
	err := parseRows(dec, func(key string, raw json.RawMessage) error {
		r, err := readRecord(session, key, raw)
		if err != nil {
			return err
		}
		rows = append(rows, r)
		return nil
	})
	sortRows(rows)
	for i := 1; err == nil && i < len(rows); i++ {
		if rows[i].task.ID == rows[i-1].task.ID {
			err = fmt.Errorf("task %s is there twice", rows[i].task.ID)
		}
	}
	if err != nil {
		return nil, damaged(path, data, dec.InputOffset(), err)
	}
	return newState(rows), nil
}

func parseRows(dec *json.Decoder, row func(key string, raw json.RawMessage) error) error {
	if err := expect(dec, json.Delim('{')); err != nil {
		return err
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		if err := row(key.(string), raw); err != nil {
			return err
		}
	}
	if err := expect(dec, json.Delim('}')); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("there is something behind the end")
	}
	return nil
}

func expect(dec *json.Decoder, want json.Delim) error {
	switch got, err := dec.Token(); {
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case got != want:
		return fmt.Errorf("%v stands where %v should", got, want)
	}
	return nil
}

// damaged says where a file could not be read any more.
func damaged(path string, data []byte, offset int64, err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		offset = syntax.Offset
	}
	before := data[:min(int(offset), len(data))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %s:%d:%d: %w", ErrDamaged, path, line, column, err)
}

var rowBegins = regexp.MustCompile(`(?m)^  "([0-9a-f-]{36})": \{$`)

// salvage returns the records of a damaged tasks.json that are provably whole:
// those whose checksum is right. The file is ours if it is anything, so that
// each begins at a line that nothing else looks like.
func salvage(session string, data []byte) *state {
	var rows []*record
	begins := rowBegins.FindAllSubmatchIndex(data, -1)
	for _, at := range begins {
		key, body := string(data[at[2]:at[3]]), data[at[1]-1:]
		end := bytes.Index(body, []byte("\n  }"))
		if end < 0 {
			continue
		}
		body = body[:end+len("\n  }")]
		r, err := readRecord(session, key, body)
		if err == nil && bytes.Equal(r.raw(), row(key, body)) && !slices.ContainsFunc(rows, func(o *record) bool { return o.task.ID == r.task.ID }) {
			rows = append(rows, r)
		}
	}
	sortRows(rows)
	return newState(rows)
}

// newest has of each task the record that is further on.
func (st *state) newest(other *state) *state {
	var put []*record
	for _, r := range other.rows {
		if mine := st.find(r.task.ID); mine == nil || mine.task.Version < r.task.Version {
			put = append(put, r)
		}
	}
	return st.with(put, nil)
}

// digest is what is kept of every session, so that most are never read.
type digest struct {
	ids     []uuid.UUID
	parents []uuid.UUID // each ParentTaskID once
	status  uint8       // a bit for each status that a task has
	owed    bool        // a notice is owed
}

var statusBits = map[subagent.Status]uint8{
	subagent.StatusPending: 1, subagent.StatusQueued: 2, subagent.StatusRunning: 4,
	subagent.StatusCompleted: 8, subagent.StatusCancelled: 16, subagent.StatusErrored: 32,
}

// otherBit stands for every status that this version does not know.
const otherBit = 64

func bitOf(s subagent.Status) uint8 {
	if bit := statusBits[s]; bit != 0 {
		return bit
	}
	return otherBit
}

func (st *state) digest() (d digest) {
	d.ids = make([]uuid.UUID, 0, len(st.rows))
	for _, r := range st.rows {
		if r.foreign {
			continue
		}
		d.ids = append(d.ids, r.task.ID)
		d.status |= bitOf(r.task.Status)
		d.owed = d.owed || (subagent.Filter{Undelivered: true}).Match(r.task)
		if p := r.task.ParentTaskID; p != uuid.Nil && !slices.Contains(d.parents, p) {
			d.parents = append(d.parents, p)
		}
	}
	return d
}

// mayMatch is false if no task of the session can be one that f selects.
func (d *digest) mayMatch(f *subagent.Filter) bool {
	if f.Undelivered && !d.owed || f.ParentTaskID != uuid.Nil && !slices.Contains(d.parents, f.ParentTaskID) {
		return false
	}
	want := ^uint8(0)
	if len(f.Statuses) > 0 {
		want = 0
		for _, s := range f.Statuses {
			want |= bitOf(s)
		}
	}
	return len(d.ids) > 0 && d.status&want != 0
}
