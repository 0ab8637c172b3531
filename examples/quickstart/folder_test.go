package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func names(folders []folder) []string {
	var all []string
	for _, f := range folders {
		all = append(all, f.name)
	}
	return all
}

func TestSurvey(t *testing.T) {
	root := tree(t, map[string]string{
		"root.go": "", "a/a.go": "", "a/deep/er/x.go": "", "docs/readme.md": "", "b/b_test.go": "",
		"vendor/v.go": "", "a/testdata/t.go": "", "node_modules/n.go": "", ".hidden/h.go": "", "_old/o.go": "",
		"submodule/.git": "gitdir: elsewhere", "submodule/s.go": "", "clone/.git/config": "", "clone/in/c.go": "",
		".git/g.go": "", "onlyhidden/.#lock.go": "", "onlyhidden/_x.go": "", "odd.go/readme.md": "",
	})
	require.NoError(t, os.Symlink("..", filepath.Join(root, "a", "loop")))
	require.NoError(t, os.Symlink("..", filepath.Join(root, "docs", "folder.go")))
	require.NoError(t, os.Mkdir(filepath.Join(root, "links"), 0o755))
	require.NoError(t, os.Symlink("../root.go", filepath.Join(root, "links", "root.go")))

	found, err := survey(t.Context(), root)
	require.NoError(t, err)
	want := []string{".", "a", "a/deep/er", "b", "links"}
	assert.Equal(t, want, names(found))

	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(root, link))
	found, err = survey(t.Context(), link)
	require.NoError(t, err)
	assert.Equal(t, want, names(found), "a root that is a link is followed")
}

func TestSurveyReadsARootThatItWouldSkipElsewhere(t *testing.T) {
	root := tree(t, map[string]string{"testdata/.git/config": "", "testdata/x.go": ""})
	found, err := survey(t.Context(), filepath.Join(root, "testdata"))
	require.NoError(t, err)
	assert.Equal(t, []string{"."}, names(found))
}

func TestALinkThatLeadsToItselfIsAFileWithAnError(t *testing.T) {
	root := tree(t, map[string]string{"a/good.go": goodFile})
	require.NoError(t, os.Symlink("loop.go", filepath.Join(root, "a", "loop.go")))
	code, stdout, _ := call(t, root)
	assert.Equal(t, exitErrored, code)
	assert.Contains(t, stdout, "loop.go: too many levels of symbolic links")
	assert.Contains(t, stdout, "a  errored, error\n  read         1 file, 6 lines\n")
}
