// The page: it keeps the tasks up to date and its parts in step with them.
// Whatever happens is noted at once and drawn with the next frame.

import { clockText, count, heardAt, live, make, now, plural, put, stateName, states, title } from './format.js';
import { Drawer } from './drawer.js';
import { Lanes } from './lanes.js';
import { cancelSession, cancelTask, follow, getGauge, listTasks } from './server.js';
import { Table } from './table.js';
import { Tasks } from './tasks.js';

const $ = (id) => document.getElementById(id);
const readOnly = document.documentElement.dataset.readOnly === 'true';
const tasks = new Tasks();
const filter = { state: '', session: '', text: '' };
let loaded = false; // the list has come once
let problem = ''; // why it has not

const table = new Table({ tasks, open, stop: stopTask, readOnly });
const drawer = new Drawer({ tasks, open, stop: stopTask, readOnly, closed: (id) => { table.select(''); table.focus(id); } });
const lanes = new Lanes({ tasks, open });

// ---- what the server tells

let runner = '';
let heard = 0; // when something last came
let parts = []; // of a live set that comes in several frames
let reading; // the reading of the list that is under way
let touched = new Set(); // the tasks that events told of meanwhile

const reconnect = follow({
  state(state, why) {
    parts = [];
    const connection = $('connection');
    if (state === 'live') {
      connection.dataset.state = 'live';
      put(connection, 'Live');
      problem = '';
      say('');
      return;
    }
    connection.dataset.state = 'lost';
    put(connection, 'Not connected');
    problem = why ?? problem;
    put($('gauge-text'), 'Slots: not known at the moment');
    $('meter').firstElementChild.style.width = 0;
    $('meter').setAttribute('aria-valuenow', 0);
    $('meter').setAttribute('aria-valuetext', 'not known');
    const since = heard ? ` You see the tasks as they were at ${clockText(heard)}.` : '';
    say(why ? `The server says: ${why}. Trying again…${since}` : `The connection was lost. Trying again…${since}`);
    draw();
  },
  event(event) {
    heard = now();
    if (event.task) {
      heardAt(event.time);
      touched.add(event.task.task_id);
      tasks.merge(event.task);
      gaugeSoon();
    } else if (event.type === 'live_tasks') {
      parts.push(...event.tasks);
      if (event.more) return;
      liveSet(parts, event);
      parts = [];
    }
    draw();
  },
});

// liveSet takes in the tasks that live. If nothing was missed that is all;
// otherwise those that ended meanwhile are in the list.
function liveSet(set, event) {
  for (const task of set) tasks.merge(task);
  const id = event.event_id.slice(0, event.event_id.lastIndexOf('-'));
  const same = id === runner;
  runner = id;
  if (!(same && event.resumed && loaded)) read();
  gaugeSoon();
}

// read reads the whole list. What it no longer has is gone, unless an event has
// told of it since the reading began.
async function read() {
  const mine = (reading = {});
  touched = new Set();
  const found = new Set();
  try {
    for await (const page of listTasks()) {
      if (mine !== reading) return; // another one has begun
      for (const task of page) {
        found.add(task.task_id);
        tasks.merge(task);
      }
      loaded = true;
      draw();
      if (found.size >= 20000) break;
    }
    if (mine !== reading) return;
    for (const id of touched) found.add(id);
    tasks.keepOnly(found);
    problem = '';
  } catch (e) {
    if (mine !== reading) return;
    problem = e.message;
    if (loaded) say(`The list could not be read: ${e.message}.`);
    setTimeout(() => mine === reading && read(), 3000);
  }
  draw();
}

function say(text) {
  $('banner').hidden = !text;
  put($('banner'), text);
}

// ---- the gauge: asked for after changes, and now and then

