package sorted

// Index is a List for each key, for as long as there is something in it. The
// zero key has none: it stands for values that the index does not concern.
type Index[K comparable, V any] struct {
	compare func(a, b V) int
	lists   map[K]*List[V]
}

// NewIndex returns an empty index. compare is that of its lists: see New.
func NewIndex[K comparable, V any](compare func(a, b V) int) *Index[K, V] {
	return &Index[K, V]{compare: compare, lists: make(map[K]*List[V])}
}

// Len returns how many keys there are.
func (x *Index[K, V]) Len() int { return len(x.lists) }

// List returns the list of key, which is to be read only; nil if it is empty.
func (x *Index[K, V]) List(key K) *List[V] { return x.lists[key] }

// Insert puts v into the list of key.
func (x *Index[K, V]) Insert(key K, v V) {
	if key == *new(K) {
		return
	}
	list := x.lists[key]
	if list == nil {
		list = New(x.compare)
		x.lists[key] = list
	}
	list.Insert(v)
}

// Delete takes v out of the list of key, and drops the list with its last
// value: keys come and go.
func (x *Index[K, V]) Delete(key K, v V) {
	list := x.lists[key]
	if list == nil {
		return
	}
	list.Delete(v)
	if list.Len() == 0 {
		delete(x.lists, key)
	}
}
