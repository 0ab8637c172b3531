package subagent_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/runes"
)

// texts are of runes of every length, joined and combined ones too.
var textsOfRunes = []string{"日本語の長い文章", "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪", "e\u0301a\u0308o\u0302", "aé日🜁", "\ufeff\u202e\u2028"}

// Cut at any length, a text stays a text.
func TestB202_CutsFallBetweenRunes(t *testing.T) {
	for _, unit := range textsOfRunes {
		text := strings.Repeat(unit, 1+64/len(unit))
		for limit := range 65 {
			got := runes.Cut(text, limit)
			require.True(t, utf8.ValidString(got), "%q", got)
			require.LessOrEqual(t, len(got), limit)
			require.True(t, strings.HasPrefix(text, got))
			require.Greater(t, len(got), limit-utf8.UTFMax, "no more than a rune is missing")
		}
		// The Runner's own bounds, hit at every place within a rune.
		for shift := range 8 {
			long := strings.Repeat("x", shift) + strings.Repeat(unit, 4000)
			inLab(t, subagent.Config{}, func(t *testing.T, l *lab) {
				end := l.wait(l.spawn(long, withFunc(gives(long, nil))).ID)
				list, err := l.List(l.ctx, subagent.Filter{})
				require.NoError(t, err)
				events, card := l.read(), end.Card()
				for bound, cut := range map[string]string{
					"list": list[0].ResultText, "event": events[len(events)-1].Task.ResultText, "card": card.Content, "prompt": card.Attach.Prompt,
				} {
					require.True(t, utf8.ValidString(cut), bound)
					require.LessOrEqual(t, len(cut), 2000, bound)
					require.Greater(t, len(cut), 2000-utf8.UTFMax, bound)
				}
				require.True(t, utf8.ValidString(end.Subject))
				require.Equal(t, long, end.ResultText)
			})
		}
	}
}

// Output that comes in pieces which split runes is whole again, and valid at each
// moment in between; bytes that are none are replaced, one by one.
func TestB203_OutputThatSplitsRunes(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		for _, text := range append(textsOfRunes, "broken \xff\xfe and \xe4\xb8", "\xf0\x9f\x98") {
			id, run := r.runs("writes")
			for i := range len(text) {
				_, _ = run.Write([]byte(text[i : i+1]))
				got, err := r.Get(r.ctx, id)
				require.NoError(t, err)
				require.True(t, utf8.ValidString(got.ResultText))
				require.True(t, strings.HasPrefix(runes.Clean(text), got.ResultText), "no replacement for what is whole a moment later")
				run.Progress(text[:i])
			}
			synctest.Wait()
			r.gate.Release(id, subagent.Result{}, nil)
			require.Equal(t, runes.Clean(text), r.awaited(id).ResultText)
			synctest.Wait()
			_, events, _ := r.heard(id)
			for _, ev := range events {
				data, err := json.Marshal(ev)
				require.NoError(t, err)
				require.True(t, utf8.Valid(data))
				require.NotContains(t, string(data), `\u0000`)
			}
		}
	})
}

// Ten results of 20 MB: the record keeps 16 MiB and says so, and what is shown of
// them, all together, is small.
func TestB205_ResultsOfMegabytes(t *testing.T) {
	long := strings.Repeat("0123456789", 2_000_000)
	inLab(t, subagent.Config{}, func(t *testing.T, l *lab) {
		for i := range 10 {
			end := l.wait(l.spawn("large", withFunc(func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
				if i == 0 {
					run.Progress(long)
					run.ToolUse(long)
					return subagent.Result{Text: long, StopReason: long, HeadID: long, SourceCommitID: long}, errors.New(long)
				}
				return subagent.Result{Text: long}, nil
			})).ID)
			require.Equal(t, 16<<20, len(end.ResultText))
			require.True(t, end.ResultTruncated)
			cards, _ := l.told(end.ID)
			for _, card := range cards {
				require.Less(t, len(jsonOf(t, card)), 12<<10)
			}
			for _, ev := range l.read() {
				require.Less(t, len(jsonOf(t, ev)), 80<<10, "an error text has at most 64 KiB")
			}
		}
		list, err := l.List(l.ctx, subagent.Filter{})
		require.NoError(t, err)
		require.Len(t, list, 10)
		require.Less(t, len(jsonOf(t, list)), 160<<10)
		require.True(t, list[9].ResultTruncated)
	})
}

func jsonOf(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return data
}
