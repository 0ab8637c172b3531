//go:build !race

package bubble

func alone() func() { return func() {} }
