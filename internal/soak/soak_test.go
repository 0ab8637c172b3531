package soak

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-subagent/subagent"
)

// plan is the soak of one store.
type plan struct {
	name  string
	store string
	hosts int // that share it
}

// TestSoak lets random clients use each store in turn, and kills the process of
// the Runner meanwhile.
func TestSoak(t *testing.T) {
	n, length := seed(t), soakTime(t)
	fmt.Printf("soak of %v, SUBAGENT_TEST_SEED=%d\n", length, n)
	plans := []plan{
		{"MemoryStore, in this process", inMemory, 1},
		{"gitstore", inGit, 1},
		{"sqlstore", inSQL, 1},
		{"sqlstore, two processes", inSQL, 2},
	}
	var pages []string
	for i, p := range plans {
		t.Run(p.name, func(t *testing.T) {
			s := newSoak(t, p, n+uint64(i))
			err := s.run(length / time.Duration(len(plans)))
			pages = append(pages, s.page())
			if faults := s.m.print(); faults != "" {
				t.Errorf("%s\nthe whole journal is in %s", faults, s.keep())
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	fmt.Print("\nWhat the soak has seen\n\n", strings.Join(pages, "\n"))
}

// soak is one store and the hosts that use it.
type soak struct {
	plan
	dir    string
	seed   uint64
	j      *journal
	m      *model
	memory *subagent.MemoryStore
	lives  atomic.Int64
	most   int
	took   time.Duration
}

func newSoak(t *testing.T, p plan, seed uint64) *soak {
	s := &soak{plan: p, dir: t.TempDir(), seed: seed}
	var err error
	if s.j, err = openJournal(journalOf(s.dir), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.j.file.Close() })
	if s.m, err = newModel(s.dir, p.hosts > 1); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.m.reader.file.Close() })
	if p.store == inMemory {
		s.memory = subagent.NewMemoryStore()
	}
	return s
}

// keep copies the journal to where it stays.
func (s *soak) keep() string {
	to, err := os.CreateTemp("", fmt.Sprintf("subagent-soak-%d-*.journal", s.seed))
	if err != nil {
		return err.Error()
	}
	defer to.Close()
	if _, err := io.Copy(to, io.NewSectionReader(s.j.file, 0, s.j.now())); err != nil {
		return err.Error()
	}
	return to.Name()
}

// run lets the hosts live for a while, and brings them to rest.
func (s *soak) run(length time.Duration) error {
	began := time.Now()
	defer func() { s.took = time.Since(began) }()
	s.most = 300 + int(length.Seconds()*100)
	seats := make([]*seat, s.hosts)
	errs := make([]error, len(seats))
	var living sync.WaitGroup
	for i := range seats {
		random := rand.New(rand.NewPCG(s.seed, uint64(i+1)))
		seats[i] = &seat{soak: s, random: random, viewer: newViewer(s.m, s.j, s.most)}
		living.Go(func() { errs[i] = seats[i].live(began.Add(length)) }) // run's: ends with the time, or with a fault
	}
	living.Wait()
	err := errors.Join(errs...)
	if well, rerr := s.m.catchUp(); err == nil && rerr == nil && well {
		err = s.rest(seats)
	} else {
		err = errors.Join(err, rerr)
	}
	for _, at := range seats {
		at.away()
	}
	return err
}

// rest stops all clients, then all tasks, and checks what is left.
func (s *soak) rest(seats []*seat) error {
	for _, at := range seats {
		at.idle()
	}
	for _, command := range []string{"quiet", "calm", "rest"} {
		for _, at := range seats {
			if err := at.host.ask(command); err != nil {
				return fmt.Errorf("%s: %w", command, err)
			}
		}
	}
	if well, err := s.m.catchUp(); err != nil || !well {
		return err
	}
	for _, at := range seats {
		if err := at.line.settle(); err != nil {
			return err
		}
	}
	for _, at := range seats {
		if err := at.quit(); err != nil {
			return fmt.Errorf("host %d: %w", at.number, err)
		}
	}
	_, err := s.m.catchUp()
	s.m.finish()
	return err
}

// seat is where one host lives after the other.
type seat struct {
	*soak
	random *rand.Rand
	viewer *viewer
	dead   []string // Runners that were killed
	number int      // of the host's life
	host   peer     // nil: none
	line   *line
	stop   chan struct{}
	plays  sync.WaitGroup
}

// live starts hosts and ends them until it is time to rest. Then one is left.
func (at *seat) live(until time.Time) error {
	for {
		if err := at.up(); err != nil {
			return err
		}
		well, err := at.watch(until, time.Duration(300+at.random.IntN(1500))*time.Millisecond)
		if err != nil || !well || time.Now().After(until) {
			return err
		}
		end := at.quit
		if at.memory == nil && at.random.IntN(4) > 0 {
			end = at.kill
		}
		if err := end(); err != nil {
			return fmt.Errorf("host %d: %w", at.number, err)
		}
	}
}

// watch lets the model follow the journal for a while. It ends early, and
// reports false, with a fault.
func (at *seat) watch(end time.Time, span time.Duration) (bool, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	over := time.NewTimer(span)
	defer over.Stop()
	for {
		select {
		case <-over.C:
			return true, nil
		case <-tick.C:
			if well, err := at.m.catchUp(); !well || err != nil {
				return false, err
			}
			if time.Now().After(end.Add(time.Second)) {
				return true, nil
			}
		}
	}
}

// up starts a host and becomes its client.
func (at *seat) up() error {
	at.number = int(at.lives.Add(1))
	o := hostOptions{
		Store: at.store, Dir: at.dir, Life: at.number, Seed: at.random.Uint64(), Clients: 6, Most: at.most, Dead: at.dead,
	}
	var err error
	if at.memory != nil {
		at.host, err = inside(o, at.memory)
	} else {
		at.host, err = start(o)
	}
	if err != nil {
		return fmt.Errorf("host %d: %w", at.number, err)
	}
	if at.line, err = at.viewer.dial(at.host.id()); err != nil {
		return err
	}
	at.stop = make(chan struct{})
	random := rand.New(rand.NewPCG(o.Seed, 0))
	at.plays.Go(func() { at.line.play(random, at.stop) }) // the seat's: ends with stop or the line; idle waits for it
	return nil
}

// idle stops the WebSocket client's doing; it listens on.
func (at *seat) idle() {
	if at.stop != nil {
		close(at.stop)
		at.stop = nil
	}
	at.plays.Wait()
}

// kill ends the host's process as kill -9 does.
func (at *seat) kill() error {
	runner, _ := at.host.id()
	at.dead = append(at.dead, runner)
	err := at.host.kill()
	at.host = nil
	at.j.note(fact{Says: saysKilled, Call: int64(at.number)})
	at.away()
	return err
}

// quit ends the host in order.
func (at *seat) quit() error {
	err := at.host.ask("quit")
	if err == nil {
		err = at.host.over()
		at.host = nil
	}
	at.away()
	return err
}

// away ends what is left of a host and of the connection with it.
func (at *seat) away() {
	if at.host != nil {
		_ = at.host.kill() // what is wrong with it was said before
		at.host = nil
	}
	if at.line != nil {
		at.line.hangUp()
		at.idle()
		at.line = nil
	}
}

// peer is a host as the test sees it.
type peer interface {
	id() (runner, url string)
	ask(command string) error
	kill() error // as kill -9 does
	over() error // after it was asked to quit
}

// process is a host in a process of its own.
type process struct {
	cmd         *exec.Cmd
	end         io.Closer // of its input: with it the host ends
	runner, url string
	in          *bufio.Writer
	lines       chan string // what it says; closed when it has ended
}

func start(o hostOptions) (peer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self), lines: make(chan string, 16)}
	p.cmd.Env = append(os.Environ(), hostVariable+"="+encode(o), "GORACE=halt_on_error=1")
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.end = bufio.NewWriter(in), in
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // the process's: ends with its output; kill waits for it
		defer close(p.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	hello, err := p.line()
	if err != nil {
		return nil, errors.Join(err, p.kill())
	}
	p.runner, p.url, _ = strings.Cut(hello, " ")
	return p, nil
}

