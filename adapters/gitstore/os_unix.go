//go:build unix

package gitstore

import (
	"io/fs"
	"syscall"
)

func inodeOf(info fs.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int64(s.Ino)
	}
	return 0
}

// yield has a process of ours, and what it starts, run when others do not want
// to: the history has time, the acknowledgements beside it have not.
func yield(pid int) {
	const nice = 19
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, pid, nice) // else it only competes
}
