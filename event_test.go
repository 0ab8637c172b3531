package subagent

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent/internal/bubble"
)

// fakeSource is a task that events are published of.
type fakeSource struct {
	Task
	snapshots int
}

func (s *fakeSource) record() *Task { return &s.Task }

func (s *fakeSource) life() any { return s.ID }

func (s *fakeSource) snapshot() *Task {
	s.snapshots++
	t := s.Task
	preview(&t)
	return &t
}

// numbered is the task with number n, in the given status.
func numbered(n int, status Status) *fakeSource {
	var id uuid.UUID
	binary.BigEndian.PutUint32(id[12:], uint32(n))
	return &fakeSource{Task: Task{ID: id, Status: status, ParentSessionID: "s"}}
}

func numberOf(id uuid.UUID) int { return int(binary.BigEndian.Uint32(id[12:])) }

// endedCtx is a ctx that is done: Next with it returns what is there, or Canceled.
func endedCtx() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// readAll reads all that is unread.
func readAll(t *testing.T, s *Subscription) (all []Event) {
	t.Helper()
	for range 2 * maxUnread {
		e, err := s.Next(endedCtx())
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
			return all
		}
		all = append(all, e)
	}
	t.Fatal("there is no end to it")
	return nil
}

func TestEventsComeOneByOne(t *testing.T) {
	var h hub
	s := h.subscribe(Filter{})
	defer s.Close()
	task := numbered(1, StatusPending)
	for i, step := range []struct {
		kind   EventType
		status Status
	}{{EventCreated, StatusPending}, {EventStatus, StatusQueued}, {EventStatus, StatusRunning}, {EventProgress, StatusRunning}, {EventStatus, StatusCompleted}} {
		task.Status = step.status
		h.publish(step.kind, task)
		e, err := s.Next(endedCtx())
		require.NoError(t, err)
		require.EqualValues(t, i+1, e.Seq)
		require.Equal(t, step.kind, e.Type)
		require.Equal(t, task.Task, e.Task)
		require.False(t, e.Time.IsZero())
	}
	require.Empty(t, readAll(t, s))
}

func TestEventsAreOfWhatTheFilterMatches(t *testing.T) {
	var h hub
	statuses := []Status{StatusRunning}
	running := h.subscribe(Filter{Statuses: statuses})
	other := h.subscribe(Filter{SessionID: "other"})
	statuses[0] = StatusQueued // the caller's own again
	task := numbered(1, StatusQueued)
	h.publish(EventStatus, task)
	require.Zero(t, task.snapshots, "nobody wants it")
	task.Status = StatusRunning
	h.publish(EventStatus, task)
	require.Len(t, readAll(t, running), 1)
	require.Empty(t, readAll(t, other))
}

func TestEventsStartWithTheSubscription(t *testing.T) {
	var h hub
	h.publish(EventCreated, numbered(1, StatusPending))
	s := h.subscribe(Filter{})
	require.Empty(t, readAll(t, s))
	h.publish(EventCreated, numbered(2, StatusPending))
	require.EqualValues(t, 2, readAll(t, s)[0].Seq, "seq counts without subscribers, too")
}

func TestEventSnapshotIsSharedAndSafe(t *testing.T) {
	var h hub
	a, b := h.subscribe(Filter{}), h.subscribe(Filter{SessionID: "s"})
	task := numbered(1, StatusRunning)
	task.Metadata = map[string]string{"k": "v"}
	h.publish(EventStatus, task)
	require.Equal(t, 1, task.snapshots)
	readAll(t, a)[0].Task.Metadata["k"] = "mine"
	require.Equal(t, "v", readAll(t, b)[0].Task.Metadata["k"])
	require.Equal(t, "v", task.Metadata["k"])
}

func TestEventsMerge(t *testing.T) {
	for _, c := range []struct {
		name  string
		kinds []EventType
		want  EventType
	}{
		{"progress", []EventType{EventProgress, EventProgress}, EventProgress},
		{"status wins", []EventType{EventProgress, EventStatus, EventProgress}, EventStatus},
		{"created wins", []EventType{EventCreated, EventStatus, EventProgress}, EventCreated},
		{"created wins at any place", []EventType{EventProgress, EventCreated, EventStatus}, EventCreated},
	} {
		var h hub
		s := h.subscribe(Filter{})
		task := numbered(1, StatusRunning)
		for i, kind := range c.kinds {
			task.Version = int64(i)
			h.publish(kind, task)
		}
		got := readAll(t, s)
		require.Len(t, got, 1, c.name)
		require.Equal(t, c.want, got[0].Type, c.name)
		require.EqualValues(t, len(c.kinds), got[0].Seq, c.name)
		require.EqualValues(t, len(c.kinds)-1, got[0].Task.Version, c.name)
	}
}

func TestMergedEventMovesToTheEnd(t *testing.T) {
	var h hub
	s := h.subscribe(Filter{})
	for _, n := range []int{1, 2, 3, 1, 2} {
		h.publish(EventProgress, numbered(n, StatusRunning))
	}
	var order []int
	var seqs []uint64
	for _, e := range readAll(t, s) {
		order = append(order, numberOf(e.Task.ID))
		seqs = append(seqs, e.Seq)
	}
	require.Equal(t, []int{3, 1, 2}, order)
	require.Equal(t, []uint64{3, 4, 5}, seqs)
}

