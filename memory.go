package subagent

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent/internal/sorted"
)

// MemoryStore is a Store and a Leaser that lives and dies with its process. It
// keeps every live task and a bounded number of ended ones: see SetRetention.
// None of its methods blocks for longer than others take to read or replace a
// few records.
type MemoryStore struct {
	// mu guards all below. It is a leaf: nothing is locked and no foreign code
	// runs under it, which is why Update runs its edit, and List its loop
	// body, on snapshots.
	mu        sync.Mutex
	rows      map[uuid.UUID]*row
	all       *sorted.List[uuid.UUID, *row]
	sessions  *sorted.Index[string, uuid.UUID, *row]    // of each ParentSessionID
	children  *sorted.Index[uuid.UUID, uuid.UUID, *row] // of each ParentTaskID
	ended     int                                       // terminal rows, owed ones too
	spare     []*row                                    // removed ones, for reuse
	evictable *sorted.List[endKey, *row]                // terminal rows that owe no notice, oldest end first
	retention int                                       // how many terminal rows are kept; < 0: all
	leases    map[string]time.Time                      // owner to expiry, on the monotonic clock
	sweepAt   int                                       // how many leases make a sweep worth its while
}

var _ Leaser = (*MemoryStore)(nil)

// maxSpare is how many removed rows are kept for reuse.
const maxSpare = 1024

// row is the place of one task. The Task it points to is immutable from the
// moment it is put there: a change puts another in its place. That is what
// makes reading it safe after mu is let go.
type row struct {
	id   uuid.UUID // beside task: a search looks at many rows and at few tasks
	task *Task
	// status is tallyOf(task.Status), for the same reason: each look at a task
	// misses the processor's caches.
	status int8
}

const (
	defaultRetention = 10_000
	minLeaseSweep    = 16

	// One hold of the lock collects at most listBatch tasks out of at most
	// listScan, so that a listing that matches little keeps nobody waiting.
	listBatch = 256
	listScan  = 4096
)

// NewMemoryStore returns an empty store that keeps 10 000 ended tasks.
func NewMemoryStore() *MemoryStore {
	return &MemoryStore{
		rows:      make(map[uuid.UUID]*row),
		all:       sorted.New(rowID, compareIDs),
		sessions:  sorted.NewIndex[string](rowID, compareIDs),
		children:  sorted.NewIndex[uuid.UUID](rowID, compareIDs),
		evictable: sorted.New(rowEnd, endKey.compare),
		retention: defaultRetention,
		leases:    make(map[string]time.Time),
		sweepAt:   minLeaseSweep,
	}
}

// SetRetention bounds how many terminal tasks are kept and applies the bound
// at once: 0 keeps none, a negative number all. Beyond it the task whose end
// is oldest goes first. One whose notice is owed is counted but never goes.
func (m *MemoryStore) SetRetention(terminal int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.retention = terminal
	m.evictLocked()
}

// Create implements Store. It keeps no reference to the Metadata of tasks.
func (m *MemoryStore) Create(ctx context.Context, tasks ...Task) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	owned := make([]*Task, len(tasks))
	for i := range tasks {
		owned[i] = snapshot(&tasks[i])
		owned[i].Version = 1
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.vacantLocked(owned); err != nil {
		return err
	}
	for _, t := range owned {
		m.insertLocked(t)
	}
	m.evictLocked()
	return nil
}

// Get implements Store. The task's Metadata is the caller's own.
func (m *MemoryStore) Get(ctx context.Context, id uuid.UUID) (Task, error) {
	if err := ctx.Err(); err != nil {
		return Task{}, err
	}
	t, err := m.get(id)
	if err != nil {
		return Task{}, err
	}
	return t.copy(), nil
}

// Update implements Store. It holds no lock while edit runs and runs it again
// if the task was changed meanwhile; each such round means that somebody
// else's change was stored.
func (m *MemoryStore) Update(ctx context.Context, id uuid.UUID, edit func(*Task) error) (Task, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Task{}, err
		}
		old, err := m.get(id)
		if err != nil {
			return Task{}, err
		}
		t := snapshot(old)
		if err := edit(t); err != nil {
			return Task{}, err
		}
		switch changed, err := checkUpdate(old, t); {
		case err != nil:
			return Task{}, err
		case !changed:
			return old.copy(), nil
		}
		// edit may have kept t, or have put a map into it that is not ours.
		t = snapshot(t)
		t.Version = old.Version + 1
		if m.swap(old, t) {
			return t.copy(), nil
		}
	}
}

