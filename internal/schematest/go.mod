module github.com/go-subagent/subagent/internal/schematest

go 1.25.0

require (
	github.com/go-subagent/subagent v0.0.0
	github.com/google/jsonschema-go v0.4.3
	go.uber.org/goleak v1.3.0
)

require github.com/google/uuid v1.6.0 // indirect

replace github.com/go-subagent/subagent => ../..
