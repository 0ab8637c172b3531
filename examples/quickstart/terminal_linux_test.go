package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// terminal is a program on a pseudo-terminal and what its screen shows.
type terminal struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd
	gone   chan struct{} // closed when the program has closed the terminal

	mu   sync.Mutex // guards what follows
	emu  *emulator
	news chan struct{} // closed and replaced when the screen changes
}

// open starts the program on a terminal of its own.
func open(t *testing.T, columns, rows int, env []string, args ...string) *terminal {
	t.Helper()
	master, slave := pty(t, columns, rows)
	cmd := exec.CommandContext(t.Context(), program(t), args...)
	cmd.Env = append(append(os.Environ(), "TERM=xterm", "NO_COLOR="), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // so that Ctrl-C reaches it
	require.NoError(t, cmd.Start())
	require.NoError(t, slave.Close())

	term := &terminal{
		t: t, master: master, cmd: cmd, gone: make(chan struct{}),
		emu: newEmulator(columns, rows), news: make(chan struct{}),
	}
	go term.read()
	t.Cleanup(term.close)
	return term
}

// pty returns both ends of a new pseudo-terminal.
func pty(t *testing.T, columns, rows int) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	var number, unlocked int32
	ioctl(t, master, syscall.TIOCGPTN, unsafe.Pointer(&number))
	ioctl(t, master, syscall.TIOCSPTLCK, unsafe.Pointer(&unlocked))
	size := [4]uint16{uint16(rows), uint16(columns)}
	ioctl(t, master, syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	return master, slave
}

// ioctl leaves f in the poller's hands, which f.Fd would not: closing it must
// wake its reader.
func ioctl(t *testing.T, f *os.File, request uintptr, arg unsafe.Pointer) {
	t.Helper()
	conn, err := f.SyscallConn()
	require.NoError(t, err)
	var errno syscall.Errno
	require.NoError(t, conn.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg))
	}))
	require.Zero(t, errno)
}

func (term *terminal) read() {
	defer close(term.gone)
	buf := make([]byte, 4096)
	for {
		n, err := term.master.Read(buf)
		term.mu.Lock()
		_, _ = term.emu.Write(buf[:n])
		close(term.news)
		term.news = make(chan struct{})
		term.mu.Unlock()
		if err != nil { // EIO: the last one to have it open has closed it
			return
		}
	}
}

func (term *terminal) close() {
	_ = term.cmd.Process.Kill()
	_ = term.cmd.Wait()
	_ = term.master.Close()
	<-term.gone
}

// see waits until the screen shows all of texts at once, whatever the clocks say.
func (term *terminal) see(texts ...string) {
	term.t.Helper()
	deadline := time.After(patience)
	for range 100_000 {
		term.mu.Lock()
		screen, news := timeless(term.emu.screen()), term.news
		term.mu.Unlock()
		if containsAll(screen, texts) {
			return
		}
		select {
		case <-news:
		case <-deadline:
			require.FailNow(term.t, fmt.Sprintf("never seen together: %q", texts), screen)
		}
	}
}

func containsAll(s string, texts []string) bool {
	for _, text := range texts {
		if !strings.Contains(s, text) {
			return false
		}
	}
	return true
}

func (term *terminal) press(key byte) {
	term.t.Helper()
	_, err := term.master.Write([]byte{key})
	require.NoError(term.t, err)
}

const (
	ctrlC = 3
	ctrlZ = 26
)

// exit waits for the program's end and returns its code, and the emulator for
// the test alone.
func (term *terminal) exit() (int, *emulator) {
	term.t.Helper()
	select {
	case <-term.gone:
	case <-time.After(patience):
		require.FailNow(term.t, "the program does not end", term.emu.screen())
	}
	err := term.cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		require.NoError(term.t, err)
	}
	return term.cmd.ProcessState.ExitCode(), term.emu
}

func (term *terminal) cursorHidden() bool {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.emu.hidden
}

