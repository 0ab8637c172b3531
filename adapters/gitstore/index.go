package gitstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
)

// The index is what Open needs to know without reading every tasks.json: the
// digest of each, and the stamp that the file had then. A file with another
// stamp is read. The index may be missing, old or damaged: it is never more
// than a reason not to read.

// stamp tells one version of a file from another. Each write makes a new file,
// so that the inode or the time is another one.
type stamp struct {
	inode, size, mtime int64 // mtime in ns; all zero: there is no file
	odd                bool  // it is a folder, a link or the like
}

func (a stamp) there() bool { return a != stamp{} }

func stampOf(path string) (stamp, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return stamp{}, nil
	}
	if err != nil {
		return stamp{}, err
	}
	return stamp{inode: inodeOf(info), size: info.Size(), mtime: info.ModTime().UnixNano(), odd: !info.Mode().IsRegular()}, nil
}

// racy is how much older than the index a file must be. Within the grain of a
// file system's clock a second write could leave the stamp of the first.
const racy = 100 * time.Millisecond

// saveEvery is after how many changed sessions the index is saved, so that the
// Open that follows a crash has little to read.
const saveEvery = 512

// indexed is what the index has of a session.
type indexed struct {
	stamp  stamp
	synced bool
	digest digest
}

// start reads the index and looks at every session's folder.
func (s *Store) start() error {
	if err := s.readJournal(); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(s.dir, indexFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("gitstore: %w", err)
	}
	index, total, err := decodeIndex(data)
	if err != nil {
		s.log.Warn("gitstore: the index is not used, and made anew", "error", err)
	}
	s.ids = make(map[uuid.UUID]*session, total)
	s.sessions = make(map[string]*session, len(index))
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("gitstore: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && checkName(e.Name()) == nil {
			if err := s.meet(e.Name(), index[e.Name()]); err != nil {
				return err
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opening = false
	for _, se := range s.sessions {
		if len(se.history.queue) > 0 {
			s.wakeLocked(se)
		}
	}
	return nil
}

// meet takes up one session as it is on disk. It reads it if that is not what
// the index knows.
func (s *Store) meet(name string, known *indexed) error {
	at, err := stampOf(s.dir + string(filepath.Separator) + name + string(filepath.Separator) + tasksFile)
	if err != nil {
		return fmt.Errorf("gitstore: %w", err)
	}
	if !at.there() && known == nil {
		// A conversation without tasks, unless its history says otherwise.
		if !hasBranch(filepath.Join(s.dir, name), s.ref) {
			return nil
		}
	}
	se := s.session(name)
	if known != nil && known.stamp == at && at.there() {
		se.stamp = at
		se.history.synced = known.synced
		s.mu.Lock()
		s.digestLocked(se, known.digest)
		s.mu.Unlock()
	} else {
		s.mu.Lock()
		s.changedLocked(se)
		s.mu.Unlock()
		if _, _, err := s.load(context.Background(), se); err != nil {
			return err
		}
	}
	if !se.history.synced {
		s.reconcileLater(se)
	}
	return nil
}

// changedLocked counts the sessions of which the index is not true any more.
func (s *Store) changedLocked(se *session) {
	if !se.outdated {
		se.outdated = true
		s.unsaved++
	}
}

// noteIndex saves the index when enough has changed. It is called by
// historians, who have time.
func (s *Store) noteIndex() {
	s.mu.Lock()
	due := s.unsaved >= saveEvery && !s.saving && !s.isClosing()
	if due {
		s.saving, s.unsaved = true, 0
	}
	s.mu.Unlock()
	if !due {
		return
	}
	if err := s.saveIndex(); err != nil {
		s.log.Warn("gitstore: the index was not saved", "error", err)
	}
	s.mu.Lock()
	s.saving = false
	s.mu.Unlock()
}

func (s *Store) saveIndex() error {
	data := s.encodeIndex(time.Now())
	if err := replace(s.files, s.dir, filepath.Join(s.dir, indexFile), data); err != nil {
		return fmt.Errorf("gitstore: index: %w", err)
	}
	return nil
}

const indexMagic = "gitstore index 1\n"

// encodeIndex leaves out sessions whose stamp might not tell a later change,
// and those that are being written.
func (s *Store) encodeIndex(now time.Time) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest := now.Add(-racy).UnixNano()
	b := []byte(indexMagic)
	for _, se := range s.sessions {
		select {
		case se.turn <- struct{}{}: // its stamp is not written to now
		default:
			continue
		}
		at := se.stamp
		se.give()
		if at.there() && at.mtime < newest && (se.stored == nil || se.stored == se.head) {
			b = appendSession(b, se.name, &indexed{at, se.history.synced, se.digest})
			se.outdated = false
		}
	}
	return sealIndex(b)
}

func sealIndex(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func appendSession(b []byte, name string, x *indexed) []byte {
	flag := byte(0)
	if x.synced {
		flag |= 1
	}
	if x.digest.owed {
		flag |= 2
	}
	b = binary.AppendUvarint(b, uint64(len(name)))
	b = append(b, name...)
	b = append(b, flag, x.digest.status)
	for _, n := range []int64{x.stamp.inode, x.stamp.size, x.stamp.mtime} {
		b = binary.AppendVarint(b, n)
	}
	for _, ids := range [][]uuid.UUID{x.digest.ids, x.digest.parents} {
		b = binary.AppendUvarint(b, uint64(len(ids)))
		for _, id := range ids {
			b = append(b, id[:]...)
		}
	}
	return b
}

var errIndex = errors.New("the index is damaged")

// decodeIndex reads an index and says how many tasks it has. An empty one is
// none.
func decodeIndex(data []byte) (map[string]*indexed, int, error) {
	if len(data) == 0 {
		return nil, 0, nil
	}
	const sum = 4
	if len(data) < len(indexMagic)+sum || !bytes.HasPrefix(data, []byte(indexMagic)) {
		return nil, 0, errIndex
	}
	body := data[:len(data)-sum]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(data[len(body):]) {
		return nil, 0, errIndex
	}
	index, total := make(map[string]*indexed), 0
	for r := (indexReader{body[len(indexMagic):], nil}); len(r.data) > 0; {
		name, x := r.session()
		if r.err != nil {
			return nil, 0, r.err
		}
		index[name] = x
		total += len(x.digest.ids)
	}
	return index, total, nil
}

// indexReader reads what appendSession has written.
type indexReader struct {
	data []byte
	err  error
}

func (r *indexReader) session() (name string, x *indexed) {
	x = new(indexed)
	name = strings.Clone(string(r.take(r.length())))
	if flags := r.take(2); r.err == nil {
		x.synced, x.digest.owed, x.digest.status = flags[0]&1 != 0, flags[0]&2 != 0, flags[1]
	}
	for _, n := range []*int64{&x.stamp.inode, &x.stamp.size, &x.stamp.mtime} {
		v, size := binary.Varint(r.data)
		*n = v
		r.take(size)
	}
	x.digest.ids, x.digest.parents = r.ids(), r.ids()
	return name, x
}

func (r *indexReader) ids() []uuid.UUID {
	n := r.length()
	if n == 0 || n > len(r.data)/16 {
		r.take(16 * n)
		return nil
	}
	ids := make([]uuid.UUID, n)
	for i, raw := 0, r.take(16*n); i < n; i++ {
		copy(ids[i][:], raw[16*i:])
	}
	return ids
}

func (r *indexReader) length() int {
	n, size := binary.Uvarint(r.data)
	r.take(size)
	return int(min(n, uint64(len(r.data)+1)))
}

func (r *indexReader) take(n int) []byte {
	if n < 0 || n > len(r.data) || r.err != nil {
		r.data, r.err = nil, errIndex
		return nil
	}
	taken := r.data[:n]
	r.data = r.data[n:]
	return taken
}
