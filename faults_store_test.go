package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/internal/runes"
	"github.com/go-subagent/subagent/subagenttest"
)

// failing makes the writes that match fail, as often as times says; < 0: always.
func (r *rig) failing(times int, match func(subagent.Task) bool) {
	r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
		if len(c.Tasks) == 0 || !match(c.Tasks[0]) || times == 0 {
			return subagenttest.Fault{}
		}
		times--
		return subagenttest.Fault{Err: errBroken}
	})
}

func isEnd(t subagent.Task) bool { return t.Status.Terminal() }

// endings are ways to have a running task end.
func endings() map[string]func(r *rig, id uuid.UUID) {
	return map[string]func(r *rig, id uuid.UUID){
		"completed": func(r *rig, id uuid.UUID) { r.gate.Release(id, subagent.Result{Text: "done"}, nil) },
		"errored":   func(r *rig, id uuid.UUID) { r.gate.Release(id, subagent.Result{}, errBroken) },
		"cancelled": func(r *rig, id uuid.UUID) { _, _ = r.Cancel(r.ctx, id, subagent.CancelOptions{}) },
		"timed out": func(*rig, uuid.UUID) { time.Sleep(time.Hour) },
	}
}

func anHour(q *subagent.Request) { q.Timeout = time.Hour }

// The store takes the end of a task never: readers, waiters and the next in line
// have it all the same, the host is told, and the next Runner finds no live task.
func TestB195_TheStoreRefusesTheEndForGood(t *testing.T) {
	for name, end := range endings() {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				inner := subagent.NewMemoryStore()
				r := rigOn(t, subagent.Config{}, newTape(), inner, subagenttest.NewFaultyStore(inner))
				id, _ := r.runs("work", anHour)
				r.failing(-1, func(task subagent.Task) bool { return task.ID == id && isEnd(task) })
				next := r.spawn("next").ID
				end(r, id)
				r.awaited(id)
				r.gate.WaitEntered(t, next)
				r.gate.Release(next, subagent.Result{}, nil)
				r.awaited(next)
				list, err := r.List(r.ctx, subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}})
				require.NoError(t, err)
				require.Empty(t, list)
				require.Equal(t, 1, r.Stats().Unsaved)
				var left *subagent.ShutdownError
				require.ErrorAs(t, r.Shutdown(r.ctx), &left)
				require.Equal(t, []uuid.UUID{id}, left.Unsaved, "the host is told")
				require.Equal(t, subagent.StatusRunning, r.row(id).Status)

				rigOn(t, subagent.Config{}, newTape(), inner, subagenttest.NewFaultyStore(inner)).run(func(t *testing.T, r *rig) {
					row := r.row(id)
					require.Equal(t, subagent.StatusErrored, row.Status)
					require.Equal(t, subagent.ReasonLost, row.Reason)
					require.Equal(t, essence(row), essence(r.awaited(id)))
					cards, _, _ := r.heard(id)
					require.Equal(t, row.Card(), cards[len(cards)-1])
				})
			})
		})
	}
}

// The store is away at the moment of the end: it has it when it is back.
func TestB196_TheStoreIsAwayForAWhile(t *testing.T) {
	for name, end := range endings() {
		for _, times := range []int{1, 3, 7} {
			t.Run(fmt.Sprint(name, " ", times), func(t *testing.T) {
				inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
					r.failing(times, isEnd)
					id, _ := r.runs("work", anHour)
					end(r, id)
					require.True(t, r.awaited(id).Status.Terminal())
					time.Sleep(5 * time.Minute)
					r.settled(id)
					require.Zero(t, r.Stats().Unsaved)
				})
			})
		}
	}
}

