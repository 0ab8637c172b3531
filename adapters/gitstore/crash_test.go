package gitstore_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
)

// loadVariable makes the test program a process that is to be killed: it works
// in the folder that it names, and says on its standard output what it was
// told.
const loadVariable = "GITSTORE_TEST_LOAD"

// fact is a line of a process that is killed.
type fact struct {
	Ran  uuid.UUID      `json:"ran,omitzero"` // a Func was entered
	Task *subagent.Task `json:"task,omitempty"`
}

// load spawns tasks with a Runner, and changes others by itself, in a few
// sessions at a time. Each fact is written with one call, after it was
// acknowledged.
func load(dir string) {
	var mu sync.Mutex // guards os.Stdout: a line is one write
	say := func(f fact) {
		line, err := json.Marshal(f)
		must(err)
		mu.Lock()
		defer mu.Unlock()
		_, err = os.Stdout.Write(append(line, '\n'))
		must(err)
	}
	ctx := context.Background()
	s, err := gitstore.Open(dir, gitstore.Options{})
	must(err)
	runner, err := subagent.New(ctx, subagent.Config{
		Store: s,
		Func: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			say(fact{Ran: run.Task().ID})
			run.Progress("at it")
			n := rand.IntN(4)
			if n == 0 {
				return subagent.Result{}, errors.New("no luck")
			}
			return subagent.Result{Text: strings.Repeat("text ", n*1000)}, nil
		},
	})
	must(err)
	say(fact{})
	for i := range 4 {
		go func() { // until the process is killed
			for n := 0; ; n++ {
				session := fmt.Sprintf("%s-%d", os.Getenv("GITSTORE_TEST_ROUND"), (i+n)%3)
				task, err := runner.Spawn(ctx, subagent.Request{ParentSessionID: session, Description: "work"})
				must(err)
				say(fact{Task: &task})
				if task, err = runner.Wait(ctx, task.ID); err == nil {
					say(fact{Task: &task})
				}
				must(err)
				pair := []subagent.Task{newTask(session), newTask(os.Getenv("GITSTORE_TEST_ROUND") + "-3")}
				must(s.Create(ctx, pair...))
				for _, p := range pair {
					say(fact{Task: &p})
					t, err := s.Update(ctx, p.ID, moveTo(subagent.StatusCancelled, strings.Repeat("pair ", 10)))
					must(err)
					say(fact{Task: &t})
				}
			}
		}()
	}
	select {}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// kills is how often a process is killed: GITSTORE_TEST_KILLS, else 200, or 50
// with -short.
func kills(t *testing.T) int {
	if n, err := strconv.Atoi(os.Getenv("GITSTORE_TEST_KILLS")); err == nil {
		return n
	}
	if testing.Short() {
		return 50
	}
	return 200
}

// TestKilled kills processes at random moments of their work, each time in the
// folder in which the one before was killed. How much work they have done by
// then does not depend on how fast the machine is.
func TestKilled(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("SUBAGENT_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SUBAGENT_TEST_SEED=%d", seed)
	// In memory: what a killed process has written is there whether or not it
	// was synced, and more happens between two kills.
	k := &killer{dir: memoryDir(t), rand: rand.New(rand.NewPCG(seed, seed)), acked: make(map[uuid.UUID]subagent.Task), ran: make(map[uuid.UUID]bool)}
	for i := range kills(t) {
		k.killOne(t, i/8)
		k.check(t, i/8, i%8 == 7)
	}
	t.Logf("%d tasks, %d tasks run, %d recovered", k.tasks, len(k.ran), k.lost)
	require.Greater(t, len(k.ran), kills(t)/4, "hardly anything was done")
	require.Positive(t, k.lost)
}

type killer struct {
	dir   string
	rand  *rand.Rand
	acked map[uuid.UUID]subagent.Task // the last state of each task that was acknowledged
	ran   map[uuid.UUID]bool
	lost  int
	tasks int
}

