package subagent_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// memoryModel is what MemoryStore shall be, by the simplest means.
type memoryModel struct {
	rows      map[uuid.UUID]subagent.Task
	retention int
}

func (m *memoryModel) list(f subagent.Filter) []uuid.UUID {
	var match []subagent.Task
	for _, t := range m.rows {
		if f.Match(t) {
			match = append(match, t)
		}
	}
	ids := idsOf(match...)
	if f.NewestFirst {
		slices.Reverse(ids)
	}
	if f.After != uuid.Nil {
		ids = slices.DeleteFunc(ids, func(id uuid.UUID) bool {
			c := compareUUIDs(id, f.After)
			return c == 0 || (c < 0) != f.NewestFirst
		})
	}
	if f.Limit > 0 && f.Limit < len(ids) {
		ids = ids[:f.Limit]
	}
	return ids
}

func (m *memoryModel) evict() {
	for m.retention >= 0 {
		ended, oldest := 0, uuid.Nil
		for id, t := range m.rows {
			if !t.Status.Terminal() {
				continue
			}
			ended++
			if t.Background && t.NotifiedAt.IsZero() {
				continue
			}
			older := t.CompletedAt.Compare(m.rows[oldest].CompletedAt)
			if oldest == uuid.Nil || older < 0 || older == 0 && compareUUIDs(id, oldest) < 0 {
				oldest = id
			}
		}
		if ended <= m.retention || oldest == uuid.Nil {
			return
		}
		delete(m.rows, oldest)
	}
}

// TestMemoryStoreAgainstModel does at random what the model does, too.
func TestMemoryStoreAgainstModel(t *testing.T) {
	random, m := seeded(t), subagent.NewMemoryStore()
	m.SetRetention(20)
	model := &memoryModel{rows: make(map[uuid.UUID]subagent.Task), retention: 20}
	for range 1500 {
		ids := slices.SortedFunc(maps.Keys(model.rows), compareUUIDs)
		switch op := random.IntN(20); {
		case op < 7 || len(ids) == 0:
			modelCreate(t, random, m, model, ids)
		case op < 16:
			modelUpdate(t, random, m, model, ids)
		case op < 17:
			id := ids[random.IntN(len(ids))]
			if err := m.Delete(t.Context(), id); model.rows[id].Status.Terminal() {
				require.NoError(t, err)
				delete(model.rows, id)
			} else {
				require.ErrorIs(t, err, subagent.ErrNotTerminal)
			}
		case op < 18:
			model.retention = random.IntN(30) - 1
			m.SetRetention(model.retention)
		default:
			f := modelFilter(random, ids)
			require.Equal(t, model.list(f), listed(t, m, f), "%+v", f)
		}
		model.evict()
	}
	require.Equal(t, model.list(subagent.Filter{}), listed(t, m, subagent.Filter{}))
}

var memoryStatuses = []subagent.Status{
	subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning,
	subagent.StatusCompleted, subagent.StatusCancelled, subagent.StatusErrored,
}

func modelCreate(t *testing.T, random *rand.Rand, m *subagent.MemoryStore, model *memoryModel, ids []uuid.UUID) {
	task := storeTask(memoryStatuses[random.IntN(3)])
	task.ParentSessionID = fmt.Sprint("s", random.IntN(4))
	task.Background = random.IntN(3) == 0
	if random.IntN(2) == 0 { // anywhere in the order of IDs
		random.Shuffle(8, func(i, j int) { task.ID[8+i], task.ID[8+j] = task.ID[8+j], task.ID[8+i] })
		task.ID[0] = byte(random.IntN(256))
	}
	if len(ids) > 0 {
		task.ParentTaskID = ids[random.IntN(min(3, len(ids)))]
	}
	create(t, m, task)
	model.rows[task.ID] = task
}

func modelUpdate(t *testing.T, random *rand.Rand, m *subagent.MemoryStore, model *memoryModel, ids []uuid.UUID) {
	id := ids[random.IntN(len(ids))]
	to, second := memoryStatuses[random.IntN(6)], time.Duration(random.IntN(5))*time.Second
	parent := ids[random.IntN(len(ids))]
	edit := func(t *subagent.Task) {
		switch {
		case t.Status.Terminal():
			t.NotifiedAt = memoryEpoch.Add(time.Hour + second)
		case subagent.CanTransition(t.Status, to):
			t.Status = to
			if to.Terminal() {
				t.CompletedAt = memoryEpoch.Add(second)
			}
		default:
			t.ParentTaskID = parent
		}
	}
	want := model.rows[id]
	edit(&want)
	got := change(t, m, id, edit)
	want.Version = got.Version
	require.Equal(t, want, got)
	model.rows[id] = want
}

func modelFilter(random *rand.Rand, ids []uuid.UUID) subagent.Filter {
	f := subagent.Filter{NewestFirst: random.IntN(2) == 0, Limit: random.IntN(20), Undelivered: random.IntN(4) == 0}
	if random.IntN(2) == 0 {
		f.SessionID = fmt.Sprint("s", random.IntN(5))
	}
	if random.IntN(2) == 0 {
		f.ParentTaskID = ids[random.IntN(min(3, len(ids)))]
	}
	if random.IntN(3) == 0 {
		f.Statuses = memoryStatuses[random.IntN(6):][:1]
	}
	if random.IntN(3) == 0 {
		f.After = ids[random.IntN(len(ids))]
	}
	return f
}
