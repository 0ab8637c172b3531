package bench_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// The guard against a change that makes a task dearer. It measures no time:
// it counts, in a process of its own with one processor and without garbage
// collection, what an operation allocates and, under valgrind, how many
// instructions it takes. Two runs of different length are compared, so that
// what comes before and after the operations drops out. What is counted must
// be what testdata/cost.json says, within the tolerances below, in either
// direction: a cost that has fallen is written down too, or it would creep
// back. After a change that is meant, read the difference that
//
//	go test -run TestCost -update
//
// makes.
var update = flag.Bool("update", false, "rewrite testdata/cost.json")

const (
	costFile         = "testdata/cost.json"
	allocTolerance   = 0.1  // allocations
	byteTolerance    = 0.02 // of the recorded number
	instrTolerance   = 0.06 // of the recorded number; two runs differ by less than a third of it
	shortRun         = 1000 // operations
	longRun          = 3000
	allocRuns        = 5
	costVariable     = "BENCH_COST" // the child: what to do, and how often
	costBurst        = 500
	costRetention    = 200 // a full store, soon
	costCrowd        = 2000
	instrPattern     = `I\s+refs:\s+([0-9,]+)`
	valgrindDisabled = "no valgrind here (apt-get install valgrind): instructions are not counted, allocations are"
)

// cost is what one operation takes.
type cost struct {
	Allocs       float64 `json:"allocs"`
	Bytes        float64 `json:"bytes"`
	Instructions float64 `json:"instructions"`
}

// record is testdata/cost.json. Instructions are those of one compiler and
// one kind of processor, and are compared with no other's.
type record struct {
	Go   string          `json:"go"`
	Arch string          `json:"arch"`
	Cost map[string]cost `json:"cost"`
}

// costTimes is how many more operations a cheap row does: what the scheduler
// and the start of a process add is the same few instructions for all rows.
var costTimes = map[string]int{"acquire": 50, "get": 20, "hand-off": 10, "list-50": 2}

// costRows are the operations. Each prepares, and returns what does n of them.
var costRows = map[string]func(r *subagent.Runner) func(n int){
	"acquire": func(*subagent.Runner) func(int) {
		c := subagent.NewCapacity(slots, 0)
		return func(n int) {
			for range n {
				release, err := c.Acquire(context.Background())
				check(err)
				release()
			}
		}
	},
	"hand-off": func(*subagent.Runner) func(int) {
		c := subagent.NewCapacity(slots, -1)
		return func(n int) {
			var done sync.WaitGroup
			for range 10 {
				done.Go(func() { // ends after its share, and is waited for
					for range n / 10 {
						release, err := c.Acquire(context.Background())
						check(err)
						runtime.Gosched()
						release()
					}
				})
			}
			done.Wait()
		}
	},
	"run": func(r *subagent.Runner) func(int) {
		return func(n int) {
			for range n {
				_, err := r.Run(context.Background(), request())
				check(err)
			}
		}
	},
	"burst": func(r *subagent.Runner) func(int) {
		return func(n int) {
			for ; n > 0; n -= costBurst {
				ids := make([]uuid.UUID, costBurst)
				for i := range ids {
					t, err := r.Spawn(context.Background(), request())
					check(err)
					ids[i] = t.ID
				}
				// All have ended before they are awaited: else the clock would
				// decide how many have.
				for st := r.Stats(); st.Queued+st.Running > 0; st = r.Stats() {
					runtime.Gosched()
				}
				_, err := r.Await(context.Background(), subagent.AwaitAll, ids...)
				check(err)
			}
		}
	},
	"cancel-queued": func(r *subagent.Runner) func(int) {
		ids := costHeld(r)
		return func(n int) {
			for i := range n {
				id := &ids[i%len(ids)]
				_, err := r.Cancel(context.Background(), *id, subagent.CancelOptions{})
				check(err)
				t, err := r.Spawn(context.Background(), heldRequest())
				check(err)
				*id = t.ID
			}
		}
	},
	"get": func(r *subagent.Runner) func(int) {
		ids := costHeld(r)
		return func(n int) {
			for i := range n {
				_, err := r.Get(context.Background(), ids[i%len(ids)])
				check(err)
			}
		}
	},
	"list-50": func(r *subagent.Runner) func(int) {
		costHeld(r)
		return func(n int) {
			for range n / 10 { // dear: one operation is a tenth of a page
				_, err := r.List(context.Background(), subagent.Filter{Limit: 50, NewestFirst: true})
				check(err)
			}
		}
	},
}

func heldRequest() subagent.Request {
	q := request()
	q.Func = untilStopped
	return q
}

