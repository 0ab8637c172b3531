// What values look like. All of it is text: nothing here makes HTML.

export const states = ['pending', 'queued', 'running', 'completed', 'cancelled', 'errored'];
export const live = (task) => task.status === 'pending' || task.status === 'queued' || task.status === 'running';

const names = {
  pending: 'Pending', queued: 'Queued', running: 'Running', completed: 'Completed', cancelled: 'Cancelled', errored: 'Failed',
};
export const stateName = (status) => names[status] ?? status;

// A task that was asked to stop is running all the same; people want to know.
export function stateOf(task) {
  if (task.status === 'running' && task.cancel_requested_at) return 'stopping';
  return task.status;
}
export const stateLabel = (task) => (stateOf(task) === 'stopping' ? 'Stopping' : stateName(task.status));

const reasons = {
  user: 'a person stopped it', agent: 'an agent stopped it', parent: 'its parent was stopped', session: 'its session was stopped',
  caller: 'its caller went away', shutdown: 'the runner was shut down', error: 'it reported an error', panic: 'it crashed',
  timeout: 'it ran too long', queue_timeout: 'it waited too long for a slot', lost: 'its process died', store: 'it could not be stored',
};
export const reasonText = (reason) => reasons[reason] ?? reason;

const counter = new Intl.NumberFormat(undefined, { useGrouping: 'always' });
export const count = (n) => counter.format(n ?? 0);
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? '' : 's'}`;

// duration writes milliseconds with at most three digits that matter.
export function duration(ms) {
  ms = Math.max(0, ms);
  if (ms < 1000) return `${Math.floor(ms)} ms`;
  const s = Math.floor(ms / 1000);
  if (s < 10) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  if (s < 60) return `${s} s`;
  const two = (n) => String(n).padStart(2, '0');
  if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)} min`;
  return `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)} h`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const dated = new Intl.DateTimeFormat(undefined, { month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', second: '2-digit' });

// clockText is a time in the reader's zone; another day is named.
export function clockText(at) {
  const d = new Date(at);
  return (d.toDateString() === new Date().toDateString() ? clock : dated).format(d);
}

// timeElement shows a time in the reader's zone, and as it was sent on hover.
export function timeElement(at) {
  const e = make('time', clockText(at));
  e.dateTime = at;
  e.title = at;
  return e;
}

export const ms = (at) => (at ? Date.parse(at) : NaN);

// The clock of the server may be wrong, or ours. No event is from the future,
// so the latest that any was ahead of us is how far the server's is ahead.
let ahead = -Infinity;
export function heardAt(at) {
  ahead = Math.max(ahead, Date.parse(at) - Date.now());
}
export const now = () => Date.now() + (ahead === -Infinity ? 0 : ahead);

// waited and ran are durations so far, in milliseconds; NaN if there is none.
export function waited(task) {
  const from = ms(task.queued_at ?? task.created_at);
  return (ms(task.started_at) || ms(task.completed_at) || now()) - from;
}
export function ran(task) {
  return (ms(task.completed_at) || now()) - ms(task.started_at);
}

// title is what a task is called where there is one line.
export const title = (task) => task.subject || task.description?.split('\n', 1)[0] || task.task_id;

// make makes an element with text in it.
export function make(tag, text, className) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

// put sets a text only if it is another: nothing is laid out anew for nothing.
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// safeLink is the address if it may be followed, else undefined.
export function safeLink(link) {
  if (!link) return undefined;
  try {
    const url = new URL(link, document.baseURI);
    return url.protocol === 'http:' || url.protocol === 'https:' ? url.href : undefined;
  } catch {
    return undefined;
  }
}
