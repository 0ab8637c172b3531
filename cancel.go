package subagent

import "errors"

// What a cancelled task or call unwraps to.
var (
	ErrCancelled = errors.New("subagent: task cancelled")
	ErrShutdown  = errors.New("subagent: runner shut down")
)
