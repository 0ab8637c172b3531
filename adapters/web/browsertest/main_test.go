package browsertest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
	"github.com/go-subagent/subagent/subagenttest"
)

var renew = flag.Bool("screenshots", false, "renew the pictures in docs/")

// patience is how long a test waits for what must come.
const patience = time.Minute

// browser is one Chromium for all tests; each page has a profile of its own.
var browser context.Context

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(withBrowser(m))
}

func withBrowser(m *testing.M) int {
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		fmt.Println("no chromium or google-chrome in the PATH: the browser tests cannot run (Debian: apt-get install chromium)")
		if os.Getenv("CI") == "true" {
			return 1
		}
		return m.Run() // each test skips
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1360, 860),
		chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("lang", "en-US"), chromedp.Env("LANGUAGE=en"))
	allocator, closeAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	var closeBrowser context.CancelFunc
	browser, closeBrowser = chromedp.NewContext(allocator)
	if err := chromedp.Do(browser); err != nil {
		fmt.Println("Chromium did not start:", err)
		return 1
	}
	code := m.Run()
	_ = chromedp.Cancel(browser) // waits for its processes
	closeBrowser()
	closeAllocator()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Println(err)
		return 1
	}
	return code
}

// rig is a Runner with a server that can be stopped and started again at the
// same address.
type rig struct {
	t       *testing.T
	runner  *subagent.Runner
	gate    *subagenttest.Gate
	options web.Options
	server  *http.Server
	served  chan struct{}
	addr    string

	mu    sync.Mutex // guards what follows
	lists int        // how often a list of tasks was asked for
	opens int        // and a WebSocket
	conns []net.Conn
}

func newRig(t *testing.T, cfg subagent.Config, o web.Options) *rig {
	t.Helper()
	if browser == nil {
		t.Skip("there is no Chromium: see above")
	}
	g := &rig{t: t, options: o, addr: "127.0.0.1:0"}
	g.start(cfg)
	t.Cleanup(g.stop)
	return g
}

func (g *rig) start(cfg subagent.Config) {
	g.t.Helper()
	g.gate = subagenttest.NewGate()
	if cfg.Func == nil {
		cfg.Func = g.gate.Func()
	}
	if cfg.ShutdownGrace == 0 {
		cfg.ShutdownGrace = time.Millisecond
	}
	var err error
	g.runner, err = subagent.New(g.t.Context(), cfg)
	require.NoError(g.t, err)
	listener, err := net.Listen("tcp", g.addr)
	require.NoError(g.t, err)
	g.addr = listener.Addr().String()
	panel := web.Handler(g.runner, g.options)
	g.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.mu.Lock()
			switch path.Base(r.URL.Path) {
			case "tasks":
				g.lists++
			case "ws":
				g.opens++
			}
			g.mu.Unlock()
			panel.ServeHTTP(w, r)
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.conns = append(g.conns, c)
			return ctx
		},
	}
	served := make(chan struct{})
	g.served = served
	go func() { // ends with stop, which waits for it
		defer close(served)
		_ = g.server.Serve(listener)
	}()
}

func (g *rig) stop() {
	g.gate.ReleaseAll()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = g.runner.Shutdown(ctx) // a deaf worker may be left
	_ = g.server.Close()
	<-g.served
}

// sever breaks all connections; the server goes on.
func (g *rig) sever() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.conns {
		_ = c.Close()
	}
	g.conns = nil
}

func (g *rig) listed() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lists
}

func (g *rig) opened() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opens
}

func (g *rig) url() string { return "http://" + g.addr + g.options.Prefix + "/" }

func (g *rig) spawn(session, subject string) subagent.Task {
	return g.request(subagent.Request{ParentSessionID: session, Subject: subject})
}

func (g *rig) request(req subagent.Request) subagent.Task {
	g.t.Helper()
	if req.Description == "" {
		req.Description = "the prompt of " + req.Subject
	}
	task, err := g.runner.Spawn(g.t.Context(), req)
	require.NoError(g.t, err)
	return task
}

func (g *rig) finish(task subagent.Task, text string, err error) {
	g.gate.Release(task.ID, subagent.Result{Text: text}, err)
}

// page is one tab.
type page struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	noises   []string // errors and warnings on the console
	expected []string // parts of those that the test asks for
}

