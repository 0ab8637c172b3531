// Command render writes the tables of docs/performance.md from what the
// benchmarks print, between the two marks that stand there:
//
//	cd internal/bench
//	go test -run '^$' -bench . -benchmem -cpu 1,2 -count 6 -timeout 3h >new.txt
//	go run ./render -page ../../docs/performance.md <new.txt
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const begin, end = "<!-- measured -->\n", "<!-- /measured -->\n"

// floors are the rows that the others of their benchmark are a ratio to.
// Where none is named it is the first. For a row that is called -ctx it is the
// one that is called so too.
var floors = map[string]string{
	"Acquire": "mutex", "HandOff": "channel", "SpawnToDone": "pond", "Burst": "pond", "CancelQueued": "100",
	"CancelSeen": "context", "Get": "map", "List": "copy", "QueuePosition": "map", "EventSeen": "channel", "Collection": "empty",
}

// less is what the peers of SpawnToDone and Burst do not do: their rows say so.
var less = map[string]string{
	"go": "any number run at once; no handle, id or state", "workerpool": "no handle, id or state",
	"pond": "no id or state", "pond-group": "one handle for all; no id or state",
	"ants-blocks": blocks, "conc-blocks": blocks, "errgroup-blocks": blocks, "channel-blocks": blocks,
}

const blocks = "blocks the submitter; no handle, id or state"

func main() {
	page := flag.String("page", "", "the file whose tables are rewritten; without it they are printed")
	flag.Parse()
	if err := run(*page, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run(page string, in io.Reader, out io.Writer) error {
	tables, err := render(in, time.Now())
	if err != nil {
		return err
	}
	if page == "" {
		_, err := io.WriteString(out, tables)
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no marks", page)
	}
	return os.WriteFile(page, []byte(before+begin+tables+end+after), 0o644)
}

// row is one benchmark with one number of processors, over all counts.
type row struct {
	bench, of, procs string
	values           map[string][]float64 // by unit
}

var line = regexp.MustCompile(`^Benchmark(\S+?)/of=(\S+?)(?:-(\d+))?\s+\d+\s+(.*)$`)

// read returns the rows in the order in which they first came.
func read(in io.Reader) (rows []*row, cpu string, err error) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if after, ok := strings.CutPrefix(lines.Text(), "cpu: "); ok {
			cpu = after
		}
		m := line.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		i := slices.IndexFunc(rows, func(r *row) bool { return r.bench == m[1] && r.of == m[2] && r.procs == m[3] })
		if i < 0 {
			i = len(rows)
			rows = append(rows, &row{m[1], m[2], m[3], map[string][]float64{}})
		}
		fields := strings.Fields(m[4])
		for ; len(fields) > 1; fields = fields[2:] {
			v, err := strconv.ParseFloat(fields[0], 64)
			if err != nil {
				return nil, "", fmt.Errorf("%q: %w", lines.Text(), err)
			}
			rows[i].values[fields[1]] = append(rows[i].values[fields[1]], v)
		}
	}
	if len(rows) == 0 && lines.Err() == nil {
		return nil, "", fmt.Errorf("no benchmark in the input")
	}
	return rows, cpu, lines.Err()
}

// median of a unit, "" if the row has none.
func (r *row) median(unit string) (float64, bool) {
	v := slices.Sorted(slices.Values(r.values[unit]))
	if len(v) == 0 {
		return 0, false
	}
	return v[len(v)/2], true
}

func render(in io.Reader, now time.Time) (string, error) {
	rows, cpu, err := read(in)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s: %s, %d cores, %s. Medians of %d runs.\n\n", now.UTC().Format(time.DateOnly),
		cpu, runtime.NumCPU(), runtime.Version(), len(rows[0].values["ns/op"]))
	b.WriteString("| benchmark | of | GOMAXPROCS | ratio to the floor | ns | B | allocations | besides |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		ratio := "–"
		if f := floorOf(r, rows); f != nil {
			floor, _ := f.median("ns/op")
			if ns, ok := r.median("ns/op"); ok && floor > 0 {
				ratio = fmt.Sprintf("%.2f", ns/floor)
			}
			if f == r {
				ratio = "floor"
			}
		}
		var besides []string
		for unit := range r.values {
			if v, _ := r.median(unit); unit != "ns/op" && unit != "B/op" && unit != "allocs/op" {
				besides = append(besides, fmt.Sprintf("%.4g %s", v, unit))
			}
		}
		slices.Sort(besides)
		if s := less[r.of]; s != "" {
			besides = append(besides, s)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.bench, r.of, cell(r.procs, "1"), ratio,
			r.cell("ns/op"), r.cell("B/op"), r.cell("allocs/op"), strings.Join(besides, ", "))
	}
	return b.String(), nil
}

// floorOf is the floor of r: of the same run and number of processors.
func floorOf(r *row, rows []*row) *row {
	name, _, _ := strings.Cut(r.bench, "/")
	if name == "Growth" { // to the smallest number of tasks
		for _, f := range rows {
			if strings.HasPrefix(f.bench, "Growth/") && f.procs == r.procs {
				return f
			}
		}
	}
	want := floors[strings.TrimSuffix(name, "Growth")]
	if strings.HasSuffix(r.of, "-ctx") {
		want += "-ctx"
	}
	for _, f := range rows {
		if f.bench == r.bench && f.procs == r.procs && (f.of == want || want == "") {
			return f
		}
	}
	return nil
}

func (r *row) cell(unit string) string {
	if v, ok := r.median(unit); ok {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	return "–"
}

func cell(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
