//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package main

import (
	"os"
	"syscall"
	"unsafe"
)

// terminalSize returns the size of the terminal behind f; ok is false when f is
// none. A terminal that does not know its size is taken for 80 by 24.
func terminalSize(f *os.File) (columns, rows int, ok bool) {
	var size struct{ rows, columns, width, height uint16 }
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return 0, 0, false
	}
	if size.columns == 0 || size.rows == 0 {
		return 80, 24, true
	}
	return int(size.columns), int(size.rows), true
}
