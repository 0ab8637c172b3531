package browsertest

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
)

// All that a mouse can do, keys can.
func TestKeyboardOnly(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 50}, web.Options{})
	var tasks []subagent.Task
	for i := range 50 {
		tasks = append(tasks, g.spawn("s", fmt.Sprint("task ", i)))
	}
	p := open(t, g.url(), "").ready()
	p.shows(tasks[49], "Running")
	for range 30 { // from the top of the page to the rows
		p.keys(kb.Tab)
		if p.is("document.activeElement.closest('#rows')") {
			break
		}
	}
	focused := "document.activeElement.closest('tr')?.querySelector('.open').textContent"
	require.Equal(t, "task 49", p.text(focused))
	p.keys(kb.ArrowDown + kb.ArrowDown)
	require.Equal(t, "task 47", p.text(focused))
	p.keys(kb.End)
	p.until(focused + " === 'task 0'")
	p.keys(kb.PageUp + kb.Home)
	p.until(focused + " === 'task 49'")
	p.keys(kb.ArrowDown + kb.Enter)
	p.until("document.querySelector('#drawer-title')?.innerText === 'task 48' && document.activeElement.className === 'close'")
	p.keys(kb.Escape)
	p.until("document.querySelector('#drawer').hidden")
	require.Equal(t, "task 48", p.text(focused), "the focus comes back")
	p.keys(kb.Delete)
	p.until("document.querySelector('#confirm').open")
	p.keys(kb.Enter)
	p.shows(tasks[48], "Cancelled")
	p.until("!document.querySelector('#confirm').open")
	p.until(focused + " === 'task 48'")
	// Rows that come and go do not take the focus away.
	g.spawn("s", "another")
	p.until("document.querySelector('#shown').innerText === '51 tasks'")
	require.Equal(t, "task 48", p.text(focused))
}

// What the reader looks at stays where it is while others change and new ones
// come.
func TestNothingJumps(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 1, MaxQueued: -1}, web.Options{})
	var tasks []subagent.Task
	for i := range 120 {
		tasks = append(tasks, g.spawn("s", fmt.Sprint("task ", i)))
	}
	p := open(t, g.url(), "").ready()
	p.until("document.querySelector('#shown').innerText === '120 tasks'")
	p.js("document.querySelector('#scroller').scrollTop = 500")
	watched := tasks[120-1-18]
	p.shows(watched, "Queued")
	place := fmt.Sprintf("JSON.stringify(document.querySelector('%s').getBoundingClientRect())", row(watched))
	columns := "JSON.stringify([...document.querySelectorAll('th')].map(e => e.getBoundingClientRect().width))"
	before, widths := p.text(place), p.text(columns)
	for i := range 20 {
		g.spawn("s", fmt.Sprint("a later one with a much longer subject ", i))
		run := g.gate.WaitEntered(t, tasks[i].ID)
		run.ReportUsage("c", subagent.Usage{InputTokens: 123456789, OutputTokens: 987654321, TotalTokens: 1})
		g.finish(tasks[i], "", nil)
	}
	p.until("document.querySelector('#shown').innerText === '140 tasks' && document.querySelector('.count[data-state=completed] b').innerText === '20'")
	require.Equal(t, before, p.text(place))
	require.Equal(t, widths, p.text(columns))
}