// The store fails while a task is stopped: its ctx has ended all the same, and
// stopping it again works and says so.
func TestB197_AStopThatTheStoreRefused(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
			r.failing(1, func(task subagent.Task) bool { return !task.CancelRequestedAt.IsZero() })
			entered := make(chan context.Context, 1)
			id := r.spawn("work", func(q *subagent.Request) {
				q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					entered <- ctx
					return r.gate.DeafFunc()(ctx, run)
				}
			}).ID
			ctx := <-entered
			first, _ := r.Cancel(r.ctx, id, subagent.CancelOptions{Message: "once"})
			require.Error(t, ctx.Err(), "the first reached it")
			require.False(t, first.CancelRequestedAt.IsZero())
			require.Equal(t, subagent.StatusRunning, first.Status, "it has not ended yet, and nobody says so")
			second, err := r.Cancel(r.ctx, id, subagent.CancelOptions{Message: "twice"})
			require.NoError(t, err)
			require.Equal(t, first.CancelRequestedAt, second.CancelRequestedAt)
			if !deaf {
				r.gate.Release(id, subagent.Result{}, nil)
			}
			end := r.awaited(id)
			require.Equal(t, subagent.StatusCancelled, end.Status)
			require.Equal(t, "once", end.CancelMessage)
			require.Equal(t, deaf, end.Detached)
			r.gate.ReleaseAll()
			synctest.Wait()
			r.settled(id)
		})
	}
}

// The ctx of whoever stops, spawns or shuts down has ended, and so has the
// task's own: the end is stored nevertheless, in a store that looks at its ctx.
func TestB198_EndsAreStoredWithoutTheCtxThatEnded(t *testing.T) {
	inRig(t, subagent.Config{Workers: 4}, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(r.ctx)
		spawn := func(change ...func(*subagent.Request)) uuid.UUID {
			task, err := r.Spawn(ctx, rigAsk("work", change...))
			require.NoError(t, err)
			r.gate.WaitEntered(t, task.ID)
			return task.ID
		}
		stopped, late, shut := spawn(), spawn(anHour), spawn()
		foreground := uuid.Must(uuid.NewV7())
		go func() { _, _ = r.Run(ctx, rigAsk("foreground", withID(foreground))) }() // ends with ctx
		r.gate.WaitEntered(t, foreground)
		cancel()
		synctest.Wait()
		got, _ := r.Cancel(ctx, stopped, subagent.CancelOptions{})
		require.False(t, got.CancelRequestedAt.IsZero())
		time.Sleep(time.Hour)
		for id, want := range map[uuid.UUID]subagent.Reason{stopped: subagent.ReasonUser, late: subagent.ReasonTimeout, foreground: subagent.ReasonCaller} {
			require.Equal(t, want, r.settled(id).Reason)
		}
		_ = r.Shutdown(ctx)
		r.left = true
		synctest.Wait()
		require.Equal(t, subagent.ReasonShutdown, r.row(shut).Reason)
	})
}

// A spawn that could not be stored is an error, and leaves nothing: no run, no
// record, no card, no event, no slot.
func TestB199_ASpawnThatWasNotStored(t *testing.T) {
	for name, fault := range map[string]subagenttest.Fault{
		"it fails":       {Err: errBroken},
		"it is too slow": {Delay: time.Minute},
		"it fails late":  {Err: errBroken, Delay: time.Second, Deaf: true},
	} {
		for _, change := range []func(*subagent.Request){func(*subagent.Request) {}, noWait, func(q *subagent.Request) { q.ID = uuid.Must(uuid.NewV7()) }} {
			t.Run(name, func(t *testing.T) {
				inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
					r.store.On(subagenttest.OpCreate, func(subagenttest.Call) subagenttest.Fault { return fault })
					q := rigAsk("x", change)
					q.Func = func(context.Context, *subagent.Run) (subagent.Result, error) {
						t.Error("it ran")
						return subagent.Result{}, nil
					}
					task, err := r.Spawn(r.ctx, q)
					require.Error(t, err)
					require.Zero(t, task.ID)
					task, err = r.Run(r.ctx, q)
					require.Error(t, err)
					require.Zero(t, task.ID)
					time.Sleep(5 * time.Minute)
					list, err := r.List(r.ctx, subagent.Filter{})
					require.NoError(t, err)
					require.Empty(t, list)
					r.nothingHeld()
					r.mu.Lock()
					require.Empty(t, r.cards)
					require.Empty(t, r.events)
					r.mu.Unlock()
				})
			})
		}
	}
}

