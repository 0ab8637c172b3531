package subagent

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// How long a lease lives, and how often it is renewed.
const (
	leaseTTL   = 30 * time.Second
	leaseRenew = 10 * time.Second
)

var openStatuses = []Status{StatusPending, StatusQueued, StatusRunning}

// start declares the Runner alive, recovers what dead owners left, and starts
// the goroutines that keep doing both: apart, for a recovery may take longer
// than a lease lives. They end with Shutdown, which waits for them.
func (r *Runner) start(ctx context.Context) error {
	started := false
	defer func() {
		if !started { // also when ctx, which is foreign code, has panicked
			close(r.quit)
			r.stopped.Wait()
		}
	}()
	if r.leaser != nil {
		if err := r.renew(ctx); err != nil {
			return err
		}
		r.stopped.Go(r.keepLease) // the Runner's: ends with quit; Shutdown waits for it
	}
	if err := r.recoverFirst(ctx); err != nil {
		return err
	}
	started = true
	if r.leaser != nil {
		r.stopped.Go(r.keepRecovering) // the Runner's: ends with quit; Shutdown waits for it
	}
	if w, ok := r.store.(Watcher); ok {
		r.stopped.Go(func() { r.watch(w) }) // the Runner's: ends with quit; Shutdown waits for it, bounded
	}
	return nil
}

func (r *Runner) renew(ctx context.Context) error {
	_, err := guard(withoutRun(ctx), r.within(r.cfg.StoreTimeout), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, r.leaser.Renew(ctx, r.id, leaseTTL)
	}, nil)
	return err
}

func (r *Runner) keepLease() {
	r.everyRenewal(func() {
		if err := r.renew(context.Background()); err != nil {
			r.log.error("lease not renewed", uuid.Nil, "owner", r.id, "error", logText(err))
		}
	})
}

// keepRecovering looks, each time the lease is renewed, for what others have
// done to this Runner's tasks and for owners that have died since. One that
// cannot be asked about holds up neither.
func (r *Runner) keepRecovering() {
	r.everyRenewal(func() {
		ctx := context.Background()
		mine := r.executions((*execution).live)
		open, owed, err := r.leftovers(ctx)
		if err != nil {
			r.log.error("recovery failed, it will be repeated", uuid.Nil, "error", logText(err))
			return
		}
		r.compare(ctx, mine, open)
		if r.isClosing() {
			return // what it took over now it could not see to: the next Runner does
		}
		rows := slices.Concat(open, owed)
		dead, err := r.deadOwners(ctx, rows)
		if err != nil {
			r.log.error("an owner could not be asked about, its tasks are left alone for now", uuid.Nil, "error", logText(err))
		}
		r.recover(rows, dead)
	})
}

// everyRenewal does something every leaseRenew until quit.
func (r *Runner) everyRenewal(do func()) {
	ticker := time.NewTicker(leaseRenew)
	defer ticker.Stop()
	for {
		select {
		case <-r.quit:
			return
		case <-ticker.C:
			do()
		}
	}
}

const lostMessage = "worker died before completion"

// recoverFirst is the recovery that New makes. It fails, and changes nothing, if
// the store does not say what there is and who is dead.
func (r *Runner) recoverFirst(ctx context.Context) error {
	open, owed, err := r.leftovers(ctx)
	if err != nil {
		return err
	}
	rows := slices.Concat(open, owed)
	dead, err := r.deadOwners(ctx, rows)
	if err == nil {
		r.recover(rows, dead)
	}
	return err
}

// leftovers are the records that a recovery looks at: open tasks, and those
// whose notice is owed, in the order of their ends.
func (r *Runner) leftovers(ctx context.Context) (open, owed []*Task, err error) {
	if open, err = r.rows(ctx, Filter{Statuses: openStatuses}); err != nil {
		return nil, nil, err
	}
	if r.cfg.Notifier != nil || r.cfg.Cards != nil {
		if owed, err = r.rows(ctx, Filter{Undelivered: true}); err != nil {
			return nil, nil, err
		}
	}
	slices.SortStableFunc(owed, func(a, b *Task) int { return a.CompletedAt.Compare(b.CompletedAt) })
	return open, owed, nil
}

// deadOwners asks about the owners of rows, each once. One that cannot be asked
// about is not taken for dead; the error is of the first such.
func (r *Runner) deadOwners(ctx context.Context, rows []*Task) (dead map[string]bool, first error) {
	dead = map[string]bool{}
	for _, row := range rows {
		if _, asked := dead[row.Owner]; asked {
			continue
		}
		gone, err := r.isDead(ctx, row.Owner)
		dead[row.Owner] = gone && err == nil
		first = cmp.Or(first, err)
	}
	return dead, first
}

