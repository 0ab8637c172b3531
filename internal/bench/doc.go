// Package bench measures what the library costs, each time beside a peer that
// does the same job with less to promise. It has no code of its own and is a
// module of its own, so that the peers are nobody's dependencies.
//
//	cd internal/bench
//	go test -run '^$' -bench . -benchmem -count 6 -timeout 3h | tee new.txt
//
// takes about half an hour and 4 GB of memory, and twice as long with -cpu 1,2;
// add -short to leave out the rows with a million tasks. A single row, or one
// row's peer:
//
//	go test -run '^$' -bench 'Burst' -benchmem -count 6
//	go test -run '^$' -bench 'Burst/of=pond' -benchmem -count 6
//
// Every row is named Benchmark<What>/of=<who>, which makes ratios readable with
// golang.org/x/perf/cmd/benchstat: peers stand beside each other with
//
//	benchstat -filter '.name:Burst' -col '/of@(pond runner)' new.txt
//
// and a change is judged with "benchstat old.txt new.txt". Read ratios, not
// nanoseconds, and on a machine that others use the minimum of several counts
// rather than their mean. README.md says what each row is made of.
package bench
