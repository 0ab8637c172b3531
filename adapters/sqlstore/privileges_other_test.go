//go:build !linux

package sqlstore_test

import (
	"os/exec"
	"testing"
)

func asNobody(*exec.Cmd) bool { return false }

func smallDisk(t *testing.T, _ int) string {
	t.Skip("a small disk can only be mounted on Linux")
	return ""
}