let gaugeTimer;
function gaugeSoon() {
  gaugeTimer ??= setTimeout(async () => {
    try {
      const gauge = await getGauge();
      if (connected()) showGauge(gauge);
    } catch (e) {
      if (e.code === 'unreachable' && connected()) reconnect();
    }
    gaugeTimer = undefined;
  }, 300);
}
const connected = () => $('connection').dataset.state === 'live';
setInterval(() => document.visibilityState === 'visible' && connected() && gaugeSoon(), 3000);

function showGauge(g) {
  const meter = $('meter');
  meter.setAttribute('aria-valuemax', g.limit);
  meter.setAttribute('aria-valuenow', Math.min(g.running, g.limit));
  meter.setAttribute('aria-valuetext', `${g.running} of ${g.limit}`);
  meter.firstElementChild.style.width = `${Math.min(100, (100 * g.running) / g.limit)}%`;
  if (g.lent === undefined) { // who does not see all is told of his own: others may use the rest
    put($('gauge-text'), `Yours: ${count(g.running)} of ${plural(g.limit, 'slot')} · ${count(g.queued)} queued`);
    return;
  }
  put($('gauge-text'), `${count(g.running)} of ${plural(g.limit, 'slot')} in use · ${count(g.queued)} queued · ${count(g.lent)} lent · ${count(g.detached)} detached`);
}

// ---- drawing

let due = false;
function draw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    drawNow();
  });
}

let drawnFor = '';
function drawNow() {
  const key = JSON.stringify([tasks.version, filter, loaded]);
  if (key !== drawnFor) {
    drawnFor = key;
    drawSessions();
    drawCounts();
    const rows = tasks.matching(filter);
    table.show(rows);
    const all = tasks.order.length;
    const some = rows.length === all ? plural(all, 'task') : `${count(rows.length)} of ${plural(all, 'task')}`;
    put($('shown'), loaded || all ? some : '');
    $('nothing').hidden = rows.length > 0;
    lanesSoon();
  }
  drawNothing();
  drawer.draw();
}

// The chart is drawn a few times a second at most: it is much to draw, and bars
// that grow by a hair need no more.
let lanesTimer;
function lanesSoon() {
  lanesTimer ??= setTimeout(() => {
    lanesTimer = undefined;
    lanes.draw(filter.session);
  }, 250);
}

function drawNothing() {
  const filtered = tasks.order.length > 0;
  $('clear').hidden = !filtered;
  let text = 'No tasks yet. They appear here as soon as an agent spawns one.';
  if (filtered) text = 'No task matches the filters.';
  else if (!loaded) text = problem ? `The tasks cannot be shown: ${problem}.` : 'Loading tasks…';
  put($('nothing-text'), text);
}

function drawSessions() {
  const select = $('filter-session');
  const names = [...tasks.sessions.keys()].sort();
  if (filter.session && !tasks.sessions.has(filter.session)) names.unshift(filter.session);
  const key = JSON.stringify(names);
  if (select.key !== key) {
    select.key = key;
    const options = names.map((name) => {
      const option = make('option', name);
      option.value = name;
      return option;
    });
    select.replaceChildren(select.options[0], ...options);
    select.value = filter.session;
  }
  $('stop-session').hidden = readOnly || !filter.session;
  $('stop-session').disabled = !tasks.all(filter.session).some(live);
}

function drawCounts() {
  const n = tasks.counts(filter.session);
  for (const state of states) {
    const button = counters[state];
    put(button.querySelector('b'), loaded || tasks.order.length ? count(n[state]) : '–');
    button.setAttribute('aria-pressed', filter.state === state);
  }
}

const counters = {};
for (const state of states) {
  const item = make('li');
  const button = make('button', undefined, 'count');
  button.type = 'button';
  button.dataset.state = state;
  button.title = `Show only tasks in this state`;
  const dot = make('span', undefined, 'dot');
  dot.setAttribute('aria-hidden', 'true');
  button.append(dot, make('span', stateName(state)), make('b', '–'));
  button.addEventListener('click', () => setFilter('state', filter.state === state ? '' : state));
  item.append(button);
  $('counts').append(item);
  counters[state] = button;
  const option = make('option', stateName(state));
  option.value = state;
  $('filter-state').append(option);
}

