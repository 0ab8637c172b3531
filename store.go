package subagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Store remembers tasks. A Runner writes every transition through it before
// anybody is told, and bounds each call by Config.StoreTimeout.
//
// Every method may be called from many goroutines, and must not call back into
// a caller while it holds a lock: edit functions and the bodies of List loops
// may use the store themselves. A ctx that is done fails the call with the
// ctx's error; nothing is half done then.
type Store interface {
	// Create stores tasks as they are, in any status, with Version 1: all of
	// them or none. An ID that is stored already, or given twice, is
	// ErrTaskExists.
	Create(ctx context.Context, tasks ...Task) error

	// Get returns the stored task, or ErrNotFound.
	Get(ctx context.Context, id uuid.UUID) (Task, error)

	// Update applies edit atomically and returns what is stored. edit is pure
	// and may run again; its error aborts and is returned unchanged. The store
	// sets Version: an Update that changes something adds 1, one that changes
	// nothing writes nothing. It refuses a change of ID, ParentSessionID or
	// CreatedAt (ErrInvalidRequest) and a transition that CanTransition forbids
	// (*TransitionError). An edit that leaves Status as it is is no transition
	// and is allowed, but on a terminal row it may change only NotifiedAt and,
	// while its notice is owed, Owner; anything else there is a
	// *TransitionError. CheckUpdate decides all that. An unknown ID is
	// ErrNotFound.
	Update(ctx context.Context, id uuid.UUID, edit func(*Task) error) (Task, error)

	// List yields the tasks that match f in the order of their IDs, which is
	// the order of their creation: oldest first unless f.NewestFirst. An error
	// ends the sequence.
	List(ctx context.Context, f Filter) iter.Seq2[Task, error]

	// Delete removes terminal tasks. If one of them is not terminal it is
	// ErrNotTerminal and nothing is deleted; unknown ids are ignored.
	Delete(ctx context.Context, ids ...uuid.UUID) error
}

// Leaser is implemented by stores that several Runners may share: it tells a
// dead owner from a live one. A Store that is no Leaser belongs to one Runner
// at a time: New takes every open task for orphaned.
type Leaser interface {
	// Renew declares owner alive for ttl from now.
	Renew(ctx context.Context, owner string, ttl time.Duration) error
	// Live reports whether owner's lease still runs: false, nil for an owner
	// that is unknown, empty, released or past its ttl.
	Live(ctx context.Context, owner string) (bool, error)
	// Release ends owner's lease at once. An unknown owner is no error.
	Release(ctx context.Context, owner string) error
}

// Watcher is implemented by stores that other processes write to.
type Watcher interface {
	// Watch calls fn with tasks that owner executes and that somebody else has
	// changed, until ctx ends; then it returns ctx's error. fn does not block
	// for long and may use the store.
	Watch(ctx context.Context, owner string, fn func(Task)) error
}

// Filter selects tasks. The zero Filter matches all; its fields are ANDed.
type Filter struct {
	SessionID      string
	ExternalTaskID string
	AgentID        string
	ParentMsgID    string
	ParentTaskID   uuid.UUID
	Statuses       []Status  // any of these; empty: every status
	Undelivered    bool      // terminal, Background, NotifiedAt zero: a notice is owed
	After          uuid.UUID // exclusive cursor in listing order
	Limit          int       // 0: all
	NewestFirst    bool
}

// Match reports whether t is one of the tasks that f selects. It ignores
// After, Limit and NewestFirst, which say where a listing starts and ends.
func (f Filter) Match(t Task) bool { return f.match(&t) }

func (f *Filter) match(t *Task) bool {
	return (f.SessionID == "" || f.SessionID == t.ParentSessionID) &&
		(f.ExternalTaskID == "" || f.ExternalTaskID == t.ExternalTaskID) &&
		(f.AgentID == "" || f.AgentID == t.AgentID) &&
		(f.ParentMsgID == "" || f.ParentMsgID == t.ParentMsgID) &&
		(f.ParentTaskID == uuid.Nil || f.ParentTaskID == t.ParentTaskID) &&
		(len(f.Statuses) == 0 || slices.Contains(f.Statuses, t.Status)) &&
		(!f.Undelivered || t.owesNotice())
}

