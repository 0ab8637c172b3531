package soak

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// fact is one line of the journal. Which of its fields mean something depends
// on what it says.
type fact struct {
	Says string    `json:"says"`
	Life int       `json:"life"`           // which host: they are numbered as they start; 0: the test itself
	At   time.Time `json:"at"`             // for people: the order is that of the lines
	Call int64     `json:"call,omitempty"` // pairs a call with its return
	Op   string    `json:"op,omitempty"`
	ID   uuid.UUID `json:"id,omitzero"`

	Since int64           `json:"since,omitempty"` // how long the journal was when it began
	IDs   []uuid.UUID     `json:"ids,omitempty"`
	First []uuid.UUID     `json:"first,omitempty"` // whose end, and so usage, was handed out for the first time
	Tasks []subagent.Task `json:"tasks,omitempty"`
	Rows  []row           `json:"rows,omitempty"`
	Dead  []string        `json:"dead,omitempty"`  // Runners whose leases were given back
	Ends  bool            `json:"ends,omitempty"`  // it was this write that stored the end
	Hands bool            `json:"hands,omitempty"` // and that stored that somebody was handed it
	Card  *subagent.Card  `json:"card,omitempty"`
	Bare  bool            `json:"bare,omitempty"` // Tasks come without prompt, result and usage
	Text  string          `json:"text,omitempty"`
	Err   string          `json:"err,omitempty"`
	Queue int             `json:"queue,omitempty"`
	Took  time.Duration   `json:"took,omitempty"`
}

// row is all that matters of a record that a host found when it opened a store.
type row struct {
	ID      uuid.UUID       `json:"id"`
	Version int64           `json:"v"`
	Status  subagent.Status `json:"s"`
	Owner   string          `json:"o"`
}

// What a fact says.
const (
	saysFound     = "found"     // Rows: what a store held when it was opened
	saysBoot      = "boot"      // a Runner, whose ID is Text, has been made
	saysKilled    = "killed"    // the host whose life is Call was killed
	saysEnded     = "ended"     // the host has ended in order
	saysCall      = "call"      // a client calls Op, about IDs
	saysReturn    = "return"    // and was told Tasks, or Err
	saysStored    = "stored"    // the store acknowledged Tasks: only this outlives the host, and what a reader shows
	saysEnter     = "enter"     // a Func was entered
	saysLeft      = "left"      // a Func is about to return, or to panic: Text
	saysCard      = "card"      // a card was put
	saysCardFails = "cardfails" // a card was refused
	saysNotifying = "notifying" // a notice is being delivered
	saysNotice    = "notice"    // and was
	saysEvent     = "event"     // a WebSocket client was told
	saysCalm      = "calm"      // the clients have stopped: what still goes on
	saysRest      = "rest"      // nothing goes on: what surface Op shows
	saysFault     = "fault"     // somebody saw himself that something is wrong
)

// journal is where facts are written: from many goroutines and processes.
type journal struct {
	file *os.File
	life int
}

func openJournal(path string, life int) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	return &journal{f, life}, err
}

// note appends a fact. It is with the system when this returns. The line break
// before it ends what a killed process may have left unfinished.
func (j *journal) note(f fact) {
	f.Life, f.At = j.life, time.Now()
	line, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	line = append(append([]byte{'\n'}, line...), '\n')
	if _, err := j.file.Write(line); err != nil {
		panic(err)
	}
}

// now is the moment as the journal knows it: its length.
func (j *journal) now() int64 {
	info, err := j.file.Stat()
	if err != nil {
		panic(err)
	}
	return info.Size()
}

func (j *journal) fault(id uuid.UUID, format string, args ...any) {
	j.note(fact{Says: saysFault, ID: id, Text: fmt.Sprintf(format, args...)})
}

// reader reads the journal as it grows.
type reader struct {
	file *os.File
	at   int64 // where it has come to
	torn int   // lines that a killed process left unfinished
}

// read calls f with each fact that has come since, and with where its line ends:
// those that are there when it begins, for others may come faster than it reads.
func (r *reader) read(f func(fact, int64)) error {
	info, err := r.file.Stat()
	if err != nil {
		return err
	}
	in := bufio.NewReaderSize(io.NewSectionReader(r.file, r.at, info.Size()-r.at), 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		r.at += int64(len(line))
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		var it fact
		if json.Unmarshal(line, &it) != nil {
			r.torn++
			continue
		}
		f(it, r.at)
	}
}

// historyLines is how much of a task's history is printed, in lines.
const historyLines = 80

// history is what the journal says about a task, in short.
func history(path string, id uuid.UUID) (lines []string) {
	f, err := os.Open(path)
	if err != nil {
		return []string{err.Error()}
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		var it fact
		if bytes.Contains(line, []byte(id.String())) && json.Unmarshal(line, &it) == nil {
			lines = append(lines, it.about(id))
		}
	}
	if n := len(lines) - historyLines; n > 0 {
		lines = append(append(lines[:historyLines/2:historyLines/2], fmt.Sprintf("… %d lines …", n)), lines[historyLines/2+n:]...)
	}
	return lines
}

// about is a fact as the history of one task shows it.
func (f *fact) about(id uuid.UUID) string {
	s := fmt.Sprintf("%s life %d %s %s", f.At.Format("15:04:05.000000"), f.Life, f.Says, f.Op)
	if f.Call != 0 {
		s += fmt.Sprintf(" #%d", f.Call)
	}
	for _, r := range f.Rows {
		if r.ID == id {
			s += fmt.Sprintf(" %s v%d of %.13s", r.Status, r.Version, r.Owner)
		}
	}
	for _, t := range f.Tasks {
		if t.ID == id {
			s += " " + brief(&t)
		} else if t.ParentTaskID == id {
			s += " [its child " + t.ID.String() + " " + string(t.Status) + "]"
		}
	}
	for _, first := range f.First {
		if first == id {
			s += " FIRST"
		}
	}
	if f.Card != nil {
		s += " " + f.Card.Attach.Status
	}
	if f.Hands {
		s += " HANDS"
	}
	if f.Text != "" {
		s += fmt.Sprintf(" %q", f.Text)
	}
	if f.Err != "" {
		s += " error: " + f.Err
	}
	return s
}

// brief is a task in a few words.
func brief(t *subagent.Task) string {
	s := fmt.Sprintf("%s/%s v%d of %.13s %q", t.Status, t.Reason, t.Version, t.Owner, t.Subject)
	if !t.CancelRequestedAt.IsZero() {
		s += " stop"
	}
	if !t.NotifiedAt.IsZero() {
		s += " delivered"
	}
	if t.Detached {
		s += " detached"
	}
	return s
}
