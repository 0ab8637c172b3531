package browsertest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
)

// The page loads under its policy without a word on the console, and text of
// tasks is text, whatever it looks like.
func TestPolicy(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{Prefix: "/deep/er"})
	evil := `<img src=x onerror="document.title='gone'"><script>document.title='gone'</script>`
	task := g.request(subagent.Request{
		ParentSessionID: evil, Subject: evil, Description: evil, AgentID: evil, ExternalTaskID: evil, Metadata: map[string]string{evil: evil},
	})
	g.gate.WaitEntered(t, task.ID).Progress(evil)
	p := open(t, g.url(), "").ready()
	p.shows(task, "Running")
	require.Equal(t, []string{evil}, p.rows())
	p.click(row(task) + " .open")
	p.until("document.querySelector('#drawer pre:last-of-type') && document.querySelector('#drawer').innerText.includes('onerror')")
	g.finish(task, evil, nil)
	p.shows(task, "Completed")
	p.until("[...document.querySelectorAll('#drawer pre')].some(e => e.offsetParent && e.textContent.startsWith('<img'))")
	require.Equal(t, "Tasks", p.text("document.title"))
	require.Zero(t, p.text("document.querySelectorAll('main img, main script').length === 0 ? '' : 'there are some'"))
	p.expect("requires 'TrustedHTML' assignment") // it is the policy that says so
	require.Equal(t, "TypeError", p.text("(() => { try { document.body.innerHTML = 'x'; return 'it was set' } catch (e) { return e.name } })()"))
	resp, err := http.Get(g.url())
	require.NoError(t, err)
	resp.Body.Close()
	require.Contains(t, resp.Header.Get("Content-Security-Policy"), "default-src 'none'")
}

// A task is watched from queued to completed without a reload.
func TestWatch(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 1}, web.Options{})
	p := open(t, g.url(), "").ready()
	p.until("document.querySelector('#nothing').innerText.includes('No tasks yet')")
	p.js("window.mark = 'same page'")
	first, second, third := g.spawn("s", "first"), g.spawn("s", "second"), g.spawn("s", "third")
	p.shows(first, "Running")
	p.shows(second, "Queued")
	p.shows(third, "Queued")
	require.Equal(t, []string{"third", "second", "first"}, p.rows())
	require.Equal(t, []string{"", "1", "2"}, []string{p.cell(first, 3), p.cell(second, 3), p.cell(third, 3)})
	p.until("document.querySelector('#gauge-text').innerText === '1 of 1 slot in use · 2 queued · 0 lent · 0 detached'")
	p.until("document.querySelector('.count[data-state=queued] b').innerText === '2'")
	require.NotEmpty(t, p.cell(second, 4), "how long it has waited")

	run := g.gate.WaitEntered(t, first.ID)
	run.ReportUsage("call", subagent.Usage{InputTokens: 1234567, OutputTokens: 89012, TotalTokens: 1323579, CacheReadTokens: 1000000})
	p.until(fmt.Sprintf("document.querySelector('%s').cells[6].innerText === '1,234,567'", row(first)))
	require.Equal(t, []string{"89,012", "1,000,000"}, []string{p.cell(first, 7), p.cell(first, 8)})
	g.finish(first, "done", nil)
	p.shows(first, "Completed")
	p.shows(second, "Running")
	p.until(fmt.Sprintf("document.querySelector('%s').cells[3].innerText === '1'", row(third)))
	g.finish(second, "", errors.New("no whales"))
	p.shows(second, "Failed")
	g.finish(third, "", nil)
	p.shows(third, "Completed")
	p.until("document.querySelector('#gauge-text').innerText.startsWith('0 of 1')")
	require.Equal(t, "same page", p.text("window.mark"))
}

func (p *page) confirmStop(reason string) {
	p.t.Helper()
	p.until("document.querySelector('#confirm').open")
	p.set("#confirm-reason", reason)
	p.click("#confirm-yes")
	p.until("!document.querySelector('#confirm').open")
}

