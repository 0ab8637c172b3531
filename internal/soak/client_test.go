package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// pool is what the clients of a host know of: IDs of tasks, in the order in
// which they heard of them.
type pool struct {
	mu  sync.Mutex // guards all below; a leaf
	ids []uuid.UUID
	has map[uuid.UUID]bool
}

func (p *pool) add(id uuid.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.has[id] {
		p.has[id] = true
		p.ids = append(p.ids, id)
	}
}

func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ids)
}

// pick returns up to n tasks, mostly young ones.
func (p *pool) pick(random *rand.Rand, n int) (ids []uuid.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range min(n, len(p.ids)) {
		among := len(p.ids)
		if random.IntN(4) > 0 {
			among = min(among, 25)
		}
		ids = append(ids, p.ids[len(p.ids)-1-random.IntN(among)])
	}
	return ids
}

// session is one of the conversations that go on now. They are left behind
// when they have some fifty tasks.
func session(random *rand.Rand, tasks int) string {
	return fmt.Sprintf("chat-%d", max(0, tasks/50-random.IntN(3)))
}

// client is one of those who use a host's Runner.
type client struct {
	*host
	ctx    context.Context
	random *rand.Rand
}

// deeds are what clients do, as often as their number says.
var deeds = []struct {
	often int
	do    func(*client)
}{
	{12, (*client).spawnOne},
	{5, (*client).spawnKnown},
	{3, (*client).runOne},
	{4, (*client).waitForOne},
	{4, (*client).awaitSome},
	{3, (*client).get},
	{2, (*client).list},
	{5, (*client).stopOne},
	{1, (*client).stopSession},
	{6, (*client).useTool},
}

// live does one thing after the other until stop is closed.
func (c *client) live(stop <-chan struct{}) {
	total := 0
	for _, d := range deeds {
		total += d.often
	}
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(c.random.IntN(6)) * time.Millisecond): // the pace of the load
		}
		n := c.random.IntN(total)
		for _, d := range deeds {
			if n -= d.often; n < 0 {
				d.do(c)
				break
			}
		}
	}
}

// short is a ctx that ends soon.
func (c *client) short() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.ctx, time.Duration(1+c.random.IntN(200))*time.Millisecond)
}

// full reports whether there are as many tasks as the soak wants.
func (c *client) full() bool { return c.pool.size() >= c.o.Most }

func (c *client) session() string { return session(c.random, c.pool.size()) }

func (c *client) spawnOne() {
	if !c.full() {
		c.spawn(c.ctx, want(c.random, c.session()))
	}
}

// spawnKnown spawns with an ID that others use too, before and after a kill:
// the same ID asks for the same, but now and then for something else.
func (c *client) spawnKnown() {
	n := c.random.IntN(5 + c.pool.size()/8)
	random := rand.New(rand.NewPCG(c.o.Seed, uint64(n)))
	q := want(random, fmt.Sprintf("known-%d", n/50))
	q.ID = uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "%d/%d", c.o.Seed, n))
	q.NoWait = false
	if c.random.IntN(8) > 0 {
		if !c.full() {
			c.spawn(c.ctx, q)
		}
		return
	}
	if _, err := c.runner.Get(c.ctx, q.ID); err != nil {
		return
	}
	q.Description += " but otherwise"
	t, err := c.runner.Spawn(c.ctx, q)
	if t.ID != uuid.Nil || err == nil {
		c.j.fault(q.ID, "another content of a known ID was accepted: %v", err)
	}
	c.expect("spawn of another content", err, subagent.ErrTaskExists, subagent.ErrClosed)
}

func (c *client) runOne() {
	ctx, cancel := c.short()
	defer cancel()
	if !c.full() {
		c.host.run(ctx, want(c.random, c.session()))
	}
}

func (c *client) waitForOne() {
	ctx, cancel := c.short()
	defer cancel()
	for _, id := range c.pool.pick(c.random, 1) {
		c.wait(ctx, id)
	}
}

