package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// loadHistory reads what save wrote.
func loadHistory(name string) (*history, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the history %s: %w", name, cause(err))
	}
	h := new(history)
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(h); err != nil {
		return nil, fmt.Errorf("%s is no history that this program saved: %w", name, err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("%s is no history that this program saved: there is more behind it", name)
	}
	if err := h.check(); err != nil {
		return nil, fmt.Errorf("%s is no history that this program saved: %w", name, err)
	}
	return h, nil
}

// check refuses a history whose conversations are no family: what goes through
// them from parent to child would miss some, or never come to an end.
func (h *history) check() error {
	known := map[string]bool{"": true}
	for i, t := range h.Talks {
		switch {
		case t == nil || known[t.Session]:
			return fmt.Errorf("conversation %d has no session of its own", i+1)
		case !known[t.parent()]:
			return fmt.Errorf("conversation %d comes before the one that started it, %q", i+1, t.parent())
		}
		known[t.Session] = true
	}
	if len(h.Talks) == 0 {
		return errors.New("it has no conversations")
	}
	return nil
}

// replay attributes a saved history, once more if that was done before, and
// saves what it changed, unless the audit finds something wrong.
func replay(name string, out io.Writer) error {
	h, err := loadHistory(name)
	if err != nil {
		return usageError{err}
	}
	changed := h.attribute()
	fmt.Fprintf(out, "attributed        %s changed\n", plural(changed, "message"))
	h.printCosts(out)
	again := h.attribute()
	fmt.Fprintf(out, "attributed again  %s changed\n", plural(again, "message"))
	if err := h.audit(); err != nil {
		return err
	}
	if changed > 0 {
		if err := h.save(name); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "every token is counted once")
	return nil
}
