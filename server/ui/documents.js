// Documents: add files, watch them being read, and see what is cached.
import {call, contentOf, get, post, stream} from './api.js';
import {announce, confirmed, dialog, errorBox, field, h, replace, select, table} from './dom.js';
import {ago, bytes, count, ms, percent, plural} from './format.js';

export const about =
    'Drop files to cache them. Each is read once; questions reuse what was computed.';

const PAGE = 50;

function upload(onDone) {
  const list = h('ul', {class: 'uploads'});
  const input = h('input', {type: 'file', multiple: true, id: 'files', class: 'sr'});
  const zone =
      h('div', {class: 'drop'}, h('p', {}, h('b', {}, 'Drop files here'), ' or '),
        h('label', {'for': 'files', class: 'button'}, 'choose files'), input,
        h('p', {class: 'hint'},
          'PDF, HTML, DOCX, XLSX, PPTX, OpenDocument, EPUB, CSV, mail, Markdown and text.'));
  const take = (files) => {
    for (const file of files) send(file, list, onDone);
  };
  input.addEventListener('change', () => {
    take(input.files);
    input.value = '';
  });
  for (const [name, on] of [['dragover', true], ['dragleave', false], ['drop', false]])
    zone.addEventListener(name, (e) => {
      e.preventDefault();
      zone.classList.toggle('over', on);
      if (name === 'drop') take(e.dataTransfer.files);
    });
  const text = h('textarea', {rows: 4, required: true});
  const title = h('input', {});
  const id = h('input', {placeholder: 'made by the service', spellcheck: 'false'});
  const pasted =
      h('form', {
        onsubmit: async (e) => {
          e.preventDefault();
          const item = h('li');
          list.prepend(item);
          const body = {
            text: text.value,
            title: title.value || undefined,
            id: id.value.trim() || undefined
          };
          if (await follow(
                  item, title.value || id.value || 'text', () => post('/v1/documents', body),
                  onDone))
            pasted.reset();
        }
      },
        field('Text', text), h('div', {class: 'grid2'}, field('Title', title), field('Id', id)),
        h('button', {type: 'submit'}, 'Add the text'));
  return h(
      'section', {class: 'card', 'aria-label': 'Add documents'}, zone,
      h('details', {}, h('summary', {}, 'Paste a text'), pasted), list);
}

// Browsers open six connections to a service at most, and each upload at work holds one.
const lanes = Array.from({length: 2}, () => Promise.resolve());
let turn = 0;

function send(file, list, onDone) {
  const name = `${file.name} (${bytes(file.size)})`;
  const item = h('li', {}, h('b', {}, name), h('small', {}, 'waits for its turn'));
  list.append(item);
  const start = () => {
    const form = new FormData();
    form.append('file', file, file.name);
    return call('POST', '/v1/documents', {body: form});
  };
  const lane = turn++ % lanes.length;
  lanes[lane] = lanes[lane].then(() => follow(item, name, start, onDone));
}

// Shows one upload from its bytes to the end of its job. Returns whether it worked.
async function follow(item, name, start, onDone) {
  const bar = h('progress', {max: 1, 'aria-label': `Progress of ${name}`});
  const note = h('small', {}, 'sending…');
  replace(item, h('b', {}, name), bar, note);
  const show = (job) => {
    const p = job.progress;
    if (!p) return;
    bar.value = p.ratio;
    note.textContent =
        `${job.status} · ${percent(p.ratio)} of about ${plural(p.tokens_total, 'token')}` +
        (p.eta_ms ? ` · ${ms(p.eta_ms)} left` : '');
  };
  try {
    const reply = await start();
    const jobs = [];  // several for a file of many documents that are not all cut alike
    for (const id of reply.job_ids ?? [reply.job_id].filter(Boolean)) {
      let job = null;
      await stream('GET', `/v1/jobs/${encodeURIComponent(id)}/events`, {}, (event, data) => {
        if (event === 'error') throw new Error(data.detail);
        job = data;
        show(data);
      });
      if (job) jobs.push(job);
    }
    const results = jobs.length ? jobs.flatMap((j) => j.results ?? []) : reply.results ?? [];
    const wrong = results.filter((r) => r.error);
    const failed = wrong[0]?.error ?? jobs.find((j) => j.error)?.error;
    if (failed) {
      const of = results.length > 1 && wrong.length ?
          `${wrong.length} of ${plural(results.length, 'document')} failed. The first: ` :
          '';
      throw Object.assign(new Error(of + failed.message), {param: failed.param, code: failed.code});
    }
    const cancelled = results.filter((r) => r.result === 'cancelled').length;
    if (cancelled)
      throw Object.assign(
          new Error(`${cancelled} of ${plural(results.length, 'document')} cancelled`),
          {title: 'The job was cancelled'});
    bar.value = 1;
    const tokens = jobs.length ? jobs.reduce((sum, j) => sum + (j.usage?.tokens ?? 0), 0) :
                                 reply.usage?.tokens;
    const replaced = results.filter((r) => r.result === 'updated').map((r) => `"${r.id}"`);
    note.textContent = (tokens ? `ready · ${plural(tokens, 'token')} cached` : 'ready') +
        (replaced.length ? ` · replaced ${replaced.join(', ')}, which was there before` : '');
    announce(`${name} is ready`);
    onDone();
    return true;
  } catch (e) {
    replace(item, h('b', {}, name), errorBox(e));
    onDone();
    return false;
  }
}

