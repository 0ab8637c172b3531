package subagent

import "time"

// edit is one change that the Runner makes to a record. It is an immutable
// value and its application is idempotent: a store may run it again, late, or
// after it was committed and reported as failed. Where the record has ended
// already the end stands, and only what may follow an end is applied; whoever
// wrote the edit sees that in the record he gets back.
type edit struct {
	to       Status    // the transition; "" for none
	at       time.Time // when it happened
	end      *ending   // what a terminal record says; set when to is terminal
	cancel   *request  // a cancel that was asked for while the task was live
	notified time.Time // when its end was handed to somebody
	owner    *handover // who recovers it, or delivers its notice
	shared   bool      // another call of this Runner may make it too
}

// ending is everything that a record learns when its task settles.
type ending struct {
	Result    // as it is stored: clean and within bounds
	status    Status
	reason    Reason
	truncated bool
	err       string
	cancel    *request // the request that counted, if its end answers one
	detached  bool
	usage     Usage
	progress  Progress
	shown     *Task // the end as readers have seen it, if that was before it was stored
}

// endEdit is an edit and its ending in one piece.
type endEdit struct {
	edit
	ending
}

// request is a cancel as the record shows it.
type request struct {
	at      time.Time
	reason  Reason
	message string
}

// handover is a compare-and-set of Owner.
type handover struct{ from, to string }

// apply makes the change on t and reports whether there was anything to
// change. It does not judge the transition: the store does.
func (d *edit) apply(t *Task) (changed bool) {
	if d.owner != nil {
		if t.Owner != d.owner.from || (t.Status.Terminal() && !t.owesNotice()) {
			return false // it is no longer ours to take
		}
		changed = d.owner.from != d.owner.to
		t.Owner = d.owner.to
	}
	if !t.Status.Terminal() {
		changed = d.applyLive(t) || changed
	}
	if !d.notified.IsZero() && t.Status.Terminal() && t.NotifiedAt.IsZero() {
		t.NotifiedAt = later(d.notified, t.CompletedAt)
		changed = true
	}
	return changed
}

func (d *edit) applyLive(t *Task) (changed bool) {
	if d.cancel != nil && t.CancelRequestedAt.IsZero() {
		t.CancelRequestedAt = later(d.cancel.at, t.lastStamp())
		t.Reason, t.CancelMessage = d.cancel.reason, d.cancel.message
		changed = true
	}
	if d.to == "" {
		return changed
	}
	at := later(d.at, t.lastStamp())
	t.Status = d.to
	switch d.to {
	case StatusQueued:
		t.QueuedAt = at
	case StatusRunning:
		t.StartedAt = at
	default:
		d.end.write(t, at)
	}
	return true
}

// write gives t its end. A request that somebody stored and that the end does
// not answer leaves its time behind, but reason and message are the end's.
func (n *ending) write(t *Task, at time.Time) {
	t.Reason, t.CancelMessage = n.reason, ""
	if n.cancel != nil {
		t.CancelMessage = n.cancel.message
		if t.CancelRequestedAt.IsZero() {
			t.CancelRequestedAt = later(n.cancel.at, t.lastStamp())
		}
	}
	t.CompletedAt = later(at, t.CancelRequestedAt)
	t.ResultText, t.ResultTruncated = n.Text, n.truncated
	t.HeadID, t.SourceCommitID, t.StopReason = n.HeadID, n.SourceCommitID, n.StopReason
	t.Error, t.Detached = n.err, n.detached
	t.Usage, t.Progress = n.usage, n.progress
	if s := n.shown; s != nil {
		t.QueuedAt, t.StartedAt = s.QueuedAt, s.StartedAt
		t.CancelRequestedAt, t.CompletedAt = s.CancelRequestedAt, s.CompletedAt
	}
}

// asShown is d with the times that t, which readers have seen, has: whatever
// has happened to the record since, it ends as they saw it.
func (d *edit) asShown(t *Task) *edit {
	same, end := *d, *d.end
	end.shown = t
	same.end = &end
	return &same
}

// wrote reports whether t's end is the one that n describes.
func (n *ending) wrote(t *Task, owner string) bool {
	return t.Owner == owner && t.Status == n.status && t.Reason == n.reason &&
		t.Error == n.err && t.ResultText == n.Text
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
