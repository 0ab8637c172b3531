package subagent

// growStack makes room for what a task's goroutine calls. A stack grows by
// being copied, frame after frame: left to itself it would be copied in the
// depths of the store, for a third of a short task's instructions. Here there is
// next to nothing on it. The room is in the frame, whether it is used or not.
//
//go:noinline
func growStack(use bool) {
	if use {
		var room [2560]byte
		occupy(&room)
	}
}

//go:noinline
func occupy(*[2560]byte) {}
