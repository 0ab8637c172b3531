package gitstore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tip is what the branch says.
type tip struct {
	exists bool
	commit []byte // its newest commit, if it was looked at
	tasks  []byte // tasks.json there
}

// isOf reports whether the newest commit is that of e.
func (t *tip) isOf(e *entry) bool {
	end := fmt.Sprintf(" %d +0000\n\n%s", e.at.Unix(), e.message())
	return bytes.HasSuffix(t.commit, []byte(end)) && e.state != nil && e.state.is(t.tasks)
}

// message is what the commit of e says.
func (e *entry) message() string {
	if e.reconcile {
		return reconcileSubject + "\n"
	}
	return e.subject + "\n"
}

// branch makes the repository ready for a burst and looks at the branch, unless
// the last burst has left it well known.
func (s *Store) branch(se *session) (tip, error) {
	folder := s.path(se)
	there := hasRepository(folder)
	if se.history.known && there {
		return tip{exists: true}, nil
	}
	if !there {
		if err := s.git.initRepository(folder, s.ref); err != nil {
			return tip{}, err
		}
	}
	if err := errors.Join(excludeOurs(folder), s.tidy(folder)); err != nil {
		return tip{}, err
	}
	t, err := s.tipOf(folder)
	if err != nil {
		return tip{}, err
	}
	return t, s.checkBranch(se, &t)
}

// checkBranch says so if the branch is not ours to write.
func (s *Store) checkBranch(se *session, t *tip) error {
	folder := s.path(se)
	trees, err := s.git.run(context.Background(), folder, nil, "worktree", "list", "--porcelain")
	if err != nil {
		return err
	}
	if slices.Contains(strings.Split(string(trees), "\n"), "branch "+s.ref) {
		return fmt.Errorf("%s of %s is checked out: it would move under the host, so give Options.Branch another name", s.ref, folder)
	}
	if !t.exists {
		return nil
	}
	past, err := parseState(se.name, s.ref+":"+tasksFile, t.tasks)
	if err != nil {
		return fmt.Errorf("%s of %s has no %s of ours: it is the host's, so give Options.Branch another name: %w", s.ref, folder, tasksFile, err)
	}
	return s.checkSharing(se, past)
}

// checkSharing says so if past, which the branch says, is of another session
// whose folder is a work tree of the same repository.
func (s *Store) checkSharing(se *session, past *state) error {
	for _, r := range past.rows {
		if other := r.task.ParentSessionID; r.foreign && checkName(other) == nil && sameRepository(s.path(se), filepath.Join(s.dir, other)) {
			return fmt.Errorf("%s of %s is the history of session %q, whose repository is the same", s.ref, s.path(se), other)
		}
	}
	return nil
}

// tidy takes away what a git that was killed has left in the host's
// repository: the report of a stream that broke off, and a lock on our branch
// that is older than any git of ours can be.
func (s *Store) tidy(folder string) error {
	dir, err := commonDir(folder)
	if dir == "" || err != nil {
		return err // git will say what is wrong
	}
	lock := filepath.Join(dir, filepath.FromSlash(s.ref)+".lock")
	if info, err := os.Lstat(lock); err == nil && time.Since(info.ModTime()) > 2*(burstTime+s.git.timeout) {
		s.log.Warn("gitstore: a stale lock is removed", "path", lock)
		_ = os.Remove(lock) // else git will say so
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "fast_import_crash_") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(s.ref+"\n")) {
			_ = os.Remove(path)
		}
	}
	return err
}

// tipOf asks git for the branch.
func (s *Store) tipOf(folder string) (t tip, err error) {
	out, err := s.git.run(context.Background(), folder, strings.NewReader(s.ref+"^{commit}\n"+s.ref+":"+tasksFile+"\n"), "cat-file", "--batch")
	if err != nil {
		return t, err
	}
	in := bufio.NewReader(bytes.NewReader(out))
	if t.commit, t.exists, err = readObject(in); err == nil {
		t.tasks, _, err = readObject(in)
	}
	return t, err
}

