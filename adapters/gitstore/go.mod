module github.com/go-subagent/subagent/adapters/gitstore

go 1.25.0

require (
	github.com/go-subagent/subagent v0.0.0
	github.com/gofrs/flock v0.13.1
	github.com/google/uuid v1.6.0
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/go-subagent/subagent => ../..