func TestStop(t *testing.T) {
	deaf := make(chan struct{})
	g := newRig(t, subagent.Config{Workers: 2, CancelGrace: 500 * time.Millisecond}, web.Options{})
	defer close(deaf)
	running := g.spawn("s", "runs")
	stuck := g.request(subagent.Request{ParentSessionID: "s", Subject: "is deaf", Func: func(context.Context, *subagent.Run) (subagent.Result, error) {
		<-deaf
		return subagent.Result{}, nil
	}})
	queued := g.spawn("s", "waits")
	p := open(t, g.url(), "").ready()
	p.shows(queued, "Queued")
	p.click(row(queued) + " .stop")
	p.until("document.querySelector('#confirm').open")
	require.Contains(t, p.text("document.querySelector('#confirm').innerText"), "“waits” is asked to stop")
	p.click("#confirm-no")
	p.until("!document.querySelector('#confirm').open")
	p.shows(queued, "Queued")
	p.click(row(queued) + " .stop")
	p.confirmStop("not needed")
	p.shows(queued, "Cancelled")
	p.click(row(running) + " .stop")
	p.confirmStop("")
	p.shows(running, "Cancelled")

	// One that does not obey is shown as stopping, and then its end is forced.
	p.click(row(stuck) + " .open")
	p.click("#drawer .stop")
	p.confirmStop("enough")
	p.shows(stuck, "Stopping")
	p.shows(stuck, "Cancelled")
	p.until("document.querySelector('#drawer .state-line').innerText.includes('Its worker has not returned')")
	p.until("document.querySelector('#drawer').innerText.includes('cancel timed out, worker may be stuck')")
	require.Contains(t, p.text("document.querySelector('#drawer .state-line').innerText"), "a person stopped it (“enough”)")
	p.until("document.querySelector('#gauge-text').innerText.includes('1 detached')")
	end, err := g.runner.Get(t.Context(), queued.ID)
	require.NoError(t, err)
	require.Equal(t, "not needed", end.CancelMessage)
}

func TestStopSession(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 2}, web.Options{})
	a1, a2, b := g.spawn("a", "one"), g.spawn("a", "two"), g.spawn("b", "other")
	p := open(t, g.url()+"?session_id=a", "").ready()
	p.shows(a2, "Running")
	require.Equal(t, []string{"two", "one"}, p.rows())
	p.click("#stop-session")
	p.until("document.querySelector('#confirm').open")
	require.Contains(t, p.text("document.querySelector('#confirm').innerText"), "2 tasks")
	p.confirmStop("")
	p.shows(a1, "Cancelled")
	p.shows(a2, "Cancelled")
	p.until("document.querySelector('#stop-session').disabled")
	p.set("#filter-session", "")
	p.shows(b, "Running")
}

// A stop that the server refuses is said in the dialog, which stays.
func TestStopThatFails(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	task := g.spawn("s", "gone")
	g.gate.WaitEntered(t, task.ID)
	p := open(t, g.url(), "").ready()
	p.shows(task, "Running")
	p.click(row(task) + " .stop")
	p.until("document.querySelector('#confirm').open")
	p.js("window.fetch = async () => { throw new Error('no way') }")
	p.click("#confirm-yes")
	p.until("document.querySelector('#confirm-error').innerText === 'It was not stopped: the server cannot be reached.'")
	p.click("#confirm-no")
}

func TestFilters(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 2}, web.Options{})
	g.spawn("a", "Alpha whales")
	beta := g.request(subagent.Request{ParentSessionID: "b", Subject: "Beta", AgentID: "diver"})
	g.spawn("b", "Gamma whales")
	p := open(t, g.url(), "").ready()
	p.shows(beta, "Running")
	want := func(subjects ...string) {
		t.Helper()
		p.until(fmt.Sprintf("[...document.querySelectorAll('#rows .open')].map(e => e.textContent).join() === %q", strings.Join(subjects, ",")))
	}
	want("Gamma whales", "Beta", "Alpha whales")
	require.Equal(t, "3 tasks", p.text("document.querySelector('#shown').innerText"))
	p.set("#filter-text", "WHALES")
	want("Gamma whales", "Alpha whales")
	p.set("#filter-session", "b")
	want("Gamma whales")
	p.until("document.querySelector('#shown').innerText === '1 of 3 tasks'")
	p.set("#filter-text", "diver")
	want("Beta")
	p.set("#filter-text", "")
	p.click(".count[data-state=queued]")
	want("Gamma whales")
	require.Equal(t, "true", p.text("document.querySelector('.count[data-state=queued]').getAttribute('aria-pressed')"))
	require.Equal(t, "queued", p.text("document.querySelector('#filter-state').value"))
	p.set("#filter-state", "errored")
	p.until("document.querySelector('#nothing-text').innerText === 'No task matches the filters.'")
	p.click("#clear")
	want("Gamma whales", "Beta", "Alpha whales")
	p.set("#filter-text", beta.ID.String())
	want("Beta")
}