// A create that was reported as failed although it was stored is no task either:
// it is ended, and nothing ran.
func TestB199_ASpawnThatWasStoredAllTheSame(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		r.store.On(subagenttest.OpCreate, func(subagenttest.Call) subagenttest.Fault {
			return subagenttest.Fault{Err: errBroken, Committed: true}
		})
		_, err := r.Spawn(r.ctx, rigAsk("x", withFunc(func(context.Context, *subagent.Run) (subagent.Result, error) {
			t.Error("it ran")
			return subagent.Result{}, nil
		})))
		require.ErrorIs(t, err, errBroken)
		time.Sleep(5 * time.Minute)
		list, err := r.List(r.ctx, subagent.Filter{})
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, subagent.ReasonStore, r.settled(list[0].ID).Reason)
		require.Zero(t, list[0].StartedAt)
	})
}

// strict refuses what is no text, as databases and JSON encoders do.
func strict(c subagenttest.Call) subagenttest.Fault {
	for _, task := range c.Tasks {
		for _, s := range append(textsOf(task), string(task.Reason), task.ParentSessionID, task.ExternalTaskID) {
			if !runes.IsClean(s) {
				return subagenttest.Fault{Err: fmt.Errorf("invalid text %q", s)}
			}
		}
	}
	return subagenttest.Fault{}
}

// textsOf are the texts of a task that come from a Func, a model or a person.
func textsOf(task subagent.Task) []string {
	texts := []string{task.Subject, task.Description, task.ResultText, task.Error, task.CancelMessage, task.StopReason,
		task.HeadID, task.SourceCommitID, task.Progress.Message}
	for k, v := range task.Metadata {
		texts = append(texts, k, v)
	}
	return texts
}

// Text that is none, in every place that a text can come from: the store takes
// it, the task ends, and everybody is shown the same.
func TestB200_TextThatIsNone(t *testing.T) {
	for _, bad := range []string{"a\x00b", "\xff\xfe", "half \xe4\xb8", "\xed\xa0\x80 a surrogate", `escaped \ud800 \u0000`, "\xc0\x80", strings.Repeat("\x00", 600)} {
		for name, fn := range map[string]subagent.Func{
			"result": gives(bad, nil), "error": gives(bad, errors.New(bad)), "panic": panics(bad), "stopped": stopped(gives(bad, nil)),
		} {
			t.Run(name, func(t *testing.T) {
				inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
					for _, op := range []subagenttest.Op{subagenttest.OpCreate, subagenttest.OpUpdate} {
						r.store.On(op, strict)
					}
					id := r.spawn("do "+bad, func(q *subagent.Request) {
						q.Subject, q.Metadata = bad, map[string]string{"key": bad}
						q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
							run.Progress(bad)
							run.ToolUse(bad)
							_, _ = run.Write([]byte(bad))
							return fn(ctx, run)
						}
					}).ID
					synctest.Wait()
					_, err := r.Cancel(r.ctx, id, subagent.CancelOptions{Message: bad})
					require.NoError(t, err)
					row := r.settled(id)
					require.NotEqual(t, subagent.ReasonStore, row.Reason)
					cards, events, notices := r.heard(id)
					shown := append([]string{cards[len(cards)-1].Content, row.Card().Attach.Label, row.Card().Attach.Prompt}, textsOf(row)...)
					for _, ev := range events {
						shown = append(shown, textsOf(ev.Task)...)
					}
					for _, n := range notices {
						shown = append(shown, textsOf(n)...)
					}
					for _, s := range shown {
						require.True(t, runes.IsClean(s), "%q", s)
					}
					require.Equal(t, "do "+runes.Clean(bad), row.Description)
				})
			})
		}
	}
}
