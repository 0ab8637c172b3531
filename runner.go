package subagent

import "context"

// Func does the work of one task. It is synchronous: the task ends when it
// returns. ctx ends when the task must stop.
type Func func(ctx context.Context, run *Run) (Result, error)
