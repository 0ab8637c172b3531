package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// chooseFile makes sure that the history has a place to go to: at the end of a
// conversation it would be too late to find out. An earlier history that stands
// there stays until there is a new one.
func (o *options) chooseFile() error {
	if o.save != "" {
		return tryPlace(o.save)
	}
	file, err := os.CreateTemp("", "agentloop-*.json")
	if err != nil {
		return fmt.Errorf("there is no place for the history: %w; name one with -save", err)
	}
	o.save = file.Name()
	return file.Close()
}

func tryPlace(name string) error {
	file, err := beside(name)
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// beside creates a file in the directory of another, to be put in its place.
// What stands there must be a regular file: of a link, a pipe or a device the
// user would not expect that a file replaces it.
func beside(name string) (*os.File, error) {
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("cannot save the history: %w", err)
	case !info.Mode().IsRegular():
		return nil, usageError{fmt.Errorf("cannot save the history: %s is not a regular file, and symbolic links are not followed", name)}
	}
	file, err := os.CreateTemp(filepath.Dir(name), ".agentloop-*")
	if err != nil {
		return nil, fmt.Errorf("cannot save the history: %w", err)
	}
	return file, nil
}

// save replaces the file by the history: whole, or not at all.
func (h *history) save(name string) error {
	h.mu.Lock()
	data, err := json.MarshalIndent(h, "", "  ")
	h.mu.Unlock()
	if err != nil {
		return err
	}
	file, err := beside(name)
	if err != nil {
		return err
	}
	_, err = file.Write(append(data, '\n'))
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("cannot save the history: %w", err)
	}
	return nil
}