// line is the next line that the process says.
func (p *process) line() (string, error) {
	late := time.NewTimer(2 * patience)
	defer late.Stop()
	select {
	case s, ok := <-p.lines:
		if !ok {
			return "", errors.New("it has ended")
		}
		return s, nil
	case <-late.C:
		return "", errors.New("it does not answer")
	}
}

func (p *process) id() (runner, url string) { return p.runner, p.url }

func (p *process) ask(command string) error {
	if _, err := p.in.WriteString(command + "\n"); err != nil {
		return err
	}
	if err := p.in.Flush(); err != nil {
		return err
	}
	s, err := p.line()
	if err == nil && s != "" {
		err = json.Unmarshal([]byte(s), &s)
		err = errors.Join(errors.New(s), err)
	}
	return err
}

// kill ends it as kill -9 does. It is an error if it had ended by itself, as
// with a panic or a data race.
func (p *process) kill() error {
	_ = p.cmd.Process.Kill()
	for range p.lines {
	}
	_ = p.cmd.Wait()
	if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signal() == syscall.SIGKILL {
		return nil
	}
	return fmt.Errorf("it had ended by itself: %v", p.cmd.ProcessState)
}

// over waits until it has ended in order.
func (p *process) over() error {
	_ = p.end.Close()
	late := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	for range p.lines {
	}
	return p.cmd.Wait()
}

// inmate is a host in the test's own process.
type inmate struct {
	*host
	gone bool
}

func inside(o hostOptions, memory *subagent.MemoryStore) (peer, error) {
	h, err := newHost(o, memory)
	return &inmate{host: h}, err
}

func (i *inmate) id() (runner, url string) { return i.runner.ID(), i.url }

func (i *inmate) ask(command string) error {
	i.gone = i.gone || command == "quit"
	return commands[command](i.host)
}

// kill only ends what has not ended: there is no process to kill.
func (i *inmate) kill() error {
	if i.gone {
		return nil
	}
	return i.ask("quit")
}

func (i *inmate) over() error { return nil }
