package subagenttest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gated runs test in a bubble, with a Runner whose tasks stop at a gate.
func gated(t *testing.T, workers int, test func(t *testing.T, gate *subagenttest.Gate, r *subagent.Runner)) {
	bubble.Test(t, func(t *testing.T) {
		gate := subagenttest.NewGate()
		r, err := subagent.New(t.Context(), subagent.Config{Func: gate.Func(), Workers: workers})
		require.NoError(t, err)
		test(t, gate, r)
		gate.ReleaseAll()
		require.NoError(t, r.Shutdown(t.Context()))
		require.Zero(t, gate.Inside())
	})
}

func spawn(t *testing.T, r *subagent.Runner, req subagent.Request) uuid.UUID {
	t.Helper()
	req.ParentSessionID, req.Description = "s", "work"
	task, err := r.Spawn(t.Context(), req)
	require.NoError(t, err)
	return task.ID
}

func ended(t *testing.T, r *subagent.Runner, id uuid.UUID) subagent.Task {
	t.Helper()
	task, err := r.Wait(t.Context(), id)
	require.NoError(t, err)
	return task
}

func TestGateReleases(t *testing.T) {
	gated(t, 2, func(t *testing.T, gate *subagenttest.Gate, r *subagent.Runner) {
		good, bad := spawn(t, r, subagent.Request{}), spawn(t, r, subagent.Request{})
		require.Equal(t, bad, gate.WaitEntered(t, bad).Task().ID)
		require.Equal(t, good, gate.WaitEntered(t, good).Task().ID)
		require.Equal(t, 2, gate.Inside())

		gate.Release(bad, subagent.Result{}, errors.New("boom"))
		gate.Release(bad, subagent.Result{Text: "too late"}, nil)
		require.Equal(t, "boom", ended(t, r, bad).Error)
		gate.Release(good, subagent.Result{Text: "fine"}, nil)
		require.Equal(t, "fine", ended(t, r, good).ResultText)
		require.Zero(t, gate.Inside())
		gate.WaitEntered(t, good) // it has been there
	})
}

func TestGateReleasesInAdvance(t *testing.T) {
	gated(t, 1, func(t *testing.T, gate *subagenttest.Gate, r *subagent.Runner) {
		id := uuid.New()
		gate.Release(id, subagent.Result{Text: "waved through"}, nil)
		spawn(t, r, subagent.Request{ID: id})
		require.Equal(t, "waved through", ended(t, r, id).ResultText)
	})
}

func TestGateReleasesAll(t *testing.T) {
	gated(t, 2, func(t *testing.T, gate *subagenttest.Gate, r *subagent.Runner) {
		var ids []uuid.UUID
		for range 5 {
			ids = append(ids, spawn(t, r, subagent.Request{}))
		}
		gate.WaitEntered(t, ids[0])
		gate.ReleaseAll()
		gate.ReleaseAll()
		for _, id := range ids {
			require.Equal(t, subagent.StatusCompleted, ended(t, r, id).Status)
		}
	})
}

func TestGateEnteredInOrder(t *testing.T) {
	gated(t, 1, func(t *testing.T, gate *subagenttest.Gate, r *subagent.Runner) {
		ids := []uuid.UUID{spawn(t, r, subagent.Request{}), spawn(t, r, subagent.Request{}), spawn(t, r, subagent.Request{})}
		for _, id := range ids {
			run, err := gate.Entered(t.Context())
			require.NoError(t, err)
			require.Equal(t, id, run.Task().ID)
			gate.Release(id, subagent.Result{}, nil)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := gate.Entered(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded, "each is handed out once")
	})
}

func TestGateHearsCtx(t *testing.T) {
	gated(t, 1, func(t *testing.T, gate *subagenttest.Gate, r *subagent.Runner) {
		id := spawn(t, r, subagent.Request{})
		gate.WaitEntered(t, id)
		_, err := r.Cancel(t.Context(), id, subagent.CancelOptions{})
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCancelled, ended(t, r, id).Status)
		require.False(t, ended(t, r, id).Detached)
	})
}

func TestGateDeaf(t *testing.T) {
	gated(t, 1, func(t *testing.T, gate *subagenttest.Gate, r *subagent.Runner) {
		id := spawn(t, r, subagent.Request{Func: gate.DeafFunc()})
		gate.WaitEntered(t, id)
		_, err := r.Cancel(t.Context(), id, subagent.CancelOptions{})
		require.NoError(t, err)
		require.True(t, ended(t, r, id).Detached)
		require.Equal(t, 1, gate.Inside(), "it is still there")
	})
}

func TestGateServesAnIDAgain(t *testing.T) {
	gated(t, 1, func(t *testing.T, gate *subagenttest.Gate, r *subagent.Runner) {
		id := uuid.New()
		for _, text := range []string{"first", "second"} {
			spawn(t, r, subagent.Request{ID: id})
			run, err := gate.Entered(t.Context())
			require.NoError(t, err)
			gate.Release(run.Task().ID, subagent.Result{Text: text}, nil)
			require.Equal(t, text, ended(t, r, id).ResultText)
			synctest.Wait()
			require.NoError(t, r.Forget(t.Context(), id))
		}
	})
}

// fatalist records that a test was ended, in the place of ending it.
type fatalist struct {
	testing.TB
	said string
}

func (f *fatalist) Helper() {}

func (f *fatalist) Fatalf(format string, args ...any) { f.said = fmt.Sprintf(format, args...) }

func TestGateGivesUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f, id := &fatalist{TB: t}, uuid.New()
		subagenttest.NewGate().WaitEntered(f, id)
		require.Contains(t, f.said, id.String())
	})
}

// A gate takes the guesswork out of a test: the task is inside exactly when
// the test has seen it enter, and ends exactly when the test says so.
func ExampleGate() {
	ctx := context.Background()
	gate := subagenttest.NewGate()
	runner, err := subagent.New(ctx, subagent.Config{Func: gate.Func()})
	if err != nil {
		panic(err)
	}
	task, err := runner.Spawn(ctx, subagent.Request{ParentSessionID: "session", Description: "Look into it."})
	if err != nil {
		panic(err)
	}
	run, err := gate.Entered(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println(run.Task().Status)
	gate.Release(task.ID, subagent.Result{Text: "It was the cache."}, nil)
	task, err = runner.Wait(ctx, task.ID)
	fmt.Println(task.Status, task.ResultText, err)
	fmt.Println(runner.Shutdown(ctx))
	// Output:
	// running
	// completed It was the cache. <nil>
	// <nil>
}
