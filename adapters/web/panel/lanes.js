// The lane chart: the newest tasks of one session over time. A bar is thin while
// its task waits and thick while it runs; bars that do not overlap share a lane.

import { clockText, duration, live, make, ms, now, put, ran, stateLabel, stateOf, title, waited } from './format.js';

const most = 200; // tasks
const lane = 16; // pixels
const axis = 20;

const svg = (tag) => document.createElementNS('http://www.w3.org/2000/svg', tag);

export class Lanes {
  #bars = new Map();
  #ticks = [];

  constructor({ open, tasks }) {
    Object.assign(this, { open, tasks });
    this.heading = document.getElementById('lanes-title');
    this.box = document.getElementById('lanes-scroll');
    this.empty = make('p', 'Nothing to show yet', 'quiet');
    this.chart = svg('svg');
    this.chart.setAttribute('role', 'img');
    this.grid = svg('g');
    this.bars = svg('g');
    this.chart.append(this.grid, this.bars);
    this.box.append(this.empty, this.chart);
    this.chart.addEventListener('click', (e) => {
      const task = this.tasks.byID.get(e.target.closest('[data-id]')?.dataset.id);
      if (task) this.open(task);
    });
  }

  // draw shows the session, or without one that of the newest task.
  draw(session) {
    session ||= this.tasks.byID.get(this.tasks.order[0])?.parent_session_id ?? '';
    const list = [];
    for (const id of this.tasks.order) {
      const task = this.tasks.byID.get(id);
      if ((task.parent_session_id ?? '') === session && list.push(task) === most) break;
    }
    list.reverse();
    put(this.heading, session ? `Over time: session ${session}` : 'Over time');
    this.empty.hidden = list.length > 0;
    this.chart.toggleAttribute('hidden', list.length === 0);
    if (!list.length) {
      this.#keep(new Set());
      return;
    }
    const width = Math.max(200, this.box.clientWidth);
    const from = Math.min(...list.map((t) => ms(t.queued_at ?? t.created_at)));
    const to = Math.max(from + 1000, ...list.map((t) => ms(t.completed_at) || now()));
    const x = (at) => Math.round(((at - from) / (to - from)) * (width - 4) * 10) / 10 + 2;
    const lanes = this.#pack(list, (to - from) / width);
    const height = axis + lanes.count * lane + 4;
    this.chart.setAttribute('width', width);
    this.chart.setAttribute('height', height);
    this.chart.setAttribute('aria-label', `${list.length} tasks from ${clockText(from)} to ${clockText(to)}, ${list.filter(live).length} of them live. The table has the same.`);
    this.#axis(from, to, width, height);
    this.#keep(new Set(list.map((t) => t.task_id)));
    for (const task of list) this.#bar(task, lanes.of.get(task.task_id), x, to);
  }

  // pack gives each task the first lane that is free when it is queued.
  #pack(list, gap) {
    const free = [];
    const of = new Map();
    for (const task of list) {
      const start = ms(task.queued_at ?? task.created_at);
      let i = free.findIndex((until) => until + 2 * gap <= start);
      if (i < 0) i = free.length;
      free[i] = ms(task.completed_at) || Infinity;
      of.set(task.task_id, i);
    }
    return { of, count: free.length };
  }

  #axis(from, to, width, height) {
    const n = Math.max(2, Math.min(6, Math.floor(width / 140)));
    while (this.#ticks.length > n) this.#ticks.pop().forEach((e) => e.remove());
    for (let i = 0; i < n; i++) {
      if (!this.#ticks[i]) {
        this.#ticks[i] = [svg('line'), svg('text')];
        this.grid.append(...this.#ticks[i]);
      }
      const [line, text] = this.#ticks[i];
      const x = 2 + (i * (width - 4)) / (n - 1);
      line.setAttribute('x1', x);
      line.setAttribute('x2', x);
      line.setAttribute('y1', axis - 4);
      line.setAttribute('y2', height);
      text.setAttribute('x', x);
      text.setAttribute('y', 12);
      text.setAttribute('text-anchor', i === 0 ? 'start' : i === n - 1 ? 'end' : 'middle');
      put(text, clockText(from + (i * (to - from)) / (n - 1)));
    }
  }

  #keep(ids) {
    for (const [id, bar] of this.#bars) {
      if (ids.has(id)) continue;
      bar.g.remove();
      this.#bars.delete(id);
    }
  }

  #bar(task, index, x, to) {
    let bar = this.#bars.get(task.task_id);
    if (!bar) {
      bar = { g: svg('g'), wait: svg('rect'), run: svg('rect'), title: svg('title') };
      bar.wait.setAttribute('class', 'wait');
      bar.run.setAttribute('class', 'run');
      bar.g.append(bar.title, bar.wait, bar.run);
      bar.g.dataset.id = task.task_id;
      this.bars.append(bar.g);
      this.#bars.set(task.task_id, bar);
    }
    bar.g.dataset.state = stateOf(task);
    const top = axis + index * lane;
    const end = ms(task.completed_at) || to;
    const start = ms(task.started_at) || end;
    place(bar.wait, x(ms(task.queued_at ?? task.created_at)), x(start), top + 5, 4);
    place(bar.run, x(start), Math.max(x(end), x(start) + 2), top + 1, lane - 4);
    bar.run.toggleAttribute('hidden', !task.started_at);
    const times = `waited ${duration(waited(task))}${task.started_at ? `, ran ${duration(ran(task))}` : ''}`;
    put(bar.title, `${title(task)}: ${stateLabel(task)}, ${times}`);
  }
}

function place(rect, from, to, top, height) {
  rect.setAttribute('x', from);
  rect.setAttribute('width', Math.max(0, to - from));
  rect.setAttribute('y', top);
  rect.setAttribute('height', height);
}
