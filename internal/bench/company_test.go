package bench_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-subagent/subagent"
)

// company is what a Runner has beside it while its tasks are measured.
type company struct {
	name       string
	subscriber bool // reads every event as it comes
	cards      bool // a CardSink takes every card
	crowd      int  // other tasks that run all the time
}

const liveTasks = 5000

// inCompany runs measure with a Runner in each kind of company. The rows are
// named after of. It fails a row whose company was not what its name says, and
// reports how many events were read and how many cards put for each task.
func inCompany(b *testing.B, of string, measure func(*testing.B, *subagent.Runner)) {
	for _, c := range []company{
		{name: "subscriber", subscriber: true},
		{name: "cards", cards: true},
		{name: "crowd", subscriber: true, cards: true, crowd: liveTasks},
	} {
		b.Run("of="+of+"-"+c.name, func(b *testing.B) { c.beside(b, measure) })
	}
}

func (c company) beside(b *testing.B, measure func(*testing.B, *subagent.Runner)) {
	sink := new(countingSink)
	cfg := subagent.Config{Func: nothing, Capacity: subagent.NewCapacity(c.crowd+slots, -1)}
	if c.cards {
		cfg.Cards = sink
	}
	r := newSteadyRunner(b, cfg)
	hold(b, r, c.crowd)
	reading := new(reader)
	if c.subscriber {
		reading = read(r)
	}
	before, puts := r.Stats().Completed, sink.puts.Load()
	measure(b, r)
	b.StopTimer()
	stats := r.Stats()
	tasks := int(stats.Completed - before)
	if stats.Running < c.crowd {
		b.Fatalf("%d tasks are left of the crowd", stats.Running)
	}
	if c.subscriber {
		reading.stop()
		reading.report(b, tasks)
	}
	if c.cards {
		sink.report(b, puts, tasks)
	}
}

// hold spawns n tasks that run until they are stopped, and waits until each
// does. There are slots for them beside the usual ones.
func hold(b *testing.B, r *subagent.Runner, n int) {
	var started sync.WaitGroup
	started.Add(n)
	q := request()
	q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		started.Done()
		return untilStopped(ctx, run)
	}
	for range n {
		_, err := r.Spawn(context.Background(), q)
		must(b, err)
	}
	started.Wait()
}

// countingSink does nothing with a card but count it.
type countingSink struct{ puts atomic.Int64 }

func (s *countingSink) PutCard(context.Context, subagent.Card) error {
	s.puts.Add(1)
	return nil
}

// report says how many cards there were for a task since there were before.
func (s *countingSink) report(b *testing.B, before int64, tasks int) {
	puts := s.puts.Load() - before
	if puts < 2*int64(tasks) {
		b.Fatalf("%d cards of %d tasks", puts, tasks)
	}
	b.ReportMetric(float64(puts)/float64(tasks), "cards/op")
}

// reader reads every event of a Runner as it comes.
type reader struct {
	stop                 func() // reads what is there, and ends
	events, ends, lagged int    // read them after stop
}

func read(r *subagent.Runner) *reader {
	s := r.Subscribe(subagent.Filter{})
	ctx, cancel := context.WithCancel(context.Background())
	over, read := make(chan struct{}), new(reader)
	go func() { // ends when ctx has ended and nothing is unread; stop waits for it
		defer close(over)
		for {
			e, err := s.Next(ctx)
			switch {
			case errors.Is(err, subagent.ErrLagged):
				read.lagged++
			case err != nil:
				return
			default:
				read.events++
				if e.Task.Status.Terminal() {
					read.ends++
				}
			}
		}
	}()
	read.stop = func() {
		cancel()
		<-over
		s.Close()
	}
	return read
}

// report says how many events were read for a task. One that was read late is
// one with those before it, and where the reader was so late that events were
// dropped the row says how often.
func (r *reader) report(b *testing.B, tasks int) {
	if r.lagged > 0 {
		b.ReportMetric(float64(r.lagged), "lags")
	} else if r.ends != tasks {
		b.Fatalf("%d ends of %d tasks were read", r.ends, tasks)
	}
	b.ReportMetric(float64(r.events)/float64(tasks), "events/op")
}
