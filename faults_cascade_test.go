package subagent_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// branch is a task of a tree whose ctx and end are looked at.
type branch struct {
	id   uuid.UUID
	told time.Time // when its ctx ended; zero: it has not
}

// tree spawns a parent with three children, the first of which has a child of
// its own. The one of the given name hears nothing for a minute.
func (r *rig) tree(deaf string) map[string]*branch {
	r.t.Helper()
	all := map[string]*branch{}
	for _, name := range []string{"parent", "first", "second", "third", "grandchild"} {
		all[name] = &branch{id: uuid.Must(uuid.NewV7())}
	}
	kids := map[string][]string{"parent": {"first", "second", "third"}, "first": {"grandchild"}}
	var grow func(name string) subagent.Request
	grow = func(name string) subagent.Request {
		return rigAsk(name, withID(all[name].id), inSession(name), withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
			for _, kid := range kids[name] {
				_, err := r.Spawn(ctx, grow(kid))
				require.NoError(r.t, err)
			}
			<-ctx.Done()
			all[name].told = time.Now()
			if name == deaf {
				time.Sleep(time.Minute)
			}
			return subagent.Result{}, context.Cause(ctx)
		}))
	}
	q := grow("parent")
	q.Timeout = time.Minute
	_, err := r.Spawn(r.ctx, q)
	require.NoError(r.t, err)
	synctest.Wait()
	return all
}

// A stop reaches every branch at once, whichever of them hears nothing, and the
// whole tree has one grace.
func TestB115_ADeafBranchHoldsUpNoOther(t *testing.T) {
	const grace = 30 * time.Second
	for _, deaf := range []string{"none", "first", "second", "third", "grandchild", "parent"} {
		for how, stop := range map[string]func(r *rig, parent uuid.UUID){
			"stop": func(r *rig, parent uuid.UUID) { r.stop(parent) },
			"stop of the session": func(r *rig, _ uuid.UUID) {
				_, err := r.CancelSession(r.ctx, "parent", subagent.CancelOptions{})
				require.NoError(r.t, err)
			},
			"time limit": func(*rig, uuid.UUID) { time.Sleep(time.Minute) },
		} {
			t.Run(deaf+" is deaf, "+how, func(t *testing.T) {
				inRig(t, subagent.Config{Workers: 5, CancelGrace: grace}, func(t *testing.T, r *rig) {
					all := r.tree(deaf)
					stop(r, all["parent"].id)
					stopped := time.Now()
					synctest.Wait()
					for name, b := range all {
						require.Equal(t, stopped, b.told, name)
					}
					time.Sleep(grace)
					synctest.Wait()
					for name, b := range all {
						end := r.settled(b.id)
						require.Equal(t, name == deaf, end.Detached)
						want := stopped
						if name == deaf {
							want = stopped.Add(grace)
						}
						require.WithinDuration(t, want, end.CompletedAt, 0, name)
						if name != "parent" {
							require.Equal(t, subagent.ReasonParent, end.Reason)
						}
					}
					time.Sleep(time.Minute) // the deaf one has returned then
				})
			})
		}
	}
}

// A parent that ends by itself, however, leaves its children at work: those
// that run, and those in the queue.
func TestB117_AParentThatEndsLeavesItsChildren(t *testing.T) {
	for how, end := range map[string]func() (subagent.Result, error){
		"completed": func() (subagent.Result, error) { return subagent.Result{Text: "done"}, nil },
		"errored":   func() (subagent.Result, error) { return subagent.Result{}, errBroken },
		"panicked":  func() (subagent.Result, error) { panic("parent") },
		"exited":    func() (subagent.Result, error) { runtime.Goexit(); return subagent.Result{}, nil },
	} {
		t.Run(how, func(t *testing.T) {
			inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
				ctxs := make(chan context.Context, 2)
				var kids []uuid.UUID
				parent := r.spawn("parent", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
					for range 2 { // there is a slot for one of them
						kid, err := r.Spawn(ctx, rigAsk("kid", withFunc(func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
							ctxs <- ctx
							return r.gate.Func()(ctx, run)
						})))
						require.NoError(t, err)
						kids = append(kids, kid.ID)
					}
					r.gate.WaitEntered(t, kids[0])
					return end()
				})).ID
				require.Equal(t, parent, r.awaited(parent).ID)
				r.stop(parent) // too late: it reaches nobody
				time.Sleep(time.Minute)
				for _, kid := range kids {
					require.NoError(t, (<-ctxs).Err())
					r.gate.Release(kid, subagent.Result{Text: "kid's"}, nil)
				}
				for _, kid := range kids {
					end := r.awaited(kid)
					require.Equal(t, subagent.StatusCompleted, end.Status)
					require.Equal(t, "kid's", end.ResultText)
					require.Equal(t, parent, end.ParentTaskID)
				}
			})
		})
	}
}