// recover ends the open tasks of dead owners and takes over the notices that
// they owe. What cannot be written is repeated.
func (r *Runner) recover(rows []*Task, dead map[string]bool) {
	var (
		left   []func()
		missed atomic.Bool
		cards  = map[uuid.UUID]bool{}
	)
	for _, row := range rows {
		// What this Runner owns and does not know it took over in a write that
		// was reported as failed.
		lost := row.Owner == r.id && r.cfg.Notifier != nil && r.find(row.ID) == nil
		switch {
		case row.Status.Terminal() && dead[row.Owner] && r.cfg.Notifier == nil && r.reposted[row.ID]:
			cards[row.ID] = true
		case row.Status.Terminal() && (dead[row.Owner] || lost):
			post, err := r.takeOver(row)
			if err != nil {
				r.log.error("notice not taken over, it will be repeated", row.ID, "error", logText(err))
				missed.Store(true)
				continue
			}
			left = append(left, post)
			cards[row.ID] = true
		case row.Status.live() && dead[row.Owner]: // a status of a newer version is left alone
			left = append(left, func() {
				if _, err := r.recoverTask(row); err != nil && !gone(err) {
					r.log.error("task not recovered, it will be repeated", row.ID, "error", logText(err))
					missed.Store(true)
				}
			})
		}
	}
	r.reposted = cards
	sideBySide(left)
	if missed.Load() && r.leaser == nil { // else the next renewal does: two at once would deliver twice
		r.recoverAgain()
	}
}

// recoverAgain repeats the recovery after a pause. Its goroutine ends with that
// or with quit. The caller is one that Shutdown waits for, so it may add one.
func (r *Runner) recoverAgain() {
	r.stopped.Go(func() { // as said above; Shutdown waits for it
		timer := time.NewTimer(leaseRenew)
		defer timer.Stop()
		select {
		case <-r.quit:
			return
		case <-timer.C:
		}
		if err := r.recoverFirst(context.Background()); err != nil {
			r.log.error("recovery failed", uuid.Nil, "error", logText(err))
			r.recoverAgain()
		}
	})
}

// isDead reports whether an owner executes nothing any more.
func (r *Runner) isDead(ctx context.Context, owner string) (bool, error) {
	if owner == r.id {
		return false, nil
	}
	if r.leaser == nil {
		return true, nil
	}
	live, err := guard(withoutRun(ctx), r.within(r.cfg.StoreTimeout), func(ctx context.Context) (bool, error) {
		return r.leaser.Live(ctx, owner)
	}, nil)
	return !live, err
}

// recoverTask ends an open task whose owner is dead, and returns it as it is
// then. If the store fails to write, the end is kept and served from memory until
// it is stored. If somebody was faster, what he stored counts, and it is he who
// tells it.
func (r *Runner) recoverTask(row *Task) (*Task, error) {
	e := r.endedExecution(row)
	taken, err := r.register(e)
	for taken != nil {
		other := taken.recovering()
		if other {
			_ = r.waitFor(context.Background(), nil, nil, taken) // bounded: a few calls of the store and the sink
		}
		if !other || taken.exists() {
			return r.current(taken), nil
		}
		taken, err = r.register(e) // that recovery came to nothing: this one may not
	}
	e.retired = err != nil // Shutdown does not wait for what it does not know
	// Another call of this Runner may have recovered it since row was read, and
	// have told its end. From here on none does.
	now, lerr := r.load(e.callCtx(), e.id)
	if lerr != nil || now.Owner != row.Owner {
		e.withdraw()
		return now, lerr
	}
	var n ending
	n.decide(newCause(causeLost, ReasonLost, lostMessage, 0), nil, false)
	n.Result = Result{row.ResultText, row.HeadID, row.SourceCommitID, row.StopReason}
	n.truncated, n.usage, n.progress = row.ResultTruncated, row.Usage, row.Progress
	if err == nil { // else several could recover it at once: the next Runner delivers, once
		e.mu.Lock()
		e.placeNoticeLocked()
		e.mu.Unlock()
	}
	e.settle(&edit{to: n.status, at: stamp(row.lastStamp()), end: &n, owner: &handover{row.Owner, r.id}, shared: err != nil})
	return e.view(true), nil
}

// recovering reports whether e is a recovery of which it is not known yet what
// comes of it.
func (e *execution) recovering() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fn == nil && !e.shown
}