// The drawer shows the task, its live text, its timeline and its tree, and the
// page around hears of it.
func TestDrawer(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 4}, web.Options{Link: func(task subagent.Task) string { return "/chat#" + task.ExternalTaskID }})
	kids := make(chan subagent.Task, 2)
	parent := g.request(subagent.Request{
		ParentSessionID: "s", Subject: "parent", Description: strings.Repeat("a long prompt\n", 500) + "the last line", ExternalTaskID: "call-7",
		Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			for _, subject := range []string{"child one", "child two"} {
				kid, err := g.runner.Spawn(ctx, subagent.Request{Subject: subject, Description: "p"})
				if err != nil {
					return subagent.Result{}, err
				}
				kids <- kid
			}
			return g.gate.Func()(ctx, run)
		},
	})
	run := g.gate.WaitEntered(t, parent.ID)
	one, two := <-kids, <-kids
	g.gate.WaitEntered(t, one.ID)
	p := open(t, g.url(), "").ready()
	p.js("window.heard = []; addEventListener('subagent:open', e => heard.push(e.detail.task_id))")
	p.shows(parent, "Running")
	require.Equal(t, "parent", p.cell(one, 9))
	p.click(row(parent) + " .open")
	p.until("!document.querySelector('#drawer').hidden && heard.length === 1")
	require.Equal(t, parent.ID.String(), p.text("heard[0]"))
	p.until("document.querySelector('#drawer').innerText.includes('the last line')") // all of it, not the preview
	p.until("document.querySelector('#drawer').innerText.includes('Nothing yet')")
	run.Progress("reading")
	_, _ = run.Write([]byte("the first words"))
	p.until("document.querySelector('#drawer').innerText.includes('the first words') && document.querySelector('#drawer').innerText.includes('reading')")
	_, _ = run.Write([]byte(strings.Repeat(".", 5000) + "the end of it"))
	p.until("document.querySelector('#drawer').innerText.includes('the end of it')")

	steps := "[...document.querySelectorAll('#drawer .timeline strong')].map(e => e.textContent).join()"
	require.Equal(t, "Created,Queued,Started", p.text(steps))
	require.Equal(t, parent.CreatedAt.Format(time.RFC3339Nano), p.text("document.querySelector('#drawer time').title"), "the exact time on hover")
	p.until("[...document.querySelectorAll('#drawer .leaf')].map(e => e.innerText.replace(/\\s+/g, ' ').trim()).join() === 'child one Running,child two Running'")
	require.Contains(t, p.text("document.querySelector('#drawer dl').innerText"), "call-7")
	require.True(t, strings.HasSuffix(p.text("document.querySelector('#drawer a.link').href"), "/chat#call-7"))
	p.js("navigator.clipboard.writeText = async s => { window.copied = s }")
	p.click("#drawer [aria-label='Copy the external id']")
	p.until("window.copied === 'call-7'")

	g.finish(two, "", errors.New("the sea is deep"))
	p.until("document.querySelector('#drawer .leaf:last-of-type') && document.querySelector('#drawer').innerText.includes('Failed')")
	g.finish(parent, "all is well", nil)
	p.until(steps + " === 'Created,Queued,Started,Completed'")
	p.until("document.querySelector('#drawer').innerText.includes('all is well')")
	p.js("[...document.querySelectorAll('#drawer .leaf')].find(e => e.innerText.includes('child two')).click()")
	p.until("document.querySelector('#drawer-title').innerText === 'child two' && document.querySelector('#drawer').innerText.includes('the sea is deep')")
	require.Contains(t, p.text("document.querySelector('#drawer').innerText"), "Spawned by")
	p.click("#drawer .close")
	p.until("document.querySelector('#drawer').hidden")
	g.finish(one, "", nil)
	p.shows(one, "Completed")
}

