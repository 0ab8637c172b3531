//go:build unix

package gitstore_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
)

// rawWrite is what storing cannot do without: a new file, its sync, its name,
// and the sync of that.
func rawWrite(b *testing.B, dir string, data []byte) time.Duration {
	began := time.Now()
	path := filepath.Join(dir, "tasks.json")
	f, err := os.Create(path + ".tmp")
	require.NoError(b, err)
	_, err = f.Write(data)
	require.NoError(b, err)
	require.NoError(b, f.Sync())
	require.NoError(b, f.Close())
	require.NoError(b, os.Rename(path+".tmp", path))
	d, err := os.Open(dir)
	require.NoError(b, err)
	require.NoError(b, d.Sync())
	require.NoError(b, d.Close())
	return time.Since(began)
}

// cpuTime is what this process has used of all processors: on a machine that
// others use it says more than the clock.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// tenTasks is a session in use: nine tasks that have ended and one that runs.
func tenTasks(b *testing.B, s subagent.Store) (running uuid.UUID) {
	for i := range 10 {
		t := newTask("a")
		t.Description, t.ResultText = string(bytes.Repeat([]byte("prompt "), 50)), string(bytes.Repeat([]byte("result "), 50))
		t.Status = subagent.StatusCompleted
		if i == 9 {
			t.Status, running = subagent.StatusRunning, t.ID
		}
		create(b, s, t)
	}
	return running
}

func progress(n int) func(*subagent.Task) error {
	return func(t *subagent.Task) error { t.Progress.ToolUses = n; return nil }
}

// BenchmarkUpdate is one acknowledged update after the other, each beside a raw
// write of the same file: x-raw is the ratio of their medians. git is at work
// all the time.
func BenchmarkUpdate(b *testing.B) {
	dir, beside := b.TempDir(), b.TempDir()
	s := openStore(b, dir, gitstore.Options{})
	id := tenTasks(b, s)
	data, err := os.ReadFile(filepath.Join(dir, "a", "tasks.json"))
	require.NoError(b, err)
	var raw, update []time.Duration
	n := 0
	for b.Loop() {
		raw = append(raw, rawWrite(b, beside, data))
		began := time.Now()
		n++
		_, err := s.Update(context.Background(), id, progress(n))
		update = append(update, time.Since(began))
		require.NoError(b, err)
	}
	b.ReportMetric(float64(median(update))/float64(median(raw)), "x-raw")
	b.ReportMetric(float64(median(update)), "ns/update")
	b.ReportMetric(float64(median(raw)), "ns/raw")
}

// counting counts writes of tasks.json.
type counting struct {
	gitstore.OSFiles
	writes atomic.Int64
}

func (c *counting) Rename(from, to string) error {
	if filepath.Base(to) == "tasks.json" {
		c.writes.Add(1)
	}
	return c.OSFiles.Rename(from, to)
}

// BenchmarkConcurrent is 64 updates of one session at once, of as many tasks or
// all of one: raw/32 is how many raw writes' worth 32 of them take, writes/32
// how many writes there were.
func BenchmarkConcurrent(b *testing.B) {
	const updates = 64
	for _, tasks := range []int{updates, 1} {
		b.Run(fmt.Sprintf("tasks=%d", tasks), func(b *testing.B) {
			dir, beside := b.TempDir(), b.TempDir()
			count := new(counting)
			s, err := gitstore.OpenOn(dir, gitstore.Options{}, count)
			require.NoError(b, err)
			defer func() { require.NoError(b, s.Close()) }()
			var all []subagent.Task
			for range tasks {
				t := newTask("a")
				t.Status = subagent.StatusRunning
				all = append(all, t)
			}
			create(b, s, all...)
			data, err := os.ReadFile(filepath.Join(dir, "a", "tasks.json"))
			require.NoError(b, err)
			var raw, round []time.Duration
			count.writes.Store(0)
			for b.Loop() {
				// In a row, as the writes of a round are: a disk that has just
				// synced takes longer for the next.
				inARow := time.Duration(0)
				for range 4 {
					inARow += rawWrite(b, beside, data)
				}
				raw = append(raw, inARow/4)
				began := time.Now()
				var done sync.WaitGroup
				for i := range updates {
					done.Go(func() {
						_, err := s.Update(context.Background(), all[i%tasks].ID, func(t *subagent.Task) error { t.Progress.ToolUses++; return nil })
						if err != nil {
							b.Error(err)
						}
					})
				}
				done.Wait()
				round = append(round, time.Since(began))
			}
			b.ReportMetric(float64(median(round))/float64(median(raw))*32/updates, "raw/32")
			b.ReportMetric(float64(median(round)), "ns/round")
			b.ReportMetric(float64(count.writes.Load())/float64(len(round))*32/updates, "writes/32")
		})
	}
}