function life(d) {
  if (!d.expires_at) return 'for ever';
  return h(
      'time', {datetime: d.expires_at, title: d.expires_at}, ago(d.expires_at).replace(/^in /, ''));
}

async function editLife(d) {
  const seconds = h('input', {type: 'number', min: 1, placeholder: 'no end'});
  const anchor =
      select([['created', 'since it was added'], ['last_used', 'since its last use']], 'created');
  return dialog(
      `Life of ${d.title ?? d.id}`,
      (done) =>
          h('form', {
            onsubmit: (e) => {
              e.preventDefault();
              done(
                  seconds.value ? {ttl_seconds: Number(seconds.value), ttl_anchor: anchor.value} :
                                  {expires_at: null, ttl_seconds: null});
            }
          },
            field('Seconds', seconds, 'Empty: it stays until it is deleted.'),
            field('Counted', anchor),
            h('div', {class: 'row end'},
              h('button', {type: 'button', onclick: () => done(null)}, 'Cancel'),
              h('button', {type: 'submit', class: 'primary'}, 'Set'))));
}

export async function render(root, [id]) {
  const problem = h('div');
  const counts = h('p', {class: 'hint', 'aria-live': 'polite'});
  const rows = h('div');
  const more = h('button', {type: 'button', hidden: true}, 'Show more');
  const status =
      select([['', 'all'], 'ready', 'failed', 'queued', 'tokenizing', 'prefilling', 'storing'], '');
  const view = h('section', {class: 'card', 'aria-label': 'A document', hidden: true});
  let shown = [];
  let after;
  let asked = 0;        // requests for the list, of which only the last one's reply is shown
  let waiting = false;  // for that reply

  const act = async (run) => {
    replace(problem);
    try {
      await run();
    } catch (e) {
      replace(problem, errorBox(e));
    }
    await load();
  };
  const path = (d) => `/v1/documents/${encodeURIComponent(d.id)}`;
  const columns = [
    {
      name: 'document',
      head: true,
      cell: (d) =>
          h('div', {class: 'docname'},
            h('a', {href: `./#/documents/${encodeURIComponent(d.id)}`}, d.title ?? d.id),
            d.title && h('small', {}, d.id))
    },
    {
      name: 'state',
      cell: (d) =>
          h('span', {class: `tag s-${d.status}`, title: d.error?.message},
            d.progress !== undefined ? `${d.status} ${percent(d.progress)}` : d.status)
    },
    {name: 'tokens', num: true, cell: (d) => count(d.tokens)},
    {name: 'KV', num: true, cell: (d) => bytes(d.cache.bytes)},
    {
      name: 'tiers',
      cell: (d) => Object.entries(d.cache.tiers)
                       .filter(([, n]) => n > 0)
                       .map(
                           ([t, n]) =>
                               h('span', {class: 'tag', title: `${n} of ${d.cache.blocks} blocks`},
                                 h('i', {class: `badge k-tier-${t}`}), t))
    },
    {name: 'hits', num: true, cell: (d) => count(d.hits)},
    {name: 'last used', cell: (d) => ago(d.last_used_at)},
    {
      name: 'stays',
      cell: (d) =>
          h('button', {
            type: 'button',
            class: 'quiet',
            'aria-label': `Life of ${d.id}`,
            onclick: async () => {
              const change = await editLife(d);
              if (change) act(() => call('PATCH', path(d), {body: change}));
            }
          },
            life(d))
    },
    {
      name: 'pinned',
      cell: (d) =>
          h('button', {
            type: 'button',
            class: 'quiet',
            'aria-pressed': String(d.pinned),
            'aria-label': `Pin ${d.id}`,
            onclick: () => act(() => call('PATCH', path(d), {body: {pinned: !d.pinned}}))
          },
            d.pinned ? 'pinned' : 'pin')
    },
    {
      name: 'actions',
      cell: (d) => h(
          'span', {class: 'row'},
          h('a', {href: `./#/ask/${encodeURIComponent(d.id)}`, 'aria-label': `Ask ${d.id}`}, 'ask'),
          h('button', {
            type: 'button',
            class: 'quiet danger',
            'aria-label': `Delete ${d.id}`,
            onclick: async () => {
              if (await confirmed(
                      'Delete this document?',
                      `“${d.title ?? d.id}”: its text and its cache go for good.`, 'Delete'))
                act(() => call('DELETE', path(d)));
            }
          },
            'delete'))
    },
  ];

  async function load(next = false) {
    if (next && waiting) return;  // this page is on its way, or another list
    const mine = ++asked;
    waiting = true;
    try {
      const page = await get(
          '/v1/documents',
          {limit: PAGE, include: 'counts', status: status.value, after: next ? after : undefined});
      if (mine !== asked) return;
      shown = next ? [...shown, ...page.data] : page.data;
      after = page.last_id;
      more.hidden = !page.has_more;
      const c = page.counts;
      replace(counts, [
        plural(c.total, 'document'), plural(c.tokens, 'token'), `${bytes(c.bytes)} of text`,
        c.in_progress && `${c.in_progress} in progress`, c.failed && `${c.failed} failed`
      ].filter(Boolean).join(', '));
      replace(
          rows,
          shown.length ? table('Documents', columns, shown) :
                         h('p', {class: 'empty'}, 'No documents here. Drop some above.'));
    } catch (e) {
      if (mine === asked) replace(rows, errorBox(e));
    } finally {
      if (mine === asked) waiting = false;
    }
  }
  status.addEventListener('change', () => load());
  more.addEventListener('click', () => load(true));
  replace(
      root, upload(load), view,
      h('section', {class: 'card', 'aria-label': 'Documents'},
        h('div', {class: 'row low'}, field('State', status),
          h('button', {type: 'button', onclick: () => load()}, 'Refresh'), counts),
        problem, rows, more));
  await load();
  if (id) await open(view, id);
}

