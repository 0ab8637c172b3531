package subagent

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent/internal/runes"
)

// hardTexts are hard to cut: wide runes, joiners, combining marks, flags, CRLF,
// right to left, and a replacement character that is part of the text.
var hardTexts = []string{
	"",
	"plain ascii, long enough to be cut at every one of the limits that are tried",
	"今天天气很好，我们去公园散步吧。今天天气很好，我们去公园散步吧。",
	"👩‍👩‍👧‍👦👩🏽‍🔬🏳️‍🌈🇩🇪👩‍👩‍👧‍👦",
	"e\u0301o\u0308a\u030a\u0323 n\u0303 Z\u0351\u036b\u0343",
	"שלום עולם مرحبا بالعالم",
	"line\r\nline\r\n\ufffdend\n",
}

// brokenTexts are texts that no store takes, with what they become.
var brokenTexts = []struct{ in, want string }{
	{"a\x00b", "a\ufffdb"},
	{"\x00\x00", "\ufffd\ufffd"},
	{"a\xffb", "a\ufffdb"},
	{"\xff\xfe\xfd", "\ufffd\ufffd\ufffd"},
	{"今\xe5\xa4", "今\ufffd\ufffd"},                   // the start of a rune
	{"\xa4\xa9今", "\ufffd\ufffd今"},                   // the end of one
	{"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},           // a surrogate
	{"\xc0\x80", "\ufffd\ufffd"},                     // overlong NUL
	{"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"}, // beyond the last rune
	{"\xf0\x9f\x91x", "\ufffd\ufffd\ufffdx"},
	{"\ufffd\xff", "\ufffd\ufffd"},
}

func TestB200_Clean(t *testing.T) {
	for _, c := range brokenTexts {
		require.Equal(t, c.want, runes.Clean(c.in), "%q", c.in)
		require.Equal(t, c.want, runes.Clean(c.want), "cleaning again changes nothing")
	}
	for _, s := range hardTexts {
		require.Equal(t, s, runes.Clean(s))
		require.Zero(t, testing.AllocsPerRun(10, func() { _ = runes.Clean(s) }), "%q", s)
	}
}

func TestB202_Cut(t *testing.T) {
	for _, s := range hardTexts {
		for n := -1; n <= 64; n++ {
			got := runes.Cut(s, n)
			require.True(t, utf8.ValidString(got), "%q at %d", s, n)
			require.True(t, strings.HasPrefix(s, got), "%q at %d", s, n)
			require.LessOrEqual(t, len(got), max(n, 0))
			if len(got) < len(s) { // it is the longest that fits
				_, next := utf8.DecodeRuneInString(s[len(got):])
				require.Greater(t, len(got)+next, n, "%q at %d", s, n)
			}
		}
	}
	for n := range 9 {
		require.LessOrEqual(t, len(runes.Cut("\x80\x80\x80\x80\x80\x80\x80\x80", n)), n, "no rune to be found")
	}
}

func TestCutRunes(t *testing.T) {
	for _, s := range hardTexts {
		for n := -1; n <= 64; n++ {
			want := []rune(s)
			want = want[:min(max(n, 0), len(want))]
			require.Equal(t, string(want), cutRunes(s, n), "%q at %d", s, n)
		}
	}
}

func TestPreview(t *testing.T) {
	exact := strings.Repeat("x", maxPreview)
	for _, c := range []struct {
		name, text, want  string
		before, truncated bool
	}{
		{"empty", "", "", false, false},
		{"as long as allowed", exact, exact, false, false},
		{"one byte more", exact + "y", exact, false, true},
		{"between runes", exact[1:] + "今", exact[1:], false, true},
		{"truncated in the record", "short", "short", true, true},
	} {
		task := Task{ResultText: c.text, ResultTruncated: c.before}
		preview(&task)
		require.Equal(t, c.want, task.ResultText, c.name)
		require.Equal(t, c.truncated, task.ResultTruncated, c.name)
	}
}

// writeInPieces writes s cut at the given places and checks after every write
// that readers see whole, clean text.
func writeInPieces(t *testing.T, p *partial, s string, size func() int) {
	t.Helper()
	written := 0
	for written < len(s) {
		n := min(size(), len(s)-written)
		piece := []byte(s[written : written+n])
		p.write(piece)
		clear(piece) // it is the writer's again
		written += n
		text := p.text()
		require.True(t, runes.IsClean(text))
		require.True(t, strings.HasPrefix(runes.Clean(s), text), "%q after %q", text, s[:written])
		require.Less(t, p.held, utf8.UTFMax)
		head, more := p.head()
		require.Equal(t, runes.Cut(text, maxPreview), head)
		require.Equal(t, len(head) < len(text), more)
	}
}

func TestB203_PartialRejoinsWhatWasSplit(t *testing.T) {
	all := append([]string{}, hardTexts...)
	for _, c := range brokenTexts {
		all = append(all, c.in, "x"+c.in+"今"+c.in)
	}
	for _, s := range all {
		for at := 0; at <= len(s); at++ { // every way to cut it in two
			var p partial
			p.write([]byte(s[:at]))
			p.write(nil)
			p.write([]byte(s[at:]))
			p.close()
			require.Equal(t, runes.Clean(s), p.text(), "%q cut at %d", s, at)
		}
		for size := 1; size <= 5; size++ {
			var p partial
			writeInPieces(t, &p, s, func() int { return size })
			p.close()
			p.close()
			require.Equal(t, runes.Clean(s), p.text(), "%q in pieces of %d", s, size)
			require.False(t, p.dropped)
		}
	}
}

func TestPartialAtRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(seedOf(t), 1))
	alphabet := []string{"a", "\x00", "é", "今", "👩", "\u200d", "\x80", "\xe4", "\xf0\x9f", "\ufffd"}
	for range 300 {
		var s strings.Builder
		for range r.IntN(60) {
			s.WriteString(alphabet[r.IntN(len(alphabet))])
		}
		var p partial
		writeInPieces(t, &p, s.String(), func() int { return r.IntN(4) })
		p.close()
		require.Equal(t, runes.Clean(s.String()), p.text())
	}
}