func TestTerminalShowsALiveTable(t *testing.T) {
	root := tree(t, map[string]string{
		"a/a.go": loudFile, "c/c.go": goodFile, "d/d.go": goodFile, "e/e.go": "package e\n\nfunc {",
	})
	a, b := pipe(t, root, "a/z.go"), pipe(t, root, "b/b.go")
	term := open(t, 100, 30, nil, "-workers", "2", root)
	heldA, heldB := reached(t, a), reached(t, b)

	term.see("5 folders under "+root[:20], "2 at a time",
		"running    a    0.0s  2/2 z.go", "running    b    0.0s  1/1 b.go",
		"· queued     c          next in line", "· queued     d          #2 in line",
		"· queued     e          #3 in line", "  0/5  0.0s")
	assert.True(t, term.cursorHidden())

	feed(t, heldA)
	term.see("✓ completed  a    0.0s  2 files, 12 lines, 1 without doc, 1 TODO", "running    b",
		"✓ completed  c    0.0s  1 file, 6 lines", "✓ completed  d    0.0s  1 file, 6 lines",
		"✗ errored    e    0.0s  e.go:3:6: expected", "  4/5  ", strings.Repeat("━", 24)+strings.Repeat("─", 6))
	feed(t, heldB)

	code, emu := term.exit()
	assert.Equal(t, exitErrored, code)
	assert.Empty(t, emu.faults)
	assert.False(t, emu.hidden, "the cursor is back")
	assert.True(t, emu.coloured)
	all := emu.all()
	assert.Equal(t, 1, strings.Count(all, "5 folders under "), "the frames were drawn over each other:\n%s", all)
	assert.Equal(t, 1, strings.Count(all, "✓ completed  b "), "the final table stays")
	assert.NotContains(t, all, "running")
	assert.NotContains(t, all, "4/5")
	assert.Contains(t, all, ": 4 completed, 1 errored\n  packages     5\n")
	assert.Contains(t, all, "  TODO         a.go:5  be quiet\n")
}

func TestTerminalCtrlCStopsTheSession(t *testing.T) {
	root := tree(t, map[string]string{"a/a.go": loudFile, "a/c.go": goodFile, "b/b.go": goodFile})
	path := pipe(t, root, "a/b.go")
	term := open(t, 100, 30, nil, "-workers", "1", root)
	held := reached(t, path)
	term.see("running    a", "2/3 b.go", "next in line")
	term.press(ctrlC)
	term.see("stopping   a", "■ cancelled  b", "never started", "stopping; Ctrl-C again quits")
	feed(t, held)

	code, emu := term.exit()
	assert.Equal(t, exitInterrupted, code)
	assert.Empty(t, emu.faults)
	assert.False(t, emu.hidden)
	assert.Contains(t, timeless(emu.all()), "■ cancelled  a    0.0s  at 2/3 b.go")
	assert.Contains(t, emu.all(), ": 2 cancelled\n")
	assert.Contains(t, emu.all(), "a  cancelled, session\n  read         2 files, 12 lines, 1 without doc, 1 TODO\n")
	assert.NotContains(t, emu.all(), "stopping")
	assert.NotContains(t, emu.all(), "^C", "the echo of the key is drawn over")
}

func TestTerminalSecondCtrlCQuitsAtOnce(t *testing.T) {
	root := tree(t, map[string]string{"b/b.go": goodFile})
	path := pipe(t, root, "a/b.go")
	term := open(t, 100, 30, nil, "-workers", "1", root)
	held := reached(t, path)
	defer func() { require.NoError(t, held.Close()) }()
	term.see("running    a")
	term.press(ctrlC)
	term.see("stopping   a")
	term.press(ctrlC)

	code, emu := term.exit()
	assert.Equal(t, exitInterrupted, code)
	assert.False(t, emu.hidden)
}