func TestLanes(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 2}, web.Options{})
	other := g.spawn("other", "elsewhere")
	g.finish(other, "", nil)
	a, b, c := g.spawn("s", "a"), g.spawn("s", "b"), g.spawn("s", "c")
	p := open(t, g.url(), "").ready()
	bars := "document.querySelectorAll('#lanes g[data-id]').length"
	p.until(bars + " === 3")
	require.Equal(t, "Over time: session s", p.text("document.querySelector('#lanes-title').innerText"))
	bar := func(task subagent.Task) string { return fmt.Sprintf("#lanes g[data-id='%s']", task.ID) }
	p.until(fmt.Sprintf("document.querySelector(%q).dataset.state === 'queued' && document.querySelector(%q).hasAttribute('hidden')", bar(c), bar(c)+" .run"))
	g.finish(a, "", nil)
	p.until(fmt.Sprintf("document.querySelector(%q).dataset.state === 'running' && !document.querySelector(%q).hasAttribute('hidden')", bar(c), bar(c)+" .run"))
	// They overlap, so each has a lane of its own.
	require.Equal(t, "3", p.text("new Set([...document.querySelectorAll('#lanes .wait')].map(e => e.getAttribute('y'))).size"))
	require.Contains(t, p.text(fmt.Sprintf("document.querySelector(%q).textContent", bar(a))), "a: Completed, waited")
	p.js(fmt.Sprintf("document.querySelector(%q).dispatchEvent(new MouseEvent('click', {bubbles: true}))", bar(b)+" .run"))
	p.until("document.querySelector('#drawer-title')?.innerText === 'b'")
	p.set("#filter-session", "other")
	p.until(bars + " === 1")
}

// The page comes back by itself when the server was away, and shows what the new
// one knows.
func TestReconnect(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{Prefix: "/x"})
	old := g.spawn("s", "of the old server")
	g.gate.WaitEntered(t, old.ID)
	p := open(t, g.url(), "").ready()
	p.shows(old, "Running")
	p.js("window.mark = 'same page'")
	g.stop()
	p.until("document.querySelector('#connection').dataset.state === 'lost' && document.querySelector('#banner').innerText.startsWith('The connection was lost. Trying again… You see the tasks as they were at')")
	require.NotEmpty(t, p.rows(), "what was there can still be read")
	g.start(subagent.Config{})
	fresh := g.spawn("s", "of the new server")
	p.shows(fresh, "Running")
	p.until("document.querySelector('#connection').dataset.state === 'live' && document.querySelector('#banner').hidden")
	p.until(fmt.Sprintf("!document.querySelector('%s')", row(old)))
	g.finish(fresh, "", nil)
	p.shows(fresh, "Completed")
	require.Equal(t, "same page", p.text("window.mark"))
	p.expect(noSocket, noAnswer)
}

// A connection that breaks is taken up where it was: the list is not read anew,
// and what ended meanwhile is told.
func TestResume(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	task := g.spawn("s", "on and on")
	p := open(t, g.url(), "").ready()
	p.shows(task, "Running")
	p.until("!document.querySelector('#banner').innerText")
	lists := g.listed()
	g.sever()
	g.finish(task, "", nil)
	p.shows(task, "Completed")
	p.until("document.querySelector('#connection').dataset.state === 'live'")
	require.Equal(t, lists, g.listed())
	p.expect(noSocket, noAnswer)
}

// A connection that is lost is said to be so at once, and made anew, even if no
// other request is answered; and one is given up when the server cannot be
// reached, for which a browser's WebSocket may take minutes.
func TestSilentServer(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	task := g.spawn("s", "on and on")
	p := open(t, g.url(), "").ready()
	p.shows(task, "Running")
	p.until("document.querySelector('#gauge-text').innerText.startsWith('1 of')")
	p.js("window.real = fetch; window.fetch = () => new Promise(() => {})")
	before := g.opened()
	g.sever()
	g.finish(task, "", nil)
	p.shows(task, "Completed")
	require.Greater(t, g.opened(), before)

	p.js("location.reload()")
	p.ready()
	before = g.opened()
	p.js("window.fetch = async () => { throw new TypeError('no way') }")
	for deadline := time.Now().Add(patience); g.opened() == before; time.Sleep(20 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "it still believes in its connection")
	}
	p.expect(noSocket, noAnswer)
}