func TestB222_AnEndIsNotMergedAway(t *testing.T) {
	var h hub
	s := h.subscribe(Filter{})
	h.publish(EventStatus, numbered(1, StatusCompleted))
	h.publish(EventProgress, numbered(1, StatusRunning))
	got := readAll(t, s)
	require.Len(t, got, 1)
	require.Equal(t, StatusCompleted, got[0].Task.Status)
	require.Equal(t, EventStatus, got[0].Type)

	h.publish(EventProgress, numbered(2, StatusRunning))
	h.publish(EventStatus, numbered(2, StatusErrored))
	require.Equal(t, StatusErrored, readAll(t, s)[0].Task.Status)
}

func TestEventTimeIsOfTheNewestAndNeverRunsBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var h hub
		s := h.subscribe(Filter{})
		h.publish(EventCreated, numbered(1, StatusPending))
		h.publish(EventCreated, numbered(2, StatusPending))
		start := time.Now().UTC().Truncate(time.Microsecond)
		time.Sleep(time.Minute)
		h.publish(EventStatus, numbered(1, StatusQueued))
		got := readAll(t, s)
		require.Equal(t, start, got[0].Time)
		require.Equal(t, start.Add(time.Minute), got[1].Time)

		h.last = h.last.Add(time.Hour) // as if the wall clock had been set back
		h.publish(EventStatus, numbered(1, StatusRunning))
		require.Equal(t, start.Add(time.Hour+time.Minute), readAll(t, s)[0].Time)
	})
}

func TestSubscriptionLags(t *testing.T) {
	var h hub
	slow, quick := h.subscribe(Filter{}), h.subscribe(Filter{})
	for n := range maxUnread {
		h.publish(EventCreated, numbered(n, StatusPending))
	}
	require.Len(t, readAll(t, quick), maxUnread)
	for n := range maxUnread { // merged: as many tasks as before
		h.publish(EventStatus, numbered(n, StatusQueued))
	}
	require.Len(t, readAll(t, slow), maxUnread, "4096 unread tasks are kept")

	for n := range maxUnread + 1 {
		h.publish(EventStatus, numbered(n, StatusRunning))
	}
	require.Zero(t, slow.order.Len(), "dropped at once, not when it is read")
	require.Nil(t, slow.byTask)
	unseen := numbered(7, StatusRunning)
	h.publish(EventProgress, unseen)
	require.Zero(t, unseen.snapshots, "what happens before the state is read anew is in that state")

	_, err := slow.Next(endedCtx())
	require.ErrorIs(t, err, ErrLagged)
	require.Empty(t, readAll(t, slow), "reported once, and empty then")
	h.publish(EventProgress, numbered(7, StatusRunning))
	require.Len(t, readAll(t, slow), 1)
}

func TestLaggingFreesMemory(t *testing.T) {
	var h hub
	s := h.subscribe(Filter{})
	freed := make(chan struct{})
	func() {
		source := &cleanedUp{Task: numbered(0, StatusRunning).Task, freed: freed}
		h.publish(EventStatus, source)
	}()
	for n := 1; n <= maxUnread; n++ {
		h.publish(EventStatus, numbered(n, StatusRunning))
	}
	runtime.GC()
	<-freed
	runtime.KeepAlive(s)
}

// cleanedUp tells when its snapshot is no longer reachable.
type cleanedUp struct {
	Task
	freed chan struct{}
}

func (s *cleanedUp) life() any { return s }

func (s *cleanedUp) record() *Task { return &s.Task }

func (s *cleanedUp) snapshot() *Task {
	t := s.Task
	runtime.AddCleanup(&t, func(freed chan struct{}) { close(freed) }, s.freed)
	return &t
}

func TestNextWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var h hub
		s := h.subscribe(Filter{})
		start := time.Now()
		time.AfterFunc(time.Second, func() { h.publish(EventCreated, numbered(1, StatusPending)) })
		e, err := s.Next(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, e.Seq)
		require.Equal(t, time.Second, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = s.Next(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second+time.Minute, time.Since(start))

		h.publish(EventStatus, numbered(1, StatusQueued))
		e, err = s.Next(ctx)
		require.NoError(t, err, "what is there is returned, also with a ctx that is done")
		require.EqualValues(t, 2, e.Seq)
	})
}

func TestCloseEndsASubscription(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var h hub
		s, other := h.subscribe(Filter{}), h.subscribe(Filter{})
		require.Equal(t, 2, h.count())
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() {
				_, err := s.Next(t.Context())
				errs <- err
			}()
		}
		synctest.Wait()
		s.Close()
		for range cap(errs) {
			require.ErrorIs(t, <-errs, ErrClosed)
		}
		s.Close()
		require.Equal(t, 1, h.count())
		h.publish(EventCreated, numbered(1, StatusPending))
		_, err := s.Next(t.Context())
		require.ErrorIs(t, err, ErrClosed)
		require.Len(t, readAll(t, other), 1)
	})
}

