package subagent_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// rig is a Runner all of whose surfaces are recorded.
type rig struct {
	*subagent.Runner
	*tape

	t     *testing.T
	ctx   context.Context
	gate  *subagenttest.Gate
	inner *subagent.MemoryStore
	store *subagenttest.FaultyStore // in front of inner
	left  bool                      // the test has shut it down itself
}

// tape records what a Runner tells. Its hooks come first: what they refuse is
// not recorded.
type tape struct {
	onCard   func(context.Context, subagent.Card) error
	onNotice func(context.Context, subagent.Task) error

	// mu guards what follows. No hook runs under it.
	mu      sync.Mutex
	cards   map[uuid.UUID][]subagent.Card
	notices map[uuid.UUID][]subagent.Task
	events  map[uuid.UUID][]subagent.Event
	order   []uuid.UUID // of the notices
}

func newTape() *tape {
	return &tape{cards: map[uuid.UUID][]subagent.Card{}, notices: map[uuid.UUID][]subagent.Task{}, events: map[uuid.UUID][]subagent.Event{}}
}

func (p *tape) PutCard(ctx context.Context, c subagent.Card) error {
	if p.onCard != nil {
		if err := p.onCard(ctx, c); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cards[c.TaskID] = append(p.cards[c.TaskID], c)
	return nil
}

func (p *tape) Notify(ctx context.Context, t subagent.Task) error {
	if p.onNotice != nil {
		if err := p.onNotice(ctx, t); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notices[t.ID] = append(p.notices[t.ID], t)
	p.order = append(p.order, t.ID)
	return nil
}

// listen records the events of s until it is over.
func (p *tape) listen(s *subagent.Subscription) {
	for {
		ev, err := s.Next(context.Background())
		if errors.Is(err, subagent.ErrClosed) {
			return
		}
		p.mu.Lock()
		p.events[ev.Task.ID] = append(p.events[ev.Task.ID], ev)
		p.mu.Unlock()
	}
}

// heard is everything that was told of a task.
func (p *tape) heard(id uuid.UUID) (cards []subagent.Card, events []subagent.Event, notices []subagent.Task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.cards[id]), slices.Clone(p.events[id]), slices.Clone(p.notices[id])
}

// delivered are the tasks whose notices were taken, in that order.
func (p *tape) delivered() []uuid.UUID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.order)
}

// inRig runs f in a bubble with a rig and audits it at the end. Func: the
// gate's; Workers: 1; Cards and Notifier: the tape.
func inRig(t *testing.T, cfg subagent.Config, f func(t *testing.T, r *rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) { newRig(t, cfg, newTape()).run(f) })
}

// newRig must be called in a bubble.
func newRig(t *testing.T, cfg subagent.Config, p *tape) *rig {
	t.Helper()
	inner := subagent.NewMemoryStore()
	return rigOn(t, cfg, p, inner, subagenttest.NewFaultyStore(inner))
}

// rigOn is a rig on a store that exists already.
func rigOn(t *testing.T, cfg subagent.Config, p *tape, inner *subagent.MemoryStore, store *subagenttest.FaultyStore) *rig {
	t.Helper()
	// A call that never returns is to fail the test: the bubble's time never
	// stands still, because leases are renewed.
	ctx, cancel := context.WithTimeout(t.Context(), 48*time.Hour)
	t.Cleanup(cancel)
	r := &rig{tape: p, t: t, ctx: ctx, gate: subagenttest.NewGate(), inner: inner, store: store}
	if cfg.Store == nil {
		cfg.Store = store.Store()
	}
	if cfg.Func == nil {
		cfg.Func = r.gate.Func()
	}
	if cfg.Workers == 0 {
		cfg.Workers = 1
	}
	if cfg.Cards == nil {
		cfg.Cards = p
	}
	if cfg.Notifier == nil {
		cfg.Notifier = p
	}
	var err error
	r.Runner, err = subagent.New(r.ctx, cfg)
	require.NoError(t, err)
	go p.listen(r.Subscribe(subagent.Filter{}))
	return r
}

func (r *rig) run(f func(t *testing.T, r *rig)) {
	defer func() { // also after a failure, so that the bubble can end
		r.gate.ReleaseAll()
		r.heal()
		_ = r.Shutdown(context.Background())
		time.Sleep(time.Hour) // the deafest call has returned then
	}()
	f(r.t, r)
	r.end()
}

func (r *rig) heal() {
	for _, op := range []subagenttest.Op{subagenttest.OpCreate, subagenttest.OpGet, subagenttest.OpUpdate, subagenttest.OpList,
		subagenttest.OpDelete, subagenttest.OpRenew, subagenttest.OpLive, subagenttest.OpRelease} {
		r.store.On(op, nil)
	}
}

// end shuts the rig down and audits what it has left.
func (r *rig) end() {
	r.t.Helper()
	r.gate.ReleaseAll()
	r.heal()
	err := r.Shutdown(context.Background())
	if !r.left {
		require.NoError(r.t, err)
	}
	synctest.Wait()
	r.nothingHeld()
	for row, err := range r.inner.List(context.Background(), subagent.Filter{}) {
		require.NoError(r.t, err)
		if row.Owner == r.ID() {
			r.audit(row)
		}
	}
}

