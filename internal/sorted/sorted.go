// Package sorted keeps values in order, cheaply enough to be an index over
// millions of pointers.
package sorted

import (
	"iter"
	"slices"
	"sort"
)

// chunkLen is the most values that one chunk holds: 1 KiB of pointers, of which
// a change in the middle looks at all and moves half.
const chunkLen = 128

// List is a set of values in the order of their keys. It is a slice of short
// slices: values that arrive in order fill them to the brim, so that an index
// costs little more than the values themselves. What key looks at must not
// change while a value is in the list. A List has no lock, and must not be
// changed during an iteration.
type List[K any, V comparable] struct {
	key     func(V) K
	compare func(a, b K) int
	chunks  []chunk[K, V] // none is empty
	n       int
}

// chunk is a part of a list. The chunk that a key belongs to is found without
// a look at any value: of a million pointers, few lead to what is in a cache.
type chunk[K any, V comparable] struct {
	from   K // no key in it is less, and all in the chunks before are; not kept up for the first chunk
	values []V
}

// New returns an empty list. compare is a strict weak order of keys, negative
// if a stands before b. A key stands for one value at a time.
func New[K any, V comparable](key func(V) K, compare func(a, b K) int) *List[K, V] {
	return &List[K, V]{key: key, compare: compare}
}

// Len returns how many values there are.
func (l *List[K, V]) Len() int { return l.n }

// First returns the value that stands first; ok is false if there is none.
func (l *List[K, V]) First() (v V, ok bool) {
	if l.n == 0 {
		return v, false
	}
	return l.chunks[0].values[0], true
}

// Insert puts v in its place. It reports false, and changes nothing, if a
// value with the same key is there.
func (l *List[K, V]) Insert(v V) bool {
	k := l.key(v)
	if l.follows(k) {
		l.push(k, v)
		return true
	}
	c := l.chunkOf(k)
	i, found := slices.BinarySearchFunc(l.chunks[c].values, k, func(x V, k K) int { return l.compare(l.key(x), k) })
	if found {
		return false
	}
	if len(l.chunks[c].values) == chunkLen {
		l.split(c)
		if i > chunkLen/2 {
			c, i = c+1, i-chunkLen/2
		}
	}
	l.chunks[c].values = slices.Insert(l.chunks[c].values, i, v)
	l.n++
	return true
}

// Delete takes v out and reports whether it was there.
func (l *List[K, V]) Delete(v V) bool {
	if l.n == 0 {
		return false
	}
	c := 0
	if l.chunks[0].values[0] != v { // the oldest often goes first
		c = l.chunkOf(l.key(v))
	}
	i := slices.Index(l.chunks[c].values, v)
	if i < 0 {
		return false
	}
	l.chunks[c].remove(i)
	l.n--
	if len(l.chunks[c].values) == 0 {
		l.drop(c)
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
// beyond is false for the keys up to the cursor and true for those after it.
// A nil beyond starts at the very first.
func (l *List[K, V]) Ascend(beyond func(K) bool) iter.Seq[V] {
	return func(yield func(V) bool) {
		c, i := 0, 0
		if beyond != nil {
			c, i = l.search(beyond)
		}
		for ; c < len(l.chunks); c, i = c+1, 0 {
			for _, v := range l.chunks[c].values[i:] {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// Descend yields the values in reverse order, from the last that lies beyond a
// cursor: beyond is true for the keys before the cursor and false from the
// cursor on. A nil beyond starts at the very last.
func (l *List[K, V]) Descend(beyond func(K) bool) iter.Seq[V] {
	return func(yield func(V) bool) {
		c, i := len(l.chunks), 0 // one past the next
		if beyond != nil {
			c, i = l.search(func(k K) bool { return !beyond(k) })
		}
		for ; c >= 0; c-- {
			for ; i > 0; i-- {
				if !yield(l.chunks[c].values[i-1]) {
					return
				}
			}
			if c > 0 {
				i = len(l.chunks[c-1].values)
			}
		}
	}
}

// follows reports whether k stands after everything in the list.
func (l *List[K, V]) follows(k K) bool {
	if l.n == 0 {
		return true
	}
	last := l.chunks[len(l.chunks)-1].values
	return l.compare(l.key(last[len(last)-1]), k) < 0
}

// push appends v. A full last chunk is left full: values that arrive in order
// never need its room again.
func (l *List[K, V]) push(k K, v V) {
	last := len(l.chunks) - 1
	switch {
	case last < 0:
		l.chunks = append(l.chunks, chunk[K, V]{k, []V{v}})
	case len(l.chunks[last].values) == chunkLen:
		l.chunks = append(l.chunks, chunk[K, V]{k, append(make([]V, 0, chunkLen), v)})
	default:
		l.chunks[last].values = append(l.chunks[last].values, v)
	}
	l.n++
}

// chunkOf returns the chunk that k belongs to, of a list that is not empty.
func (l *List[K, V]) chunkOf(k K) int {
	return sort.Search(len(l.chunks)-1, func(c int) bool { return l.compare(l.chunks[c+1].from, k) > 0 })
}

// search returns the place of the first value for whose key at is true, as it
// then is for all that follow; c is len(chunks) if there is none.
func (l *List[K, V]) search(at func(K) bool) (c, i int) {
	if l.n == 0 {
		return 0, 0
	}
	c = sort.Search(len(l.chunks)-1, func(c int) bool { return at(l.chunks[c+1].from) })
	values := l.chunks[c].values
	i = sort.Search(len(values), func(i int) bool { return at(l.key(values[i])) })
	if i == len(values) {
		return c + 1, 0
	}
	return c, i
}

// remove takes out value i. The shorter side is moved.
func (c *chunk[K, V]) remove(i int) {
	if i >= len(c.values)/2 {
		c.values = slices.Delete(c.values, i, i+1)
		return
	}
	copy(c.values[1:], c.values[:i])
	clear(c.values[:1])
	c.values = c.values[1:]
}

// split makes two halves of the full chunk c.
func (l *List[K, V]) split(c int) {
	left := l.chunks[c].values
	right := append(make([]V, 0, chunkLen), left[chunkLen/2:]...)
	clear(left[chunkLen/2:])
	l.chunks[c].values = left[:chunkLen/2]
	l.chunks = slices.Insert(l.chunks, c+1, chunk[K, V]{l.key(right[0]), right})
}

// join appends chunk c+1 to chunk c if both are there and sparse.
func (l *List[K, V]) join(c int) bool {
	if c < 0 || c+1 >= len(l.chunks) || len(l.chunks[c].values)+len(l.chunks[c+1].values) > chunkLen/2 {
		return false
	}
	l.chunks[c].values = append(l.chunks[c].values, l.chunks[c+1].values...)
	l.drop(c + 1)
	return true
}

// drop forgets chunk c. Where the oldest go first it is the first one.
func (l *List[K, V]) drop(c int) {
	if c > 0 {
		l.chunks = slices.Delete(l.chunks, c, c+1)
		return
	}
	clear(l.chunks[:1])
	l.chunks = l.chunks[1:]
}
