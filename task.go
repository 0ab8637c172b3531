// Package subagent looks after the life of background sub-agent tasks. A host
// hands a Runner a prompt and a synchronous function; the Runner gives the task
// an ID of its own, stores it, queues it first come first served behind a
// limited number of slots, runs it, and can always say what became of it.
//
// What holds, in short: a task settles once, and everybody who is told of its
// end is told the same; the end is stored before its slot goes on, and the slot
// goes on before waiters wake; slots are granted strictly in order and none is
// lost; a cancel is obeyed or enforced; nested tasks that wait for each other
// finish with any number of slots; whatever a store or a sink does, no result is
// lost. The guarantees have numbers, G1 to G17, in docs/guarantees.md, and
// tests named after them.
//
// Inside, a task is an execution with a lock of its own, and at each moment one
// goroutine owns it: only that one settles it, everybody else leaves a cause.
// The order of the locks is: waits, family, execution, outboxes, and then one of
// Runner, Capacity and hub; no two executions' locks nest, and no foreign code
// (Func, Store, CardSink, Notifier, Logger) runs under any lock.
package subagent

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
)

// Status is where a task stands in its life. The set is closed: three live
// states and three terminal ones.
type Status string

// The six states. Who moves a task from one to the next is said at each.
const (
	StatusPending   Status = "pending"   // stored by Spawn, not yet handed to the queue
	StatusQueued    Status = "queued"    // Spawn put it in line; it waits for a slot and holds no goroutine
	StatusRunning   Status = "running"   // its goroutine holds a slot and executes its Func
	StatusCompleted Status = "completed" // terminal: its Func returned without error
	StatusCancelled Status = "cancelled" // terminal: somebody asked it to stop
	StatusErrored   Status = "errored"   // terminal: it failed, timed out or was lost
)

// Valid reports whether s is one of the six states.
func (s Status) Valid() bool { return s.live() || s.Terminal() }

// Terminal reports whether a task in state s has ended.
func (s Status) Terminal() bool {
	return s == StatusCompleted || s == StatusCancelled || s == StatusErrored
}

func (s Status) live() bool {
	return s == StatusPending || s == StatusQueued || s == StatusRunning
}

// CanTransition reports whether a task may go from one state to the other.
// Nine ordered pairs are legal: pending → queued → running → completed,
// cancelled or errored, and pending or queued → cancelled or errored. A state
// does not lead to itself, and nothing leads out of a terminal state.
func CanTransition(from, to Status) bool {
	switch from {
	case StatusPending:
		return to == StatusQueued || to == StatusCancelled || to == StatusErrored
	case StatusQueued:
		return to == StatusRunning || to == StatusCancelled || to == StatusErrored
	case StatusRunning:
		return to.Terminal()
	}
	return false
}

// Reason is the machine-readable cause of a cancelled or errored end, or of a
// cancel that was requested and not yet obeyed. The set is open: a host may
// pass reasons of its own to Cancel. It is empty when a task completed.
type Reason string

// The reasons that the Runner itself gives.
const (
	ReasonUser         Reason = "user"          // cancelled: a person or the host asked
	ReasonAgent        Reason = "agent"         // cancelled: a model called task_stop
	ReasonParent       Reason = "parent"        // cancelled: an ancestor was cancelled
	ReasonSession      Reason = "session"       // cancelled: the whole session was stopped
	ReasonCaller       Reason = "caller"        // cancelled: the ctx of a foreground Run ended
	ReasonShutdown     Reason = "shutdown"      // cancelled (never started) or errored (did not drain in time)
	ReasonError        Reason = "error"         // errored: Func returned an error
	ReasonPanic        Reason = "panic"         // errored: Func panicked or called runtime.Goexit
	ReasonTimeout      Reason = "timeout"       // errored: run time limit
	ReasonQueueTimeout Reason = "queue_timeout" // errored: waited too long for a slot
	ReasonLost         Reason = "lost"          // errored: its process died
	ReasonStore        Reason = "store"         // errored: the store refused a transition
)

