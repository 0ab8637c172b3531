// Package runes is what a text must be before it is stored or sent: valid
// UTF-8 without NUL, and cut between two runes where it is too long.
package runes

import (
	"strings"
	"unicode/utf8"
)

// Clean makes s text that every store and every wire takes: each invalid byte
// and each NUL becomes U+FFFD. It never merges several into one, so that
// cleaning a text in pieces, cut between runes, equals cleaning it whole.
// A clean s is returned as it is, without allocation.
func Clean(s string) string {
	if IsClean(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r == 0 {
			return utf8.RuneError
		}
		return r
	}, s)
}

// IsClean reports whether Clean would leave s as it is.
func IsClean(s string) bool {
	return strings.IndexByte(s, 0) < 0 && utf8.ValidString(s)
}

// Cut is the start of s, at most n bytes, ending between two runes.
func Cut(s string, n int) string {
	n = max(n, 0)
	if len(s) <= n {
		return s
	}
	for i := n; i >= 0 && i > n-utf8.UTFMax; i-- {
		if utf8.RuneStart(s[i]) {
			return s[:i]
		}
	}
	return s[:n] // no text at all: there is no rune to spare
}
