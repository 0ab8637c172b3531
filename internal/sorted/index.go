package sorted

// Index is a List for each group, for as long as there is something in it. The
// zero group has none: it stands for values that the index does not concern.
type Index[G comparable, K any, V comparable] struct {
	key     func(V) K
	compare func(a, b K) int
	lists   map[G]*List[K, V]
}

// NewIndex returns an empty index. key and compare are those of its lists: see
// New.
func NewIndex[G comparable, K any, V comparable](key func(V) K, compare func(a, b K) int) *Index[G, K, V] {
	return &Index[G, K, V]{key: key, compare: compare, lists: make(map[G]*List[K, V])}
}

// Len returns how many groups there are.
func (x *Index[G, K, V]) Len() int { return len(x.lists) }

// List returns the list of group, which is to be read only; nil if it is empty.
func (x *Index[G, K, V]) List(group G) *List[K, V] { return x.lists[group] }

// Insert puts v into the list of group.
func (x *Index[G, K, V]) Insert(group G, v V) {
	if group == *new(G) {
		return
	}
	list := x.lists[group]
	if list == nil {
		list = New(x.key, x.compare)
		x.lists[group] = list
	}
	list.Insert(v)
}

// Delete takes v out of the list of group, and drops the list with its last
// value: groups come and go.
func (x *Index[G, K, V]) Delete(group G, v V) {
	list := x.lists[group]
	if list == nil {
		return
	}
	list.Delete(v)
	if list.Len() == 0 {
		delete(x.lists, group)
	}
}
