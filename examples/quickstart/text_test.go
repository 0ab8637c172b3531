package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestWidthCountsColumns(t *testing.T) {
	for s, want := range map[string]int{"": 0, "abc": 3, "日本": 4, "e\u0301": 1, "✓ ━": 3, "한글": 4, "🙂": 2} {
		assert.Equal(t, want, width(s), "%q", s)
	}
}

func TestCutNeverExceedsItsColumns(t *testing.T) {
	for _, s := range []string{"", "short", "a longer text that is cut", "日本語のとても長い名前", "e\u0301e\u0301e\u0301e\u0301"} {
		for n := range 30 {
			assert.LessOrEqual(t, width(cut(s, n)), n, "%q at %d", s, n)
			if n > 0 {
				assert.LessOrEqual(t, width(cutFront(s, n)), n, "%q at %d", s, n)
			}
			if width(s) <= n {
				assert.Equal(t, s, cut(s, n))
				assert.Equal(t, s, cutFront(s, n))
			}
		}
	}
	assert.Equal(t, "inter…", cut("internal/pure", 6))
	assert.Equal(t, "…/pure", cutFront("internal/pure", 6))
	assert.Equal(t, "日…", cut("日本語", 4))
}

func TestPrintable(t *testing.T) {
	assert.Equal(t, "a b\ufffdc\ufffd\ufffd日", printable("a\tb\nc\x1b\u202e日"))
	assert.Equal(t, "\ufffd", printable("\xff"))
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0.0s", 0: "0.0s", 1234 * time.Millisecond: "1.2s", 59960 * time.Millisecond: "1m00s",
		61 * time.Second: "1m01s", time.Hour: "1h00m", 100*time.Hour + 59*time.Minute: "100h59m",
	} {
		assert.Equal(t, want, short(d))
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		assert.Equal(t, want, grouped(n))
	}
}
