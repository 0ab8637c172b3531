// The drawer: one task, with everything that is known of it.

import { count, duration, live, make, ms, now, plural, put, reasonText, safeLink, stateLabel, stateOf, timeElement, title } from './format.js';
import { getTask } from './server.js';

const pause = 1000; // between two readings of a running task's text

export class Drawer {
  #id = '';
  #whole; // the task as it was last read: with all its text
  #reading = false;
  #readAt = 0;
  #again;
  #drawn = -1;

  constructor({ tasks, open, stop, closed, readOnly }) {
    Object.assign(this, { tasks, open, stop, closed, readOnly });
    this.root = document.getElementById('drawer');
    this.root.addEventListener('keydown', (e) => {
      if (e.key === 'Escape') this.hide();
    });
    this.#build();
  }

  get id() {
    return this.#id;
  }

  show(id) {
    if (id !== this.#id) {
      this.#whole = undefined;
      this.#readAt = 0;
    }
    this.#id = id;
    this.#drawn = -1;
    this.root.hidden = false;
    this.root.scrollTop = 0;
    this.draw();
    this.parts.close.focus();
  }

  hide() {
    const id = this.#id;
    this.#id = '';
    this.root.hidden = true;
    clearTimeout(this.#again);
    if (id) this.closed(id);
  }

  // draw brings the drawer up to date with what is known, and has the rest read.
  draw() {
    const task = this.tasks.byID.get(this.#id);
    if (!this.#id) return;
    if (!task) {
      this.hide();
      return;
    }
    this.#read(task);
    this.#header(task);
    this.#timeline(task);
    this.#texts(task);
    if (this.#drawn !== this.tasks.version) this.#tree(task);
    this.#drawn = this.tasks.version;
  }

  // read fetches the whole texts when there is something new, at most once in a
  // while. One reading at a time; what happens meanwhile is read after it.
  #read(task) {
    const known = this.#whole && this.#whole.version >= task.version && !(live(task) && this.#whole.seen !== task);
    if (known || this.#reading) return;
    const wait = this.#readAt + pause - Date.now();
    if (wait > 0 && live(task)) {
      clearTimeout(this.#again);
      this.#again = setTimeout(() => this.draw(), wait);
      return;
    }
    this.#reading = true;
    this.#readAt = Date.now();
    getTask(task.task_id)
      .then(
        (whole) => {
          if (whole.task_id !== this.#id) return;
          this.#whole = Object.assign(whole, { seen: task });
          put(this.parts.problem, '');
        },
        (e) => {
          if (task.task_id !== this.#id) return;
          this.#whole = { ...task, seen: task }; // the preview will do
          put(this.parts.problem, `The whole text could not be read: ${e.message}.`);
        },
      )
      .finally(() => {
        this.#reading = false;
        this.draw();
      });
  }

  #build() {
    const p = (this.parts = {});
    const section = (name, heading) => {
      const s = make('section');
      s.append((p[`${name}Heading`] = make('h3', heading)));
      p[name] = s;
      return s;
    };
    const button = (text, className, act) => {
      const b = make('button', text, className);
      b.type = 'button';
      b.addEventListener('click', act);
      return b;
    };
    const head = make('div', undefined, 'head');
    p.title = make('h2');
    p.title.id = 'drawer-title';
    p.close = button('Close', 'close', () => this.hide());
    head.append(p.title, p.close);
    p.state = make('p', undefined, 'state-line');
    p.dot = make('span', undefined, 'dot');
    p.dot.setAttribute('aria-hidden', 'true');
    p.stateText = make('span');
    p.state.append(p.dot, p.stateText);
    const actions = make('div', undefined, 'buttons');
    p.link = make('a', 'Show where it belongs', 'link');
    p.link.target = '_top';
    actions.append(p.link);
    if (!this.readOnly) {
      p.stop = button('Stop', 'danger stop', () => this.stop(this.tasks.byID.get(this.#id)));
      actions.append(p.stop);
    }
    p.problem = make('p', undefined, 'problem');
    p.problem.setAttribute('role', 'status');
    section('progress', 'Progress').append((p.progressText = make('p')));
    section('error', 'Error').append((p.errorText = make('pre')));
    section('text', 'Result').append((p.textText = make('pre')));
    section('prompt', 'Prompt').append((p.promptText = make('pre')));
    for (const pre of [p.errorText, p.textText, p.promptText]) pre.tabIndex = 0;
    section('timeline', 'Timeline').append((p.steps = make('ol', undefined, 'timeline')));
    section('tree', 'Tree').append((p.branches = make('div')));
    section('facts', 'Details').append((p.list = make('dl')));
    this.root.append(head, p.state, actions, p.problem, p.progress, p.error, p.text, p.timeline, p.tree, p.prompt, p.facts);
  }

  #header(task) {
    const p = this.parts;
    put(p.title, title(task));
    p.state.dataset.state = stateOf(task);
    const why = task.reason ? `: ${reasonText(task.reason)}` : '';
    const words = task.cancel_message ? ` (“${task.cancel_message}”)` : '';
    const place = task.status === 'queued' ? `, place ${count(this.tasks.place(task))} in the queue` : '';
    put(p.stateText, `${stateLabel(task)}${place}${why}${words}${task.detached ? '. Its worker has not returned' : ''}`);
    const href = safeLink(task.link);
    p.link.hidden = !href;
    if (href) p.link.href = href;
    if (p.stop) {
      const usable = live(task) && !task.cancel_requested_at;
      if (!usable && p.stop === document.activeElement) p.close.focus();
      p.stop.hidden = !usable;
    }
    this.#facts(task);
  }

  #facts(task) {
    const usage = task.usage;
    const rows = [
      ['Task id', task.task_id, true],
      ['External id', task.external_task_id, true],
      ['Session', task.parent_session_id],
      ['Agent', task.agent_id],
      ['Context', task.context_mode],
      ['Message', task.parent_msg_id],
      ['Tools used', task.progress?.tool_uses && count(task.progress.tool_uses)],
      ['Tokens', usage && `${count(usage.input_tokens)} in (${count(usage.cache_read_tokens)} cached), ${count(usage.output_tokens)} out, ${count(usage.total_tokens)} in all`],
      ['Ended because', task.stop_reason],
      ['Conversation', task.head_id],
      ['Runner', task.owner],
      ...Object.entries(task.metadata ?? {}),
    ].filter(([, value]) => value);
    const key = JSON.stringify(rows);
    if (this.parts.list.key === key) return;
    this.parts.list.key = key;
    this.parts.list.replaceChildren(
      ...rows.flatMap(([name, value, copy]) => {
        const dd = make('dd', value);
        if (copy) {
          dd.className = 'id';
          dd.append(' ', copyButton(name, value));
        }
        return [make('dt', name), dd];
      }),
    );
  }

  #timeline(task) {
    const steps = [
      ['Created', task.created_at, ms(task.queued_at) - ms(task.created_at)],
      ['Queued', task.queued_at, (ms(task.started_at) || ms(task.completed_at) || now()) - ms(task.queued_at)],
      ['Started', task.started_at, (ms(task.completed_at) || now()) - ms(task.started_at)],
      ['Asked to stop', task.cancel_requested_at, (ms(task.completed_at) || now()) - ms(task.cancel_requested_at)],
      [stateLabel(task), task.completed_at, NaN],
    ].filter(([, at]) => at);
    const list = this.parts.steps;
    while (list.children.length > steps.length) list.lastChild.remove();
    steps.forEach(([name, at, took], i) => {
      let item = list.children[i];
      if (item?.dataset.key !== name + at) {
        const made = make('li');
        made.dataset.key = name + at;
        made.append(make('strong', name), ' ', timeElement(at), ' ', make('span', '', 'took'));
        if (item) item.replaceWith(made);
        else list.append(made);
        item = made;
      }
      put(item.querySelector('.took'), Number.isNaN(took) ? '' : `for ${duration(took)}`);
    });
  }

  #texts(task) {
    const p = this.parts;
    const whole = this.#whole ?? task;
    const text = live(task) && (task.result_text?.length ?? 0) > (whole.result_text?.length ?? 0) ? task.result_text : whole.result_text;
    const heading = live(task) ? 'Text so far' : task.status === 'completed' ? 'Result' : 'Partial text';
    put(p.textHeading, heading + (whole.result_truncated ? ' (the start of it)' : ''));
    this.#fill(p.text, p.textText, text || (live(task) ? 'Nothing yet' : ''));
    this.#fill(p.error, p.errorText, whole.error);
    this.#fill(p.progress, p.progressText, task.progress?.message);
    this.#fill(p.prompt, p.promptText, whole.description);
  }

  #fill(section, element, text) {
    section.hidden = !text;
    put(element, text ?? '');
  }

  // tree shows the task's parent and all that came of the task.
  #tree(task) {
    const branches = [];
    const parent = this.tasks.byID.get(task.parent_task_id);
    if (parent) {
      const p = make('p', 'Spawned by ');
      p.append(this.#leaf(parent));
      branches.push(p);
    }
    const below = this.#list(task, new Set([task.task_id]));
    if (below) branches.push(below);
    const focused = document.activeElement?.dataset?.leaf;
    this.parts.tree.hidden = branches.length === 0;
    this.parts.branches.replaceChildren(...branches);
    if (focused) this.parts.branches.querySelector(`[data-leaf="${CSS.escape(focused)}"]`)?.focus();
  }

  #list(task, above) {
    const kids = this.tasks.children(task.task_id).filter((kid) => !above.has(kid.task_id));
    if (!kids.length) return undefined;
    const list = make('ul', undefined, 'tree');
    for (const kid of kids.slice(0, 200)) {
      const item = make('li');
      item.append(this.#leaf(kid));
      const below = this.#list(kid, new Set([...above, kid.task_id]));
      if (below) item.append(below);
      list.append(item);
    }
    if (kids.length > 200) list.append(make('li', `and ${plural(kids.length - 200, 'more task')}`));
    return list;
  }

  #leaf(task) {
    const b = make('button', undefined, 'leaf');
    b.type = 'button';
    b.dataset.leaf = task.task_id;
    const dot = make('span', undefined, 'dot');
    dot.setAttribute('aria-hidden', 'true');
    b.dataset.state = stateOf(task);
    b.append(dot, make('span', title(task)), make('span', stateLabel(task), 'quiet'));
    b.addEventListener('click', () => this.open(this.tasks.byID.get(task.task_id) ?? task));
    return b;
  }
}

function copyButton(name, value) {
  const b = make('button', 'Copy', 'copy');
  b.type = 'button';
  b.setAttribute('aria-label', `Copy the ${name.toLowerCase()}`);
  b.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(value);
      b.textContent = 'Copied';
    } catch {
      b.textContent = 'Not allowed';
    }
    setTimeout(() => (b.textContent = 'Copy'), 1500);
  });
  return b;
}
