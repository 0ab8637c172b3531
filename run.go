package subagent

// Run is one execution, as its Func sees it.
type Run struct{}
