module github.com/go-subagent/subagent/adapters/sqlstore

go 1.25.0

require (
	github.com/go-subagent/subagent v0.0.0
	github.com/google/uuid v1.6.0
	github.com/ncruces/go-sqlite3 v0.35.3
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
)

require (
	github.com/ncruces/go-sqlite3-wasm/v3 v3.2.35304 // indirect
	github.com/ncruces/julianday v1.0.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/go-subagent/subagent => ../..
