//go:build race

package bubble

import "runtime"

func alone() func() {
	before := runtime.GOMAXPROCS(1)
	return func() { runtime.GOMAXPROCS(before) }
}
