package sqlstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
)

// crowded is the session in which all processes spawn and cancel.
const crowded = "session"

// quickLease renews for a Runner, much more often and for a shorter time than
// it would, so that the dead are found out within a test's time.
type quickLease struct {
	*sqlstore.Store
	renewed chan string
}

const (
	quickTTL   = 4 * time.Second
	quickRenew = 400 * time.Millisecond
)

func (q *quickLease) Renew(ctx context.Context, owner string, _ time.Duration) error {
	select {
	case q.renewed <- owner:
	default: // it is known
	}
	return q.Store.Renew(ctx, owner, quickTTL)
}

// keep renews until ctx ends.
func (q *quickLease) keep(ctx context.Context) {
	owner := <-q.renewed
	for ctx.Err() == nil {
		_ = q.Store.Renew(ctx, owner, quickTTL)
		select {
		case <-time.After(quickRenew):
		case <-ctx.Done():
		}
	}
}

// worker is a process with a Runner, and with a diary that survives kill -9.
type worker struct {
	diary *os.File
	r     *subagent.Runner
}

// note writes a line: it is with the system when this returns.
func (w *worker) note(what string, id uuid.UUID) {
	fmt.Fprintf(w.diary, "%s %s %d\n", what, id, time.Now().UnixMicro())
}

// work is quick, or lasts until it is stopped.
func (w *worker) work(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
	id := run.Task().ID
	w.note("enter", id)
	if run.Task().Description == "quick" {
		return subagent.Result{Text: "done"}, nil
	}
	<-ctx.Done()
	w.note("stopped", id)
	return subagent.Result{}, ctx.Err()
}

func (w *worker) Notify(_ context.Context, t subagent.Task) error {
	w.note("notice", t.ID)
	return nil
}

// runUntilTold is a process that spawns tasks and cancels those of others,
// until a line comes in; it ends when its input does.
func runUntilTold(args []string) error {
	store, err := sqlstore.OpenSQLite(args[0], sqlstore.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	w := new(worker)
	if w.diary, err = os.OpenFile(args[1], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return err
	}
	seed, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lease := &quickLease{store, make(chan string, 1)}
	go lease.keep(ctx) // ends with the process, or with ctx
	if w.r, err = subagent.New(ctx, subagent.Config{Store: lease, Func: w.work, Notifier: w, Workers: 8, MaxQueued: 20}); err != nil {
		return err
	}
	fmt.Println(w.r.ID())
	told, over := make(chan struct{}), make(chan struct{})
	go func() { // ends with the input
		in := bufio.NewReader(os.Stdin)
		_, _ = in.ReadString('\n')
		close(told)
		_, _ = io.Copy(io.Discard, in)
		close(over)
	}()
	random := rand.New(rand.NewPCG(seed, seed))
	for busy := true; busy; {
		select {
		case <-told:
			busy = false
		case <-time.After(time.Duration(random.IntN(15)) * time.Millisecond):
			if err := w.act(ctx, random); err != nil {
				return err
			}
		}
	}
	<-over
	return w.r.Shutdown(ctx)
}

// act spawns a task, or cancels one that anybody executes.
func (w *worker) act(ctx context.Context, random *rand.Rand) error {
	if random.IntN(3) > 0 {
		kind := []string{"quick", "long"}[random.IntN(2)]
		t, err := w.r.Spawn(ctx, subagent.Request{Description: kind, ParentSessionID: crowded})
		if errors.Is(err, subagent.ErrQueueFull) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("spawn: %w", err)
		}
		w.note("spawn", t.ID)
		return nil
	}
	live, err := w.r.List(ctx, subagent.Filter{SessionID: crowded, Limit: 20, Statuses: []subagent.Status{subagent.StatusRunning}})
	if err != nil || len(live) == 0 {
		return err
	}
	id := live[random.IntN(len(live))].ID
	w.note("cancel", id)
	_, err = w.r.Cancel(ctx, id, subagent.CancelOptions{Message: w.r.ID()})
	return err
}

// actor is such a process as the test sees it.
type actor struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	owner string
	diary string
}

func start(t *testing.T, path, diary string, seed uint64) *actor {
	a := &actor{cmd: child(t, "run", path, diary, strconv.FormatUint(seed, 10)), diary: diary}
	var err error
	a.stdin, err = a.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := a.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, a.cmd.Start())
	t.Cleanup(func() { _ = a.cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	a.owner = strings.TrimSpace(line)
	return a
}

// entry is a line of a diary.
type entry struct {
	what string
	id   uuid.UUID
	at   time.Time
}

func (a *actor) entries(t *testing.T) (entries []entry) {
	data, err := os.ReadFile(a.diary)
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		require.Len(t, words, 3)
		at, err := strconv.ParseInt(words[2], 10, 64)
		require.NoError(t, err)
		entries = append(entries, entry{words[0], uuid.MustParse(words[1]), time.UnixMicro(at)})
	}
	return entries
}

