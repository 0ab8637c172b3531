package soak

import (
	"context"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// ledger notes what a durable store acknowledges. A MemoryStore has none: the
// Runner treats it in a way of its own.
type ledger struct {
	subagent.Store
	j *journal
}

func (l *ledger) Create(ctx context.Context, tasks ...subagent.Task) error {
	err := l.Store.Create(ctx, tasks...)
	if err == nil {
		stored := make([]subagent.Task, len(tasks))
		for i, t := range tasks {
			t.Version = 1
			stored[i] = t
		}
		l.j.note(fact{Says: saysStored, Op: "create", Tasks: stored})
	}
	return err
}

func (l *ledger) Update(ctx context.Context, id uuid.UUID, edit func(*subagent.Task) error) (subagent.Task, error) {
	var before, after subagent.Task // as the last run of the edit that did something found it, and left it
	t, err := l.Store.Update(ctx, id, func(t *subagent.Task) error {
		was := *t
		err := edit(t)
		if was.Status != t.Status || !was.NotifiedAt.Equal(t.NotifiedAt) {
			before, after = was, *t
		}
		return err
	})
	if err == nil {
		f := fact{Says: saysStored, Op: "update", Tasks: []subagent.Task{t}}
		f.Ends = after.Status.Terminal() && !before.Status.Terminal() && after.CompletedAt.Equal(t.CompletedAt)
		f.Hands = !after.NotifiedAt.IsZero() && before.NotifiedAt.IsZero() && after.NotifiedAt.Equal(t.NotifiedAt)
		l.j.note(f)
	}
	return t, err
}

// sharedLedger is a ledger of a store that several processes share.
type sharedLedger struct {
	ledger
	subagent.Leaser
	subagent.Watcher
}

// keep is store with a ledger, and with the abilities that it has.
func keep(store subagent.Store, j *journal) subagent.Store {
	if _, ok := store.(*subagent.MemoryStore); ok {
		return store
	}
	l := ledger{store, j}
	leaser, shared := store.(subagent.Leaser)
	watcher, watched := store.(subagent.Watcher)
	if shared && watched {
		return &sharedLedger{l, leaser, watcher}
	}
	return &l
}
