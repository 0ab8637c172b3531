// Package soak lets random clients use the whole library for a while, kills the
// process that hosts the Runner again and again, and checks all that anybody
// was told against the guarantees. It has no code of its own, and is a module
// of its own because it needs every adapter.
//
//	SUBAGENT_SOAK_TIME=60s go test -run Soak .
//
// # How it works
//
// A host (host_test.go) is a process with a Runner on one of the stores, a web
// server, a CardSink, a Notifier and a few clients: the test's program, which
// executes itself. Its Funcs (work_test.go), its clients (client_test.go), its
// sinks and the store (ledger_test.go) write each thing that they do, are told
// or have been promised as a line of the journal (journal_test.go), one file
// for all processes of a soak, opened with O_APPEND. What a line says has
// happened before the line was written, and a line that stands before another
// was written before it; so the file is a clock that survives kill -9.
//
// The test itself (soak_test.go) starts and kills hosts, and is a WebSocket
// client of each (viewer_test.go). The model (model_test.go, rules_test.go)
// reads the journal as it grows and knows what may follow what. In the end the
// clients stop, every task comes to rest, and the checker (rest_test.go)
// compares card, record, list, tool answers and last broadcast of each.
package soak
