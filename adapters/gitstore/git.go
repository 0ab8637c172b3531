package gitstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// git runs the git program. Each process is told its repository, has none of
// the configuration of users and no hooks, and is killed when its time is up.
type git struct {
	program string
	timeout time.Duration
}

// killGrace is how long a killed git's children may keep its output open.
const killGrace = 2 * time.Second

// always is what every call has in front. Objects and refs are synced: a
// history that a power cut has torn would fail the host's own git, too.
var always = []string{
	"-c", "core.hooksPath=" + os.DevNull, "-c", "gc.auto=0", "-c", "maintenance.auto=false",
	"-c", "core.compression=1", "-c", "core.fsync=committed", "-c", "core.fsyncMethod=batch",
}

// command is a git process for the repository of a session's folder. cancel is
// to be called when it has ended.
func (g *git) command(ctx context.Context, limit time.Duration, folder string, args ...string) (*exec.Cmd, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	cmd := exec.CommandContext(ctx, g.program, append(always[:len(always):len(always)], args...)...)
	cmd.Dir, cmd.WaitDelay = folder, killGrace
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GIT_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	// GIT_DIR keeps git from finding a repository that folder lies in.
	cmd.Env = append(cmd.Env, "LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_OPTIONAL_LOCKS=0", "GIT_DIR="+filepath.Join(folder, ".git"))
	return cmd, cancel
}

// run returns what git prints. Its error has what git says.
func (g *git) run(ctx context.Context, folder string, in io.Reader, args ...string) ([]byte, error) {
	cmd, cancel := g.command(ctx, g.timeout, folder, args...)
	defer cancel()
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, gitError(args[0], err, complaint.Bytes())
	}
	return out.Bytes(), nil
}

func gitError(verb string, err error, complaint []byte) error {
	const most = 500
	text := strings.TrimSpace(string(complaint[:min(len(complaint), most)]))
	return fmt.Errorf("git %s: %w: %s", verb, err, text)
}

var versionText = regexp.MustCompile(`^git version (\d+)\.(\d+)`)

// check finds the git program. It refuses to work without one that can do all
// that is asked of it, and with a branch that it would not take.
func (g *git) check(branch string) error {
	if g.program == "" {
		g.program = "git"
	}
	path, err := exec.LookPath(g.program)
	if err == nil {
		g.program, err = filepath.Abs(path) // it is run in other folders
	}
	var out []byte
	if err == nil {
		out, err = g.run(context.Background(), "", nil, "version")
	}
	if err != nil {
		return fmt.Errorf("gitstore: the git program is needed, 2.30 or newer: %w", err)
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("gitstore: %s is no git: it says %.100q", g.program, out)
	}
	major, _ := strconv.Atoi(string(m[1]))
	minor, _ := strconv.Atoi(string(m[2]))
	if major < 2 || major == 2 && minor < 30 {
		return fmt.Errorf("gitstore: git 2.30 or newer is needed, %s is %s", g.program, bytes.TrimSpace(out))
	}
	if branch == defaultBranch {
		return nil
	}
	if _, err := g.run(context.Background(), "", nil, "check-ref-format", "refs/heads/"+branch); err != nil {
		return fmt.Errorf("gitstore: %q cannot be the name of a branch: %w", branch, err)
	}
	return nil
}

// hasRepository reports whether a folder is a git repository's, or says where
// that is.
func hasRepository(folder string) bool {
	_, err := os.Lstat(filepath.Join(folder, ".git"))
	return err == nil
}

// initRepository makes a repository in a folder that has none. It is made
// apart and gets its name when it is whole, so that a full disk or a crash
// leaves none, not half of one. The branch that a host's first commit will be
// on is not ours.
func (g *git) initRepository(folder, ref string) error {
	first := "main"
	if strings.HasPrefix(ref+"/", "refs/heads/"+first+"/") {
		first = "conversation"
	}
	apart := filepath.Join(folder, ".git"+newSuffix)
	err := os.RemoveAll(apart)
	if err == nil {
		err = os.Mkdir(apart, 0o755)
	}
	if err == nil {
		_, err = g.run(context.Background(), apart, nil, "init", "--quiet", "--template=", "--initial-branch="+first)
	}
	if err == nil {
		err = os.Rename(filepath.Join(apart, ".git"), filepath.Join(folder, ".git"))
	}
	return errors.Join(err, os.RemoveAll(apart))
}

// ours are the files of a session that are not the host's to commit.
var ours = []string{
	"/" + tasksFile, "/" + tasksFile + ".*",
	"/" + textFolder + "/????????-????-????-????-????????????*.txt*",
}

// excludeOurs has git overlook, in a repository that there is, what is ours. It
// appends to info/exclude, which belongs to the repository of this machine and
// is never committed.
func excludeOurs(folder string) error {
	dir, err := commonDir(folder)
	if dir == "" || err != nil {
		return err
	}
	path := filepath.Join(dir, "info", "exclude")
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var add []byte
	lines := strings.Split(strings.ReplaceAll(string(old), "\r\n", "\n"), "\n")
	for _, pattern := range ours {
		if !slices.Contains(lines, pattern) {
			add = append(add, pattern+"\n"...)
		}
	}
	if len(add) == 0 {
		return nil
	}
	if len(old) > 0 && old[len(old)-1] != '\n' {
		add = append([]byte("\n"), add...)
	}
	// Not MkdirAll: a link may lead to a repository that is gone.
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(add)
	return errors.Join(err, f.Close())
}

// commonDir is the folder with a repository's refs and objects: .git, or, in
// a work tree or submodule, what .git and the commondir there say. It is "" if
// there is no repository.
func commonDir(folder string) (string, error) {
	dir := filepath.Join(folder, ".git")
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case info.IsDir():
		return dir, nil
	}
	link, err := os.ReadFile(dir)
	if err != nil {
		return "", err
	}
	target, ok := strings.CutPrefix(strings.TrimSpace(string(link)), "gitdir: ")
	if !ok {
		return "", fmt.Errorf("%s does not say where the repository is", dir)
	}
	dir = within(folder, target)
	common, err := os.ReadFile(filepath.Join(dir, "commondir"))
	if errors.Is(err, os.ErrNotExist) {
		return dir, nil
	}
	return within(dir, strings.TrimSpace(string(common))), err
}

// hasBranch reports, without git, whether there is a branch in a folder's
// repository. Where only git can tell it reports true.
func hasBranch(folder, ref string) bool {
	dir, err := commonDir(folder)
	if dir == "" || err != nil {
		return false
	}
	for _, name := range []string{filepath.FromSlash(ref), "reftable"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	packed, err := os.ReadFile(filepath.Join(dir, "packed-refs"))
	return err == nil && bytes.Contains(packed, []byte(" "+ref+"\n"))
}

// sameRepository reports whether two folders belong to one.
func sameRepository(a, b string) bool {
	var infos [2]os.FileInfo
	for i, folder := range []string{a, b} {
		dir, err := commonDir(folder)
		if err == nil {
			infos[i], err = os.Stat(dir)
		}
		if err != nil {
			return false
		}
	}
	return os.SameFile(infos[0], infos[1])
}

// within is path as seen from folder.
func within(folder, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(folder, path)
}
