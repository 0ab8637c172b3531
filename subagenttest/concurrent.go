package subagenttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// seedVariable repeats a random run of the suite.
const seedVariable = "SUBAGENT_TEST_SEED"

func seed(t *testing.T) uint64 {
	n := uint64(time.Now().UnixNano())
	if s := os.Getenv(seedVariable); s != "" {
		var err error
		n, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("%s=%d", seedVariable, n)
	return n
}

// concurrently calls fn in n goroutines at the same time and waits for all.
func concurrently(t *testing.T, n int, fn func(ctx context.Context, i int) error) {
	t.Helper()
	errs := make([]error, n)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-start
			errs[i] = fn(t.Context(), i)
		})
	}
	close(start)
	all.Wait()
	require.NoError(t, errors.Join(errs...))
}

// testConcurrent has goroutines do everything to the same few tasks and looks
// at each answer: it may be a refusal, but never a state that could not be.
func testConcurrent(t *testing.T, open opener) {
	const goroutines, steps = 16, 40
	s, base := open(t), seed(t)
	shared := make([]uuid.UUID, 8)
	for i := range shared {
		task := newTask()
		shared[i] = task.ID
		put(t, s, task)
	}
	concurrently(t, goroutines, func(ctx context.Context, i int) error {
		w := &walker{s: s, rand: rand.New(rand.NewPCG(base, uint64(i))), shared: shared, seen: make(map[uuid.UUID]subagent.Task)}
		for range steps {
			if err := w.step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// walker is one goroutine, with the newest it has seen of each task.
type walker struct {
	s      subagent.Store
	rand   *rand.Rand
	shared []uuid.UUID
	seen   map[uuid.UUID]subagent.Task
}

func (w *walker) step(ctx context.Context) error {
	id := w.shared[w.rand.IntN(len(w.shared))]
	switch w.rand.IntN(10) {
	case 0:
		return w.createAndDelete(ctx)
	case 1, 2:
		for task, err := range w.s.List(ctx, subagent.Filter{SessionID: "session"}) {
			if err != nil {
				return err
			}
			if err := w.look(task); err != nil {
				return err
			}
		}
		return nil
	case 3, 4, 5:
		task, err := w.s.Get(ctx, id)
		if err != nil {
			return err
		}
		return w.look(task)
	}
	return w.update(ctx, id)
}

// createAndDelete works on a task of this goroutine alone.
func (w *walker) createAndDelete(ctx context.Context) error {
	task := inStatus(subagent.StatusCompleted)
	task.ParentSessionID = "own"
	if err := w.s.Create(ctx, task); err != nil {
		return err
	}
	err := w.s.Delete(ctx, append([]uuid.UUID{task.ID}, w.shared...)...)
	if !errors.Is(err, subagent.ErrNotTerminal) { // the first of shared never ends
		return fmt.Errorf("a live task among those to delete, and Delete returned %w", err)
	}
	return w.s.Delete(ctx, task.ID)
}

func (w *walker) update(ctx context.Context, id uuid.UUID) error {
	to := statuses[w.rand.IntN(len(statuses))]
	keepLive := id == w.shared[0] // so that Delete of all is refused
	var from subagent.Status
	task, err := w.s.Update(ctx, id, func(t *subagent.Task) error {
		from = t.Status
		t.Progress.ToolUses++
		if !keepLive && from != to {
			moveTo(t, to)
		}
		return nil
	})
	var refused *subagent.TransitionError
	switch {
	case errors.As(err, &refused):
		if refused.From != from || !refused.From.Terminal() && subagent.CanTransition(refused.From, refused.To) {
			return fmt.Errorf("refused for a wrong reason: %w, edit saw %q", err, from)
		}
		return nil
	case err != nil:
		return err
	case from != task.Status && !subagent.CanTransition(from, task.Status):
		return fmt.Errorf("accepted a transition from %q to %q", from, task.Status)
	}
	return w.look(task)
}

// look checks that a task never goes back.
func (w *walker) look(task subagent.Task) error {
	last, ok := w.seen[task.ID]
	if ok && (task.Version < last.Version || task.Version == last.Version && task.Status != last.Status ||
		last.Status.Terminal() && task.Status != last.Status || task.Progress.ToolUses < last.Progress.ToolUses) {
		return fmt.Errorf("task %s went from %s in version %d to %s in version %d",
			task.ID, last.Status, last.Version, task.Status, task.Version)
	}
	w.seen[task.ID] = task
	return nil
}
