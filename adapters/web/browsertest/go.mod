module github.com/go-subagent/subagent/adapters/web/browsertest

go 1.25.0

require (
	github.com/chromedp/cdproto v0.160.1
	github.com/chromedp/chromedp v0.23.1
	github.com/go-subagent/subagent v0.0.0
	github.com/go-subagent/subagent/adapters/web v0.0.0
	github.com/google/uuid v1.6.0
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
)

require (
	github.com/coder/websocket v1.8.15 // indirect
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace (
	github.com/go-subagent/subagent => ../../..
	github.com/go-subagent/subagent/adapters/web => ..
)
