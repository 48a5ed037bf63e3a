// Calls of the API: key, namespace, errors. Addresses are relative, so that the page works behind a
// proxy with a prefix.
import {readEvents} from './sse.js';

const KEY = 'quire.key';
const SPACE = 'quire.namespace';
const held = (name) => {
  try {
    return sessionStorage.getItem(name) ?? '';
  } catch {
    return '';
  }
};
const hold = (name, value) => {
  try {
    if (value)
      sessionStorage.setItem(name, value);
    else
      sessionStorage.removeItem(name);
  } catch {
    // a browser without storage keeps nothing
  }
};

export const access = {
  get key() {
    return held(KEY);
  },
  set key(value) {
    hold(KEY, value);
  },
  get namespace() {
    return held(SPACE);
  },
  set namespace(value) {
    hold(SPACE, value);
  },
  // Asks the person for a key; returns whether there is a new one. Set by app.js.
  ask: async () => false,
};

// Whose documents and answers the page shows.
export const who = () => `${access.key}\n${access.namespace}`;

export class ApiError extends Error {
  constructor(status, body, requestId) {
    const problem = body && typeof body === 'object' ? body : {};
    super(problem.detail ?? problem.error?.message ?? (body || `The service replied ${status}`));
    this.title = problem.title ?? `Error ${status}`;
    this.status = status;
    this.code = problem.error?.code;
    this.param = problem.error?.param;
    this.requestId = problem.request_id ?? requestId;
    this.problem = problem;
  }
}

export function url(path, query) {
  const given = Object.entries(query ?? {}).filter((e) => e[1] !== undefined && e[1] !== '');
  const text = given.map(([k, v]) => `${encodeURIComponent(k)}=${encodeURIComponent(v)}`).join('&');
  return path.replace(/^\//, '') + (text ? `?${text}` : '');
}

export function accessHeaders() {
  const headers = {};
  if (access.key) headers.Authorization = `Bearer ${access.key}`;
  if (access.namespace) headers['X-Namespace'] = access.namespace;
  return headers;
}

let asking = null;  // one dialog for all calls that meet a 401 together

async function newKey(used) {
  if (access.key !== used) return true;  // another call has asked already
  asking ??= access.ask().finally(() => {
    asking = null;
  });
  return asking;
}

// Returns the Response of any status; a 401 asks for a key and tries again.
export async function send(method, path, {query, body, headers, signal} = {}) {
  const json = body !== undefined && !(body instanceof FormData) && !(body instanceof Blob) &&
      typeof body !== 'string';
  for (;;) {
    const used = access.key;
    let response;
    try {
      response = await fetch(url(path, query), {
        method,
        signal,
        cache: 'no-store',
        headers:
            {...(json ? {'Content-Type': 'application/json'} : {}), ...accessHeaders(), ...headers},
        body: json ? JSON.stringify(body) : body,
      });
    } catch (e) {
      if (e.name === 'AbortError') throw e;
      const lost = new Error('The service cannot be reached. Is it running?');
      lost.title = 'No connection';
      throw lost;
    }
    if (response.status !== 401 || !(await newKey(used))) return response;
  }
}

async function failure(response) {
  const text = await response.text();
  let body = text;
  try {
    body = JSON.parse(text);
  } catch {
    // not every proxy answers in JSON
  }
  return new ApiError(response.status, body, response.headers.get('X-Request-Id'));
}

export async function call(method, path, options) {
  const response = await send(method, path, options);
  if (!response.ok) throw await failure(response);
  return (response.headers.get('Content-Type') ?? '').includes('json') ? response.json() :
                                                                         response.text();
}

export const get = (path, query, signal) => call('GET', path, {query, signal});
export const post = (path, body, signal) => call('POST', path, {body, signal});

// Makes a call whose reply is a stream of events.
export async function stream(method, path, options, onEvent) {
  const response = await send(method, path, options);
  if (!response.ok) throw await failure(response);
  await readEvents(response, onEvent);
  return response;
}

// A document's text.
export const contentOf = (id) => get(`/v1/documents/${encodeURIComponent(id)}/content`);

// All entries of a list, page by page, at most `most`.
export async function all(path, query, most = 1000) {
  const out = [];
  let after;
  do {
    const page = await get(path, {limit: 100, ...query, after});
    out.push(...page.data);
    after = page.has_more ? page.last_id : undefined;
  } while (after && out.length < most);
  return out;
}

let infoOf = null;
// GET /v1/info, once for a key and namespace.
export function info({again = false} = {}) {
  const asker = who();
  if (again || infoOf?.asker !== asker) {
    const promise = get('/v1/info');
    infoOf = {asker, promise};
    promise.catch(() => {
      infoOf = null;
    });
  }
  return infoOf.promise;
}
