package subagenttest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

const (
	shortLease = 50 * time.Millisecond
	longLease  = time.Hour
)

func testLease(t *testing.T, open opener) {
	if _, ok := open(t).(subagent.Leaser); !ok {
		t.Skip("the store is no Leaser")
	}
	fresh := func(t *testing.T) subagent.Leaser { return open(t).(subagent.Leaser) }
	t.Run("unknown and empty", func(t *testing.T) {
		l := fresh(t)
		requireLive(t, l, "nobody", false)
		requireLive(t, l, "", false)
		require.ErrorIs(t, l.Renew(t.Context(), "", longLease), subagent.ErrInvalidRequest)
		requireLive(t, l, "", false)
		require.NoError(t, l.Release(t.Context(), "nobody"))
		require.NoError(t, l.Release(t.Context(), ""))
	})
	t.Run("no time", func(t *testing.T) {
		l := fresh(t)
		for _, ttl := range []time.Duration{0, -time.Second} {
			require.ErrorIs(t, l.Renew(t.Context(), "owner", ttl), subagent.ErrInvalidRequest)
		}
		requireLive(t, l, "owner", false)
	})
	t.Run("renewed and released", func(t *testing.T) {
		l := fresh(t)
		for range 2 {
			renew(t, l, "owner", longLease)
			renew(t, l, "owner", longLease)
			renew(t, l, "other", longLease)
			requireLive(t, l, "owner", true)
			requireLive(t, l, "own", false)
			require.NoError(t, l.Release(t.Context(), "owner"))
			requireLive(t, l, "owner", false)
			requireLive(t, l, "other", true)
		}
	})
	t.Run("expired", func(t *testing.T) {
		l := fresh(t)
		renew(t, l, "prolonged", shortLease)
		renew(t, l, "prolonged", longLease)
		renew(t, l, "shortened", longLease)
		renew(t, l, "shortened", shortLease)
		renew(t, l, "short", shortLease)
		waitDead(t, l, "shortened") // by then the first short one would be past, too
		waitDead(t, l, "short")
		requireLive(t, l, "prolonged", true)
		renew(t, l, "short", longLease)
		requireLive(t, l, "short", true)
	})
}

func renew(t *testing.T, l subagent.Leaser, owner string, ttl time.Duration) {
	t.Helper()
	require.NoError(t, l.Renew(t.Context(), owner, ttl))
}

func requireLive(t *testing.T, l subagent.Leaser, owner string, want bool) {
	t.Helper()
	live, err := l.Live(t.Context(), owner)
	require.NoError(t, err)
	require.Equal(t, want, live, "lease of %q", owner)
}

// waitDead asks until the lease is past: a store may keep time in a file or on
// another machine, so the suite cannot stop the clock.
func waitDead(t *testing.T, l subagent.Leaser, owner string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	again := time.NewTicker(shortLease / 10)
	defer again.Stop()
	for {
		live, err := l.Live(t.Context(), owner)
		require.NoError(t, err)
		if !live {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("the lease of %q does not end", owner)
		}
	}
}

// TestSharedStore checks that two handles on the same fresh and empty data see
// each other as two processes do: the same records, the same leases, and, if
// the first is a subagent.Watcher, the changes that the second makes.
func TestSharedStore(t *testing.T, open func(t *testing.T) (a, b subagent.Store)) {
	t.Run("records", func(t *testing.T) { testSharedRecords(t, open) })
	t.Run("leases", func(t *testing.T) {
		a, b := open(t)
		first, ok := a.(subagent.Leaser)
		if !ok {
			t.Skip("the store is no Leaser")
		}
		second := b.(subagent.Leaser)
		renew(t, first, "owner", longLease)
		requireLive(t, second, "owner", true)
		require.NoError(t, second.Release(t.Context(), "owner"))
		requireLive(t, first, "owner", false)
	})
	t.Run("watch", func(t *testing.T) { testWatch(t, open) })
}

func testSharedRecords(t *testing.T, open func(t *testing.T) (a, b subagent.Store)) {
	const each = 20
	a, b := open(t)
	task := inStatus(subagent.StatusRunning)
	put(t, a, task)
	requireStored(t, b, task)
	require.ErrorIs(t, b.Create(t.Context(), task), subagent.ErrTaskExists)
	concurrently(t, 4, func(ctx context.Context, i int) error {
		s := []subagent.Store{a, b}[i%2]
		for range each {
			if _, err := s.Update(ctx, task.ID, count); err != nil {
				return err
			}
		}
		return nil
	})
	for _, s := range []subagent.Store{a, b} {
		require.Equal(t, 4*each, get(t, s, task.ID).Progress.ToolUses)
	}
	end := update(t, b, task.ID, func(t *subagent.Task) { moveTo(t, subagent.StatusCancelled) })
	requireStored(t, a, end)
	require.NoError(t, b.Delete(t.Context(), task.ID))
	requireUnknown(t, a, task.ID)
}

func testWatch(t *testing.T, open func(t *testing.T) (a, b subagent.Store)) {
	a, b := open(t)
	w, ok := a.(subagent.Watcher)
	if !ok {
		t.Skip("the store is no Watcher")
	}
	mine, foreign := inStatus(subagent.StatusRunning), inStatus(subagent.StatusRunning)
	mine.Owner, foreign.Owner = "me", "you"
	put(t, a, mine)
	put(t, b, foreign)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told, ended := make(chan subagent.Task, 1000), make(chan error, 1)
	// It ends with ctx, and unless the test has failed it is waited for below.
	go func() {
		ended <- w.Watch(ctx, "me", func(t subagent.Task) {
			select {
			case told <- t:
			default: // beyond what any test writes
			}
		})
	}()
	late := time.After(patience)
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	// Nothing says when the watch has begun, so the change is made repeatedly.
	for seen := false; !seen; {
		update(t, b, foreign.ID, func(t *subagent.Task) { t.Progress.ToolUses++ })
		want := update(t, b, mine.ID, func(t *subagent.Task) { t.Progress.ToolUses++ })
		select {
		case task := <-told:
			require.Equal(t, mine.ID, task.ID, "told of a task of another owner")
			require.Equal(t, "me", task.Owner)
			require.LessOrEqual(t, task.Progress.ToolUses, want.Progress.ToolUses)
			seen = true
		case <-again.C:
		case <-late:
			t.Fatal("Watch does not tell of another's changes")
		}
	}
	cancel()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(patience):
		t.Fatal("Watch does not end with its ctx")
	}
}