// A task that failed is no failure to read it.
func TestFailedTask(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	task := g.spawn("s", "fails")
	_, _ = g.gate.WaitEntered(t, task.ID).Write([]byte(strings.Repeat("as far as it came ", 500) + "the last words"))
	g.finish(task, "", errors.New("the sea is deep"))
	p := open(t, g.url(), "").ready()
	p.shows(task, "Failed")
	p.click(row(task) + " .open")
	p.until("document.querySelector('#drawer').innerText.includes('the sea is deep')")
	p.until("document.querySelector('#drawer').innerText.includes('the last words')")
	require.Empty(t, p.text("document.querySelector('#drawer .problem').innerText"))
}

// Who sees some sessions only is told of his own share of the slots.
func TestGaugeOfOnesOwn(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 2}, web.Options{Sessions: func(*http.Request) (web.SessionScope, error) {
		return web.SessionScope{IDs: []string{"mine"}}, nil
	}})
	g.spawn("other", "one")
	g.spawn("mine", "two")
	g.spawn("mine", "three")
	p := open(t, g.url(), "").ready()
	p.until("document.querySelector('#gauge-text').innerText === 'Yours: 1 of 2 slots · 1 queued'")
}

func TestReadOnlyPage(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{ReadOnly: true})
	task := g.spawn("s", "watched")
	p := open(t, g.url()+"?session_id=s", "").ready()
	p.shows(task, "Running")
	p.click(row(task) + " .open")
	p.until("!document.querySelector('#drawer').hidden")
	require.Equal(t, "0", p.text("[...document.querySelectorAll('.stop, #stop-session')].filter(e => e.getClientRects().length).length"))
	p.keys(kb.Delete)
	require.False(t, p.is("document.querySelector('#confirm').open"))
	require.Equal(t, "403 read_only", p.text(fmt.Sprintf(
		"fetch('tasks/%s/cancel', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{}'}).then(async r => r.status + ' ' + (await r.json()).error.code)", task.ID)))
	p.expect(noSocket, noAnswer)
}

// Who may not see the tasks is told so, and sees them when he may.
func TestForbidden(t *testing.T) {
	var allowed atomic.Bool
	g := newRig(t, subagent.Config{}, web.Options{Sessions: func(*http.Request) (web.SessionScope, error) {
		if !allowed.Load() {
			return web.SessionScope{}, errors.New("no")
		}
		return web.SessionScope{All: true}, nil
	}})
	task := g.spawn("s", "for some")
	p := open(t, g.url(), "")
	p.until("document.querySelector('#banner').innerText === 'The server says: you may not see these tasks. Trying again…'")
	p.until("document.querySelector('#nothing-text').innerText === 'The tasks cannot be shown: you may not see these tasks.'")
	require.Equal(t, "–––––– ", p.text("[...document.querySelectorAll('.count b')].map(e => e.innerText).join('') + ' ' + document.querySelector('#shown').innerText"), "nothing is counted that is not known")
	allowed.Store(true)
	p.shows(task, "Running")
	p.until("document.querySelector('#banner').hidden")
	p.expect(noSocket, noAnswer)
}

func TestDarkAndLight(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	for scheme, back := range map[string]string{"dark": "rgb(20, 23, 28)", "light": "rgb(255, 255, 255)"} {
		p := open(t, g.url(), scheme).ready()
		require.Equal(t, back, p.text("getComputedStyle(document.body).backgroundColor"), scheme)
		p.set("#theme", "dark")
		require.Equal(t, "rgb(20, 23, 28)", p.text("getComputedStyle(document.body).backgroundColor"))
		p.do(chromedp.Reload())
		p.ready()
		require.Equal(t, "rgb(20, 23, 28)", p.text("getComputedStyle(document.body).backgroundColor"), "it is remembered")
		p.set("#theme", "light")
		require.Equal(t, "rgb(255, 255, 255)", p.text("getComputedStyle(document.body).backgroundColor"))
	}
}
