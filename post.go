package subagent

import (
	"context"
	"time"
)

// post gives e's card, as it is now, to the sink, and returns when that is done
// or has failed, after the given time at the latest, and, if it may be halted,
// when e is told to stop. There is one call for a task at a time, so cards come
// in order; a sink that fails gets the newest state only, again and again until
// it takes it. One that has failed, or was too slow, is not waited for until it
// has taken a card: it costs a task one StoreTimeout and not one at each turn.
func (e *execution) post(within time.Duration, mayHalt bool) {
	r := e.runner
	if r.cfg.Cards == nil {
		return
	}
	e.mu.Lock()
	rest := e.restLocked()
	rest.dirty = true
	if rest.card.state == workScheduled {
		stopTimer(rest.card.timer)
		rest.card.state = workIdle
	}
	if rest.card.state == workIdle {
		rest.card.state = workRunning
		rest.idle = make(chan struct{})
		r.begin()
		go e.putCards() // ends with the sink's last call; Shutdown waits for it, bounded
	}
	idle := rest.idle
	var halt chan struct{}
	if mayHalt && e.cause == nil {
		halt = make(chan struct{})
		rest.halt = halt
	}
	wait := rest.card.pause == 0 && (!mayHalt || halt != nil)
	e.mu.Unlock()
	if !wait {
		return
	}
	timer := time.NewTimer(r.within(within))
	defer timer.Stop()
	select {
	case <-idle:
	case <-halt:
	case <-timer.C:
		e.mu.Lock()
		rest.card.pause = max(rest.card.pause, firstPause)
		e.mu.Unlock()
	}
}

// putCards puts cards until the newest was taken, or one call failed.
func (e *execution) putCards() {
	r := e.runner
	defer r.finish()
	e.mu.Lock()
	rest := e.rest
	for rest.dirty && !e.forgotten {
		rest.dirty = false
		card := e.viewLocked(false).Card()
		e.mu.Unlock()
		err := protect(func() error {
			ctx, cancel := context.WithTimeout(e.callCtx(), r.within(r.cfg.StoreTimeout))
			defer cancel()
			return r.cfg.Cards.PutCard(ctx, card)
		})
		e.mu.Lock()
		if err != nil {
			rest.dirty = true
			rest.card.state = workIdle
			if !r.final.Load() {
				rest.card.scheduleLocked(e.repost)
			}
			close(rest.idle)
			e.mu.Unlock()
			r.log.warn("card not taken, it will be put again", e.id, "error", logText(err))
			return
		}
		rest.card.pause = 0
	}
	rest.dirty = false
	rest.card.state = workIdle
	close(rest.idle)
	e.mu.Unlock()
	e.retire()
}

// repostNow makes the attempt that is scheduled, if one is.
func (e *execution) repostNow() {
	e.mu.Lock()
	scheduled := e.rest != nil && e.rest.card.state == workScheduled
	e.mu.Unlock()
	if scheduled {
		e.repost()
	}
}

// repost is one more attempt after a pause.
func (e *execution) repost() {
	r := e.runner
	r.begin()
	e.mu.Lock()
	if e.rest.card.state != workScheduled {
		e.mu.Unlock()
		r.finish()
		return
	}
	stopTimer(e.rest.card.timer)
	e.rest.card.state = workRunning
	e.rest.idle = make(chan struct{})
	e.mu.Unlock()
	e.putCards()
}
