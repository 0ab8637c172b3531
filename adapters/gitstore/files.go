package gitstore

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
)

// files are the calls by which the store changes what lies beside the
// repositories. They are apart so that tests can fail, or stop the world
// after, each single one of them.
type files interface {
	// Create opens an empty file for writing, whatever was there.
	Create(path string) (file, error)
	Rename(from, to string) error
	// SyncDir makes what happened to the names in a folder survive a power cut.
	SyncDir(path string) error
	// Mkdir makes a folder, and is fs.ErrExist if the name is taken.
	Mkdir(path string) error
	Remove(path string) error
}

// file is one that is being written.
type file interface {
	Write(p []byte) (int, error)
	// Sync makes the content survive a power cut; its name needs SyncDir.
	Sync() error
	Close() error
}

type osFiles struct{}

func (osFiles) Create(path string) (file, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
}

func (osFiles) Rename(from, to string) error { return os.Rename(from, to) }
func (osFiles) Mkdir(path string) error      { return os.Mkdir(path, 0o755) }
func (osFiles) Remove(path string) error     { return os.Remove(path) }

func (osFiles) SyncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil // folders cannot be opened there; NTFS keeps the order of its names itself
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// writeSynced writes a file whose content survives a power cut once it
// returns. Its name does not: that takes a SyncDir.
func writeSynced(to files, path string, parts ...[]byte) error {
	f, err := to.Create(path)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if _, err := f.Write(p); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

// replace puts a new file in the place of path. At every moment path is the
// old file or the new one, whole: the content is synced before it gets the
// name, and when replace returns the name has survived too.
func replace(on files, dir, path string, parts ...[]byte) error {
	temp := path + tempSuffix
	err := writeSynced(on, temp, parts...)
	if err == nil {
		err = on.Rename(temp, path)
	}
	if err != nil {
		_ = on.Remove(temp) // if it stays, the next write overwrites it
		return err
	}
	return on.SyncDir(dir)
}

// makeDir makes sure that there is a folder, and that its name survives.
func makeDir(on files, parent, path string) error {
	switch err := on.Mkdir(path); {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	return on.SyncDir(parent)
}

// Names within the folder of a store and within that of a session.
const (
	lockFile    = ".lock"
	indexFile   = ".index"
	journalFile = ".journal"
	tasksFile   = "tasks.json"
	textFolder  = "tasks"
	tempSuffix  = ".tmp" // of a file that is being written
	newSuffix   = ".new" // of a tasks.json that a journal may name
)
