package gitstore_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
)

// mount makes a small file system of its own.
func mount(t *testing.T, options string) string {
	t.Helper()
	dir := tempDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("no file system can be mounted here, which takes root: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	return dir
}

// fill leaves so many bytes of a file system of 2 MiB.
func fill(t *testing.T, dir string, leave int64) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	require.NoError(t, err)
	size := int64(0)
	for chunk := make([]byte, 4096); err == nil; { // bounded by the disk
		var n int
		n, err = f.Write(chunk)
		size += int64(n)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
	require.NoError(t, os.Truncate(path, size-leave))
	// Not removed: a git that is just being started may have it open, too.
	return func() { require.NoError(t, os.Truncate(path, 0)) }
}

func TestFullDisk(t *testing.T) {
	dir := mount(t, "size=2m")
	s, err := gitstore.Open(dir, gitstore.Options{Git: failingGit(t, "init")}) // which leaves the disk alone
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	task := newTask("a")
	create(t, s, task)
	free := fill(t, dir, 0)
	long := strings.Repeat("x", 8000)
	_, err = s.Update(t.Context(), task.ID, moveTo(subagent.StatusQueued, ""))
	require.ErrorIs(t, err, syscall.ENOSPC)
	_, err = s.Update(t.Context(), task.ID, moveTo(subagent.StatusCancelled, long))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorIs(t, s.Create(t.Context(), newTask("a")), syscall.ENOSPC)
	require.ErrorIs(t, s.Create(t.Context(), newTask("a"), newTask("b")), syscall.ENOSPC)
	require.Equal(t, []subagent.Task{task}, list(t, s, subagent.Filter{}))
	free()
	end := move(t, s, task.ID, subagent.StatusCancelled, long)
	require.ErrorContains(t, s.Close(), "lags behind")
	s, err = gitstore.Open(dir, gitstore.Options{})
	require.NoError(t, err)
	require.Equal(t, []subagent.Task{end}, list(t, s, subagent.Filter{}))
	require.NoError(t, s.Close())
	requireReconciled(t, filepath.Join(dir, "a"))
}

// TestFullDiskForGit has room for the tasks, but not for a repository.
func TestFullDiskForGit(t *testing.T) {
	dir, log := mount(t, "size=2m"), newSaid()
	s, err := gitstore.Open(dir, gitstore.Options{Logger: slogTo(log)})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	free := fill(t, dir, 12<<10)
	task := newTask("a")
	create(t, s, task)
	log.wait(t, "history not written")
	require.Equal(t, task, get(t, s, task.ID))
	free()
	require.NoError(t, s.Close())
	require.Len(t, subjects(t, filepath.Join(dir, "a")), 1)
	requireReconciled(t, filepath.Join(dir, "a"))
}

func TestReadOnly(t *testing.T) {
	dir := mount(t, "size=2m")
	s, err := gitstore.Open(dir, gitstore.Options{})
	require.NoError(t, err)
	task := newTask("a")
	create(t, s, task)
	require.NoError(t, s.Close())
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	_, err = gitstore.Open(dir, gitstore.Options{})
	require.ErrorIs(t, err, syscall.EROFS)
	require.ErrorContains(t, err, dir)
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, ""))
	s, err = gitstore.Open(dir, gitstore.Options{})
	require.NoError(t, err)
	require.Equal(t, task, get(t, s, task.ID))
	require.NoError(t, s.Close())
}

// TestUnreadable needs somebody whom permissions stop: root runs it again as
// nobody.
func TestUnreadable(t *testing.T) {
	if os.Getuid() == 0 {
		runAsNobody(t)
		return
	}
	dir, path, data, tasks := damagedFolder(t)
	require.NoError(t, os.Chmod(path, 0))
	require.NoError(t, os.Remove(filepath.Join(dir, ".index"))) // else it need not be read
	_, err := gitstore.Open(dir, gitstore.Options{})
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, path)
	require.NoError(t, os.Chmod(path, 0o644))
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, data, now)
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o500))
	s, err := gitstore.Open(dir, gitstore.Options{})
	require.NoError(t, err)
	_, err = s.Update(t.Context(), tasks[2].ID, moveTo(subagent.StatusRunning, ""))
	require.ErrorIs(t, err, os.ErrPermission)
	require.Equal(t, tasks, list(t, s, subagent.Filter{}))
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o755))
	move(t, s, tasks[2].ID, subagent.StatusRunning, "")
	require.NoError(t, s.Close())
	require.NoError(t, os.Remove(filepath.Join(dir, ".lock")))
	require.NoError(t, os.Chmod(dir, 0o500))
	_, err = gitstore.Open(dir, gitstore.Options{})
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, dir)
	require.NoError(t, os.Chmod(dir, 0o755)) // so that it can be removed
}

func runAsNobody(t *testing.T) {
	const nobody = 65534
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "gitstore")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chown(dir, nobody, nobody))
	binary := filepath.Join(dir, "test")
	require.NoError(t, os.WriteFile(binary, self, 0o755))
	require.NoError(t, os.Chown(binary, nobody, nobody))
	cmd := exec.Command(binary, "-test.run", "^TestUnreadable$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("root is not free to become nobody here: %v", err)
	}
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), fmt.Sprintf("--- PASS: %s", t.Name()))
}
