package bench_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

const million = 1_000_000

// BenchmarkQueuedMemory reports what one of a million queued tasks keeps in
// memory, its record in the MemoryStore included, beyond its strings: those are
// constants here. B/task is what is live; spans-B/task adds the holes that the
// allocator keeps between live objects, which depend on what was there before.
// of=sessions gives each task a session of its own, the dearest case for the
// store's indexes; the bytes of that string are taken off. ns/op is per task
// and covers the spawning alone.
func BenchmarkQueuedMemory(b *testing.B) {
	skipIfShort(b)
	b.Run("of=one-session", func(b *testing.B) { queuedMemory(b, request, 0) })
	b.Run("of=sessions", func(b *testing.B) {
		n := 0
		queuedMemory(b, func() subagent.Request {
			n++
			q := request()
			q.ParentSessionID = "session-" + strconv.Itoa(million+n)
			return q
		}, 16)
	})
}

// queuedMemory builds one million for each round that the benchmark asks for.
func queuedMemory(b *testing.B, request func() subagent.Request, stringBytes int64) {
	var live, spans, goroutines int64
	var spawning time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		r, err := subagent.New(context.Background(), subagent.Config{
			Func: untilStopped, Workers: slots, MaxQueued: -1, ShutdownGrace: time.Millisecond,
		})
		must(b, err)
		spawn(b, r, slots)
		before, running, start := settled(), runtime.NumGoroutine(), time.Now()
		for range million {
			_, err := r.Spawn(context.Background(), request())
			must(b, err)
		}
		spawning += time.Since(start)
		after := settled()
		live, spans = live+after.live-before.live, spans+after.spans-before.spans
		goroutines += int64(runtime.NumGoroutine() - running)
		if q := r.Stats().Queued; q != million {
			b.Fatalf("%d tasks are queued", q)
		}
		shutdown(b, r)
	}
	tasks := int64(rounds) * million
	b.ReportMetric(float64(live/tasks-stringBytes), "B/task")
	b.ReportMetric(float64(spans/tasks-stringBytes), "spans-B/task")
	b.ReportMetric(float64(goroutines)/float64(tasks), "goroutines/task")
	b.ReportMetric(float64(spawning.Nanoseconds()/tasks), "ns/op")
}

// BenchmarkCancelQueued cancels a task somewhere in a line of 100 or of a
// million. Each is waited for and replaced, outside the measured time.
func BenchmarkCancelQueued(b *testing.B) {
	b.Run("of=100", func(b *testing.B) { cancelQueued(b, 100) })
	b.Run("of=1000000", func(b *testing.B) {
		skipIfShort(b)
		cancelQueued(b, million)
	})
}

func cancelQueued(b *testing.B, n int) {
	r, ids := newCrowdedRunner(b, n)
	random := rand.New(rand.NewPCG(1, 2)) // the same places each time
	ctx, took := context.Background(), samples{}
	for b.Loop() {
		i := random.IntN(n)
		start := time.Now()
		_, err := r.Cancel(ctx, ids[i], subagent.CancelOptions{})
		took.add(time.Since(start))
		must(b, err)
		_, err = r.Wait(ctx, ids[i]) // read: the store may let go of it
		must(b, err)
		ids[i] = spawn(b, r, 1)[0]
	}
	took.report(b)
}

// BenchmarkCancelSeen is the time from the call of Cancel until a Func that
// waits for its ctx goes on; of=context is the same with a bare goroutine and
// the cancel func of a context. It is mostly the scheduler's.
func BenchmarkCancelSeen(b *testing.B) {
	b.Run("of=runner", cancelSeenByFunc)
	b.Run("of=context", cancelSeenByGoroutine)
}

func cancelSeenByFunc(b *testing.B) {
	entered, seen := make(chan struct{}), make(chan time.Time)
	r := newRunner(b, subagent.Config{Func: func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
		entered <- struct{}{}
		<-ctx.Done()
		seen <- time.Now()
		return subagent.Result{}, ctx.Err()
	}})
	ctx, took := context.Background(), samples{}
	cancelled := make(chan time.Time, 1)
	for b.Loop() {
		id := spawn(b, r, 1)[0]
		<-entered
		runtime.Gosched() // so that the Func is where it waits
		go func() {       // Cancel stores what it did, for which the Func need not wait
			cancelled <- time.Now()
			_, _ = r.Cancel(ctx, id, subagent.CancelOptions{}) // Wait would not return without it
		}()
		at := <-seen
		took.add(at.Sub(<-cancelled))
		_, err := r.Wait(ctx, id)
		must(b, err)
	}
	took.report(b)
}

func cancelSeenByGoroutine(b *testing.B) {
	entered, seen, cancelled := make(chan struct{}), make(chan time.Time), make(chan time.Time, 1)
	took := samples{}
	for b.Loop() {
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			entered <- struct{}{}
			<-ctx.Done()
			seen <- time.Now()
		}()
		<-entered
		runtime.Gosched()
		go func() {
			cancelled <- time.Now()
			cancel()
		}()
		at := <-seen
		took.add(at.Sub(<-cancelled))
	}
	took.report(b)
}

// BenchmarkQueuePosition asks for the place of tasks all over a line of
// 100 000. of=map finds a number in a map behind a mutex, as if places were kept
// there and not changed by whoever leaves the line.
func BenchmarkQueuePosition(b *testing.B) {
	r, ids := newCrowdedRunner(b, crowd)
	next := roundAbout(ids)
	b.Run("of=runner", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := r.QueuePosition(next()); !ok {
				b.Fatal("it has no place")
			}
		}
	})
	b.Run("of=map", func(b *testing.B) { positionInMap(b, ids) })
}

func positionInMap(b *testing.B, ids []uuid.UUID) {
	var mu sync.Mutex
	places := make(map[uuid.UUID]int, len(ids))
	for i, id := range ids {
		places[id] = i + 1
	}
	next := roundAbout(ids)
	b.ReportAllocs()
	for b.Loop() {
		mu.Lock()
		place := places[next()]
		mu.Unlock()
		if place == 0 {
			b.Fatal("it has no place")
		}
	}
}

// crowd is how many live tasks there are where there are many.
const crowd = 100_000

// roundAbout returns ids one by one, far apart in the line.
func roundAbout(ids []uuid.UUID) func() uuid.UUID {
	const stride = 7919 // a prime, so that all are visited
	i := 0
	return func() uuid.UUID {
		i = (i + stride) % len(ids)
		return ids[i]
	}
}