// BenchmarkHistory makes 200 transitions a second for some seconds, and says
// how far the history was behind at most, how long after the last of them it
// was complete, and the median update beside that of a store without git.
func BenchmarkHistory(b *testing.B) {
	seconds := 5
	if testing.Short() {
		seconds = 1
	}
	for b.Loop() {
		dir := b.TempDir()
		s := openStore(b, dir, gitstore.Options{})
		id := tenTasks(b, s)
		idle := openStore(b, b.TempDir(), gitstore.Options{})
		var with, without []time.Duration
		most := 0
		tick := time.NewTicker(time.Second / 200)
		other := tenTasks(b, idle)
		for n := range 200 * seconds {
			<-tick.C
			began := time.Now()
			_, err := s.Update(context.Background(), id, progress(n+1))
			with = append(with, time.Since(began))
			require.NoError(b, err)
			most = max(most, s.Lag("a"))
			if n%20 == 0 && idle.Lag("a") == 0 {
				began = time.Now()
				_, err = idle.Update(context.Background(), other, progress(n+1))
				without = append(without, time.Since(began))
				require.NoError(b, err)
			}
		}
		tick.Stop()
		began := time.Now()
		require.NoError(b, s.Close())
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-behind")
		b.ReportMetric(float64(most), "most-behind")
		b.ReportMetric(float64(median(with))/float64(max(1, median(without))), "x-idle")
		b.ReportMetric(float64(len(with))/float64(seconds), "updates/s")
		requireReconciled(b, filepath.Join(dir, "a"))
		require.Len(b, subjects(b, filepath.Join(dir, "a")), 10+200*seconds)
	}
}

// BenchmarkOpen opens a folder of 10 000 sessions with ten ended tasks each, of
// which three have an open task more, and lists the open ones, as a Runner
// does. With index=missing, and a tenth of the sessions, it reads every
// tasks.json. That it has every history compared is not measured: git does so
// afterwards, and Close, also outside the measured time, waits for it.
func BenchmarkOpen(b *testing.B) {
	sessions := 10_000
	if testing.Short() {
		sessions = 200
	}
	b.Run("index=there", func(b *testing.B) { openFolder(b, sessions, false) })
	b.Run("index=missing", func(b *testing.B) { openFolder(b, sessions/10, true) })
}

func openFolder(b *testing.B, sessions int, loseIndex bool) {
	dir := b.TempDir()
	writeSessions(b, dir, sessions)
	filter := subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}}
	var cpu []time.Duration
	for b.Loop() {
		b.StopTimer()
		if loseIndex {
			require.NoError(b, os.Remove(filepath.Join(dir, ".index")))
		}
		before := cpuTime(b)
		b.StartTimer()
		s, err := gitstore.Open(dir, gitstore.Options{})
		require.NoError(b, err)
		got := list(b, s, filter)
		b.StopTimer()
		cpu = append(cpu, cpuTime(b)-before)
		require.Len(b, got, 3)
		require.Len(b, s.IDs(), 10*sessions+3)
		require.NoError(b, s.Close())
		b.StartTimer()
	}
	b.ReportMetric(float64(median(cpu).Milliseconds()), "cpu-ms")
}

// writeSessions makes the folder that BenchmarkOpen opens.
func writeSessions(b *testing.B, dir string, sessions int) {
	folder := make(map[string][]subagent.Task)
	var open []uuid.UUID
	for i := range sessions {
		name := fmt.Sprintf("session-%05d", i)
		for range 10 {
			t := newTask(name)
			t.Status, t.ResultText, t.NotifiedAt = subagent.StatusCompleted, string(bytes.Repeat([]byte("result "), 50)), epoch
			folder[name] = append(folder[name], t)
		}
		if i == 0 || i == sessions/2 || i == sessions-1 {
			t := newTask(name)
			folder[name], open = append(folder[name], t), append(open, t.ID)
		}
	}
	require.Len(b, open, 3)
	require.NoError(b, gitstore.WriteFolder(dir, folder))
}
