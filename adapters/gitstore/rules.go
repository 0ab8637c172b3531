package gitstore

import (
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/go-subagent/subagent"
)

// checkChange judges the change of a stored task from old to t, both in the
// form in which they are read back, as subagent.Store demands it.
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
	if owesNotice(old) {
		rest.Owner = old.Owner
	}
	return same(old, &rest)
}

// same holds for normalised tasks: their times have one representation each.
func same(a, b *subagent.Task) bool { return reflect.DeepEqual(a, b) }

func owesNotice(t *subagent.Task) bool {
	return t.Background && t.Status.Terminal() && t.NotifiedAt.IsZero()
}

// maxName is the longest session name in bytes: file systems allow 255.
const maxName = 200

// checkName refuses names of sessions that cannot be the name of a folder, or
// would be one elsewhere.
func checkName(name string) error {
	switch {
	case name == "", len(name) > maxName, !utf8.ValidString(name), name[0] == '.',
		strings.Contains(name, ".."), strings.ContainsAny(name, "/\\\x00"):
		return fmt.Errorf("%w: %.250q cannot be the name of a session's folder: "+
			"1 to %d bytes, no leading dot, no .., no separator", subagent.ErrInvalidRequest, name, maxName)
	}
	return nil
}
