package gitstore

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// ErrLocked is what Open returns if another Store, of this process or of
// another, has the folder. The error says whose it is.
var ErrLocked = errors.New("gitstore: folder is in use")

const (
	defaultBranch     = "tasks"
	defaultGitTimeout = 30 * time.Second
	lockPatience      = 500 * time.Millisecond
	maxBursts         = 4 // git processes at a time: they compete with the host's work
)

// Open returns the store in dir, which is created if its parent exists. It
// looks at each session's folder once, reads the tasks.json of those that have
// changed since the index was written, and begins to bring up to date the
// histories that lag behind. It fails if the folder is in use (ErrLocked, after
// half a second), if git is missing or older than 2.30, or if a tasks.json cannot be read and not
// be repaired from its history either (ErrDamaged names it): that one is to be
// mended, or its session's folder moved away, by a person.
func Open(dir string, o Options) (*Store, error) { return open(dir, o, osFiles{}) }

func open(dir string, o Options, on files) (_ *Store, err error) {
	if dir == "" {
		return nil, errors.New("gitstore: a folder is needed")
	}
	if dir, err = filepath.Abs(dir); err != nil { // the host may go to another folder
		return nil, fmt.Errorf("gitstore: %w", err)
	}
	s := &Store{
		dir: dir, files: on, log: o.Logger,
		git:      git{program: o.Git, timeout: o.GitTimeout},
		closing:  make(chan struct{}),
		idle:     make(chan struct{}),
		bursts:   make(chan struct{}, maxBursts),
		batch:    make(chan struct{}, 1),
		sessions: make(map[string]*session),
		ids:      make(map[uuid.UUID]*session),
		cached:   list.New(),
		opening:  true,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if o.Branch == "" {
		o.Branch = defaultBranch
	}
	if s.git.timeout <= 0 {
		s.git.timeout = defaultGitTimeout
	}
	if err := s.git.check(o.Branch); err != nil {
		return nil, err
	}
	s.ref = "refs/heads/" + o.Branch
	if err := makeDir(on, filepath.Dir(dir), dir); err != nil {
		return nil, fmt.Errorf("gitstore: %w", err)
	}
	if s.lock, err = lockFolder(dir); err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		return nil, errors.Join(err, s.lock.Unlock())
	}
	return s, nil
}

// lockFolder makes dir this process's own until Unlock, or until the process
// ends, however it does.
func lockFolder(dir string) (*flock.Flock, error) {
	path := filepath.Join(dir, lockFile)
	lock := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o644))
	// A process that is killed in the moment in which it starts git leaves the
	// lock to that child, until it has become git.
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	locked, err := lock.TryLockContext(ctx, lockPatience/50)
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("gitstore: %s cannot be locked: %w", dir, err)
	}
	if !locked {
		holder, err := os.ReadFile(path)
		if err != nil || len(holder) == 0 {
			holder = []byte("a process that has not said its name")
		}
		return nil, errors.Join(fmt.Errorf("%w: %s is held by %s", ErrLocked, dir, holder), lock.Close())
	}
	host, _ := os.Hostname()
	program, _ := os.Executable()
	holder := fmt.Sprintf("process %d (%s) on %s since %s", os.Getpid(), filepath.Base(program), host, time.Now().UTC().Format(time.RFC3339))
	if err := os.WriteFile(path, []byte(holder), 0o644); err != nil {
		return nil, errors.Join(fmt.Errorf("gitstore: %w", err), lock.Unlock())
	}
	return lock, nil
}

// Close ends the store: calls under way are finished, others are ErrClosed.
// The histories are brought up to date, and the index is saved. It blocks until
// no goroutine and no git process of the store is left: for as long as git
// takes, and with a git that hangs about three GitTimeouts for every four sessions behind. The error says
// which histories lag; nothing is lost by that, the next Open brings them up to
// date. A second Close does nothing.
func (s *Store) Close() error {
	if !s.shut() {
		return nil
	}
	close(s.closing)
	<-s.idle // calls start writers, which start historians
	s.writers.Wait()
	s.historians.Wait()
	return errors.Join(s.behind(), s.saveIndex(), s.lock.Unlock())
}

// closedBit is more than there can be calls.
const closedBit = 1 << 32

// shut makes every later begin fail. It reports false if that was so already.
func (s *Store) shut() bool {
	for {
		n := s.calls.Load()
		if n >= closedBit {
			return false
		}
		if s.calls.CompareAndSwap(n, n+closedBit) {
			if n == 0 {
				s.idleOnce.Do(func() { close(s.idle) })
			}
			return true
		}
	}
}

// begin is the start of a call that touches the disk; end is to follow.
func (s *Store) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.calls.Add(1) >= closedBit {
		s.end()
		return subagent.ErrClosed
	}
	return nil
}

func (s *Store) end() {
	if s.calls.Add(-1) == closedBit { // the last, or a begin that was refused after it
		s.idleOnce.Do(func() { close(s.idle) })
	}
}