// List implements Store. It holds no lock while it yields: a task that is
// created, changed or deleted meanwhile may be seen as it was or as it is, and
// none is seen twice.
func (m *MemoryStore) List(ctx context.Context, f Filter) iter.Seq2[Task, error] {
	f.Statuses = slices.Clone(f.Statuses)
	return func(yield func(Task, error) bool) {
		f := f // each range over the sequence starts anew
		for more := true; more; {
			if err := ctx.Err(); err != nil {
				yield(Task{}, err)
				return
			}
			var batch []*Task
			batch, more = m.collect(&f)
			for _, t := range batch {
				if !yield(t.copy(), nil) {
					return
				}
			}
		}
	}
}

// Delete implements Store.
func (m *MemoryStore) Delete(ctx context.Context, ids ...uuid.UUID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if r := m.rows[id]; r != nil && !r.task.Status.Terminal() {
			return fmt.Errorf("%w: %s is %s", ErrNotTerminal, id, r.task.Status)
		}
	}
	for _, id := range ids {
		if r := m.rows[id]; r != nil {
			m.removeLocked(r)
		}
	}
	return nil
}

// create is Create for a Runner: t, with Version 1, belongs to the store from
// here on, and nobody writes to it again.
func (m *MemoryStore) create(t *Task) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rows[t.ID] != nil {
		return fmt.Errorf("%w: %s", ErrTaskExists, t.ID)
	}
	m.insertLocked(t)
	m.evictLocked()
	return nil
}