func (r *rig) nothingHeld() {
	r.t.Helper()
	s := r.Stats()
	if r.left { // then some may stay unsaved
		s.Unsaved = 0
	}
	require.Zero(r.t, s.Capacity.Running+s.Capacity.Queued+s.Pending+s.Queued+s.Running+s.Lent+s.Detached+s.Unsaved, "%+v", s)
}

// audit checks that all that was told of a task is one way to one end.
func (r *rig) audit(row subagent.Task) {
	r.t.Helper()
	cards, events, notices := r.heard(row.ID)
	require.True(r.t, row.Status.Terminal(), "%+v", row)
	ends := 0
	for i, ev := range events {
		if ev.Task.Status.Terminal() {
			ends++
			require.Equal(r.t, essence(row), essence(ev.Task), "event")
			require.Equal(r.t, i, len(events)-1, "nothing comes after the end")
		}
	}
	require.LessOrEqual(r.t, ends, 1)
	before := -1
	for _, c := range cards {
		now := rank(subagent.Status(c.Attach.Status))
		require.LessOrEqual(r.t, before, now, "a card never goes back")
		before = now
	}
	if len(cards) > 0 {
		require.Equal(r.t, row.Card(), cards[len(cards)-1])
	}
	for _, n := range notices {
		require.Equal(r.t, essence(row), essence(n), "notice")
	}
}

// attempts are the calls of something that is broken until it is mended.
type attempts struct {
	mu     sync.Mutex // guards both below
	at     []time.Time
	mended bool
}

func (a *attempts) try() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = append(a.at, time.Now())
	if a.mended {
		return nil
	}
	return errBroken
}

func (a *attempts) mend() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mended = true
}

func (a *attempts) times() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.at)
}

// growing checks the pauses between attempts during ten minutes.
func (r *rig) growing(at []time.Time) {
	r.t.Helper()
	require.Greater(r.t, len(at), 15)
	require.Less(r.t, len(at), 40, "with growing pauses")
	for i := 1; i < len(at); i++ {
		require.LessOrEqual(r.t, at[i].Sub(at[i-1]), 31*time.Second, "and bounded ones")
	}
}

func rank(s subagent.Status) int {
	if s.Terminal() {
		return 3
	}
	return slices.Index([]subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}, s)
}

// essence is what of an ended task never changes.
func essence(t subagent.Task) subagent.Task {
	t.NotifiedAt, t.Version, t.Owner = time.Time{}, 0, ""
	return t
}

func (r *rig) spawn(prompt string, change ...func(*subagent.Request)) subagent.Task {
	r.t.Helper()
	task, err := r.Spawn(r.ctx, rigAsk(prompt, change...))
	require.NoError(r.t, err)
	return task
}

func rigAsk(prompt string, change ...func(*subagent.Request)) subagent.Request {
	q := subagent.Request{Description: prompt, ParentSessionID: "s"}
	for _, c := range change {
		c(&q)
	}
	return q
}

// runs spawns a task and returns when its Func was entered.
func (r *rig) runs(prompt string, change ...func(*subagent.Request)) (uuid.UUID, *subagent.Run) {
	r.t.Helper()
	task := r.spawn(prompt, change...)
	return task.ID, r.gate.WaitEntered(r.t, task.ID)
}

func (r *rig) deaf(q *subagent.Request) { q.Func = r.gate.DeafFunc() }

func (r *rig) row(id uuid.UUID) subagent.Task {
	r.t.Helper()
	row, err := r.inner.Get(context.Background(), id)
	require.NoError(r.t, err)
	return row
}

func (r *rig) awaited(id uuid.UUID) subagent.Task {
	r.t.Helper()
	end, err := r.Wait(r.ctx, id)
	require.NoError(r.t, err)
	require.True(r.t, end.Status.Terminal())
	return end
}

func (r *rig) stop(id uuid.UUID) subagent.Task {
	r.t.Helper()
	task, err := r.Cancel(r.ctx, id, subagent.CancelOptions{Reason: subagent.ReasonAgent, Message: "enough"})
	require.NoError(r.t, err)
	return task
}

// settled checks that every surface shows the end of a task as the store does,
// and returns it.
func (r *rig) settled(id uuid.UUID) subagent.Task {
	r.t.Helper()
	synctest.Wait()
	row := r.row(id)
	require.True(r.t, row.Status.Terminal())
	got, err := r.Get(r.ctx, id)
	require.NoError(r.t, err)
	require.Equal(r.t, row, got, "Get")
	list, err := r.List(r.ctx, subagent.Filter{Statuses: []subagent.Status{row.Status}})
	require.NoError(r.t, err)
	i := slices.IndexFunc(list, func(t subagent.Task) bool { return t.ID == id })
	require.GreaterOrEqual(r.t, i, 0, "List knows it by its status")
	require.Equal(r.t, row, list[i], "List")
	cards, events, _ := r.heard(id)
	require.NotEmpty(r.t, cards)
	require.NotEmpty(r.t, events)
	require.True(r.t, events[len(events)-1].Task.Status.Terminal())
	r.audit(row)
	return row
}
