package agenttool_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/subagenttest"
)

// Fifty models call agent, in front and behind, before, during and after a
// shutdown: each is answered, with a task that ends or in words, and no record
// is left open, however long the store takes.
func TestB135_CallsDuringAShutdown(t *testing.T) {
	for _, delay := range []time.Duration{0, 5 * time.Millisecond} {
		t.Run("store takes "+delay.String(), func(t *testing.T) {
			inDesk(t, subagent.Config{Workers: 5}, func(t *testing.T, d *desk) {
				for _, op := range []subagenttest.Op{subagenttest.OpCreate, subagenttest.OpUpdate} {
					d.store.On(op, func(subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Delay: delay} })
				}
				var mu sync.Mutex
				var answers []agenttool.Answer
				var all sync.WaitGroup
				for i := range 50 {
					all.Go(func() {
						time.Sleep(time.Duration(i) * time.Millisecond)
						a := d.callAs(t.Context(), agenttool.Call{ID: "call", Name: "agent", SessionID: session},
							args{"prompt": "p", "description": "d", "run_in_background": i%3 > 0})
						mu.Lock()
						defer mu.Unlock()
						answers = append(answers, a)
					})
				}
				time.Sleep(25 * time.Millisecond)
				require.NoError(t, d.Shutdown(t.Context()))
				all.Wait()
				refusals := 0
				for _, a := range answers {
					if a.Data == nil {
						refusals++
						require.True(t, a.IsError)
						require.Equal(t, "[task error] No task was started: runner closed.", a.Text)
						continue
					}
					require.True(t, d.get(a.TaskID).Status.Terminal())
				}
				require.GreaterOrEqual(t, refusals, 20)
				require.GreaterOrEqual(t, len(answers)-refusals, 20)
				for row, err := range d.store.List(t.Context(), subagent.Filter{}) {
					require.NoError(t, err)
					require.Equal(t, subagent.ReasonShutdown, row.Reason)
				}
			})
		})
	}
}
