module github.com/go-subagent/subagent/internal/bench

go 1.25.0

require (
	github.com/alitto/pond/v2 v2.7.1
	github.com/go-subagent/subagent v0.0.0
	github.com/google/uuid v1.6.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.22.0
)

replace github.com/go-subagent/subagent => ../..