// foundLocked notes what the write of e's end has found: another's end, or one
// that somebody was handed. A recovery that nobody else can know of, for the
// Runner is closed, tells nothing that is not stored.
func (e *execution) foundLocked(d *edit, row *Task, changed, missing bool) {
	switch {
	case changed:
	case d.owner != nil: // it was not executed here
		e.quiet = row != nil || missing || e.retired
	case row != nil && row.Owner != e.runner.id:
		e.second = true
	}
}

// withdraw undoes the registration of an execution that is none after all:
// whoever waits for it looks again.
func (e *execution) withdraw() {
	e.stage()
	e.mu.Lock()
	e.stored, e.told, e.retired = false, true, true
	waits := e.waits
	e.waits = nil
	e.mu.Unlock()
	e.runner.unregister(e)
	wake(waits)
}

// endedExecution is an execution for a record that this Runner did not execute.
func (r *Runner) endedExecution(row *Task) *execution {
	return &execution{
		runner: r, id: row.ID, number: r.lives.Add(1), ctx: context.Background(),
		phase: phaseEnded, stored: true, task: row,
	}
}

// takeOver makes the notice that a dead owner owes this Runner's, queues it,
// and returns what is left to do: to put the task's card again, and then to let
// the notice go. The queue is filled before, so that the order of the ends holds.
func (r *Runner) takeOver(row *Task) (post func(), err error) {
	nothing := func() {}
	if r.cfg.Notifier != nil {
		taken, _, err := r.update(context.Background(), row.ID, &edit{owner: &handover{row.Owner, r.id}}, r.cfg.StoreTimeout)
		if gone(err) {
			return nothing, nil
		}
		if err != nil {
			return nil, err
		}
		row = taken
	}
	if !row.owesNotice() || (row.Owner != r.id && r.cfg.Notifier != nil) {
		return nothing, nil
	}
	e := r.endedExecution(row)
	e.shown, e.staged, e.quiet = true, true, true
	e.tally = tallyOf(row.Status) // it ended before New: Stats does not count it
	e.owing = r.cfg.Notifier != nil
	if taken, err := r.register(e); taken != nil || err != nil {
		return nothing, nil
	}
	if e.owing {
		r.outboxes.add(row.ParentSessionID, e)
	}
	return func() {
		e.post(r.cfg.StoreTimeout, false)
		e.tell()
		e.retire()
	}, nil
}

// cancelStored cancels a task that this Runner does not execute, from what was
// read of it.
func (r *Runner) cancelStored(ctx context.Context, row *Task, err error, c *cause) (Task, error) {
	if err != nil {
		return Task{}, err
	}
	if row.Status.Terminal() {
		return row.copy(), nil
	}
	dead, err := r.isDead(ctx, row.Owner)
	if err != nil {
		return row.copy(), err
	}
	if dead && !row.Status.live() { // a status of a newer version: only its owner knows how to end it
		return row.copy(), &TransitionError{ID: row.ID, From: row.Status, To: StatusCancelled}
	}
	if dead {
		now, err := r.recoverTask(row)
		switch {
		case gone(err):
			return Task{}, err
		case err != nil:
			return row.copy(), err
		case !now.Status.Terminal() && now.Owner != row.Owner: // its ID was forgotten, and lives again
			return r.cancelStored(ctx, now, nil, c)
		}
		return now.copy(), nil
	}
	stored, _, err := r.update(ctx, row.ID, &edit{cancel: c.request()}, r.cfg.StoreTimeout)
	return cmp.Or(stored, row).copy(), err
}

// cancelForeign cancels the open tasks of a session that this Runner does not
// execute. One that fails is no obstacle to the others, unless that takes long.
func (r *Runner) cancelForeign(ctx context.Context, sessionID string, c *cause) (tasks []Task, err error) {
	if r.private {
		return nil, nil
	}
	rows, err := r.rows(ctx, Filter{SessionID: sessionID, Statuses: openStatuses})
	if err != nil {
		return nil, err
	}
	by := time.Now().Add(r.cfg.StoreTimeout)
	for _, row := range slices.Backward(rows) { // children first, as their owner should see it
		if r.find(row.ID) != nil || row.Owner == r.id {
			continue
		}
		t, terr := r.cancelStored(ctx, row, nil, c)
		if terr != nil && !gone(terr) {
			if err = cmp.Or(err, terr); ctx.Err() != nil || !time.Now().Before(by) {
				break
			}
			continue
		}
		preview(&t)
		tasks = append(tasks, t)
	}
	return tasks, err
}
