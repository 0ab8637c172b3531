// Package soak lets random clients use the whole library for a while, kills the
// process that hosts the Runner again and again, and checks all that anybody
// was told against the guarantees. It has no code of its own, and is a module
// of its own because it needs every adapter.
//
//	SUBAGENT_SOAK_TIME=60s go test -run Soak .
//
// SUBAGENT_SOAK_TIME is how long the clients are at work, all stores together
// (40s if it is not set); to bring each store to rest and to compare takes some
// seconds more. SUBAGENT_TEST_SEED repeats the choices of an earlier soak, which
// prints it when it begins; what they meet is decided by the machine.
//
// # What may repeat, and what may be missing
//
// The model allows this and nothing else. A notice is delivered again if its
// process died after the Notifier had taken it and before that was stored. A
// wait hands an end out as the first once, also over kills: the record says so
// before the waiter is told; so if the process dies in between nobody has got
// it, and Get still has the usage. A wait beside it may say that the end was
// delivered while that is still being stored: this binds the process that said
// so, which is the only one to know it, until it is killed. What is stored
// binds all. A notice that is under way while a wait is handed the end brings
// the usage, too.
//
// A card stays as it was if its process died after it had stored the end, and
// before it had put the card, of a foreground task, or of one whose end was
// handed out in another process or to one who did not have to be woken for it;
// or if the sink refused the last card of a process that has ended since. The
// end of a lost task may be broadcast again if two calls recover it at once. A
// spawn whose ctx ends may leave a record that was stored too late, errored
// (store).
//
// A stop reaches what is below its task, unless the task is over by then: while
// its end is being stored it may still be shown running, with a stop that
// another process has asked for in vain.
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
