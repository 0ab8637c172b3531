// The table. Only the rows that can be seen exist; two empty rows stand for the
// rest. A row keeps its element for as long as it is in view, so that focus and
// selection stay where they are while others come and go.

import { count, duration, live, make, put, ran, safeLink, stateLabel, stateOf, title, waited } from './format.js';

const rowHeight = 36; // as in panel.css
const spare = 6; // rows beyond the edge, for scrolling

export class Table {
  #rows = [];
  #byID = new Map(); // the elements that are in the table
  #free = [];
  #active = ''; // the id of the row that the arrow keys start from
  #anchor = ''; // the id of the first row in view
  #selected = '';

  constructor({ tasks, open, stop, readOnly }) {
    Object.assign(this, { tasks, open, stop, readOnly });
    this.scroller = document.getElementById('scroller');
    this.table = document.getElementById('table');
    this.body = document.getElementById('rows');
    this.above = this.#filler();
    this.below = this.#filler();
    this.body.append(this.above, this.below);
    this.scroller.addEventListener('scroll', () => this.draw(), { passive: true });
    this.scroller.addEventListener('keydown', (e) => this.#key(e));
    this.body.addEventListener('click', (e) => this.#click(e));
    this.body.addEventListener('focusin', (e) => this.#focused(e));
    new ResizeObserver(() => this.draw()).observe(this.scroller);
  }

  #filler() {
    const row = make('tr', undefined, 'filler');
    row.setAttribute('aria-hidden', 'true');
    const cell = make('td');
    row.append(cell);
    return row;
  }

  // show takes the tasks to be seen. What the reader looks at stays where it is
  // when others come in above it, except at the very top, if neither the mouse
  // nor the focus is on the rows.
  show(rows) {
    const held = this.scroller.scrollTop > 0 || this.body.matches(':hover, :focus-within');
    const before = held ? this.#rows.findIndex((t) => t.task_id === this.#anchor) : -1;
    const offset = this.scroller.scrollTop - before * rowHeight;
    this.#rows = rows;
    this.table.setAttribute('aria-rowcount', rows.length + 1);
    const after = before < 0 ? -1 : rows.findIndex((t) => t.task_id === this.#anchor);
    if (after >= 0 && after !== before) {
      this.#size(); // there must be enough to scroll over
      this.scroller.scrollTop = after * rowHeight + offset;
    }
    this.draw();
  }

  select(id) {
    this.#selected = id;
    if (id) this.#active = id;
    this.draw();
  }

  // focus brings the keyboard back to a row, or to the table.
  focus(id) {
    this.#focusRow(this.#rows.findIndex((t) => t.task_id === id));
  }

  #window() {
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / rowHeight) - spare);
    const last = Math.min(this.#rows.length, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / rowHeight) + spare);
    return [first, Math.max(first, last)];
  }

  #size() {
    const [first, last] = this.#window();
    this.above.firstChild.style.height = `${first * rowHeight}px`;
    this.below.firstChild.style.height = `${(this.#rows.length - last) * rowHeight}px`;
    this.above.hidden = first === 0;
    this.below.hidden = last === this.#rows.length;
    return [first, last];
  }

