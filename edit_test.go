package subagent

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// t0 is when the tasks of these tests were created.
var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func secondsIn(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

func taskIn(status Status) *Task {
	t := &Task{ID: uuid.Max, Status: status, CreatedAt: t0, Background: true, Owner: "me", Version: 1}
	if status != StatusPending {
		t.QueuedAt = secondsIn(1)
	}
	if status == StatusRunning || status == StatusCompleted {
		t.StartedAt = secondsIn(2)
	}
	if status.Terminal() {
		t.CompletedAt = secondsIn(3)
	}
	return t
}

// applied applies d to a copy of t, twice: the second time changes no more.
func applied(t *testing.T, task *Task, d edit) (Task, bool) {
	t.Helper()
	got := *task
	changed := d.apply(&got)
	if !changed {
		require.Equal(t, *task, got, "unchanged")
	}
	again := got
	d.apply(&again)
	require.Equal(t, got, again, "idempotent")
	return got, changed
}

func TestEditMovesAndStamps(t *testing.T) {
	got, changed := applied(t, taskIn(StatusPending), edit{to: StatusQueued, at: secondsIn(5)})
	require.True(t, changed)
	require.Equal(t, StatusQueued, got.Status)
	require.Equal(t, secondsIn(5), got.QueuedAt)

	got, changed = applied(t, taskIn(StatusQueued), edit{to: StatusRunning, at: secondsIn(6)})
	require.True(t, changed)
	require.Equal(t, StatusRunning, got.Status)
	require.Equal(t, secondsIn(6), got.StartedAt)
	require.Equal(t, secondsIn(1), got.QueuedAt)
	require.True(t, got.CompletedAt.IsZero())
}

func TestB209_EditNeverStampsBackwards(t *testing.T) {
	got, _ := applied(t, taskIn(StatusPending), edit{to: StatusQueued, at: secondsIn(-60)})
	require.Equal(t, t0, got.QueuedAt)
	got, _ = applied(t, taskIn(StatusQueued), edit{to: StatusRunning, at: secondsIn(-60)})
	require.Equal(t, secondsIn(1), got.StartedAt)

	cancel := &request{at: secondsIn(-60), reason: ReasonUser}
	got, _ = applied(t, taskIn(StatusRunning), edit{cancel: cancel})
	require.Equal(t, secondsIn(2), got.CancelRequestedAt)

	end := &ending{status: StatusCancelled, reason: ReasonUser, cancel: cancel}
	got, _ = applied(t, taskIn(StatusRunning), edit{to: StatusCancelled, at: secondsIn(-60), end: end})
	require.Equal(t, secondsIn(2), got.CompletedAt)

	got, _ = applied(t, taskIn(StatusCompleted), edit{notified: secondsIn(-60)})
	require.Equal(t, secondsIn(3), got.NotifiedAt)
}

func TestEditNotesTheFirstCancel(t *testing.T) {
	first := edit{cancel: &request{at: secondsIn(5), reason: ReasonAgent, message: "enough"}}
	got, changed := applied(t, taskIn(StatusRunning), first)
	require.True(t, changed)
	require.Equal(t, StatusRunning, got.Status)
	require.Equal(t, secondsIn(5), got.CancelRequestedAt)
	require.Equal(t, ReasonAgent, got.Reason)
	require.Equal(t, "enough", got.CancelMessage)

	got2, changed := applied(t, &got, edit{cancel: &request{at: secondsIn(6), reason: ReasonUser, message: "late"}})
	require.False(t, changed)
	require.Equal(t, got, got2)
}

// fullEnd sets all that a record learns at its end.
func fullEnd() *ending {
	return &ending{
		Result:    Result{Text: "text", HeadID: "head", SourceCommitID: "commit", StopReason: "capped"},
		status:    StatusErrored,
		reason:    ReasonTimeout,
		truncated: true,
		err:       "timed out after 1s",
		detached:  true,
		usage:     Usage{TotalTokens: 7},
		progress:  Progress{ToolUses: 2},
	}
}

func TestEditWritesTheEnd(t *testing.T) {
	got, changed := applied(t, taskIn(StatusRunning), edit{to: StatusErrored, at: secondsIn(9), end: fullEnd()})
	require.True(t, changed)
	want := *taskIn(StatusRunning)
	want.Status, want.Reason, want.Error = StatusErrored, ReasonTimeout, "timed out after 1s"
	want.CompletedAt = secondsIn(9)
	want.ResultText, want.ResultTruncated, want.Detached = "text", true, true
	want.HeadID, want.SourceCommitID, want.StopReason = "head", "commit", "capped"
	want.Usage, want.Progress = Usage{TotalTokens: 7}, Progress{ToolUses: 2}
	require.Equal(t, want, got)
	require.True(t, fullEnd().wrote(&got, "me"))
	require.False(t, fullEnd().wrote(&got, "you"))
	require.False(t, (&ending{status: StatusErrored, reason: ReasonTimeout}).wrote(&got, "me"))
}

func TestEditWritesTheRequestThatCounted(t *testing.T) {
	end := &ending{status: StatusCancelled, reason: ReasonUser, cancel: &request{at: secondsIn(4), reason: ReasonUser, message: "enough"}}
	got, _ := applied(t, taskIn(StatusQueued), edit{to: StatusCancelled, at: secondsIn(9), end: end})
	require.Equal(t, secondsIn(4), got.CancelRequestedAt)
	require.Equal(t, "enough", got.CancelMessage)
	require.Equal(t, secondsIn(9), got.CompletedAt)
	require.True(t, got.StartedAt.IsZero(), "it never ran")

	stored := taskIn(StatusRunning)
	stored.CancelRequestedAt, stored.Reason, stored.CancelMessage = secondsIn(3), ReasonUser, "enough"
	got, _ = applied(t, stored, edit{to: StatusCancelled, at: secondsIn(9), end: end})
	require.Equal(t, secondsIn(3), got.CancelRequestedAt, "the stored time stays")
}

func TestEditEndThatAnswersNoRequest(t *testing.T) {
	asked := taskIn(StatusRunning)
	asked.CancelRequestedAt, asked.Reason, asked.CancelMessage = secondsIn(3), ReasonUser, "enough"
	got, _ := applied(t, asked, edit{to: StatusCompleted, at: secondsIn(9), end: &ending{status: StatusCompleted}})
	require.Equal(t, StatusCompleted, got.Status)
	require.Empty(t, got.Reason)
	require.Empty(t, got.CancelMessage)
	require.Equal(t, secondsIn(3), got.CancelRequestedAt)
}

func TestG3_EditOfATerminalRecordOnlyDelivers(t *testing.T) {
	for _, status := range []Status{StatusCompleted, StatusCancelled, StatusErrored} {
		for _, d := range []edit{
			{to: StatusRunning, at: secondsIn(9)},
			{to: StatusErrored, at: secondsIn(9), end: fullEnd()},
			{cancel: &request{at: secondsIn(9), reason: ReasonUser}},
		} {
			_, changed := applied(t, taskIn(status), d)
			require.False(t, changed)
		}
		d := edit{to: StatusErrored, at: secondsIn(9), end: fullEnd(), notified: secondsIn(10)}
		got, changed := applied(t, taskIn(status), d)
		require.True(t, changed)
		want := *taskIn(status)
		want.NotifiedAt = secondsIn(10)
		require.Equal(t, want, got)

		_, changed = applied(t, &got, edit{notified: secondsIn(11)})
		require.False(t, changed, "the first delivery stands")
	}
}

func TestEditNotifiesOnlyWhatHasEnded(t *testing.T) {
	_, changed := applied(t, taskIn(StatusRunning), edit{notified: secondsIn(9)})
	require.False(t, changed)
	got, _ := applied(t, taskIn(StatusRunning), edit{to: StatusErrored, at: secondsIn(8), end: fullEnd(), notified: secondsIn(9)})
	require.Equal(t, secondsIn(9), got.NotifiedAt, "with the end itself")
}

func TestG13_EditTakesOverOnlyWhatIsStillThere(t *testing.T) {
	lost := &ending{status: StatusErrored, reason: ReasonLost, err: "worker died before completion"}
	rescue := edit{owner: &handover{"me", "you"}, to: StatusErrored, at: secondsIn(9), end: lost}

	var got Task
	task := *taskIn(StatusRunning)
	require.True(t, rescue.apply(&task))
	require.Equal(t, StatusErrored, task.Status)
	require.Equal(t, "you", task.Owner)
	got = task
	require.False(t, rescue.apply(&task), "somebody else came second")
	require.Equal(t, got, task)

	foreign := *taskIn(StatusRunning)
	foreign.Owner = "third"
	require.False(t, rescue.apply(&foreign))
	require.Equal(t, StatusRunning, foreign.Status)

	owed := *taskIn(StatusCompleted)
	require.True(t, rescue.apply(&owed), "its notice is taken over")
	require.Equal(t, "you", owed.Owner)
	require.Equal(t, StatusCompleted, owed.Status)

	delivered := *taskIn(StatusCompleted)
	delivered.NotifiedAt = secondsIn(4)
	require.False(t, rescue.apply(&delivered))
	require.Equal(t, "me", delivered.Owner)

	same := *taskIn(StatusCompleted)
	require.False(t, (&edit{owner: &handover{"me", "me"}}).apply(&same))
	require.True(t, (&edit{owner: &handover{"me", "me"}, notified: secondsIn(9)}).apply(&same))
}
