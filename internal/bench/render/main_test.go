package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const input = `cpu: a machine
BenchmarkAcquire/of=capacity-2   100   30.0 ns/op   24 B/op   1 allocs/op
BenchmarkAcquire/of=mutex-2      100   10.0 ns/op
BenchmarkAcquire/of=capacity-2   100   50.0 ns/op   24 B/op   1 allocs/op
BenchmarkAcquire/of=capacity-2   100   20.0 ns/op   24 B/op   1 allocs/op
BenchmarkAcquire/of=capacity     100   40.0 ns/op
BenchmarkAcquire/of=mutex        100   20.0 ns/op
BenchmarkHandOff/of=capacity-2         100   40.0 ns/op
BenchmarkHandOff/of=channel-2          100   20.0 ns/op
BenchmarkHandOff/of=capacity-ctx-2     100   40.0 ns/op
BenchmarkHandOff/of=channel-ctx-2      100   80.0 ns/op
BenchmarkHandOffGrowth/limit=1/waiters=10/of=semaphore-2   100   70.0 ns/op
BenchmarkHandOffGrowth/limit=1/waiters=10/of=channel-2     100   35.0 ns/op
BenchmarkBurst/of=runner-cards-2       100   30.0 ns/op   4.000 cards/op
BenchmarkBurst/of=pond-2               100   10.0 ns/op
BenchmarkBurst/of=ants-blocks-2        100   10.0 ns/op
BenchmarkGrowth/tasks=1000/of=runner-2     1   1000 ns/op
BenchmarkGrowth/tasks=10000/of=runner-2    1   1500 ns/op
`

// The tables stand between the marks, each row a ratio to the floor of its own
// number of processors; a peer's row says what it does not do; what stands
// around them stays.
func TestRender(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("before\n"+begin+"old\n"+end+"after\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(page, strings.NewReader(input), nil); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"before\n" + begin, end + "after\n", "a machine",
		"| Acquire | capacity | 2 | 3.00 | 30 | 24 | 1 |  |\n",
		"| Acquire | mutex | 2 | floor | 10 |",
		"| Acquire | capacity | 1 | 2.00 | 40 |",
		"| HandOff | capacity | 2 | 2.00 |", "| HandOff | channel | 2 | floor |",
		"| HandOff | capacity-ctx | 2 | 0.50 |", "| HandOff | channel-ctx | 2 | floor |",
		"| HandOffGrowth/limit=1/waiters=10 | semaphore | 2 | 2.00 |",
		"| Burst | runner-cards | 2 | 3.00 | 30 | – | – | 4 cards/op |\n",
		"| Burst | pond | 2 | floor | 10 | – | – | no id or state |\n",
		"| Burst | ants-blocks | 2 | 1.00 | 10 | – | – | blocks the submitter; no handle, id or state |\n",
		"| Growth/tasks=10000 | runner | 2 | 1.50 | 1500 |",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "old") {
		t.Error("the old tables are still there")
	}
}

func TestNothingToRender(t *testing.T) {
	if err := run("", strings.NewReader("PASS\n"), nil); err == nil {
		t.Error("no error without a benchmark")
	}
}
