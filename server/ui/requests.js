// Requests: a console for every route of openapi.json.
import {access, accessHeaders, send, url} from './api.js';
import {errorBox, field, h, prose, replace, select} from './dom.js';
import {bytes, ms} from './format.js';
import {example, openapi, operations, parameters, resolve, tree} from './schema.js';

export const about = 'Choose a route, fill in what it takes, and see what it replies.';

const SHOWN = 200_000;  // characters of a reply on the page
const wanted =
    ['query', 'text', 'title', 'input', 'prompt'];  // members of an example though not required

const quote = (text) => `'${text.replaceAll('\'', `'\\''`)}'`;

// `data` is how curl sends the body: pairs of an option and its value.
function curl(method, target, headers, data) {
  const parts = [
    'curl -sN', method === 'GET' ? '' : `-X ${method}`,
    quote(new URL(target, document.baseURI).href)
  ];
  for (const [name, value] of Object.entries(headers))
    parts.push(
        `-H ${quote(`${name}: ${name === 'Authorization' ? 'Bearer $QUIRE_KEY' : value}`)}`.replace(
            '\'Authorization: Bearer $QUIRE_KEY\'', '"Authorization: Bearer $QUIRE_KEY"'));
  for (const [option, value] of data) parts.push(`${option} ${quote(value)}`);
  return parts.filter(Boolean).join(' ');
}

const isText = (type) => type.includes('json') || type.startsWith('text/');

// Controls of a body in the first media type that a person can fill in: {nodes, read}. read()
// gives {body, headers, data}; a form gets its Content-Type from the browser.
function bodyControls(api, op) {
  const content = resolve(api, op.requestBody)?.content ?? {};
  const types = Object.keys(content);
  if (!types.length) return {nodes: [], read: () => ({headers: {}, data: []})};
  const type = types.includes('application/json') ? 'application/json' : types[0];
  const schema = resolve(api, content[type].schema) ?? {};
  if (type === 'multipart/form-data') {
    const parts = Object.entries(schema.properties ?? {}).map(([name, member]) => {
      const of = resolve(api, member) ?? {};
      const control = of.format === 'binary' ? h('input', {type: 'file'}) :
          of.enum                            ? select([['', ''], ...of.enum], '') :
                                               h('input', {spellcheck: 'false'});
      return {name, control, file: of.format === 'binary'};
    });
    const read = () => {
      const body = new FormData();
      const data = [];
      for (const {name, control, file} of parts) {
        const value = file ? control.files?.[0] : control.value;
        if (!value) continue;
        body.append(name, value);
        data.push(['-F', `${name}=${file ? `@${value.name}` : value}`]);
      }
      return {body: data.length ? body : undefined, headers: {}, data};
    };
    return {nodes: parts.map((x) => field(`${x.name} (form)`, x.control)), read};
  }
  if (!isText(type)) {
    const file = h('input', {type: 'file'});
    const read = () => {
      const body = file.files?.[0];
      return body ?
          {body, headers: {'Content-Type': type}, data: [['--data-binary', `@${body.name}`]]} :
          {headers: {}, data: []};
    };
    return {nodes: [field(`Body (${type})`, file)], read};
  }
  const text = h('textarea', {rows: 8, class: 'code', spellcheck: 'false'});
  if (type === 'application/json')
    text.value = JSON.stringify(example(api, content[type].schema, wanted), null, 2);
  const read = () => text.value ?
      {body: text.value, headers: {'Content-Type': type}, data: [['-d', text.value]]} :
      {headers: {}, data: []};
  const hint =
      h('details', {}, h('summary', {}, 'What the body may hold'), tree(api, content[type].schema));
  return {nodes: [field(`Body (${type})`, text), type === 'application/json' && hint], read};
}

function pretty(text, type) {
  if (type.includes('json')) try {
      return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // as it is
    }
  return text;
}

// Reads the reply as it comes, so that streams show at once.
async function showReply(node, response, started) {
  const type = response.headers.get('Content-Type') ?? '';
  const line =
      h('p', {}, h('code', {class: `status c${String(response.status)[0]}`}, response.status), ' ',
        response.statusText, ' ', h('span', {class: 'hint'}, type));
  const out = h('pre', {class: 'text tall', tabindex: '0', 'aria-label': 'Body of the reply'});
  const foot = h('p', {class: 'hint'});
  replace(
      node, line,
      h('details', {}, h('summary', {}, 'Headers'),
        h('pre', {class: 'text'}, [...response.headers].map(([k, v]) => `${k}: ${v}`).join('\n'))),
      out, foot);
  let text = '';
  let size = 0;
  if (response.body) {
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      size += value.length;
      if (text.length < SHOWN) text += decoder.decode(value, {stream: true});
      if (type.includes('event-stream')) out.textContent = text;
    }
  }
  out.textContent = pretty(text.slice(0, SHOWN), text.length < SHOWN ? type : '');
  foot.textContent = `${bytes(size)} in ${ms(performance.now() - started)}` +
      (text.length >= SHOWN ? '; cut off here' : '');
}

function form(api, o, reply) {
  const list = parameters(api, o.op).filter((p) => p.name !== 'X-Namespace');
  const inputs = list.map((p) => {
    const control = p.schema?.enum ?
        select([['', ''], ...p.schema.enum.filter((v) => v !== null)], '') :
        h('input',
          {placeholder: p.schema?.default ?? '', required: p.required, spellcheck: 'false'});
    return {p, control, node: field(`${p.name} (${p.in})`, control, p.description)};
  });
  const content = bodyControls(api, o.op);
  const go = h('button', {type: 'submit', class: 'primary'}, 'Send');
  const stop = h('button', {type: 'button', disabled: true}, 'Stop');
  const shell =
      h('pre', {class: 'text curl', tabindex: '0', 'aria-label': 'The same request with curl'});

  const request = () => {
    let path = o.path;
    const query = {};
    const {body, headers, data} = content.read();
    for (const {p, control} of inputs) {
      if (p.in === 'path')
        path = path.replace(`{${p.name}}`, encodeURIComponent(control.value));
      else if (control.value && p.in === 'query')
        query[p.name] = control.value;
      else if (control.value)
        headers[p.name] = control.value;
    }
    return {path, query, headers, body, data};
  };
  const drawShell = () => {
    const r = request();
    shell.textContent =
        curl(o.method, url(r.path, r.query), {...r.headers, ...accessHeaders()}, r.data);
  };
  let control = null;
  const submit = async (e) => {
    e.preventDefault();
    const r = request();
    control = new AbortController();
    go.disabled = true;
    stop.disabled = false;
    replace(reply, h('p', {class: 'hint'}, 'Waiting…'));
    const started = performance.now();
    try {
      await showReply(reply, await send(o.method, r.path, {...r, signal: control.signal}), started);
    } catch (x) {
      if (x.name !== 'AbortError')
        replace(reply, errorBox(x));
      else
        reply.append(h('p', {class: 'hint'}, 'Stopped.'));
    } finally {
      go.disabled = false;
      stop.disabled = true;
    }
  };
  stop.addEventListener('click', () => control?.abort());
  const node =
      h('form', {class: 'card', onsubmit: submit, oninput: drawShell},
        h('p', {}, o.op.summary,
          o.op['x-quire-scope'] && h('span', {class: 'hint'}, ` · scope ${o.op['x-quire-scope']}`)),
        o.op.description && h('p', {class: 'hint'}, prose(o.op.description)),
        h('div', {class: 'grid2'}, inputs.map((i) => i.node)), content.nodes,
        h('div', {class: 'row'}, go, stop, h('a', {href: `./#/docs/${o.id}`}, 'Reference')),
        h('details', {}, h('summary', {}, 'As a command'), shell));
  drawShell();
  return {node, leave: () => control?.abort()};
}

export async function render(root, [id]) {
  const api = await openapi();
  const all = operations(api);
  let leave = null;
  const chosen = all.find((o) => o.id === id) ?? all.find((o) => o.path === '/v1/query') ?? all[0];
  const route =
      h('select', {
        onchange: (e) => {
          document.location.hash = `#/requests/${e.target.value}`;
        }
      },
        [...new Set(all.map((o) => o.group))].map(
            (g) =>
                h('optgroup', {label: g},
                  all.filter((o) => o.group === g)
                      .map(
                          (o) =>
                              h('option', {value: o.id, selected: o === chosen},
                                `${o.method} ${o.path}`)))));
  const reply =
      h('section', {class: 'card', 'aria-label': 'Reply', 'aria-live': 'off'},
        h('p', {class: 'hint'}, 'The reply appears here.'));
  const made = form(api, chosen, reply);
  leave = made.leave;
  replace(
      root,
      h('div', {class: 'card'},
        field(
            'Route', route, access.namespace ? `in the namespace ${access.namespace}` : undefined)),
      h('div', {class: 'columns'}, made.node, reply));
  return () => leave();
}