func (k *killer) killOne(t *testing.T, round int) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), loadVariable+"="+k.dir, "GITSTORE_TEST_ROUND="+strconv.Itoa(round))
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() {
		_ = cmd.Wait()
		t.Fatalf("the process did not begin: %s", complaint.String())
	}
	stop := func() { _ = cmd.Process.Kill() }
	facts, within := k.rand.IntN(40), time.Duration(k.rand.IntN(3000))*time.Microsecond
	timer := time.AfterFunc(time.Minute, func() { t.Error("the process does nothing"); stop() })
	defer func() { timer.Stop() }()
	for n := 0; lines.Scan(); n++ { // until it was killed
		if n == facts && timer.Stop() {
			timer = time.AfterFunc(within, stop)
		}
		var f fact
		if json.Unmarshal(lines.Bytes(), &f) != nil {
			continue // it was killed while it wrote
		}
		if f.Ran != uuid.Nil {
			require.False(t, k.ran[f.Ran], "task %s has run twice", f.Ran)
			k.ran[f.Ran] = true
		}
		if f.Task != nil && k.acked[f.Task.ID].Version <= f.Task.Version {
			k.acked[f.Task.ID] = *f.Task
		}
	}
	_ = cmd.Wait()
	require.Empty(t, complaint.String(), "it ended by itself")
}

// check opens the folder, as it is and then with a Runner.
func (k *killer) check(t *testing.T, round int, deep bool) {
	s, err := gitstore.Open(k.dir, gitstore.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	for id, acked := range k.acked {
		k.requireKept(t, acked, get(t, s, id))
	}
	open := subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}}
	left := list(t, s, open)
	k.lost += len(left)
	runner, err := subagent.New(t.Context(), subagent.Config{Store: s, Func: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
		t.Errorf("task %s is run again", run.Task().ID)
		return subagent.Result{}, nil
	}})
	require.NoError(t, err)
	require.Empty(t, list(t, s, open))
	for _, task := range left {
		now := get(t, s, task.ID)
		require.Equal(t, subagent.ReasonLost, now.Reason)
		k.acked[now.ID] = now
	}
	require.NoError(t, runner.Shutdown(t.Context()))
	require.NoError(t, s.Close())
	for i := range 4 {
		folder := filepath.Join(k.dir, fmt.Sprintf("%d-%d", round, i))
		data, err := os.ReadFile(filepath.Join(folder, "tasks.json"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		require.NoError(t, err)
		_, err = gitstore.Parse(filepath.Base(folder), data)
		require.NoError(t, err)
		require.Equal(t, string(data), git(t, folder, "show", "tasks:tasks.json"))
		if deep {
			requireReconciled(t, folder)
			requireOrdered(t, folder)
		}
	}
	if deep { // the next round has sessions of its own
		k.tasks += len(k.acked)
		clear(k.acked)
	}
}

// requireKept checks that now is acked or further on, and an end for good.
func (k *killer) requireKept(t *testing.T, acked, now subagent.Task) {
	t.Helper()
	require.GreaterOrEqual(t, now.Version, acked.Version, "task %s", acked.ID)
	if !acked.Status.Terminal() {
		require.True(t, now.Status == acked.Status || now.Status.Terminal() || acked.Status != subagent.StatusRunning)
		return
	}
	// What may change after an end. The Version of a task that somebody waited
	// for is the one with its NotifiedAt.
	now.NotifiedAt, now.Version, now.Owner = acked.NotifiedAt, acked.Version, acked.Owner
	require.Equal(t, acked, now)
}

// requireOrdered checks that no task goes a way that there is not in the
// history, and that each ends there once.
func requireOrdered(t *testing.T, folder string) {
	t.Helper()
	last := make(map[string]subagent.Status)
	for _, line := range subjects(t, folder) {
		fields := strings.Fields(line)
		from, to, ok := strings.Cut(fields[len(fields)-1], "→")
		if !ok || len(fields) != 3 {
			clear(last) // a reconcile, or several at once: anything may have happened
			continue
		}
		was, known := last[fields[1]]
		if known {
			require.EqualValues(t, was, from, line)
		}
		require.True(t, from == "" || subagent.CanTransition(subagent.Status(from), subagent.Status(to)), line)
		last[fields[1]] = subagent.Status(to)
	}
}

// TestSecondProcess has another process hold the folder.
func TestSecondProcess(t *testing.T) {
	dir := memoryDir(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), loadVariable+"="+dir, "GITSTORE_TEST_ROUND=0")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	_, err = gitstore.Open(dir, gitstore.Options{})
	require.ErrorIs(t, err, gitstore.ErrLocked)
	require.ErrorContains(t, err, fmt.Sprintf("process %d ", cmd.Process.Pid))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	openStore(t, dir, gitstore.Options{})
}
