package sqlstore

import (
	"fmt"
	"maps"
	"time"

	"github.com/go-subagent/subagent"
)

// checkChange judges the change of a stored task from old to t as
// subagent.Store demands. It does not look at Version.
func checkChange(old, t *subagent.Task) error {
	switch {
	case t.ID != old.ID:
		return immutable("ID", old)
	case t.ParentSessionID != old.ParentSessionID:
		return immutable("ParentSessionID", old)
	case !t.CreatedAt.Equal(old.CreatedAt):
		return immutable("CreatedAt", old)
	case t.Status != old.Status && !subagent.CanTransition(old.Status, t.Status),
		old.Status.Terminal() && !keepsEnd(old, t):
		return &subagent.TransitionError{ID: old.ID, From: old.Status, To: t.Status}
	}
	return nil
}

func immutable(field string, t *subagent.Task) error {
	return fmt.Errorf("%w: %s of task %s cannot be changed", subagent.ErrInvalidRequest, field, t.ID)
}

// keepsEnd reports whether t differs from the ended old only in what may still
// change after an end.
func keepsEnd(old, t *subagent.Task) bool {
	rest := *t
	rest.Version, rest.NotifiedAt = old.Version, old.NotifiedAt
	if owed(old) == 1 {
		rest.Owner = old.Owner
	}
	return same(&rest, old)
}

// same reports whether two tasks are equal in every field: times as instants,
// Metadata by content. A test sees to it that no field is forgotten.
func same(a, b *subagent.Task) bool {
	return a.ID == b.ID && a.ParentTaskID == b.ParentTaskID && a.Status == b.Status &&
		a.Background == b.Background && a.Detached == b.Detached && a.ResultTruncated == b.ResultTruncated &&
		a.Attempt == b.Attempt && a.Usage == b.Usage && a.Version == b.Version &&
		a.Progress.Message == b.Progress.Message && a.Progress.ToolUses == b.Progress.ToolUses &&
		texts(a) == texts(b) && sameTimes(times(a), times(b)) && maps.Equal(a.Metadata, b.Metadata)
}

func texts(t *subagent.Task) [15]string {
	return [...]string{t.ExternalTaskID, t.Subject, t.Description, t.AgentID, string(t.Reason), t.StopReason,
		t.ParentSessionID, t.ParentMsgID, string(t.ContextMode), t.HeadID, t.SourceCommitID, t.ResultText,
		t.Error, t.CancelMessage, t.Owner}
}

func times(t *subagent.Task) [7]time.Time {
	return [...]time.Time{t.CreatedAt, t.QueuedAt, t.StartedAt, t.CompletedAt, t.CancelRequestedAt, t.NotifiedAt,
		t.Progress.LastActivityAt}
}

func sameTimes(a, b [7]time.Time) bool {
	for i := range a {
		if !a[i].Equal(b[i]) {
			return false
		}
	}
	return true
}