// costHeld holds all slots and makes a line.
func costHeld(r *subagent.Runner) []uuid.UUID {
	ids := make([]uuid.UUID, costCrowd+slots)
	for i := range ids {
		t, err := r.Spawn(context.Background(), heldRequest())
		check(err)
		ids[i] = t.ID
	}
	return ids[slots:]
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// costChild is the other process: "row n". It prints what the operations have
// allocated. There is no testing in it but its code.
func costChild(order string) {
	name, count, _ := strings.Cut(order, " ")
	n, err := strconv.Atoi(count)
	check(err)
	store := subagent.NewMemoryStore()
	store.SetRetention(costRetention)
	r, err := subagent.New(context.Background(), subagent.Config{
		Store: store, Func: nothing, Workers: slots, MaxQueued: -1, ShutdownGrace: time.Millisecond,
	})
	check(err)
	operate := costRows[name](r)
	operate(costBurst) // the store is full, what is recycled is there
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	operate(n)
	runtime.ReadMemStats(&after)
	fmt.Println("allocated", after.Mallocs-before.Mallocs, after.TotalAlloc-before.TotalAlloc)
	os.Exit(0) // the tasks that are left are not what is measured
}

func TestCost(t *testing.T) {
	want := readRecord(t)
	valgrind, err := exec.LookPath("valgrind")
	got := record{Go: release(), Arch: runtime.GOARCH, Cost: map[string]cost{}}
	var mu sync.Mutex // guards got.Cost
	counted := err == nil
	if !counted && os.Getenv("CI") == "true" {
		t.Error(valgrindDisabled)
	}
	comparable := want.Go == got.Go && want.Arch == got.Arch
	t.Run("rows", func(t *testing.T) {
		for _, name := range slices.Sorted(maps.Keys(costRows)) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c := measure(t, name, "")
				if counted {
					c.Instructions = measure(t, name, valgrind).Instructions
				}
				mu.Lock()
				got.Cost[name] = c
				mu.Unlock()
				if !*update {
					compareCost(t, c, want.Cost[name], counted && comparable)
				}
			})
		}
	})
	switch {
	case !counted:
		t.Log(valgrindDisabled)
	case !comparable && !*update:
		t.Logf("instructions were recorded with %s on %s, this is %s on %s: not compared; -update records them",
			want.Go, want.Arch, got.Go, got.Arch)
	}
	if *update {
		writeRecord(t, got, counted)
	}
}

// measure is the cost of one operation of a row, as the difference of processes
// that do few and many; under valgrind it counts instructions and nothing else.
func measure(t *testing.T, name, valgrind string) cost {
	short, long := leastCost(t, name, shortRun, valgrind), leastCost(t, name, longRun, valgrind)
	more := float64((longRun - shortRun) * max(1, costTimes[name]))
	per := func(a, b float64) float64 { return math.Round((b-a)/more*100) / 100 }
	return cost{per(short.Allocs, long.Allocs), per(short.Bytes, long.Bytes), per(short.Instructions, long.Instructions)}
}

// leastCost is that of several runs which allocated least: a goroutine that loses
// its processor while it holds a lock makes others allocate to wait for it.
func leastCost(t *testing.T, name string, n int, valgrind string) cost {
	least := costRun(t, name, n, valgrind)
	for i := 1; i < allocRuns && valgrind == ""; i++ {
		c := costRun(t, name, n, valgrind)
		least.Allocs, least.Bytes = min(least.Allocs, c.Allocs), min(least.Bytes, c.Bytes)
	}
	return least
}

var instructions = regexp.MustCompile(instrPattern)

func costRun(t *testing.T, name string, n int, valgrind string) (c cost) {
	self, err := os.Executable()
	must(t, err)
	args := []string{self}
	if valgrind != "" {
		args = []string{valgrind, "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", self}
	}
	child := exec.CommandContext(t.Context(), args[0], args[1:]...)
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", costVariable, name, n*max(1, costTimes[name])),
		"GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	out, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	i := strings.Index(string(out), "allocated ")
	if i < 0 {
		t.Fatalf("no answer:\n%s", out)
	}
	_, err = fmt.Sscan(string(out[i+len("allocated "):]), &c.Allocs, &c.Bytes)
	must(t, err)
	if valgrind == "" {
		return c
	}
	m := instructions.FindSubmatch(out)
	if m == nil {
		t.Fatalf("valgrind counted nothing:\n%s", out)
	}
	c.Instructions, err = strconv.ParseFloat(strings.ReplaceAll(string(m[1]), ",", ""), 64)
	must(t, err)
	return c
}

func compareCost(t *testing.T, got, want cost, instructions bool) {
	if math.Abs(got.Allocs-want.Allocs) > allocTolerance {
		t.Errorf("%v allocations, recorded are %v", got.Allocs, want.Allocs)
	}
	if math.Abs(got.Bytes-want.Bytes) > max(16, byteTolerance*want.Bytes) {
		t.Errorf("%v bytes, recorded are %v", got.Bytes, want.Bytes)
	}
	if instructions && math.Abs(got.Instructions-want.Instructions) > instrTolerance*want.Instructions {
		t.Errorf("%v instructions, recorded are %v", got.Instructions, want.Instructions)
	}
	if t.Failed() {
		t.Log("if that is meant: go test -run TestCost -update")
	}
}

// release is the compiler's release without its patch level.
func release() string {
	parts := strings.SplitN(runtime.Version(), ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

func readRecord(t *testing.T) (r record) {
	data, err := os.ReadFile(costFile)
	if *update && os.IsNotExist(err) {
		return r
	}
	must(t, err)
	must(t, json.Unmarshal(data, &r))
	return r
}

func writeRecord(t *testing.T, r record, counted bool) {
	if !counted {
		t.Fatal("-update needs valgrind")
	}
	data, err := json.MarshalIndent(r, "", "\t")
	must(t, err)
	must(t, os.MkdirAll("testdata", 0o755))
	must(t, os.WriteFile(costFile, append(data, '\n'), 0o644))
}
