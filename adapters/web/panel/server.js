// The connection to the server: one WebSocket for what happens, plain requests
// for the rest. Addresses are relative to the page, so any prefix will do.

const address = (path) => new URL(path, document.baseURI);
const patience = 20000; // milliseconds for an answer

// Refused is an answer of the server that says no.
export class Refused extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(address(path), { ...options, signal: AbortSignal.timeout(patience) });
  } catch {
    throw new Refused('unreachable', 'the server cannot be reached');
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new Refused(body.error?.code ?? 'internal', body.error?.message ?? `the server answered ${response.status}`);
  }
  return body;
}

const post = (path, body) =>
  ask(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });

export const getTask = (id) => ask(`tasks/${encodeURIComponent(id)}`);
export const getGauge = () => ask('gauge');
export const cancelTask = (id, reason) => post(`tasks/${encodeURIComponent(id)}/cancel`, { reason });
export const cancelSession = (id, reason) => post(`sessions/${encodeURIComponent(id)}/cancel`, { reason });

// listTasks yields the tasks page by page, newest first.
export async function* listTasks() {
  for (let after = ''; ; ) {
    const page = await ask(`tasks?limit=1000&after=${after}`);
    yield page.tasks;
    if (!page.next) return;
    after = page.next;
  }
}

// follow keeps a subscription alive for as long as the page lives. on.event gets
// each event, on.state 'live' or 'lost' with the reason, if one is known. What it
// returns breaks the connection off and makes another: a browser does not notice
// for long that nobody is at the other end.
export function follow(on) {
  let after = '';
  let pause = 250;
  let timer;
  let socket;

  const connect = () => {
    clearTimeout(timer);
    timer = undefined;
    const url = address('ws');
    url.protocol = url.protocol.replace('http', 'ws');
    const mine = (socket = new WebSocket(url));
    mine.onopen = () => {
      pause = 250;
      mine.send(JSON.stringify({ action: 'subscribe', id: 'page', after }));
    };
    mine.onmessage = (message) => {
      const event = JSON.parse(message.data);
      if (event.error) {
        lost(mine, event.error.message);
        return;
      }
      if (event.event_id && !event.more) after = event.event_id;
      if (event.type === 'live_tasks') on.state('live');
      on.event(event);
    };
    mine.onclose = () => lost(mine);
  };

  // lost gives a connection up, once, and has another made after a while. Why it
  // was lost may take long to find out, or nobody may tell.
  const lost = async (which, reason) => {
    if (which !== socket) return;
    socket = undefined;
    which.onmessage = which.onclose = null;
    which.close();
    on.state('lost', reason);
    timer = setTimeout(connect, pause);
    pause = Math.min(pause * 2, 5000);
    reason ??= await why();
    if (reason && !live()) on.state('lost', reason);
  };
  const live = () => socket?.readyState === WebSocket.OPEN;

  // A browser does not say why a WebSocket was refused; a plain request does.
  const why = async () => {
    try {
      await ask('badge');
      return undefined;
    } catch (e) {
      return e.code === 'unreachable' ? undefined : e.message;
    }
  };

  // No need to wait when the reader comes back, or the network does.
  const soon = () => {
    if (timer && document.visibilityState === 'visible') connect();
  };
  window.addEventListener('online', soon);
  document.addEventListener('visibilitychange', soon);
  connect();
  return () => socket && lost(socket);
}
