//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package main

import (
	"os"
	"os/signal"
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

// suspensions returns a channel that says when Ctrl-Z was pressed; until
// signal.Stop is called for it, it is all that Ctrl-Z does.
func suspensions() chan os.Signal {
	pressed := make(chan os.Signal, 1)
	signal.Notify(pressed, syscall.SIGTSTP)
	return pressed
}

// suspend stops the process and returns when it is continued.
func suspend() {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	// The stop takes effect some time after Kill: only the signal tells that it
	// is over.
	if syscall.Kill(syscall.Getpid(), syscall.SIGSTOP) == nil {
		<-continued
	}
}
