package subagent

// Stats are a Runner's numbers at one moment.
type Stats struct {
	Capacity                      CapacityStats
	Pending, Queued, Running      int    // live now
	Detached, Lent                int    // workers that outlived their task; slots lent by waiting Funcs
	Completed, Cancelled, Errored uint64 // since New
	Unsaved                       int    // terminal tasks whose last write is still being retried
	Subscribers                   int
}

// Stats returns the numbers of now. They are read one after the other, so that
// a task on its way from one state to the next may be counted in both.
func (r *Runner) Stats() Stats {
	count := func(s Status) int64 { return r.tally[tallyOf(s)].Load() }
	unsaved := 0
	r.mu.Lock()
	for _, exists := range r.unsaved {
		if exists {
			unsaved++
		}
	}
	r.mu.Unlock()
	return Stats{
		Capacity:    r.capacity.Stats(),
		Pending:     int(count(StatusPending)),
		Queued:      int(count(StatusQueued)),
		Running:     int(count(StatusRunning)),
		Detached:    int(r.detached.Load()),
		Lent:        int(r.lent.Load()),
		Completed:   uint64(count(StatusCompleted)),
		Cancelled:   uint64(count(StatusCancelled)),
		Errored:     uint64(count(StatusErrored)),
		Unsaved:     unsaved,
		Subscribers: r.hub.count(),
	}
}

// tallyLocked moves e to where Stats counts its status.
func (e *execution) tallyLocked(s Status) {
	to := tallyOf(s)
	if to == e.tally {
		return
	}
	e.runner.tally[to].Add(1) // first: no count is ever short of a task
	if e.tally != 0 && e.tally <= tallyOf(StatusRunning) {
		e.runner.tally[e.tally].Add(-1)
	}
	e.tally = to
}

// tallyOf is a status's place in Runner.tally; 0 is for what has no record.
func tallyOf(s Status) int8 {
	for i, known := range [...]Status{StatusPending, StatusQueued, StatusRunning, StatusCompleted, StatusCancelled, StatusErrored} {
		if s == known {
			return int8(i + 1)
		}
	}
	return 0
}
