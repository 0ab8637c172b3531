package bench_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"maragu.dev/goqite"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// flight is how many tasks are under way at once, and how many may run.
const flight = 64

// BenchmarkInFlight is the whole life of one task whose Func does nothing, from
// its spawn to its durable end, with 64 under way. River's is a job whose Work
// does nothing, from its insert to the event of its completion, on the same
// driver with the same durability and with its shortest pauses. goqite's is a
// message that is sent, received and deleted, in the caller's own goroutine: it
// keeps no state beside that, and no end.
func BenchmarkInFlight(b *testing.B) {
	b.Run("of=runner", func(b *testing.B) { inFlight(b, newRunner(b)) })
	b.Run("of=river", func(b *testing.B) { inFlight(b, newRiver(b)) })
	b.Run("of=goqite", func(b *testing.B) { inFlight(b, newGoqite(b)) })
}

func inFlight(b *testing.B, live func(context.Context) error) {
	b.ResetTimer()
	start := time.Now()
	var all sync.WaitGroup
	for i := range flight {
		all.Go(func() {
			for range (b.N + i) / flight {
				if err := live(context.Background()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "tasks/s")
}

func newRunner(b *testing.B) func(context.Context) error {
	s, err := sqlstore.OpenSQLite(filepath.Join(b.TempDir(), "tasks.db"), sqlstore.Options{})
	require.NoError(b, err)
	r, err := subagent.New(b.Context(), subagent.Config{
		Store: s, Workers: flight, MaxQueued: -1,
		Func: func(context.Context, *subagent.Run) (subagent.Result, error) { return subagent.Result{}, nil },
	})
	require.NoError(b, err)
	b.Cleanup(func() {
		require.NoError(b, r.Shutdown(context.Background()))
		require.NoError(b, s.Close())
	})
	return func(ctx context.Context) error {
		t, err := r.Run(ctx, subagent.Request{Description: "description", ParentSessionID: "session"})
		if err != nil {
			return err
		}
		return t.Err()
	}
}

type args struct {
	Description string `json:"description"`
}

func (args) Kind() string { return "nothing" }

type worker struct{ river.WorkerDefaults[args] }

func (worker) Work(context.Context, *river.Job[args]) error { return nil }

// openDB opens a database as durable as the store's, on one connection, as both
// peers advise. The caller closes it.
func openDB(b *testing.B) *sql.DB {
	db, err := sql.Open("sqlite3", filepath.Join(b.TempDir(), "peer.db"))
	require.NoError(b, err)
	db.SetMaxOpenConns(1)
	for _, pragma := range []string{"journal_mode = WAL", "synchronous = FULL", "busy_timeout = 10000"} {
		_, err := db.Exec("PRAGMA " + pragma)
		require.NoError(b, err)
	}
	return db
}

func newGoqite(b *testing.B) func(context.Context) error {
	db := openDB(b)
	b.Cleanup(func() { require.NoError(b, db.Close()) })
	// Its schema is a file beside its source.
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "maragu.dev/goqite").Output()
	require.NoError(b, err)
	schema, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "schema_sqlite.sql"))
	require.NoError(b, err)
	_, err = db.Exec(string(schema))
	require.NoError(b, err)
	// A message that is received counts as handled for a minute.
	queue := goqite.New(goqite.NewOpts{DB: db, Name: "nothing", Timeout: time.Minute})
	return func(ctx context.Context) error {
		if err := queue.Send(ctx, goqite.Message{Body: []byte(`{"description":"description"}`)}); err != nil {
			return err
		}
		m, err := queue.Receive(ctx)
		if err != nil {
			return err
		}
		if m == nil { // each has sent one before
			return errors.New("no message")
		}
		return queue.Delete(ctx, m.ID)
	}
}

func newRiver(b *testing.B) func(context.Context) error {
	db := openDB(b)
	driver := riversqlite.New(db)
	migrator, err := rivermigrate.New(driver, nil)
	require.NoError(b, err)
	_, err = migrator.Migrate(b.Context(), rivermigrate.DirectionUp, nil)
	require.NoError(b, err)
	workers := river.NewWorkers()
	river.AddWorker(workers, worker{})
	client, err := river.NewClient(driver, &river.Config{
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: flight}},
		Workers:       workers,
		FetchCooldown: river.FetchCooldownMin, FetchPollInterval: river.FetchPollIntervalMin,
	})
	require.NoError(b, err)
	events, unsubscribe := client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: 10_000, Kinds: []river.EventKind{river.EventKindJobCompleted},
	})
	require.NoError(b, client.Start(context.Background()))
	var (
		mu    sync.Mutex // guards ended, which both sides of an end may make
		ended = make(map[int64]chan struct{})
	)
	end := func(id int64) chan struct{} {
		mu.Lock()
		defer mu.Unlock()
		if ended[id] == nil {
			ended[id] = make(chan struct{})
		}
		return ended[id]
	}
	var told sync.WaitGroup
	told.Go(func() { // ends when events is closed
		for e := range events {
			close(end(e.Job.ID))
		}
	})
	b.Cleanup(func() {
		require.NoError(b, client.Stop(context.Background()))
		unsubscribe()
		told.Wait()
		require.NoError(b, db.Close())
	})
	return func(ctx context.Context) error {
		res, err := client.Insert(ctx, args{Description: "description"}, nil)
		if err != nil {
			return err
		}
		<-end(res.Job.ID)
		return nil
	}
}
