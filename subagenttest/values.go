package subagenttest

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// leaf is a field of Task, or of a struct within Task.
type leaf struct {
	name  string
	index []int
}

// leaves are all fields that a store has to keep. They are found by
// reflection, so that the suite covers a field from the day it is added.
var leaves = leavesOf(reflect.TypeFor[subagent.Task](), "", nil)

func leavesOf(typ reflect.Type, prefix string, index []int) (found []leaf) {
	for i := range typ.NumField() {
		field := typ.Field(i)
		at := append(append([]int(nil), index...), i)
		if field.Type.Kind() == reflect.Struct && field.Type != reflect.TypeFor[time.Time]() {
			found = append(found, leavesOf(field.Type, prefix+field.Name+".", at)...)
			continue
		}
		found = append(found, leaf{prefix + field.Name, at})
	}
	return found
}

func (l leaf) of(t *subagent.Task) reflect.Value {
	return reflect.ValueOf(t).Elem().FieldByIndex(l.index)
}

// vary changes the field to another value, which is always the same one, so
// that it may be part of an edit.
func (l leaf) vary(t *subagent.Task) {
	v := l.of(t)
	switch old := v.Interface().(type) {
	case uuid.UUID:
		old[15]++
		v.Set(reflect.ValueOf(old))
	case time.Time:
		if old.IsZero() {
			old = epoch
		}
		v.Set(reflect.ValueOf(old.Add(time.Microsecond)))
	case map[string]string:
		added := maps.Clone(old)
		if added == nil {
			added = make(map[string]string)
		}
		added["key "+l.name] = "välue 🜁"
		v.Set(reflect.ValueOf(added))
	default:
		l.varyKind(v)
	}
}

func (l leaf) varyKind(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + " " + l.name + "\r\nwörd 🜁\n")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1<<40 + int64(l.index[0]))
	default:
		panic("subagenttest: no variation of " + l.name)
	}
}

// fullTask has a value of its own in every field.
func fullTask() subagent.Task {
	task := newTask()
	for i, leaf := range leaves {
		switch leaf.name {
		case "ID", "Status", "Version":
			continue
		}
		leaf.vary(&task)
		if at, ok := leaf.of(&task).Interface().(time.Time); ok {
			leaf.of(&task).Set(reflect.ValueOf(at.Add(time.Duration(i) * time.Second)))
		}
	}
	task.Status = subagent.StatusCompleted
	return task
}

// texts are what stores and their encodings have been known to alter.
var texts = map[string]string{
	"empty":            "",
	"space":            " \t leading and trailing \t ",
	"line ends":        "\r\nunix\nmac\rdos\r\n\r\n",
	"trailing newline": "one\n",
	"quotes":           `'"` + "`" + `\ \\ \n %s %00 ?1 $1 -- ; /* {{.}} <b>&amp;</b>`,
	"combining":        "e\u0301 is not \u00e9; A\u030a is not \u00c5",
	"emoji":            "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 𝔘𝔫𝔦",
	"right to left":    "שלום \u202e עולם \u202c مرحبا",
	"replacement":      "\ufffd \ufffd",
	"control":          "\x01\x02\x1b[31m\x7f\u0085\u2028\u2029\ufeff",
	"edges":            "\ud7ff\ue000\uffff\U0010ffff",
	"json":             `{"task_id":null,"a":[1,2,"\u0000"]}`,
	"megabyte":         strings.Repeat("0123456789 äöü 🜁\r\n", 1<<20/23) + "end",
}

func testValues(t *testing.T, open opener) {
	t.Run("every field", func(t *testing.T) {
		s, task := open(t), fullTask()
		put(t, s, task)
		requireStored(t, s, task)
		requireListed(t, s, subagent.Filter{}, []subagent.Task{task})
	})
	for name, text := range texts {
		t.Run("text "+name, func(t *testing.T) { testText(t, open(t), text) })
	}
	t.Run("times", func(t *testing.T) { testTimes(t, open(t)) })
	t.Run("numbers", func(t *testing.T) {
		s := open(t)
		for _, n := range []int64{-1, 1<<53 + 1, 1<<63 - 1, -1 << 63} {
			task := newTask()
			task.Usage = subagent.Usage{InputTokens: n, TotalTokens: n, ReasoningTokens: n}
			put(t, s, task)
			requireStored(t, s, task)
		}
	})
}

