//go:build !linux

package sqlstore_test

import "os"

func fdatasync(f *os.File) error { return f.Sync() }
