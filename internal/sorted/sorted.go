// Package sorted keeps values in order, cheaply enough to be an index over
// millions of pointers.
package sorted

import (
	"iter"
	"slices"
	"sort"
)

// chunkLen is the most values that one chunk holds: 4 KiB of pointers, which
// an insertion in the middle may have to move.
const chunkLen = 512

// List is a set of values in the order of a compare function. It is a slice of
// short slices: values that arrive in order fill them to the brim, so that an
// index costs little more than the values themselves. What compare looks at
// must not change while a value is in the list. A List has no lock, and must
// not be changed during an iteration.
type List[T any] struct {
	compare func(a, b T) int
	chunks  [][]T // none is empty
	n       int
}

// New returns an empty list. compare is a strict weak order: negative if a
// stands before b, zero if they are the same value.
func New[T any](compare func(a, b T) int) *List[T] {
	return &List[T]{compare: compare}
}

// Len returns how many values there are.
func (l *List[T]) Len() int { return l.n }

// First returns the value that stands first; ok is false if there is none.
func (l *List[T]) First() (v T, ok bool) {
	if l.n == 0 {
		return v, false
	}
	return l.chunks[0][0], true
}

// Insert puts v in its place. It reports false, and changes nothing, if a
// value that compares equal is there.
func (l *List[T]) Insert(v T) bool {
	if l.follows(v) {
		l.push(v)
		return true
	}
	c, i, found := l.find(v)
	if found {
		return false
	}
	if len(l.chunks[c]) == chunkLen {
		l.split(c)
		if i > chunkLen/2 {
			c, i = c+1, i-chunkLen/2
		}
	}
	l.chunks[c] = slices.Insert(l.chunks[c], i, v)
	l.n++
	return true
}

// Delete takes out the value that compares equal to v and reports whether
// there was one.
func (l *List[T]) Delete(v T) bool {
	c, i, found := l.find(v)
	if !found {
		return false
	}
	if chunk := l.chunks[c]; i == 0 { // what came first goes first: nothing is moved
		clear(chunk[:1])
		l.chunks[c] = chunk[1:]
	} else {
		l.chunks[c] = slices.Delete(chunk, i, i+1)
	}
	l.n--
	if len(l.chunks[c]) == 0 {
		l.chunks = slices.Delete(l.chunks, c, c+1)
		return true
	}
	// Sparse neighbours are joined, so that what is left after many deletions
	// does not pin memory; half full, so that the next insertion does not
	// split them again.
	if !l.join(c) {
		l.join(c - 1)
	}
	return true
}

// Ascend yields the values in order, from the first that lies beyond a cursor:
// beyond is false for the values up to the cursor and true for those after it.
// A nil beyond starts at the very first.
func (l *List[T]) Ascend(beyond func(T) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		c, i := 0, 0
		if beyond != nil {
			c, i = l.search(beyond)
		}
		for ; c < len(l.chunks); c, i = c+1, 0 {
			for _, v := range l.chunks[c][i:] {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// Descend yields the values in reverse order, from the last that lies beyond a
// cursor: beyond is true for the values before the cursor and false from the
// cursor on. A nil beyond starts at the very last.
func (l *List[T]) Descend(beyond func(T) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		c, i := len(l.chunks), 0 // one past the next
		if beyond != nil {
			c, i = l.search(func(v T) bool { return !beyond(v) })
		}
		for ; c >= 0; c-- {
			if c < len(l.chunks) {
				for ; i > 0; i-- {
					if !yield(l.chunks[c][i-1]) {
						return
					}
				}
			}
			if c > 0 {
				i = len(l.chunks[c-1])
			}
		}
	}
}

// follows reports whether v stands after everything in the list.
func (l *List[T]) follows(v T) bool {
	if l.n == 0 {
		return true
	}
	last := l.chunks[len(l.chunks)-1]
	return l.compare(last[len(last)-1], v) < 0
}

// push appends v. A full last chunk is left full: values that arrive in order
// never need its room again.
func (l *List[T]) push(v T) {
	last := len(l.chunks) - 1
	switch {
	case last < 0:
		l.chunks = append(l.chunks, []T{v})
	case len(l.chunks[last]) == chunkLen:
		l.chunks = append(l.chunks, append(make([]T, 0, chunkLen), v))
	default:
		l.chunks[last] = append(l.chunks[last], v)
	}
	l.n++
}

// find returns where v is, or where it belongs; that is never past the end,
// because Insert has ruled that out.
func (l *List[T]) find(v T) (c, i int, found bool) {
	if l.n > 0 && l.compare(l.chunks[0][0], v) == 0 {
		return 0, 0, true
	}
	c, i = l.search(func(x T) bool { return l.compare(x, v) >= 0 })
	found = c < len(l.chunks) && l.compare(l.chunks[c][i], v) == 0
	return c, i, found
}

// search returns the place of the first value for which at is true, as it then
// is for all that follow; c is len(chunks) if there is none.
func (l *List[T]) search(at func(T) bool) (c, i int) {
	c = sort.Search(len(l.chunks), func(c int) bool {
		chunk := l.chunks[c]
		return at(chunk[len(chunk)-1])
	})
	if c == len(l.chunks) {
		return c, 0
	}
	chunk := l.chunks[c]
	return c, sort.Search(len(chunk)-1, func(i int) bool { return at(chunk[i]) })
}

// split makes two halves of the full chunk c.
func (l *List[T]) split(c int) {
	left := l.chunks[c]
	right := append(make([]T, 0, chunkLen), left[chunkLen/2:]...)
	clear(left[chunkLen/2:])
	l.chunks[c] = left[:chunkLen/2]
	l.chunks = slices.Insert(l.chunks, c+1, right)
}

// join appends chunk c+1 to chunk c if both are there and sparse.
func (l *List[T]) join(c int) bool {
	if c < 0 || c+1 >= len(l.chunks) || len(l.chunks[c])+len(l.chunks[c+1]) > chunkLen/2 {
		return false
	}
	l.chunks[c] = append(l.chunks[c], l.chunks[c+1]...)
	l.chunks = slices.Delete(l.chunks, c+1, c+2)
	return true
}
