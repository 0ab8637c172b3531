// The tasks that the page knows, newest first, and what follows from them.

import { live, states, title } from './format.js';

// Beyond so many the oldest that have ended are forgotten.
const most = 20000;

export class Tasks {
  byID = new Map();
  order = []; // newest first: ids rise with time
  sessions = new Map(); // how many tasks of each
  version = 0; // rises with each change
  #places = { version: -1, of: new Map() };
  #children = { version: -1, of: new Map() };

  // merge takes a task in, unless what is known of it is newer. Events come in
  // order, but an answer to a question may be older than the last of them.
  merge(task) {
    const old = this.byID.get(task.task_id);
    if (old) {
      const stale = old.version > task.version || (old.version === task.version && !live(old) && live(task));
      if (stale) return;
      if (old.version === task.version && live(old) && older(task, old)) return;
    }
    task.search = [title(task), task.description, task.agent_id, task.task_id, task.external_task_id].join('\n').toLowerCase();
    this.byID.set(task.task_id, task);
    this.version++;
    if (old) return;
    this.order.splice(this.#position(task.task_id), 0, task.task_id);
    const session = task.parent_session_id ?? '';
    this.sessions.set(session, (this.sessions.get(session) ?? 0) + 1);
    if (this.order.length > most) this.#forgetOldest();
  }

  // keepOnly forgets all tasks but those with these ids.
  keepOnly(ids) {
    for (const id of [...this.order]) if (!ids.has(id)) this.#remove(id);
  }

  #position(id) {
    let from = 0;
    let to = this.order.length;
    while (from < to) {
      const middle = (from + to) >> 1;
      if (this.order[middle] > id) from = middle + 1;
      else to = middle;
    }
    return from;
  }

  #forgetOldest() {
    const oldest = this.order.findLast((id) => !live(this.byID.get(id)));
    if (oldest) this.#remove(oldest);
  }

  #remove(id) {
    const session = this.byID.get(id).parent_session_id ?? '';
    const left = this.sessions.get(session) - 1;
    if (left) this.sessions.set(session, left);
    else this.sessions.delete(session);
    this.order.splice(this.order.indexOf(id), 1);
    this.byID.delete(id);
    this.version++;
  }

  // all is every task of a session, or of all, newest first.
  all(session) {
    const list = [];
    for (const id of this.order) {
      const task = this.byID.get(id);
      if (!session || task.parent_session_id === session) list.push(task);
    }
    return list;
  }

  // matching is the tasks that a filter shows.
  matching({ state, session, text }) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return this.all(session).filter(
      (task) => (!state || task.status === state) && words.every((word) => task.search.includes(word)),
    );
  }

  counts(session) {
    const n = Object.fromEntries(states.map((s) => [s, 0]));
    for (const task of this.all(session)) n[task.status]++;
    return n;
  }

  // place is a queued task's place in line among those that the reader sees: the
  // line is first come, first served.
  place(task) {
    if (this.#places.version !== this.version) {
      const line = this.all().filter((t) => t.status === 'queued');
      line.sort((a, b) => cmp(a.queued_at, b.queued_at) || cmp(a.task_id, b.task_id));
      this.#places = { version: this.version, of: new Map(line.map((t, i) => [t.task_id, i + 1])) };
    }
    return this.#places.of.get(task.task_id);
  }

  // children is the tasks that a task spawned, oldest first.
  children(id) {
    if (this.#children.version !== this.version) {
      const of = new Map();
      for (const child of this.all().reverse()) {
        const parent = child.parent_task_id;
        if (!parent) continue;
        if (!of.has(parent)) of.set(parent, []);
        of.get(parent).push(child);
      }
      this.#children = { version: this.version, of };
    }
    return this.#children.of.get(id) ?? [];
  }
}

const cmp = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

// older compares two states of a running task between which nothing was stored.
function older(a, b) {
  const seen = (t) => [t.progress?.last_activity_at ?? '', t.usage?.total_tokens ?? 0, t.result_text?.length ?? 0];
  const [x, y] = [seen(a), seen(b)];
  return x[0] < y[0] || (x[0] === y[0] && (x[1] < y[1] || x[2] < y[2]));
}