// Durations of what goes on grow by themselves, as long as we hear of it.
setInterval(() => {
  if (document.visibilityState !== 'visible' || !connected()) return;
  table.draw();
  drawer.draw();
  if (tasks.all(filter.session).some(live)) lanes.draw(filter.session);
}, 1000);
new ResizeObserver(() => lanes.draw(filter.session)).observe($('lanes-scroll'));

// ---- what the reader does

function setFilter(name, value) {
  filter[name] = value;
  $(`filter-${name}`).value = value;
  draw();
}
for (const name of ['state', 'session', 'text']) {
  $(`filter-${name}`).addEventListener('input', (e) => setFilter(name, e.target.value));
}
$('clear').addEventListener('click', () => {
  for (const name of ['state', 'session', 'text']) setFilter(name, '');
  $('filter-text').focus();
});

// open shows a task, and tells the page around this one.
function open(task) {
  table.select(task.task_id);
  drawer.show(task.task_id);
  const { search, ...plain } = task;
  const event = () => new CustomEvent('subagent:open', { bubbles: true, composed: true, detail: plain });
  document.documentElement.dispatchEvent(event());
  try {
    const frame = window.frameElement; // null if the page around is of another origin
    if (frame) {
      const Outer = frame.ownerDocument.defaultView.CustomEvent;
      frame.dispatchEvent(new Outer('subagent:open', { bubbles: true, detail: plain }));
    }
  } catch {
    // it may not be reached
  }
}

function stopTask(task) {
  if (!task || !live(task)) return;
  confirm({
    title: 'Stop this task?',
    text: `“${title(task)}” is asked to stop, and so are the tasks that it has spawned. What it has written so far is kept.`,
    act: (reason) => cancelTask(task.task_id, reason),
  });
}

$('stop-session').addEventListener('click', () => {
  const session = filter.session;
  const n = tasks.all(session).filter(live).length;
  confirm({
    title: `Stop all in session ${session}?`,
    text: `${plural(n, 'task')} and all that they have spawned are asked to stop.`,
    act: (reason) => cancelSession(session, reason),
  });
});

// confirm asks first. The dialog stays open until the server has answered.
let acting;
function confirm({ title, text, act }) {
  acting = act;
  put($('confirm-title'), title);
  put($('confirm-text'), text);
  $('confirm-error').hidden = true;
  $('confirm-reason').value = '';
  $('confirm-yes').disabled = false;
  $('confirm').showModal();
  $('confirm-yes').focus();
}
$('confirm-no').addEventListener('click', () => $('confirm').close());
$('confirm-reason').addEventListener('keydown', (e) => e.key === 'Enter' && $('confirm-yes').click());
$('confirm-yes').addEventListener('click', async () => {
  const act = acting;
  $('confirm-yes').disabled = true;
  try {
    await act($('confirm-reason').value);
    if (act === acting) $('confirm').close();
  } catch (e) {
    $('confirm-error').hidden = false;
    put($('confirm-error'), `It was not stopped: ${e.message}.`);
    $('confirm-yes').disabled = false;
  }
});

// ---- the theme, and what the address asks for

const storage = {
  get: () => { try { return localStorage.getItem('subagent-theme') ?? ''; } catch { return ''; } },
  set: (value) => { try { localStorage.setItem('subagent-theme', value); } catch { /* for this time only */ } },
};
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $('theme').value = theme;
}
$('theme').addEventListener('input', (e) => {
  setTheme(e.target.value);
  storage.set(e.target.value);
});
setTheme(storage.get());
const asked = new URL(document.location).searchParams;
if (asked.get('session_id')) {
  filter.session = asked.get('session_id');
  draw();
}