// testText stores text wherever a host's words may go: with Create, and with
// the Update that ends a task.
func testText(t *testing.T, s subagent.Store, text string) {
	task := inStatus(subagent.StatusRunning)
	task.Description = text
	if len(text) < 1<<10 {
		task.Subject, task.AgentID, task.ExternalTaskID = text, text, text
		task.ParentMsgID, task.Metadata = text, map[string]string{text: text, "k": text}
	}
	put(t, s, task)
	requireStored(t, s, task)
	end := func(t *subagent.Task) {
		moveTo(t, subagent.StatusErrored)
		t.ResultText, t.Error, t.StopReason = text, text, text
	}
	got := update(t, s, task.ID, end)
	end(&task)
	task.Version = 2
	requireSame(t, task, got)
	requireStored(t, s, task)
	if text != "" && len(text) < 1<<10 {
		requireListed(t, s, subagent.Filter{AgentID: text, ExternalTaskID: text, ParentMsgID: text}, []subagent.Task{task})
	}
}

func testTimes(t *testing.T, s subagent.Store) {
	for _, at := range []time.Time{
		time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(1969, 12, 31, 23, 59, 59, 999_999_000, time.UTC),
		time.Date(2024, 12, 31, 23, 59, 59, 1_000, time.UTC),
		time.Date(2100, 6, 1, 12, 0, 0, 100_000, time.UTC),
	} {
		task := newTask()
		task.CreatedAt, task.QueuedAt, task.Progress.LastActivityAt = at, at.Add(time.Microsecond), at
		put(t, s, task)
		requireStored(t, s, task)
		require.True(t, get(t, s, task.ID).StartedAt.IsZero(), "a time that is not set stays zero")
	}
}

// testIsolation writes to every map that went into the store or came out.
func testIsolation(t *testing.T, open opener) {
	s, task := open(t), newTask()
	task.Metadata = map[string]string{"k": "v"}
	want := task
	want.Metadata = maps.Clone(task.Metadata)
	spoil := func(m map[string]string) { m["k"], m["new"] = "spoiled", "spoiled" }

	put(t, s, task)
	spoil(task.Metadata)
	requireStored(t, s, want)

	spoil(get(t, s, task.ID).Metadata)
	requireStored(t, s, want)

	for got, err := range s.List(t.Context(), subagent.Filter{}) {
		require.NoError(t, err)
		spoil(got.Metadata)
	}
	requireStored(t, s, want)

	given, kept := map[string]string{"k": "w"}, (*subagent.Task)(nil)
	got := update(t, s, task.ID, func(t *subagent.Task) { t.Metadata, kept = given, t })
	spoil(got.Metadata)
	spoil(given)
	kept.AgentID = "spoiled"
	want.Metadata, want.Version = map[string]string{"k": "w"}, 2
	requireStored(t, s, want)

	_, err := s.Update(t.Context(), task.ID, func(t *subagent.Task) error { spoil(t.Metadata); return &refusal{"no"} })
	require.Error(t, err)
	requireStored(t, s, want)

	spoil(update(t, s, task.ID, func(*subagent.Task) {}).Metadata)
	requireStored(t, s, want)
}

// testCtx calls every method with a ctx that is done.
func testCtx(t *testing.T, open opener) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, ctx := range []context.Context{cancelled, late} {
		t.Run(ctx.Err().Error(), func(t *testing.T) {
			s := open(t)
			live, ended := newTask(), inStatus(subagent.StatusCompleted)
			put(t, s, live, ended)
			for name, call := range callsOf(s, live, ended) {
				require.ErrorIs(t, call(ctx), ctx.Err(), name)
			}
			requireListed(t, s, subagent.Filter{}, []subagent.Task{live, ended})
			if l, ok := s.(subagent.Leaser); ok {
				alive, err := l.Live(t.Context(), "owner")
				require.NoError(t, err)
				require.False(t, alive, "renewed with a ctx that is done")
			}
		})
	}
}

func callsOf(s subagent.Store, live, ended subagent.Task) map[string]func(context.Context) error {
	calls := map[string]func(context.Context) error{
		"Create": func(ctx context.Context) error { return s.Create(ctx, newTask()) },
		"Get":    func(ctx context.Context) error { _, err := s.Get(ctx, live.ID); return err },
		"Delete": func(ctx context.Context) error { return s.Delete(ctx, ended.ID) },
		"Update": func(ctx context.Context) error {
			_, err := s.Update(ctx, live.ID, func(t *subagent.Task) error { t.AgentID = "changed"; return nil })
			return err
		},
		"List": func(ctx context.Context) (last error) {
			n := 0
			for _, err := range s.List(ctx, subagent.Filter{}) {
				last, n = err, n+1
			}
			if n != 1 {
				return fmt.Errorf("yielded %d times, not just the error", n)
			}
			return last
		},
	}
	if l, ok := s.(subagent.Leaser); ok {
		calls["Renew"] = func(ctx context.Context) error { return l.Renew(ctx, "owner", time.Hour) }
		calls["Live"] = func(ctx context.Context) error { _, err := l.Live(ctx, "owner"); return err }
		calls["Release"] = func(ctx context.Context) error { return l.Release(ctx, "owner") }
	}
	return calls
}
