package web

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func seqs(items []*item) (got []uint64) {
	for _, it := range items {
		got = append(got, it.seq)
	}
	return got
}

// readAll reads as a client does, in batches.
func readAll(t *testing.T, f *feed, seq uint64) (got []uint64, err error) {
	t.Helper()
	for {
		items, wake, err := f.after(seq)
		if err != nil || wake != nil {
			return got, err
		}
		require.NotEmpty(t, items)
		got = append(got, seqs(items)...)
		seq = items[len(items)-1].seq
	}
}

func TestFeedKeepsTheNewest(t *testing.T) {
	f := newFeed("r")
	var all []uint64
	for i := range uint64(2*maxKept + 10) {
		all = append(all, 3*i+5) // merged events leave gaps
		f.add(&item{seq: 3*i + 5})
	}
	kept := all[len(all)-maxKept:]
	got, err := readAll(t, f, f.dropped)
	require.NoError(t, err)
	require.Equal(t, kept, got)
	for _, i := range []int{0, 1, 63, 64, 65, maxKept / 2, maxKept - 1} {
		got, err = readAll(t, f, kept[i])
		require.NoError(t, err)
		require.Equal(t, kept[i+1:], append([]uint64{}, got...))
		seq, ok := f.find(fmt.Sprintf("r-%d", kept[i]))
		require.True(t, ok)
		require.Equal(t, kept[i], seq)
	}
	_, err = readAll(t, f, kept[0]-4)
	require.ErrorIs(t, err, errBehind)
	_, ok := f.find(fmt.Sprintf("r-%d", kept[0]-4))
	require.False(t, ok)
	_, ok = f.find(fmt.Sprintf("r-%d", f.last+1))
	require.False(t, ok, "it has not come up")
}

// A reader that was there before the first event has missed nothing; an id from
// before that is not of this feed.
func TestFeedBegins(t *testing.T) {
	f := newFeed("r")
	_, ok := f.find("r-0")
	require.False(t, ok)
	start := f.newest()
	f.add(&item{seq: 17})
	got, err := readAll(t, f, start)
	require.NoError(t, err)
	require.Equal(t, []uint64{17}, got)
	_, ok = f.find("r-15")
	require.False(t, ok)
	_, ok = f.find("r-16")
	require.True(t, ok)
}

// When events were lost on the way into the feed every reader has lagged, and
// nobody resumes over the hole.
func TestFeedLag(t *testing.T) {
	f := newFeed("r")
	for seq := range uint64(5000) {
		f.add(&item{seq: seq + 1})
	}
	_, wake, err := f.after(f.newest())
	require.NoError(t, err)
	f.lag()
	<-wake
	_, _, err = f.after(5000)
	require.ErrorIs(t, err, errBehind)
	_, ok := f.find("r-5000")
	require.False(t, ok)
	start := f.newest()
	f.add(&item{seq: 7000})
	got, err := readAll(t, f, start)
	require.NoError(t, err)
	require.Equal(t, []uint64{7000}, got)
	_, ok = f.find("r-5000")
	require.False(t, ok)
	f.end()
	_, _, err = f.after(7000)
	require.ErrorIs(t, err, errOver)
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		s    string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abc", 2, "ab"}, {"aé", 2, "a"}, {"é", 1, ""}, {"😀x", 3, ""}, {"\x80\x80\x80\x80\x80", 4, "\x80\x80\x80\x80"}, {"", 0, ""}} {
		require.Equal(t, c.want, cut(c.s, c.n), "%q %d", c.s, c.n)
	}
}