func (c *client) awaitSome() {
	ctx, cancel := c.short()
	defer cancel()
	mode := []subagent.AwaitMode{subagent.AwaitAll, subagent.AwaitAny}[c.random.IntN(2)]
	if ids := c.pool.pick(c.random, 1+c.random.IntN(4)); len(ids) > 0 {
		c.await(ctx, mode, ids)
	}
}

func (c *client) get() {
	for _, id := range c.pool.pick(c.random, 1) {
		was := c.calling("get", "", given(id), func() told {
			t, err := c.runner.Get(c.ctx, id)
			return told{tasks: some(t), err: err}
		})
		c.expect("get", was.err)
	}
}

func (c *client) list() {
	f := subagent.Filter{SessionID: c.session(), Limit: c.random.IntN(30), NewestFirst: c.random.IntN(2) == 0}
	switch c.random.IntN(4) {
	case 0:
		f.ExternalTaskID = fmt.Sprintf("call_%d", c.random.IntN(20))
	case 1:
		f.Statuses = []subagent.Status{subagent.StatusRunning, subagent.StatusQueued}
	case 2:
		f.Undelivered = true
	}
	c.listed(f)
}

func (c *client) listed(f subagent.Filter) []subagent.Task {
	was := c.calling("list", "", nil, func() told {
		tasks, err := c.runner.List(c.ctx, f)
		return told{tasks: tasks, err: err}
	})
	c.expect("list", was.err)
	for _, t := range was.tasks {
		if !f.Match(t) && !f.Undelivered { // a notice may be delivered while the list is made
			c.j.fault(t.ID, "listed with %+v, which it does not match: %s", f, brief(&t))
		}
	}
	return was.tasks
}

// stopOne stops something that runs, most often.
func (c *client) stopOne() {
	ids := c.pool.pick(c.random, 1)
	if c.random.IntN(3) > 0 {
		for _, t := range c.listed(subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}, Limit: 8}) {
			if c.random.IntN(3) == 0 {
				ids = []uuid.UUID{t.ID}
			}
		}
	}
	for _, id := range ids {
		was := c.calling("cancel", "", given(id), func() told {
			t, err := c.runner.Cancel(c.ctx, id, subagent.CancelOptions{Message: "enough"})
			return told{tasks: some(t), err: err}
		})
		c.expect("cancel", was.err)
	}
}

func (c *client) stopSession() {
	session := c.session()
	was := c.calling("cancel session", session, nil, func() told {
		tasks, err := c.runner.CancelSession(c.ctx, session, subagent.CancelOptions{})
		return told{tasks: tasks, err: err}
	})
	c.expect("cancel session", was.err)
}

func (c *client) useTool() {
	ids := c.pool.pick(c.random, 1+c.random.IntN(3))
	if len(ids) == 0 {
		return
	}
	t, err := c.runner.Get(c.ctx, ids[0])
	if err != nil {
		c.expect("get", err)
		return
	}
	session := t.ParentSessionID
	one := map[string]any{"task_id": ids[0], "timeout": c.random.IntN(150)}
	switch c.random.IntN(6) {
	case 0:
		if !c.full() {
			ctx, cancel := c.short()
			defer cancel()
			q := want(c.random, session)
			c.tool(ctx, "agent", c.session(), nil, map[string]any{"prompt": q.Description, "description": q.Subject, "run_in_background": c.random.IntN(2) == 0})
		}
	case 1:
		c.tool(c.ctx, "list_tasks", session, nil, map[string]any{"limit": 1 + c.random.IntN(50)})
	case 2:
		c.tool(c.ctx, "task_stop", session, ids[:1], map[string]any{"task_id": ids[0], "reason": "enough"})
	case 3:
		c.tool(c.ctx, "await_tasks", session, ids[:1], map[string]any{"task_ids": ids[:1], "mode": "any", "timeout": c.random.IntN(150)})
	case 4:
		one["block"] = false
		c.tool(c.ctx, "task_output", session, ids[:1], one)
	default:
		c.tool(c.ctx, "task_output", session, ids[:1], one)
	}
}
