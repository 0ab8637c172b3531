package bench_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// BenchmarkGrowth is a burst of n tasks, from the first spawn until all have
// been awaited; all that it reports is per task, and should not rise with n.
func BenchmarkGrowth(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000, million} {
		b.Run(fmt.Sprintf("tasks=%d/of=runner", n), func(b *testing.B) {
			if n == million {
				skipIfShort(b)
			}
			rounds := 0
			r := newRunner(b, subagent.Config{Func: nothing})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			for b.Loop() {
				rounds++
				_, err := r.Await(context.Background(), subagent.AwaitAll, spawn(b, r, n)...)
				must(b, err)
			}
			took, tasks := time.Since(start), float64(rounds*n)
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(took.Nanoseconds())/tasks, "ns/op")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/tasks, "B/op")
			b.ReportMetric(float64(after.Mallocs-before.Mallocs)/tasks, "allocs/op")
		})
	}
}

// BenchmarkCollection is a full garbage collection with a million tasks in
// line: what a host's own allocations pay for them.
func BenchmarkCollection(b *testing.B) {
	skipIfShort(b)
	b.Run("of=empty", func(b *testing.B) { collect(b) })
	b.Run("of=queued", func(b *testing.B) {
		newCrowdedRunner(b, million)
		collect(b)
	})
}

func collect(b *testing.B) {
	runtime.GC() // of what others have left
	for b.Loop() {
		runtime.GC()
	}
}

// BenchmarkEventSeen is the time from a report of a running Func until a
// subscriber that waits has the event; of=channel is a send of the same Task on
// a channel. Median.
func BenchmarkEventSeen(b *testing.B) {
	b.Run("of=runner", func(b *testing.B) {
		report, reported := make(chan struct{}), make(chan time.Time, 1)
		r := newRunner(b, subagent.Config{Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			for {
				select {
				case <-report:
					reported <- time.Now()
					run.Progress("step")
				case <-ctx.Done():
					return subagent.Result{}, ctx.Err()
				}
			}
		}})
		s := r.Subscribe(subagent.Filter{})
		b.Cleanup(s.Close)
		next := func() subagent.Event {
			e, err := s.Next(context.Background())
			must(b, err)
			return e
		}
		spawn(b, r, 1)
		for next().Task.Status != subagent.StatusRunning {
		} // a report that came before this was read would be one event with it
		took := samples{}
		for b.Loop() {
			go func() { report <- struct{}{} }() // ends when the Func has it, which Next waits for
			for next().Type != subagent.EventProgress {
			}
			took.add(time.Since(<-reported))
		}
		took.report(b)
	})
	b.Run("of=channel", func(b *testing.B) {
		tasks, sent := make(chan subagent.Task), make(chan time.Time, 1)
		task := subagent.Task{ID: uuid.New()}
		took := samples{}
		for b.Loop() {
			go func() { // ends with the send, which is received below
				sent <- time.Now()
				tasks <- task
			}()
			<-tasks
			took.add(time.Since(<-sent))
		}
		took.report(b)
	})
}