// TestProcessesShareAFile runs four processes that spawn and cancel each
// other's tasks, kills two of them at some moment, and looks at what became of
// every task.
func TestProcessesShareAFile(t *testing.T) {
	t.Parallel()
	path, random := file(t), seeded(t)
	dir := t.TempDir()
	actors := make([]*actor, 4)
	for i := range actors {
		actors[i] = start(t, path, filepath.Join(dir, strconv.Itoa(i)), random.Uint64())
	}
	dead, alive := actors[:2], actors[2:]
	for _, a := range dead {
		<-time.After(500*time.Millisecond + time.Duration(random.IntN(1000))*time.Millisecond) // chance, not order
		require.NoError(t, a.cmd.Process.Kill())
		require.Error(t, a.cmd.Wait())
	}
	s := open(t, path)
	waitRecovered(t, s, dead)
	for _, a := range alive {
		_, err := io.WriteString(a.stdin, "enough\n")
		require.NoError(t, err)
	}
	stopRest(t, s, alive)
	for _, a := range alive {
		require.NoError(t, a.stdin.Close())
		require.NoError(t, a.cmd.Wait(), "a survivor failed")
	}
	judge(t, s, dead, alive)
	requireIntact(t, path)
}

// until asks a condition again and again, with a deadline.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !holds() {
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// waitRecovered waits until the dead own nothing that is open or owed.
func waitRecovered(t *testing.T, s *sqlstore.Store, dead []*actor) {
	until(t, "the tasks of the dead are recovered", func() bool {
		open, err := list(t, s, subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}})
		require.NoError(t, err)
		owed, err := list(t, s, subagent.Filter{Undelivered: true})
		require.NoError(t, err)
		return !slices.ContainsFunc(append(open, owed...), func(task subagent.Task) bool {
			return task.Owner == dead[0].owner || task.Owner == dead[1].owner
		})
	})
}

// stopRest cancels what still runs from a fifth process, as it were, and waits
// until all notices are delivered.
func stopRest(t *testing.T, s *sqlstore.Store, alive []*actor) {
	r, err := subagent.New(t.Context(), subagent.Config{Store: s})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Shutdown(context.Background())) }()
	until(t, "all tasks have ended and all notices are delivered", func() bool {
		_, err := r.CancelSession(t.Context(), crowded, subagent.CancelOptions{})
		require.NoError(t, err)
		open, err := list(t, s, subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}})
		require.NoError(t, err)
		owed, err := list(t, s, subagent.Filter{Undelivered: true})
		require.NoError(t, err)
		return len(open) == 0 && len(owed) == 0
	})
}

// judge looks at every task: what the diaries say of it and what is stored.
func judge(t *testing.T, s *sqlstore.Store, dead, alive []*actor) {
	tasks := make(map[uuid.UUID]subagent.Task)
	for task, err := range s.List(t.Context(), subagent.Filter{}) {
		require.NoError(t, err)
		tasks[task.ID] = task
	}
	entered, notices := make(map[uuid.UUID]int), make(map[uuid.UUID]int)
	noticesOfLiving := make(map[uuid.UUID]int)
	ofDead := make(map[uuid.UUID]bool)
	for _, a := range slices.Concat(dead, alive) {
		for _, e := range a.entries(t) {
			switch e.what {
			case "spawn":
				require.Contains(t, tasks, e.id, "it was spawned, and is lost")
			case "enter":
				entered[e.id]++
			case "notice":
				notices[e.id]++
				if slices.Contains(alive, a) {
					noticesOfLiving[e.id]++
				}
			}
			if e.what == "spawn" || e.what == "enter" {
				ofDead[e.id] = slices.Contains(dead, a)
			}
		}
	}
	living := []string{alive[0].owner, alive[1].owner}
	lost := 0
	for id, task := range tasks {
		require.True(t, task.Status.Terminal(), id)
		require.LessOrEqual(t, entered[id], 1, "executed twice")
		require.False(t, task.NotifiedAt.IsZero(), "its notice is owed")
		require.GreaterOrEqual(t, notices[id], 1, "nobody was told")
		require.LessOrEqual(t, noticesOfLiving[id], 1, "told twice")
		switch task.Reason {
		case "", subagent.ReasonUser, subagent.ReasonSession:
		case subagent.ReasonLost:
			lost++
			require.Contains(t, living, task.Owner, "who ended it owns it")
			require.Equal(t, 1, notices[id], "the notice of a lost task")
			// One that died before it wrote its diary is not known as anybody's.
			mine, known := ofDead[id]
			require.True(t, mine || !known, "a survivor's task was taken for lost")
		default:
			t.Errorf("task %s ended as %s/%s: %s", id, task.Status, task.Reason, task.Error)
		}
	}
	require.Positive(t, lost, "the dead left nothing behind: the test shows nothing")
	reportCancels(t, tasks, slices.Concat(dead, alive))
	t.Logf("%d tasks, %d of them lost", len(tasks), lost)
}

// reportCancels checks that many a task was cancelled by another process than
// its own, and how long it took until the Func saw it.
func reportCancels(t *testing.T, tasks map[uuid.UUID]subagent.Task, actors []*actor) {
	asked, stopped := make(map[uuid.UUID]time.Time), make(map[uuid.UUID]time.Time)
	foreign := make(map[uuid.UUID]bool)
	for _, a := range actors {
		for _, e := range a.entries(t) {
			switch e.what {
			case "cancel":
				if at, again := asked[e.id]; (!again || e.at.Before(at)) && tasks[e.id].CancelMessage == a.owner {
					asked[e.id], foreign[e.id] = e.at, tasks[e.id].Owner != a.owner
				}
			case "stopped":
				stopped[e.id] = e.at
			}
		}
	}
	var took []time.Duration
	for id := range maps.Keys(asked) {
		if at, ok := stopped[id]; ok && foreign[id] {
			took = append(took, at.Sub(asked[id]))
		}
	}
	require.NotEmpty(t, took, "no task was cancelled by another process")
	t.Logf("%d cancels by another process, seen after %v", len(took), median(took))
	require.Less(t, median(took), 250*time.Millisecond)
}
