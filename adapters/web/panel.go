package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed panel
var panelFiles embed.FS

// panel is the page: fixed files, the same for everybody.
type panel struct {
	policy string
	files  map[string]asset // by the one step of their path; "" is the page
}

type asset struct {
	kind, tag string
	body      []byte
}

var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// newPanel prepares the files. The page is a template for what the options say.
func newPanel(o Options) *panel {
	p := &panel{policy: policy(o.Origins), files: make(map[string]asset)}
	entries, err := panelFiles.ReadDir("panel")
	if err != nil {
		panic(err) // the files are part of the program
	}
	for _, e := range entries {
		body, err := panelFiles.ReadFile("panel/" + e.Name())
		if err != nil {
			panic(err)
		}
		name := e.Name()
		if name == "index.html" {
			name = ""
			var page bytes.Buffer
			if err := template.Must(template.New("page").Parse(string(body))).Execute(&page, o); err != nil {
				panic(err)
			}
			body = page.Bytes()
		}
		sum := sha256.Sum256(body)
		p.files[name] = asset{kinds[path.Ext(e.Name())], `"` + hex.EncodeToString(sum[:8]) + `"`, body}
	}
	return p
}

// policy lets the page load nothing but its own files and talk to nobody but
// its own server, and lets nothing write HTML into it. It may be shown in a
// frame by its own origin and those that are listed.
func policy(origins []string) string {
	frames := "frame-ancestors 'self'"
	for _, o := range origins {
		if strings.Contains(o, "://") && !strings.ContainsAny(o, " ;,'\"") {
			frames += " " + o
		}
	}
	return "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'; " + frames
}

// serve answers for the file, if there is one of that name.
func (p *panel) serve(w http.ResponseWriter, r *http.Request, name string) bool {
	file, ok := p.files[name]
	if !ok {
		return false
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, badMethod)
		return true
	}
	w.Header().Set("Content-Type", file.kind)
	w.Header().Set("Content-Security-Policy", p.policy)
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("ETag", file.tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(file.body))
	return true
}
