package sqlstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// crowdOfAll stores n tasks that differ by chance in each field that a Filter
// has, and changes most of them afterwards: the columns that filters use are to
// follow.
func crowdOfAll(t *testing.T, s, model subagent.Store, random *rand.Rand, n int) []uuid.UUID {
	some := func(name string) string { return []string{"", name + " 1", name + " 2"}[random.IntN(3)] }
	var ids []uuid.UUID
	for range n {
		task := newTask()
		task.ParentSessionID = fmt.Sprint("session ", random.IntN(3))
		task.ExternalTaskID, task.AgentID, task.ParentMsgID = some("call"), some("agent"), some("message")
		if len(ids) > 0 && random.IntN(2) == 0 {
			task.ParentTaskID = ids[0]
		}
		task.NotifiedAt = time.Time{}
		ids = append(ids, task.ID)
		require.NoError(t, s.Create(t.Context(), task))
		require.NoError(t, model.Create(t.Context(), task))
	}
	statuses := []subagent.Status{subagent.StatusQueued, subagent.StatusRunning, subagent.StatusCompleted, subagent.StatusErrored, subagent.StatusCancelled}
	for range 4 * n {
		id, status, told := ids[random.IntN(n)], statuses[random.IntN(len(statuses))], random.IntN(3) == 0
		agent, call, message, parent := some("agent"), some("call"), some("message"), ids[random.IntN(2)]
		edit := func(task *subagent.Task) error {
			switch {
			case task.Status.Terminal() && told && task.NotifiedAt.IsZero():
				task.NotifiedAt = task.CreatedAt
			case subagent.CanTransition(task.Status, status):
				task.Status, task.AgentID, task.ExternalTaskID = status, agent, call
				task.ParentMsgID, task.ParentTaskID = message, parent
			}
			return nil
		}
		_, err := s.Update(t.Context(), id, edit)
		require.NoError(t, err)
		_, err = model.Update(t.Context(), id, edit)
		require.NoError(t, err)
	}
	return ids
}

// TestFiltersAgainstAModel asks this store and a MemoryStore the same, for every
// combination of the fields of a Filter.
func TestFiltersAgainstAModel(t *testing.T) {
	random, s, model := seeded(t), fresh(t), subagent.NewMemoryStore()
	ids := crowdOfAll(t, s, model, random, 150)
	statuses := [][]subagent.Status{
		nil, {}, {subagent.StatusCompleted}, {subagent.StatusRunning, subagent.StatusCompleted, subagent.StatusRunning},
		{subagent.StatusErrored, subagent.StatusCancelled}, {subagent.StatusPending, subagent.StatusQueued}, {"unheard of"},
		{"1", "2", "3", "4", "5", "6", "7", subagent.StatusCancelled, subagent.StatusRunning},
	}
	found := 0
	for fields := range 1 << 8 {
		has := func(bit int) bool { return fields>>bit&1 == 1 }
		for _, f := range []subagent.Filter{{}, {Limit: 7}, {Limit: 1 + random.IntN(300), After: ids[random.IntN(len(ids))]}} {
			f.NewestFirst, f.Undelivered = has(0), has(1)
			set := func(bit int, field *string, value string) {
				if has(bit) {
					*field = fmt.Sprint(value, " ", 1+random.IntN(2))
				}
			}
			set(2, &f.SessionID, "session")
			set(3, &f.AgentID, "agent")
			set(4, &f.ExternalTaskID, "call")
			set(5, &f.ParentMsgID, "message")
			if has(6) {
				f.ParentTaskID = ids[random.IntN(2)]
			}
			if has(7) {
				f.Statuses = statuses[random.IntN(len(statuses))]
			}
			got, err := list(t, s, f)
			require.NoError(t, err, "%+v", f)
			want, err := list(t, model, f)
			require.NoError(t, err)
			require.Equal(t, idsOf(want), idsOf(got), "%+v", f)
			found += len(got)
		}
	}
	require.Greater(t, found, 1000, "there was nothing to find")
}

func idsOf(tasks []subagent.Task) []uuid.UUID {
	ids := make([]uuid.UUID, len(tasks))
	for i := range tasks {
		ids[i] = tasks[i].ID
	}
	return ids
}

// TestManyStatuses asks for more of them than a statement may have parts.
func TestManyStatuses(t *testing.T) {
	s := fresh(t)
	task := newTask()
	require.NoError(t, s.Create(context.Background(), task))
	statuses := []subagent.Status{subagent.StatusPending}
	for i := range 3000 {
		statuses = append(statuses, subagent.Status(fmt.Sprint("status ", i)))
	}
	for _, f := range []subagent.Filter{{}, {SessionID: "session"}, {SessionID: "session", Undelivered: true}} {
		f.Statuses = slices.Clone(statuses)
		got, err := list(t, s, f)
		require.NoError(t, err)
		require.Equal(t, !f.Undelivered, len(got) == 1)
	}
}
