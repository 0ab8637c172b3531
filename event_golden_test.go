package subagent_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// pacedStore takes a millisecond for each write: whoever reads has read the
// event before the next one comes, so that none are merged.
type pacedStore struct {
	subagent.Store
	subagent.Leaser
}

func (s pacedStore) Update(ctx context.Context, id uuid.UUID, edit func(*subagent.Task) error) (subagent.Task, error) {
	time.Sleep(time.Millisecond)
	return s.Store.Update(ctx, id, edit)
}

func (s pacedStore) Create(ctx context.Context, tasks ...subagent.Task) error {
	time.Sleep(time.Millisecond)
	return s.Store.Create(ctx, tasks...)
}

// paced leaves time before and after what a Func does.
func paced(fn subagent.Func) subagent.Func {
	return func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		time.Sleep(10 * time.Millisecond)
		defer time.Sleep(10 * time.Millisecond)
		return fn(ctx, run)
	}
}

// The events of a task's life, for each row of the table of verdicts: kind,
// state, and what the last one says of the end.
func TestEvents_OfEachVerdict(t *testing.T) {
	var page strings.Builder
	for _, rows := range [][]verdictCase{verdictCompleted(), verdictCancelled(), verdictTimes(), verdictErrored(), verdictShutdown()} {
		for _, row := range rows {
			fmt.Fprintf(&page, "%s\n", row.name)
			bubble.Test(t, func(t *testing.T) {
				inner := subagent.NewMemoryStore()
				store := subagenttest.NewFaultyStore(inner)
				cfg := row.cfg
				cfg.Store = pacedStore{store, store.Store().(subagent.Leaser)}
				rigOn(t, cfg, newTape(), inner, store).run(func(t *testing.T, r *rig) { row.events(r, &page) })
			})
		}
	}
	golden(t, "events.txt", []byte(page.String()))
}

// events lives the row's life and writes its events down.
func (row *verdictCase) events(r *rig, page *strings.Builder) {
	id := uuid.Must(uuid.NewV7())
	if row.before != nil {
		row.before(r)
		time.Sleep(time.Second)
	}
	go func() {
		_, _ = r.Spawn(r.ctx, rigAsk("x", withID(id), func(q *subagent.Request) {
			q.Func = r.gate.Func()
			if row.fn != nil {
				q.Func = row.fn(r)
			}
			q.Func = paced(q.Func)
			if row.change != nil {
				row.change(q)
			}
		}))
	}()
	time.Sleep(100 * time.Millisecond)
	if row.act != nil {
		row.act(r, id)
	}
	time.Sleep(time.Hour)
	r.gate.ReleaseAll()
	time.Sleep(time.Second) // whoever was deaf is back, and tells nothing
	r.settled(id)
	_, events, _ := r.heard(id)
	last := ""
	for _, ev := range events {
		if line := eventLine(ev); line != last { // how often progress is told is not fixed
			page.WriteString(line)
			last = line
		}
	}
}

func eventLine(ev subagent.Event) string {
	t := ev.Task
	line := fmt.Sprintf("  %-13s %s", ev.Type, t.Status)
	switch {
	case !t.Status.Terminal() && !t.CancelRequestedAt.IsZero():
		line += ", stopping"
	case t.Status.Terminal():
		line += fmt.Sprintf(", reason %q, error %q, text %q", t.Reason, t.Error, t.ResultText)
		if t.Detached {
			line += ", detached"
		}
	}
	return line + "\n"
}