func TestCloseDropsWhatIsUnread(t *testing.T) {
	var h hub
	s := h.subscribe(Filter{})
	h.publish(EventCreated, numbered(1, StatusPending))
	s.Close()
	_, err := s.Next(context.Background())
	require.ErrorIs(t, err, ErrClosed)

	lagging := h.subscribe(Filter{})
	for n := range maxUnread + 1 {
		h.publish(EventCreated, numbered(n, StatusPending))
	}
	lagging.Close()
	_, err = lagging.Next(context.Background())
	require.ErrorIs(t, err, ErrClosed)
}

func TestHubCloseEndsAfterTheLastEvent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var h hub
		full, empty := h.subscribe(Filter{}), h.subscribe(Filter{SessionID: "other"})
		h.publish(EventCreated, numbered(1, StatusPending))
		h.publish(EventCreated, numbered(2, StatusPending))
		waiting := make(chan error, 1)
		go func() {
			_, err := empty.Next(t.Context())
			waiting <- err
		}()
		synctest.Wait()
		h.close()
		h.close()
		require.ErrorIs(t, <-waiting, ErrClosed)
		require.Zero(t, h.count())
		h.publish(EventCreated, numbered(3, StatusPending))
		for n := 1; n <= 2; n++ {
			e, err := full.Next(t.Context())
			require.NoError(t, err)
			require.Equal(t, n, numberOf(e.Task.ID))
		}
		_, err := full.Next(t.Context())
		require.ErrorIs(t, err, ErrClosed)
		full.Close()

		_, err = h.subscribe(Filter{}).Next(t.Context())
		require.ErrorIs(t, err, ErrClosed, "it was over before it began")
		require.Zero(t, h.count())
	})
}

func TestHubCloseStillTellsOfALag(t *testing.T) {
	var h hub
	s := h.subscribe(Filter{})
	for n := range maxUnread + 1 {
		h.publish(EventCreated, numbered(n, StatusPending))
	}
	h.close()
	_, err := s.Next(context.Background())
	require.ErrorIs(t, err, ErrLagged)
	_, err = s.Next(context.Background())
	require.ErrorIs(t, err, ErrClosed)
}

func TestConcurrentNext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const readers, tasks = 8, 2000
		var h hub
		s := h.subscribe(Filter{})
		seen := make([][]uint64, readers)
		var wg sync.WaitGroup
		for i := range readers {
			wg.Go(func() {
				for range tasks + 1 {
					e, err := s.Next(t.Context())
					if errors.Is(err, ErrClosed) {
						return
					}
					seen[i] = append(seen[i], e.Seq)
				}
			})
		}
		for n := range tasks {
			h.publish(EventCreated, numbered(n, StatusPending))
		}
		synctest.Wait() // nobody is left waiting while there is something to read
		require.Zero(t, s.order.Len())
		h.close()
		wg.Wait()
		var all []uint64
		for _, seqs := range seen {
			require.True(t, slices.IsSorted(seqs), "rising for each reader")
			all = append(all, seqs...)
		}
		slices.Sort(all)
		require.Len(t, slices.Compact(all), tasks, "each event goes to exactly one")
		require.Len(t, all, tasks)
	})
}

// TestSubscriptionAtRandom compares a subscription with the plain statement
// of its promise: per unread task the newest snapshot, by the seq of its last
// event, with the strongest type.
func TestSubscriptionAtRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(seedOf(t), 2))
	kinds := []EventType{EventProgress, EventStatus, EventCreated}
	for range 50 {
		var h hub
		s := h.subscribe(Filter{})
		var model []Event
		for step := range 200 {
			if r.IntN(3) == 0 {
				e, err := s.Next(endedCtx())
				if len(model) == 0 {
					require.ErrorIs(t, err, context.Canceled)
					continue
				}
				require.NoError(t, err)
				e.Time = time.Time{}
				require.Equal(t, model[0], e)
				model = model[1:]
				continue
			}
			task, kind := numbered(r.IntN(6), StatusRunning), kinds[r.IntN(3)]
			task.Version = int64(step)
			h.publish(kind, task)
			news := Event{Seq: h.seq, Type: kind, Task: task.Task}
			if i := slices.IndexFunc(model, func(e Event) bool { return e.Task.ID == task.ID }); i >= 0 {
				if slices.Index(kinds, model[i].Type) > slices.Index(kinds, kind) {
					news.Type = model[i].Type
				}
				model = slices.Delete(model, i, i+1)
			}
			model = append(model, news)
		}
	}
}

func BenchmarkPublish(b *testing.B) {
	task := numbered(1, StatusRunning)
	for _, c := range []struct {
		name    string
		filters []Filter
	}{{"nobody", nil}, {"no match", []Filter{{SessionID: "x"}}}, {"merged", []Filter{{}}}} {
		b.Run(c.name, func(b *testing.B) {
			var h hub
			for _, f := range c.filters {
				defer h.subscribe(f).Close()
			}
			b.ReportAllocs()
			for b.Loop() {
				h.publish(EventProgress, task)
			}
		})
	}
}