  // draw brings the rows that can be seen up to date.
  draw() {
    const [first, last] = this.#size();
    this.#anchor = this.#rows[Math.floor(this.scroller.scrollTop / rowHeight)]?.task_id ?? '';
    const wanted = this.#rows.slice(first, last);
    const ids = new Set(wanted.map((t) => t.task_id));
    const tab = ids.has(this.#active) ? this.#active : wanted[Math.min(wanted.length - 1, first ? spare : 0)]?.task_id;
    // A row that leaves is used for one that comes, where it stands if possible:
    // moving rows is what costs.
    const leaving = [...this.body.children].filter((row) => row.dataset.id && !ids.has(row.dataset.id));
    for (const row of leaving) {
      if (row.contains(document.activeElement)) this.scroller.focus({ preventScroll: true });
      this.#byID.delete(row.dataset.id);
    }
    for (const task of wanted) {
      if (this.#byID.has(task.task_id)) continue;
      const row = leaving.shift() ?? this.#free.pop() ?? this.#make();
      row.dataset.id = task.task_id;
      this.#byID.set(task.task_id, row);
    }
    for (const row of leaving) row.remove();
    this.#free.push(...leaving);
    let next = this.above.nextSibling;
    wanted.forEach((task, i) => {
      const row = this.#byID.get(task.task_id);
      if (row !== next) this.body.insertBefore(row, next);
      else next = next.nextSibling;
      this.#fill(row, task, first + i, tab);
    });
  }

  #make() {
    const row = make('tr');
    row.cells_ = {};
    const cell = (name, className) => {
      const td = make('td', undefined, className);
      row.append(td);
      row.cells_[name] = td;
      return td;
    };
    const state = cell('state', 'state');
    const dot = make('span', undefined, 'dot');
    dot.setAttribute('aria-hidden', 'true');
    state.append(dot, (row.cells_.stateText = make('span')));
    const open = make('button', undefined, 'open');
    open.type = 'button';
    cell('subject').append((row.cells_.open = open));
    cell('agent');
    for (const name of ['place', 'waited', 'ran', 'in', 'out', 'cached']) cell(name, 'number');
    cell('parent');
    const actions = cell('actions', 'actions');
    const link = make('a', 'Show', 'link');
    link.target = '_top';
    actions.append((row.cells_.link = link));
    if (!this.readOnly) {
      const stop = make('button', 'Stop', 'stop');
      stop.type = 'button';
      actions.append((row.cells_.stop = stop));
    }
    return row;
  }

  // fill writes what has changed: all of it for another task or another state of
  // it, else what goes on by itself.
  #fill(row, task, index, tab) {
    const c = row.cells_;
    const parent = task.parent_task_id && this.tasks.byID.get(task.parent_task_id);
    const reachable = task.task_id === tab ? 0 : -1;
    put(c.place, task.status === 'queued' ? count(this.tasks.place(task)) : '');
    put(c.waited, task.status === 'pending' ? '' : duration(waited(task)));
    put(c.ran, task.started_at ? duration(ran(task)) : '');
    const shown = [task, index, reachable, task.task_id === this.#selected, parent];
    if (row.shown?.every((v, i) => v === shown[i])) return;
    row.shown = shown;
    row.setAttribute('aria-rowindex', index + 2);
    row.dataset.state = stateOf(task);
    row.classList.toggle('selected', task.task_id === this.#selected);
    put(c.stateText, stateLabel(task));
    put(c.open, title(task));
    c.open.title = task.progress?.message && live(task) ? `${title(task)}\n${task.progress.message}` : title(task);
    c.open.setAttribute('aria-expanded', task.task_id === this.#selected);
    put(c.agent, task.agent_id ?? '');
    c.agent.title = task.agent_id ?? '';
    put(c.in, task.usage?.input_tokens ? count(task.usage.input_tokens) : '');
    put(c.out, task.usage?.output_tokens ? count(task.usage.output_tokens) : '');
    put(c.cached, task.usage?.cache_read_tokens ? count(task.usage.cache_read_tokens) : '');
    put(c.parent, parent ? title(parent) : (task.parent_task_id ?? ''));
    c.parent.title = task.parent_task_id ?? '';
    const href = safeLink(task.link);
    c.link.hidden = !href;
    if (href) {
      c.link.href = href;
      this.table.classList.add('links'); // from now on there is room for them
    }
    c.open.tabIndex = c.link.tabIndex = reachable;
    c.link.setAttribute('aria-label', `Show ${title(task)} where it belongs`);
    if (!c.stop) return;
    c.stop.tabIndex = reachable;
    c.stop.setAttribute('aria-label', `Stop ${title(task)}`);
    // It keeps its place when it goes, so that nothing moves.
    const usable = live(task) && !task.cancel_requested_at;
    if (!usable && c.stop === document.activeElement) c.open.focus({ preventScroll: true });
    c.stop.classList.toggle('gone', !usable);
    c.stop.disabled = !usable;
  }

  #task(e) {
    const id = e.target.closest?.('tr')?.dataset.id;
    return id && this.tasks.byID.get(id);
  }

  #click(e) {
    const task = this.#task(e);
    if (!task || e.target.closest('a')) return;
    if (e.target.closest('.stop')) this.stop(task);
    else this.open(task);
  }

  #focused(e) {
    const id = e.target.closest('tr')?.dataset.id;
    if (!id || id === this.#active) return;
    this.#active = id;
    this.draw();
  }

  #key(e) {
    if (e.ctrlKey || e.altKey || e.metaKey) return;
    const at = this.#rows.findIndex((t) => t.task_id === this.#active);
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / rowHeight) - 2);
    const to = {
      ArrowDown: at + 1, ArrowUp: Math.max(0, at - 1), PageDown: at + page, PageUp: at - page, Home: 0, End: this.#rows.length - 1,
    }[e.key];
    if (to !== undefined && this.#rows.length) {
      e.preventDefault();
      this.#focusRow(Math.min(Math.max(0, to), this.#rows.length - 1));
    } else if (e.key === 'Delete' && at >= 0 && !this.readOnly && live(this.#rows[at])) {
      this.stop(this.#rows[at]);
    }
  }

  #focusRow(index) {
    const task = this.#rows[index];
    if (!task) {
      this.scroller.focus();
      return;
    }
    this.#active = task.task_id;
    const head = this.table.tHead.offsetHeight;
    const top = index * rowHeight;
    const room = this.scroller.clientHeight - head - rowHeight;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top > this.scroller.scrollTop + room) this.scroller.scrollTop = top - room;
    this.draw();
    this.#byID.get(task.task_id)?.cells_.open.focus({ preventScroll: true });
  }
}