// past reports whether id lies behind the cursor After in f's order.
func (f *Filter) past(id uuid.UUID) bool {
	if f.After == uuid.Nil {
		return true
	}
	return f.compare(id, f.After) > 0
}

// compare orders two IDs as f lists them.
func (f *Filter) compare(a, b uuid.UUID) int {
	if f.NewestFirst {
		a, b = b, a
	}
	return compareIDs(a, b)
}

func compareIDs(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

// CheckUpdate is the judge of an Update, for those who write a Store: before is
// the stored task, after is what edit made of it. changed reports whether they
// differ in anything but Version, which is the store's to set; if not, nothing
// is written. err is why Update must refuse the change: see there. Times are
// compared as instants, and Metadata by what it holds.
func CheckUpdate(before, after Task) (changed bool, err error) {
	return checkUpdate(&before, &after)
}

func checkUpdate(old, t *Task) (changed bool, err error) {
	if old.equal(t) {
		return false, nil
	}
	return true, checkChange(old, t)
}

// checkChange judges the change from old to t, whoever makes it.
func checkChange(old, t *Task) error {
	switch {
	case t.ID != old.ID:
		return immutable("ID", old)
	case t.ParentSessionID != old.ParentSessionID:
		return immutable("ParentSessionID", old)
	case !t.CreatedAt.Equal(old.CreatedAt):
		return immutable("CreatedAt", old)
	case t.Status != old.Status && !CanTransition(old.Status, t.Status),
		old.Status.Terminal() && !old.keepsEnd(t):
		return &TransitionError{ID: old.ID, From: old.Status, To: t.Status}
	}
	return nil
}

func immutable(field string, t *Task) error {
	return fmt.Errorf("%w: %s of task %s cannot be changed", ErrInvalidRequest, field, t.ID)
}

// keepsEnd reports whether next differs from t, which has ended, only in what
// may still change after an end.
func (t *Task) keepsEnd(next *Task) bool {
	rest := *next
	rest.NotifiedAt = t.NotifiedAt
	if t.owesNotice() {
		rest.Owner = t.Owner
	}
	return t.equal(&rest)
}

// equal reports whether two tasks are equal in every field but Version. It is
// written out because reflection is several times as dear as all else that a
// change does under a store's lock; subagenttest.TestStore sees to it that no
// field is forgotten.
func (t *Task) equal(o *Task) bool {
	return t.ID == o.ID && t.ParentTaskID == o.ParentTaskID && t.Status == o.Status &&
		t.Background == o.Background && t.Detached == o.Detached && t.ResultTruncated == o.ResultTruncated &&
		t.Attempt == o.Attempt && t.Usage == o.Usage &&
		t.Progress.Message == o.Progress.Message && t.Progress.ToolUses == o.Progress.ToolUses &&
		t.texts() == o.texts() && slices.EqualFunc(t.times(), o.times(), time.Time.Equal) && maps.Equal(t.Metadata, o.Metadata)
}

func (t *Task) texts() [15]string {
	return [...]string{t.ExternalTaskID, t.Subject, t.Description, t.AgentID, string(t.Reason), t.StopReason,
		t.ParentSessionID, t.ParentMsgID, string(t.ContextMode), t.HeadID, t.SourceCommitID, t.ResultText,
		t.Error, t.CancelMessage, t.Owner}
}

func (t *Task) times() []time.Time {
	return []time.Time{t.CreatedAt, t.QueuedAt, t.StartedAt, t.CompletedAt, t.CancelRequestedAt, t.NotifiedAt,
		t.Progress.LastActivityAt}
}

// owesNotice reports whether somebody is still to be told of t's end.
func (t *Task) owesNotice() bool {
	return t.Background && t.Status.Terminal() && t.NotifiedAt.IsZero()
}

// What a Store answers.
var (
	ErrNotFound    = errors.New("subagent: task not found")
	ErrTaskExists  = errors.New("subagent: task exists")
	ErrNotTerminal = errors.New("subagent: task has not ended")
)
