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
