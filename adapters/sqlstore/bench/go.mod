module github.com/go-subagent/subagent/adapters/sqlstore/bench

go 1.26.0

require (
	github.com/go-subagent/subagent v0.0.0
	github.com/go-subagent/subagent/adapters/sqlstore v0.0.0
	github.com/ncruces/go-sqlite3 v0.35.3
	github.com/riverqueue/river v0.51.2
	github.com/riverqueue/river/riverdriver/riversqlite v0.51.2
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
	maragu.dev/goqite v0.4.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/ncruces/go-sqlite3-wasm/v3 v3.2.35304 // indirect
	github.com/ncruces/julianday v1.0.0 // indirect
	github.com/riverqueue/river/riverdriver v0.51.2 // indirect
	github.com/riverqueue/river/rivershared v0.51.2 // indirect
	github.com/riverqueue/river/rivertype v0.51.2 // indirect
	github.com/tidwall/gjson v1.20.0 // indirect
	github.com/tidwall/match v1.2.0 // indirect
	github.com/tidwall/pretty v1.2.1 // indirect
	github.com/tidwall/sjson v1.2.5 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace (
	github.com/go-subagent/subagent => ../../..
	github.com/go-subagent/subagent/adapters/sqlstore => ..
)