// ContextMode says what conversation a sub-agent starts from. The Runner only
// records it; the host's Func acts on it.
type ContextMode string

// The two modes.
const (
	ContextClean   ContextMode = "clean"   // the sub-agent starts from its prompt alone (default)
	ContextInherit ContextMode = "inherit" // it starts from the parent's conversation
)

// Task is a snapshot of one execution: a plain value, safe to keep and to
// share. Times are UTC, cut to microseconds; a zero time means that the thing
// has not happened. Within a task they never go backwards.
type Task struct {
	ID                uuid.UUID         `json:"task_id"`
	ExternalTaskID    string            `json:"external_task_id,omitempty"` // provider tool_call_id: correlation only, may repeat
	Subject           string            `json:"subject"`
	Description       string            `json:"description"` // the full prompt
	AgentID           string            `json:"agent_id,omitempty"`
	Status            Status            `json:"status"`
	Reason            Reason            `json:"reason,omitempty"`
	StopReason        string            `json:"stop_reason,omitempty"` // Func's own word for a capped end, e.g. "turn_capped"
	CreatedAt         time.Time         `json:"created_at"`
	QueuedAt          time.Time         `json:"queued_at,omitzero"`
	StartedAt         time.Time         `json:"started_at,omitzero"`
	CompletedAt       time.Time         `json:"completed_at,omitzero"` // set for every terminal status
	CancelRequestedAt time.Time         `json:"cancel_requested_at,omitzero"`
	NotifiedAt        time.Time         `json:"notified_at,omitzero"` // its notice was delivered, or its result was read by a waiter
	ParentSessionID   string            `json:"parent_session_id"`    // the host's stable key of the conversation it belongs to
	ParentTaskID      uuid.UUID         `json:"parent_task_id,omitzero"`
	ParentMsgID       string            `json:"parent_msg_id,omitempty"`
	ContextMode       ContextMode       `json:"context_mode,omitempty"`
	Background        bool              `json:"background,omitempty"` // nobody waits in the foreground: a notice is owed
	HeadID            string            `json:"head_id,omitempty"`
	SourceCommitID    string            `json:"source_commit_id,omitempty"`
	ResultText        string            `json:"result_text,omitempty"`      // while running: the partial text so far, not stored before the end
	ResultTruncated   bool              `json:"result_truncated,omitempty"` // this copy carries a preview of ResultText, or the text exceeded 16 MiB
	Error             string            `json:"error,omitempty"`
	CancelMessage     string            `json:"cancel_message,omitempty"` // CancelOptions.Message of the request that counted
	Detached          bool              `json:"detached,omitempty"`       // settled while its worker had not returned
	Attempt           int               `json:"attempt"`                  // always 0: the Runner never retries
	Usage             Usage             `json:"usage,omitzero"`
	Progress          Progress          `json:"progress,omitzero"`
	Metadata          map[string]string `json:"metadata,omitempty"` // copied at Spawn, never written after
	Owner             string            `json:"owner,omitempty"`    // the Runner that executes it
	Version           int64             `json:"version"`            // +1 with every stored change
}

// Err returns how the task ended, as an error: nil unless it was cancelled or
// errored. errors.Is finds ErrCancelled for a cancelled task, ErrTimeout for
// the reasons timeout and queue_timeout, ErrLost for lost, and ErrShutdown for
// shutdown.
func (t Task) Err() error {
	if t.Status != StatusCancelled && t.Status != StatusErrored {
		return nil
	}
	return &taskError{t.ID, t.Status, t.Reason, firstNonEmpty(t.Error, t.CancelMessage)}
}

// CorrelationID is the key under which a host keeps its own per-task data: the
// provider's call id, or the task's own ID when there is none. It may repeat
// across tasks; ownership belongs to ID alone.
func (t Task) CorrelationID() string {
	if t.ExternalTaskID != "" {
		return t.ExternalTaskID
	}
	return t.ID.String()
}