func TestPartialHoldsBackOnlyWhatIsIncomplete(t *testing.T) {
	var p partial
	p.write([]byte("a今\xe5\xa4"))
	require.Equal(t, "a今", p.text())
	p.write([]byte("\xa9"))
	require.Equal(t, "a今天", p.text())
	p.write([]byte("\xf0\x9f"))
	p.close()
	require.Equal(t, "a今天\ufffd\ufffd", p.text())
}

func TestB205_PartialIsBounded(t *testing.T) {
	chunk := []byte(strings.Repeat("x", 1<<20))
	for _, c := range []struct {
		name    string
		last    string // what follows maxText-2 bytes
		want    int
		dropped bool
	}{
		{"exactly", "yz", maxText, false},
		{"a byte more", "yz!", maxText, true},
		{"a rune that does not fit", "今", maxText - 2, true},
		{"grows by cleaning", "\xff", maxText - 2, true},
		{"much more", strings.Repeat("今", 1<<20), maxText - 2, true},
		{"incomplete at the end", "y\xe4", maxText - 1, true},
		{"split right behind the bound", "yz\xe4\xbb", maxText, true},
	} {
		var p partial
		for range maxText >> 20 {
			p.write(chunk[:min(len(chunk), maxText-2-p.buf.Len())])
		}
		require.Equal(t, maxText-2, p.buf.Len())
		p.write([]byte(c.last))
		p.close()
		require.Len(t, p.text(), c.want, c.name)
		require.Equal(t, c.dropped, p.dropped, c.name)
		if c.dropped {
			p.write([]byte("z"))
			p.close()
			require.Len(t, p.text(), c.want, "%s: nothing follows a gap", c.name)
		}
		head, more := p.head()
		require.Len(t, head, maxPreview)
		require.True(t, more)
	}
}

func TestPartialHeadIsSettledOnceThereIsMore(t *testing.T) {
	var p partial
	line := strings.Repeat("今", maxPreview/3) // 1998 bytes
	p.write([]byte(line))
	head, more := p.head()
	require.Equal(t, line, head)
	require.False(t, more)
	p.write([]byte("é")) // exactly maxPreview
	head, more = p.head()
	require.Equal(t, line+"é", head)
	require.False(t, more)
	p.write([]byte("x"))
	head, more = p.head()
	require.Equal(t, line+"é", head)
	require.True(t, more)
	p.write([]byte(strings.Repeat("y", 1<<20)))
	require.Zero(t, testing.AllocsPerRun(10, func() { p.head(); p.text() }))
}

func TestPartialTextStaysAsItWas(t *testing.T) {
	var p partial
	var seen, want []string
	for i := range 200 {
		p.write([]byte{byte('a' + i%26)})
		seen = append(seen, p.text())
		want = append(want, strings.Clone(p.text()))
	}
	require.Equal(t, want, seen)
}

// seedOf is the seed of an internal test, logged and settable by
// SUBAGENT_TEST_SEED.
func seedOf(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("SUBAGENT_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err, "SUBAGENT_TEST_SEED")
	}
	t.Logf("SUBAGENT_TEST_SEED=%d", seed)
	return seed
}