// open opens an address in a fresh profile, and checks at the end of the test
// that the console stayed quiet. scheme is "dark", "light", or "".
func open(t *testing.T, url, scheme string) *page {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	p := &page{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, p.listen))
	p.prefer(scheme)
	p.do(chromedp.Navigate(url))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("console: %q\npage: %s", p.noise(), p.text("document.body.innerText"))
		}
		require.Empty(t, p.noise(), "the console")
	})
	return p
}

func (p *page) listen(ev any) {
	switch ev := ev.(type) {
	case *runtime.EventConsoleAPICalled:
		if ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeWarning {
			p.note(fmt.Sprint("console: ", string(must(json.Marshal(ev.Args)))))
		}
	case *runtime.EventExceptionThrown:
		p.note("exception: " + string(must(json.Marshal(ev.ExceptionDetails))))
	case *log.EventEntryAdded:
		if ev.Entry.Level == log.EntryLevelError || ev.Entry.Level == log.EntryLevelWarning {
			p.note("log: " + ev.Entry.Text)
		}
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		return []byte(err.Error())
	}
	return b
}

func (p *page) note(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noises = append(p.noises, s)
}

// noise is what the console has said, but for what the test has asked for.
func (p *page) noise() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.noises), func(s string) bool {
		return slices.ContainsFunc(p.expected, func(part string) bool { return strings.Contains(s, part) })
	})
}

// expect forgives the console what holds one of the parts.
func (p *page) expect(parts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = append(p.expected, parts...)
}

// What a browser says of a server that is not there, or that refuses.
const (
	noSocket = "WebSocket connection to"
	noAnswer = "Failed to load resource"
)

func (p *page) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	require.NoError(p.t, chromedp.Do(ctx, steps...))
}

// eval evaluates an expression; a promise is awaited.
func eval[T any](p *page, js string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](js, chromedp.EvalAwaitPromise))
	require.NoError(p.t, err, js)
	return v
}

func (p *page) js(js string) { p.t.Helper(); eval[chromedp.Void](p, js) }

// text is an expression, or what it promises, as a string.
func (p *page) text(js string) string {
	p.t.Helper()
	return eval[string](p, "Promise.resolve("+js+").then(String)")
}

func (p *page) is(js string) bool { p.t.Helper(); return eval[bool](p, "Boolean("+js+")") }

// until waits until the expression is true. It asks again and again: the policy
// of the page forbids the driver's own way to wait inside of it.
func (p *page) until(js string) {
	p.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !p.is(js); <-tick.C {
		if time.Now().After(deadline) {
			p.t.Fatalf("it did not come true: %s\npage: %s", js, p.text("document.body.innerText"))
		}
	}
}

func (p *page) click(selector string) {
	p.t.Helper()
	p.until(fmt.Sprintf("(e => e && e.getClientRects().length && !e.disabled)(document.querySelector(%q))", selector))
	p.do(chromedp.Click(chromedp.CSS(selector)))
}

// set gives a field a value as a person would, in the end.
func (p *page) set(selector, value string) {
	p.t.Helper()
	p.js(fmt.Sprintf("(e => { e.value = %q; e.dispatchEvent(new Event('input', {bubbles: true})) })(document.querySelector(%q))", value, selector))
}

func (p *page) keys(keys string) {
	p.t.Helper()
	p.do(chromedp.KeyEvent(keys))
}

// ready waits until the page is connected and has its list.
func (p *page) ready() *page {
	p.t.Helper()
	p.until("document.querySelector('#connection')?.dataset.state === 'live' && !document.querySelector('#nothing-text').innerText.startsWith('Loading')")
	return p
}

func row(task subagent.Task) string { return fmt.Sprintf(`tr[data-id="%s"]`, task.ID) }

// shows waits until the task's row is in a state: its text, as people read it.
func (p *page) shows(task subagent.Task, state string) {
	p.t.Helper()
	p.until(fmt.Sprintf("document.querySelector('%s td.state')?.innerText.trim() === %q", row(task), state))
}

// rows are the subjects of the rows that can be seen.
func (p *page) rows() []string {
	return eval[[]string](p, "[...document.querySelectorAll('#rows .open')].map(e => e.textContent)")
}

func (p *page) cell(task subagent.Task, n int) string {
	return p.text(fmt.Sprintf("document.querySelector('%s').cells[%d].innerText", row(task), n))
}

func (p *page) prefer(scheme string) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	require.NoError(p.t, err)
	_, err = chromedp.Call(p.ctx, log.Enable, cdp.Empty{})
	require.NoError(p.t, err)
}