// One document: its members and its text.
async function open(view, id) {
  view.hidden = false;
  try {
    const d = await get(`/v1/documents/${encodeURIComponent(id)}`);
    const row = (name, value) => [h('dt', {}, name), h('dd', {}, value)];
    replace(
        view, h('h2', {}, d.title ?? d.id),
        h('dl', {class: 'facts'}, row('id', h('code', {}, d.id)),
          row('state', d.error ? `${d.status}: ${d.error.message}` : d.status),
          row('tokens', count(d.tokens)), row('chunks', count(d.chunks)),
          row('cache',
              [d.cache.state ?? 'none', bytes(d.cache.bytes), plural(d.cache.blocks, 'block')].join(
                  ', ')),
          row('added', ago(d.created_at)),
          row('metadata', h('code', {}, JSON.stringify(d.metadata)))),
        h('p', {class: 'row'},
          h('a', {href: `./#/ask/${encodeURIComponent(id)}`}, 'Ask this document'),
          h('a', {href: './#/documents'}, 'Close')));
    if (d.status === 'ready')
      view.append(
          h('pre', {class: 'text tall', tabindex: '0', 'aria-label': 'Text'}, await contentOf(id)));
  } catch (e) {
    replace(view, errorBox(e), h('a', {href: './#/documents'}, 'Close'));
  }
}
