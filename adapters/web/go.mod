module github.com/go-subagent/subagent/adapters/web

go 1.25.0

require (
	github.com/coder/websocket v1.8.15
	github.com/go-subagent/subagent v0.0.0
	github.com/google/uuid v1.6.0
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect

replace github.com/go-subagent/subagent => ../..