// get returns the stored task itself: it is read and never written.
func (m *MemoryStore) get(id uuid.UUID) (*Task, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.rows[id]; r != nil {
		return r.task, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
}

// change is Update for a Runner. d is our own code and quick, which is why it
// may be applied under the lock, and only once. The task that it returns is
// the stored one, whether or not d changed it: it is read and never written.
func (m *MemoryStore) change(id uuid.UUID, d *edit) (t *Task, changed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.rows[id]
	if r == nil {
		return nil, false, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	t = new(Task)
	*t = *r.task
	if !d.apply(t) {
		return r.task, false, nil
	}
	if err := checkChange(r.task, t); err != nil {
		return nil, false, err
	}
	t.Version = r.task.Version + 1
	m.replaceLocked(r, t)
	return t, true, nil
}

// swap puts t in the place of old and reports false if old is not what is
// stored any more.
func (m *MemoryStore) swap(old, t *Task) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A task is never put in twice, so the same pointer means that nothing
	// happened since old was read, not even a Delete and another Create.
	r := m.rows[old.ID]
	if r == nil || r.task != old {
		return false
	}
	m.replaceLocked(r, t)
	return true
}

// listed is List for a Runner: the stored tasks themselves, which are read and
// never written.
func (m *MemoryStore) listed(f Filter) (tasks []*Task) {
	for more := true; more; {
		var batch []*Task
		batch, more = m.collect(&f)
		tasks = append(tasks, batch...)
	}
	return tasks
}

// collect returns the next tasks of f and moves f's cursor and limit past
// them; more reports whether there may be others.
func (m *MemoryStore) collect(f *Filter) (batch []*Task, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	scanned, wanted := 0, uint(0)
	for _, s := range f.Statuses {
		wanted |= 1 << tallyOf(s)
	}
	for r := range m.scanLocked(f) {
		if scanned == listScan || len(batch) == listBatch {
			return batch, true
		}
		scanned++
		f.After = r.id
		if wanted != 0 && wanted>>r.status&1 == 0 || !f.match(r.task) {
			continue
		}
		batch = append(batch, r.task)
		if f.Limit--; f.Limit == 0 {
			return batch, false
		}
	}
	return batch, false
}

// scanLocked yields the rows behind f's cursor in f's order, from the shortest
// index that has all of f's tasks.
func (m *MemoryStore) scanLocked(f *Filter) iter.Seq[*row] {
	list := m.all
	if f.SessionID != "" {
		list = m.sessions.List(f.SessionID)
	}
	if f.ParentTaskID != uuid.Nil {
		if c := m.children.List(f.ParentTaskID); c == nil || list != nil && c.Len() < list.Len() {
			list = c
		}
	}
	var beyond func(uuid.UUID) bool
	if after := f.After; after != uuid.Nil {
		cursor := Filter{After: after, NewestFirst: f.NewestFirst} // f's own moves
		beyond = cursor.past
	}
	switch {
	case list == nil:
		return func(func(*row) bool) {}
	case f.NewestFirst:
		return list.Descend(beyond)
	}
	return list.Ascend(beyond)
}

// vacantLocked refuses tasks of which one is stored or given twice.
func (m *MemoryStore) vacantLocked(tasks []*Task) error {
	given := make(map[uuid.UUID]bool, len(tasks))
	for _, t := range tasks {
		if m.rows[t.ID] != nil || given[t.ID] {
			return fmt.Errorf("%w: %s", ErrTaskExists, t.ID)
		}
		given[t.ID] = true
	}
	return nil
}

func (m *MemoryStore) insertLocked(t *Task) {
	r := m.rowLocked()
	r.id, r.task, r.status = t.ID, t, tallyOf(t.Status)
	m.rows[t.ID] = r
	m.all.Insert(r)
	m.sessions.Insert(t.ParentSessionID, r)
	m.children.Insert(t.ParentTaskID, r)
	m.countLocked(r)
}

func (m *MemoryStore) removeLocked(r *row) {
	m.uncountLocked(r)
	delete(m.rows, r.id)
	m.all.Delete(r)
	m.sessions.Delete(r.task.ParentSessionID, r)
	m.children.Delete(r.task.ParentTaskID, r)
	if r.task = nil; len(m.spare) < maxSpare {
		m.spare = append(m.spare, r)
	}
}

// rowLocked is an empty row: one that was removed, if there is one.
func (m *MemoryStore) rowLocked() *row {
	n := len(m.spare)
	if n == 0 {
		return new(row)
	}
	r := m.spare[n-1]
	m.spare = m.spare[:n-1]
	return r
}

// replaceLocked gives r its next state. The indexes by ID and by session hold
// rows whose key no change may touch; the others have to follow.
func (m *MemoryStore) replaceLocked(r *row, t *Task) {
	m.uncountLocked(r)
	old := r.task
	r.task, r.status = t, tallyOf(t.Status)
	if old.ParentTaskID != t.ParentTaskID {
		m.children.Delete(old.ParentTaskID, r)
		m.children.Insert(t.ParentTaskID, r)
	}
	m.countLocked(r)
	m.evictLocked()
}

func (m *MemoryStore) countLocked(r *row) {
	if !r.task.Status.Terminal() {
		return
	}
	m.ended++
	if !r.task.owesNotice() {
		m.evictable.Insert(r)
	}
}

func (m *MemoryStore) uncountLocked(r *row) {
	if !r.task.Status.Terminal() {
		return
	}
	m.ended--
	if !r.task.owesNotice() {
		m.evictable.Delete(r)
	}
}

// evictLocked brings the store back within its retention.
func (m *MemoryStore) evictLocked() {
	for m.retention >= 0 && m.ended > m.retention {
		oldest, ok := m.evictable.First()
		if !ok {
			return
		}
		m.removeLocked(oldest)
	}
}

// snapshot copies t, Metadata included.
func snapshot(t *Task) *Task {
	c := t.copy()
	return &c
}

func rowID(r *row) uuid.UUID { return r.id }

// endKey is the key of the order in which rows are evicted.
type endKey struct {
	at time.Time
	id uuid.UUID
}

func rowEnd(r *row) endKey { return endKey{r.task.CompletedAt, r.id} }

func (a endKey) compare(b endKey) int { return cmp.Or(a.at.Compare(b.at), compareIDs(a.id, b.id)) }
