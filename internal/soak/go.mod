module github.com/go-subagent/subagent/internal/soak

go 1.25.0

require (
	github.com/coder/websocket v1.8.15
	github.com/go-subagent/subagent v0.0.0
	github.com/go-subagent/subagent/adapters/gitstore v0.0.0
	github.com/go-subagent/subagent/adapters/sqlstore v0.0.0
	github.com/go-subagent/subagent/adapters/web v0.0.0
	github.com/google/uuid v1.6.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/gofrs/flock v0.13.1 // indirect
	github.com/ncruces/go-sqlite3 v0.35.3 // indirect
	github.com/ncruces/go-sqlite3-wasm/v3 v3.2.35304 // indirect
	github.com/ncruces/julianday v1.0.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace (
	github.com/go-subagent/subagent => ../..
	github.com/go-subagent/subagent/adapters/gitstore => ../../adapters/gitstore
	github.com/go-subagent/subagent/adapters/sqlstore => ../../adapters/sqlstore
	github.com/go-subagent/subagent/adapters/web => ../../adapters/web
)
