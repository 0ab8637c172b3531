package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
)

// applicationID marks the file as one of this package ("sbag").
const applicationID = 0x73626167

// schemaVersion is PRAGMA user_version: what a program must understand to use
// the file. It rises only with changes that older programs would trip over. A
// column that has a default, or an index, is added without: every statement
// names its columns.
const schemaVersion = len(migrations)

// migrations[i] leads from version i to i+1. One that was released is never
// changed.
//
// The task column is the truth: the task's JSON. It comes last, so that what
// stands before it is read without it. status, owed and the ids are there for
// filters, version and birth for compare-and-set, news_for and news for Watch. An
// id that is not set is NULL. ended is the status of a task that has ended: an
// index with it costs nothing while a task lives.
var migrations = [...]string{`
CREATE TABLE tasks (
	place            INTEGER PRIMARY KEY,
	id               BLOB NOT NULL,
	birth            INTEGER NOT NULL,
	version          INTEGER NOT NULL,
	status           TEXT NOT NULL,
	ended            TEXT,
	owed             INTEGER NOT NULL,
	session_id       TEXT NOT NULL,
	parent_task_id   BLOB,
	external_task_id TEXT,
	agent_id         TEXT,
	parent_msg_id    TEXT,
	news_for         TEXT,
	news             INTEGER,
	task             TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX tasks_id ON tasks (id);
CREATE INDEX tasks_session ON tasks (session_id, id, agent_id);
CREATE INDEX tasks_session_ended ON tasks (session_id, ended, id) WHERE ended IS NOT NULL;
CREATE INDEX tasks_status ON tasks (status, id);
CREATE INDEX tasks_owed ON tasks (owed, id) WHERE owed = 1;
CREATE INDEX tasks_parent ON tasks (parent_task_id, id) WHERE parent_task_id IS NOT NULL;
CREATE INDEX tasks_external ON tasks (external_task_id, id) WHERE external_task_id IS NOT NULL;
CREATE INDEX tasks_agent ON tasks (agent_id, id) WHERE agent_id IS NOT NULL;
CREATE INDEX tasks_agent_ended ON tasks (agent_id, ended, id) WHERE agent_id IS NOT NULL AND ended IS NOT NULL;
CREATE INDEX tasks_msg ON tasks (parent_msg_id, id) WHERE parent_msg_id IS NOT NULL;
CREATE INDEX tasks_news ON tasks (news_for, news) WHERE news_for IS NOT NULL;

CREATE TABLE leases (
	owner   TEXT PRIMARY KEY,
	expires INTEGER NOT NULL -- microseconds since 1970
) STRICT, WITHOUT ROWID;

CREATE TABLE counters (
	name  TEXT PRIMARY KEY,
	value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO counters VALUES ('news', 0);
`}

// migrate brings the schema up to date in one transaction, which waits for the
// others that open the file at the same time and then finds it done.
func migrate(db *sql.DB) error {
	tx, err := db.BeginTx(context.Background(), &exclusive)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after the commit
	var version int
	if err := tx.QueryRow(`PRAGMA user_version`).Scan(&version); err != nil {
		return err
	}
	if version > schemaVersion {
		return fmt.Errorf("%w: its schema is version %d, this program knows %d", ErrNewerSchema, version, schemaVersion)
	}
	if version == schemaVersion {
		return nil
	}
	if version < 0 {
		return fmt.Errorf("%w: its schema is version %d", ErrDamaged, version)
	}
	for _, statements := range migrations[version:] {
		if _, err := tx.Exec(statements); err != nil {
			return err
		}
	}
	// A PRAGMA takes no placeholder.
	header := fmt.Sprintf(`PRAGMA application_id = %d; PRAGMA user_version = %d`, applicationID, schemaVersion)
	if _, err := tx.Exec(header); err != nil {
		return err
	}
	return tx.Commit()
}
