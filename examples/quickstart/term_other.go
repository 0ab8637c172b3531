//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package main

import "os"

// terminalSize finds no terminal on this system: the output is plain lines.
func terminalSize(*os.File) (columns, rows int, ok bool) { return 0, 0, false }

func suspensions() chan os.Signal { return make(chan os.Signal) }

func suspend() {}
