package subagent_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// A change of any field but Version is one.
func TestCheckUpdateForgetsNoField(t *testing.T) {
	var after subagent.Task
	var vary func(v reflect.Value, name string)
	vary = func(v reflect.Value, name string) {
		switch old := v.Interface().(type) {
		case uuid.UUID:
			v.Set(reflect.ValueOf(uuid.Max))
		case time.Time:
			v.Set(reflect.ValueOf(old.Add(time.Microsecond)))
		case map[string]string:
			v.Set(reflect.ValueOf(map[string]string{"k": "v"}))
		default:
			switch v.Kind() {
			case reflect.Struct:
				for i := range v.NumField() {
					vary(v.Field(i), name+"."+v.Type().Field(i).Name)
				}
				return
			case reflect.String:
				v.SetString("x")
			case reflect.Bool:
				v.SetBool(true)
			default:
				v.SetInt(1)
			}
		}
		changed, _ := subagent.CheckUpdate(subagent.Task{}, after)
		require.Equal(t, name != ".Version", changed, name)
		v.SetZero()
	}
	vary(reflect.ValueOf(&after).Elem(), "")
}

func TestCheckUpdate(t *testing.T) {
	now := time.Now().UTC()
	live := subagent.Task{
		ID: uuid.New(), ParentSessionID: "s", Status: subagent.StatusRunning, Background: true, Owner: "o", CreatedAt: now,
	}
	ended := live
	ended.Status, ended.CompletedAt = subagent.StatusCompleted, now
	told, foreground := ended, ended
	told.NotifiedAt, foreground.Background = now, false
	for _, c := range []struct {
		name    string
		before  subagent.Task
		edit    func(*subagent.Task)
		changed bool
		err     error
	}{
		{"nothing", live, func(*subagent.Task) {}, false, nil},
		{"an instant elsewhere", live, func(t *subagent.Task) { t.CreatedAt = now.In(time.FixedZone("", 3600)) }, false, nil},
		{"no metadata", live, func(t *subagent.Task) { t.Metadata = map[string]string{} }, false, nil},
		{"progress", live, func(t *subagent.Task) { t.Progress.Message = "x" }, true, nil},
		{"a step", live, func(t *subagent.Task) { t.Status = subagent.StatusErrored }, true, nil},
		{"a step back", live, func(t *subagent.Task) { t.Status = subagent.StatusQueued }, true, subagent.ErrInvalidTransition},
		{"id", live, func(t *subagent.Task) { t.ID = uuid.New() }, true, subagent.ErrInvalidRequest},
		{"session", live, func(t *subagent.Task) { t.ParentSessionID = "z" }, true, subagent.ErrInvalidRequest},
		{"creation", live, func(t *subagent.Task) { t.CreatedAt = now.Add(1) }, true, subagent.ErrInvalidRequest},
		{"out of an end", ended, func(t *subagent.Task) { t.Status = subagent.StatusErrored }, true, subagent.ErrInvalidTransition},
		{"result after the end", ended, func(t *subagent.Task) { t.ResultText = "x" }, true, subagent.ErrInvalidTransition},
		{"the end's time", ended, func(t *subagent.Task) { t.CompletedAt = now.Add(1) }, true, subagent.ErrInvalidTransition},
		{"nothing after the end", told, func(*subagent.Task) {}, false, nil},
		{"notice", ended, func(t *subagent.Task) { t.NotifiedAt = now }, true, nil},
		{"notice taken back", told, func(t *subagent.Task) { t.NotifiedAt = time.Time{} }, true, nil},
		{"notice and more", ended, func(t *subagent.Task) { t.NotifiedAt, t.Error = now, "x" }, true, subagent.ErrInvalidTransition},
		{"owner while owed", ended, func(t *subagent.Task) { t.Owner = "p" }, true, nil},
		{"owner with the notice", ended, func(t *subagent.Task) { t.Owner, t.NotifiedAt = "p", now }, true, nil},
		{"owner once told", told, func(t *subagent.Task) { t.Owner = "p" }, true, subagent.ErrInvalidTransition},
		{"owner, nothing owed", foreground, func(t *subagent.Task) { t.Owner = "p" }, true, subagent.ErrInvalidTransition},
	} {
		after := c.before
		c.edit(&after)
		changed, err := subagent.CheckUpdate(c.before, after)
		require.Equal(t, c.changed, changed, c.name)
		require.ErrorIs(t, err, c.err, c.name)
	}
}