func TestTerminalCtrlZGivesTheTerminalBack(t *testing.T) {
	root := tree(t, map[string]string{"b/b.go": goodFile})
	path := pipe(t, root, "a/a.go")
	term := open(t, 100, 30, nil, "-workers", "1", root)
	held := reached(t, path)
	term.see("running    a")
	term.press(ctrlZ)
	stopped := make(chan bool, 1)
	go func() {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(term.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		stopped <- err == nil && status.Stopped()
	}()
	select {
	case ok := <-stopped:
		require.True(t, ok)
	case <-time.After(patience):
		require.FailNow(t, "the program does not stop")
	}
	require.NoError(t, term.cmd.Process.Signal(syscall.SIGCONT))
	feed(t, held)

	code, emu := term.exit()
	assert.Equal(t, exitDone, code)
	assert.Empty(t, emu.faults)
	assert.False(t, emu.hidden)
	assert.Equal(t, 2, emu.shown, "for the pause and at the end")
	assert.Equal(t, 2, strings.Count(emu.all(), "2 folders under"), "the table of before stays where it was")
	assert.Contains(t, emu.all(), "✓ completed  a")
}

func TestTerminalThatIsTooSmallForAll(t *testing.T) {
	files := map[string]string{}
	for i := range 30 {
		files[fmt.Sprintf("c/日本語の長い名前/とても/f%02d/x.go", i)] = goodFile
	}
	root := tree(t, files)
	a, b := pipe(t, root, "a/z.go"), pipe(t, root, "b/b.go")
	term := open(t, 50, 12, nil, "-workers", "2", root)
	heldA, heldB := reached(t, a), reached(t, b)
	// Title, gap, six tasks, the rest, gap, bar, and the cursor's row.
	term.see("running    a", "running    b", "next in", "#4 in", "… 26 more: 26 queued", "0/32")
	feed(t, heldA)
	term.see("running    b", "… 26 more: 26 completed", "31/32")
	feed(t, heldB)

	code, emu := term.exit()
	assert.Equal(t, exitDone, code)
	assert.Empty(t, emu.faults)
	assert.Equal(t, 32, strings.Count(emu.all(), "✓ completed"), "the whole table is left at the end")
	assert.Equal(t, 1, strings.Count(emu.all(), "32 folders under"))
	assert.NotContains(t, emu.all(), "more:")
}

func TestTerminalThatGrows(t *testing.T) {
	root := tree(t, map[string]string{"b/b.go": goodFile, "c/c.go": goodFile, "d/d.go": goodFile})
	path := pipe(t, root, "a/a.go")
	term := open(t, 60, 8, nil, "-workers", "1", root)
	held := reached(t, path)
	term.see("running    a", "… 2 more: 2 queued")
	size := [4]uint16{24, 60}
	term.mu.Lock() // no frame of the new size is read before the screen has it
	ioctl(t, term.master, syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	for term.emu.rows < 24 {
		term.emu.grid = append(term.emu.grid, make([]rune, 60))
		term.emu.rows++
	}
	term.mu.Unlock()
	term.see("running    a", "next in line", "#2 in line", "#3 in line")
	feed(t, held)
	code, emu := term.exit()
	assert.Equal(t, exitDone, code)
	assert.Empty(t, emu.faults)
	assert.Equal(t, 1, strings.Count(emu.all(), "4 folders under"))
}

func TestTerminalWithoutColour(t *testing.T) {
	term := open(t, 80, 24, []string{"NO_COLOR=1"}, tree(t, map[string]string{"a/a.go": goodFile}))
	code, emu := term.exit()
	assert.Equal(t, exitDone, code)
	assert.Empty(t, emu.faults)
	assert.False(t, emu.coloured)
	assert.Contains(t, emu.all(), "✓ completed  a ")
}

func TestDumbTerminalGetsPlainLines(t *testing.T) {
	term := open(t, 80, 24, []string{"TERM=dumb"}, tree(t, map[string]string{"a/a.go": goodFile}))
	code, emu := term.exit()
	assert.Equal(t, exitDone, code)
	assert.False(t, emu.coloured)
	assert.Contains(t, emu.all(), "started    a\ncompleted  a  ")
}
