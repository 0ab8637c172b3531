// Package bench compares the durable life of a task here with that of a job in
// River on SQLite. It has no code of its own and is a module of its own, so that
// River is nobody's dependency.
//
//	cd adapters/sqlstore/bench
//	go test -run '^$' -bench . -benchtime 20000x -count 3
package bench
