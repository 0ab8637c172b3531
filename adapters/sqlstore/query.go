package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// One page of a listing holds at most so many tasks, and about so many bytes:
// what it holds is in memory at once.
const (
	pageTasks = 256
	pageBytes = 4 << 20
)

// page reads the next tasks of f and moves f's cursor and limit past them; more
// reports whether there may be others.
func (s *Store) page(ctx context.Context, f *subagent.Filter) (page []*record, more bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	limit := pageTasks
	if f.Limit > 0 {
		limit = min(limit, f.Limit)
	}
	q := selectPage(f, limit)
	rows, err := s.read.QueryContext(ctx, q.text, q.args...)
	if err != nil {
		return nil, false, s.failed(ctx, "list", err)
	}
	defer rows.Close()
	size := 0
	for len(page) < limit && size < pageBytes {
		if !rows.Next() {
			break
		}
		r, err := scanRecord(rows)
		if err != nil {
			return nil, false, s.failed(ctx, "list", err)
		}
		size += len(r.json)
		page = append(page, r)
	}
	if err := rows.Err(); err != nil {
		return nil, false, s.failed(ctx, "list", err)
	}
	if len(page) > 0 {
		f.After = page[len(page)-1].task.ID
	}
	full := len(page) == limit || size >= pageBytes
	if f.Limit > 0 {
		f.Limit -= len(page)
		return page, full && f.Limit > 0, nil
	}
	return page, full, nil
}

// query is a statement under construction.
type query struct {
	text string
	args []any
}

// arg is the placeholder of v.
func (q *query) arg(v any) string {
	q.args = append(q.args, v)
	return fmt.Sprintf("$%d", len(q.args))
}

// maxParts is how many statuses are looked up one by one.
const maxParts = 8

// selectPage finds f's tasks in its order, from one index that already has that
// order, so that a page costs what it holds and what it has to skip. The index
// is chosen here: the one that most probably leaves least to skip. Several
// statuses are several orderly listings, which the database merges.
func selectPage(f *subagent.Filter, limit int) query {
	var q query
	terms := filterTerms(f)
	statuses := slices.Compact(slices.Sorted(slices.Values(f.Statuses)))
	var parts []string
	switch {
	case len(statuses) == 0:
		parts = []string{q.part(f, terms, 0)}
	case len(statuses) > maxParts || len(terms) > 0 && !terms[0].common:
		list, _ := json.Marshal(statuses) // strings always can be
		// COALESCE keeps the database from using the index on status.
		in := "COALESCE(status, '') IN (SELECT value FROM json_each(" + q.arg(string(list)) + "))"
		parts = []string{q.part(f, terms, 0, in)}
	default:
		for _, status := range statuses {
			parts = append(parts, q.statusPart(f, terms, status))
		}
	}
	order := "ASC"
	if f.NewestFirst {
		order = "DESC"
	}
	q.text = fmt.Sprintf("%s ORDER BY id %s LIMIT %d", strings.Join(parts, " UNION ALL "), order, limit)
	return q
}

// term is a field of a filter that is set.
type term struct {
	column string
	value  any  // nil: column is 1
	common bool // many tasks may share the value
}

// filterTerms are f's terms but for Statuses, the most selective first.
func filterTerms(f *subagent.Filter) []term {
	var terms []term
	add := func(set bool, column string, value any, common bool) {
		if set {
			terms = append(terms, term{column, value, common})
		}
	}
	add(f.ParentTaskID != uuid.Nil, "parent_task_id", f.ParentTaskID[:], false)
	add(f.ExternalTaskID != "", "external_task_id", f.ExternalTaskID, false)
	add(f.ParentMsgID != "", "parent_msg_id", f.ParentMsgID, false)
	add(f.Undelivered, "owed", nil, false)
	add(f.SessionID != "", "session_id", f.SessionID, true)
	add(f.AgentID != "", "agent_id", f.AgentID, true)
	return terms
}

// statusPart is the listing of one status. Tasks that have ended are many: the
// first term and their status have an index together. The others are few.
func (q *query) statusPart(f *subagent.Filter, terms []term, status subagent.Status) string {
	value := q.arg(string(status))
	if len(terms) == 0 || !status.Terminal() {
		return q.part(f, terms, len(terms), "status = "+value)
	}
	return q.part(f, terms, 0, "ended = "+value)
}

// part is one orderly listing, by the index of the term lead or, if there is no
// such term, by that of where.
func (q *query) part(f *subagent.Filter, terms []term, lead int, where ...string) string {
	for i, t := range terms {
		column := t.column
		if i != lead {
			column = "COALESCE(" + column + ", NULL)" // not by its index
		}
		if t.value == nil {
			where = append(where, column+" = 1")
			continue
		}
		where = append(where, column+" = "+q.arg(t.value))
	}
	if f.After != uuid.Nil {
		than := " > "
		if f.NewestFirst {
			than = " < "
		}
		where = append(where, "id"+than+q.arg(f.After[:]))
	}
	text := "SELECT " + columns + " FROM tasks"
	if len(where) > 0 {
		text += " WHERE " + strings.Join(where, " AND ")
	}
	return text
}
