package bubble_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-subagent/subagent/internal/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Timers of both kinds that are due at one moment: on two processors the race
// detector of go1.26 dies of this.
func TestManyTimersAtOnce(t *testing.T) {
	for range 100 {
		bubble.Test(t, func(t *testing.T) {
			var all sync.WaitGroup
			for range 200 {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					timer := time.NewTimer(time.Second)
					<-ctx.Done()
					select {
					case <-timer.C:
					default:
						t.Error("a timer that is due has not fired")
					}
				})
			}
			all.Wait()
		})
	}
}