// copy is t for a caller: a value that shares nothing he could write to.
func (t *Task) copy() Task {
	c := *t
	c.Metadata = maps.Clone(c.Metadata)
	return c
}

// lastStamp is the latest of the task's own times: nothing that happens to it
// is stamped earlier.
func (t *Task) lastStamp() time.Time {
	last := &t.CreatedAt
	for _, at := range [...]*time.Time{&t.QueuedAt, &t.StartedAt, &t.CancelRequestedAt, &t.CompletedAt, &t.NotifiedAt} {
		if at.After(*last) {
			last = at
		}
	}
	return *last
}

// stamp is the present as tasks record it, but never before floor.
func stamp(floor time.Time) time.Time {
	now := time.Now().UTC().Truncate(time.Microsecond)
	if now.Before(floor) {
		return floor
	}
	return now
}

// Progress is what a running task last said about itself.
type Progress struct {
	Message        string    `json:"message,omitempty"`
	ToolUses       int       `json:"tool_uses,omitempty"`
	LastActivityAt time.Time `json:"last_activity_at,omitzero"`
}

// Request asks for one execution. Description and ParentSessionID are
// required, and a Func here or in Config.
type Request struct {
	ID              uuid.UUID // uuid.Nil: minted (UUIDv7). Set: idempotent spawn
	ExternalTaskID  string
	Subject         string // "": the first line of Description, at most 80 runes
	Description     string // required; at most 1 MiB
	AgentID         string
	ParentSessionID string // required; inside a Func, "" inherits the parent's
	ParentMsgID     string
	ContextMode     ContextMode
	Timeout         time.Duration     // run time, from start; 0: Config.Timeout; <0: none
	QueueTimeout    time.Duration     // 0: Config.QueueTimeout; <0: none
	NoWait          bool              // ErrNoCapacity instead of queueing
	Independent     bool              // not cancelled together with its parent
	Metadata        map[string]string // at most 64 keys and 64 KiB in all
	Func            Func              // nil: Config.Func
}

// Result is what a Func hands back.
type Result struct {
	Text           string // "": the partial text that was written, if any; kept up to 16 MiB
	HeadID         string
	SourceCommitID string
	StopReason     string // why it stopped, if its end was a capped one
}

// Errors about states, and what Task.Err unwraps to.
var (
	ErrInvalidTransition = errors.New("subagent: transition not allowed")
	ErrTimeout           = errors.New("subagent: task timed out")
	ErrLost              = errors.New("subagent: task lost, its worker died")
)

// TransitionError is a change of state that the life of a task does not allow.
// It is ErrInvalidTransition.
type TransitionError struct {
	ID       uuid.UUID
	From, To Status
}

// Error names the task and both states.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("%v: task %s from %q to %q", ErrInvalidTransition, e.ID, e.From, e.To)
}

// Unwrap returns ErrInvalidTransition.
func (e *TransitionError) Unwrap() error { return ErrInvalidTransition }

type taskError struct {
	id     uuid.UUID
	status Status
	reason Reason
	text   string
}

func (e *taskError) Error() string {
	s := fmt.Sprintf("subagent: task %s %s (%s)", e.id, e.status, e.reason)
	if e.text != "" {
		s += ": " + e.text
	}
	return s
}

func (e *taskError) Is(target error) bool {
	switch target {
	case ErrCancelled:
		return e.status == StatusCancelled
	case ErrTimeout:
		return e.status == StatusErrored && (e.reason == ReasonTimeout || e.reason == ReasonQueueTimeout)
	case ErrLost:
		return e.status == StatusErrored && e.reason == ReasonLost
	case ErrShutdown:
		return e.reason == ReasonShutdown
	}
	return false
}

func firstNonEmpty(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
