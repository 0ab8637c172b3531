// Package browsertest tests the Tasks panel in headless Chromium. It is a module
// of its own, so that nobody who uses the panel downloads a browser's driver.
//
//	cd adapters/web/browsertest && go test ./...
//
// The tests need chromium or google-chrome in the PATH. Without one they are
// skipped, but fail where CI=true. With -screenshots they also renew the pictures
// in docs/.
//
// testdata/axe-core is axe-core 4.14.1 (https://github.com/dequelabs/axe-core),
// which checks accessibility. It is under the Mozilla Public License 2.0, see
// LICENSE beside it, unchanged, and used by these tests alone.
package browsertest