// readObject reads one answer of git cat-file --batch.
func readObject(in *bufio.Reader) (data []byte, ok bool, err error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return nil, false, fmt.Errorf("git cat-file: %w", err)
	}
	if strings.HasSuffix(line, " missing\n") {
		return nil, false, nil
	}
	fields := strings.Fields(line) // name, type, size
	size, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil || len(fields) != 3 {
		return nil, false, fmt.Errorf("git cat-file says %q", line)
	}
	data = make([]byte, size+1) // and a newline
	if _, err := io.ReadFull(in, data); err != nil {
		return nil, false, fmt.Errorf("git cat-file: %w", err)
	}
	return data[:size], true, nil
}

// blob returns a file of the branch, nil if it is not there. Without a branch no
// git is run: a call may wait for this.
func (s *Store) blob(ctx context.Context, se *session, name string) ([]byte, error) {
	folder := s.path(se)
	if !hasBranch(folder, s.ref) {
		return nil, nil
	}
	out, err := s.git.run(ctx, folder, strings.NewReader(s.ref+":"+name+"\n"), "cat-file", "--batch")
	if err != nil {
		return nil, err
	}
	data, _, err := readObject(bufio.NewReader(bytes.NewReader(out)))
	return data, err
}

// importer is one git fast-import.
type importer struct {
	store     *Store
	se        *session
	began     time.Time
	cmd       *exec.Cmd
	cancel    context.CancelFunc
	in        io.WriteCloser
	to        *bufio.Writer
	complaint bytes.Buffer
	from      bool // the branch is there, and the next commit has to say that it follows it
	whole     bool // it is not, and the next commit is to have everything
}

// startImport starts one. It is ended by finish, or killed when its time is up.
func (s *Store) startImport(se *session, exists bool) (*importer, error) {
	imp := &importer{store: s, se: se, began: time.Now(), from: exists, whole: !exists}
	// A git that outlives this process and ends after the next one has begun
	// moves nothing: fast-import refuses to leave commits behind, on either side.
	imp.cmd, imp.cancel = s.git.command(context.Background(), burstTime+s.git.timeout, s.path(se), "fast-import", "--quiet", "--date-format=raw")
	imp.cmd.Stderr = &imp.complaint
	var err error
	if imp.in, err = imp.cmd.StdinPipe(); err == nil {
		err = imp.cmd.Start()
	}
	if err != nil {
		imp.cancel()
		return nil, fmt.Errorf("git fast-import: %w", err)
	}
	yield(imp.cmd.Process.Pid)
	imp.to = bufio.NewWriterSize(imp.in, 64<<10)
	return imp, nil
}

// feed writes one commit.
func (s *Store) feed(imp *importer, e entry) error {
	w := imp.to
	fmt.Fprintf(w, "commit %s\ncommitter gitstore <gitstore@localhost> %d +0000\n", s.ref, e.at.Unix())
	writeData(w, []byte(e.message()))
	if imp.from {
		fmt.Fprintf(w, "from %s^0\n", s.ref)
		imp.from = false
	}
	if e.reconcile {
		fmt.Fprint(w, "deleteall\n")
	}
	fmt.Fprintf(w, "M 100644 inline %s\n", tasksFile)
	writeData(w, e.state.parts()...)
	for _, name := range e.gone {
		fmt.Fprintf(w, "D %s\n", name)
	}
	for _, t := range e.texts {
		fmt.Fprintf(w, "M 100644 inline %s\n", t.name)
		writeData(w, []byte(t.text))
	}
	if e.reconcile || imp.whole {
		imp.whole = false
		for _, ref := range e.state.texts() {
			if text, err := readTextFile(s.path(imp.se), ref); err == nil { // else it was deleted, and the next entry says so
				fmt.Fprintf(w, "M 100644 inline %s\n", ref.Name)
				writeData(w, text)
			}
		}
	}
	fmt.Fprint(w, "\n")
	// Whole commits: if this process is killed, git finds the end of the stream
	// between two of them and keeps those before. An error of any write comes
	// back here.
	return w.Flush()
}

func writeData(w *bufio.Writer, parts ...[]byte) {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	fmt.Fprintf(w, "data %d\n", size)
	for _, p := range parts {
		_, _ = w.Write(p)
	}
	fmt.Fprint(w, "\n")
}

// finish ends the burst and waits for the process. err is of feeding it. When
// it returns nil the branch has moved.
func (imp *importer) finish(err error) error {
	defer imp.cancel()
	err = errors.Join(err, imp.in.Close())
	if waited := imp.cmd.Wait(); waited != nil {
		return gitError("fast-import", waited, imp.complaint.Bytes())
	}
	return err
}
