// Worth: what the cache saves, where it finds things, and how full it is, as it happens.
import {missText, stat} from './answer.js';
import {get, stream} from './api.js';
import {errorBox, h, replace, table} from './dom.js';
import {bytes, clock, count, ms, percent} from './format.js';
import {sparkline, stacked} from './plot.js';

export const about = 'What the cache saved since the service started, live.';

const KEEP = 120;   // seconds of the small charts
const EVENTS = 40;  // lines of the log
const METRICS_EVERY_MS = 5000;
const RETRY_MS = 3000;

// Samples of the Prometheus text format: {name: [{labels, value}]}.
export function parseMetrics(text) {
  const out = {};
  for (const line of text.split('\n')) {
    const m = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)/.exec(line);
    if (!m) continue;
    const labels = {};
    for (const [, name, value] of (m[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
      labels[name] = value;
    (out[m[1]] ??= []).push({labels, value: Number(m[3])});
  }
  return out;
}

const hits = (stats) => stats.tiers.reduce((sum, t) => sum + t.hit_tokens, 0);

function cards(stats, history) {
  const looked = Math.max(0, ...stats.tiers.map((t) => t.lookup_tokens));
  const series = (of) => history.map(of);
  return h(
      'div', {class: 'cards'},
      h('div', {class: 'card big'}, h('h2', {}, 'Prefill saved'),
        h('p', {class: 'figure'}, count(stats.saved.prefill_tokens), h('small', {}, ' tokens')),
        h('p', {class: 'hint'},
          `about ${ms(stats.saved.prefill_seconds_estimate * 1000)} of computing`),
        sparkline('Tokens saved, over the last minutes', series((x) => x.saved.prefill_tokens))),
      h('div', {class: 'card big'}, h('h2', {}, 'Found in the cache'),
        h('p', {class: 'figure'}, percent(looked ? hits(stats) / looked : undefined)),
        h('p', {class: 'hint'},
          `${count(hits(stats))} of ${count(looked)} document tokens looked up`),
        sparkline('Tokens found, over the last minutes', series(hits))),
      h('div', {class: 'card big'}, h('h2', {}, 'Ingested once'),
        h('p', {class: 'figure'}, percent(stats.dedup_ratio)),
        h('p', {class: 'hint'}, 'of the ingested tokens were there already'),
        h('dl', {class: 'stats'}, stat('documents', count(stats.documents.ready)),
          stat('in progress', count(stats.documents.in_progress)),
          stat('failed', count(stats.documents.failed)))),
      h('div', {class: 'card big'}, h('h2', {}, 'Now'),
        h('p', {class: 'figure'}, count(stats.queries?.running ?? 0), h('small', {}, ' running')),
        h('p', {class: 'hint'}, `${count(stats.queries?.waiting ?? 0)} waiting`, ' · ',
          `up for ${ms(stats.uptime_seconds * 1000)}`),
        sparkline(
            'Queries that run, over the last minutes', series((x) => x.queries?.running ?? 0))));
}

function meter(tier) {
  const {bytes: used, capacity_bytes: room, pinned_bytes: pinned} = tier;
  const full = room ? used / room : 0;
  return h(
      'div', {
        class: 'meter',
        role: 'img',
        'aria-label': `${tier.name}: ${bytes(used)}` +
            (room ? ` of ${bytes(room)}` : ', no limit') + `, ${bytes(pinned)} pinned`
      },
      h('span', {class: `k-tier-${tier.name}`, style: {width: `${100 * Math.min(1, full)}%`}}),
      pinned > 0 && room > 0 &&
          h('span', {class: 'pinned', style: {width: `${100 * Math.min(1, pinned / room)}%`}}));
}

function tiers(stats) {
  return h(
      'div', {class: 'card'}, h('h2', {}, 'Tiers'),
      stacked('Tokens found by tier', stats.tiers.map((t) => ({
                                                        name: t.name,
                                                        kind: `tier-${t.name}`,
                                                        value: t.hit_tokens,
                                                        text: count(t.hit_tokens)
                                                      }))),
      table(
          'Tiers of the cache',
          [
            {
              name: 'tier',
              head: true,
              cell: (t) =>
                  h('span', {}, h('i', {class: `badge k-tier-${t.name}`}), t.name,
                    t.state !== 'ok' && h('small', {}, ` ${t.state}`))
            },
            {
              name: 'bytes',
              cell: (t) =>
                  h('div', {}, meter(t),
                    h('small', {},
                      t.name === 'remote'  ? 'shared' :
                          t.capacity_bytes ? `${bytes(t.bytes)} of ${bytes(t.capacity_bytes)}` :
                                             `${bytes(t.bytes)}, no limit`))
            },
            {name: 'pinned', num: true, cell: (t) => bytes(t.pinned_bytes)},
            {name: 'blocks', num: true, cell: (t) => count(t.blocks)},
            {
              name: 'hit share',
              num: true,
              about: 'Of the document tokens looked up there',
              cell: (t) => percent(t.lookup_tokens ? t.hit_tokens / t.lookup_tokens : undefined)
            },
            {name: 'read', num: true, cell: (t) => bytes(t.read_bytes)},
            {name: 'written', num: true, cell: (t) => bytes(t.written_bytes)},
            {name: 'evictions', num: true, cell: (t) => count(t.evictions)},
            {name: 'errors', num: true, cell: (t) => count(t.errors)},
          ],
          stats.tiers),
      stats.integrity_failures > 0 &&
          h('p', {class: 'note'}, count(stats.integrity_failures),
            ' blocks failed their checksum and were computed again.'));
}

function fates(metrics) {
  const of = (name) => metrics[name] ?? [];
  const order = ['reused', 'recomputed', 'computed', 'dropped'];
  const parts = order.map((f) => {
    const value = of('quire_prompt_tokens_total').find((x) => x.labels.fate === f)?.value ?? 0;
    return {name: f, kind: f, value, text: count(value)};
  });
  const misses =
      of('quire_miss_tokens_total').filter((m) => m.value > 0).sort((a, b) => b.value - a.value);
  return h(
      'div', {class: 'card'}, h('h2', {}, 'Prompt tokens since the start'),
      stacked('Fate of all prompt tokens', parts),
      misses.length ?
          table(
              'Document tokens that were not taken from the cache',
              [
                {name: 'tokens', num: true, cell: (m) => count(m.value)},
                {name: 'not reused, because they', cell: (m) => missText(m.labels.reason)},
              ],
              misses) :
          h('p', {class: 'hint'}, 'No document token has missed the cache.'));
}

function line(name, data) {
  const text = name === 'job' ?
      `job ${data.id}: ${data.status}, ${data.counts.completed} of ${data.counts.total} done` :
      name === 'evict' ? `${count(data.count)} evicted from ${data.tier}, ${bytes(data.bytes)}` :
                         `${data.kind} error, ${count(data.count)} times`;
  return {at: clock(Date.now()), name, text};
}

export async function render(root) {
  const top = h('div');
  const below = h('div');
  const log = h('ol', {class: 'log', 'aria-label': 'Events', tabindex: '0'});
  const state = h('p', {class: 'hint', 'aria-live': 'polite'}, 'Waiting for numbers…');
  const shown = [];
  const history = [];
  const control = new AbortController();
  const draw = (stats) => {
    history.push(stats);
    if (history.length > KEEP) history.shift();
    replace(top, cards(stats, history), tiers(stats));
  };
  replace(
      root, state, top, below,
      h('div', {class: 'card'}, h('h2', {}, 'Events'),
        h('p', {class: 'hint'}, 'Jobs, evictions and errors since this page was opened.'), log));
  const scrape = async () => {
    try {
      replace(below, fates(parseMetrics(await get('/metrics', {}, control.signal))));
    } catch (e) {
      if (e.name !== 'AbortError') replace(below);
    }
  };
  const timer = setInterval(scrape, METRICS_EVERY_MS);
  scrape();
  let again;
  const listen = async () => {
    try {
      await stream('GET', '/v1/admin/events', {signal: control.signal}, (name, data) => {
        if (name === 'stats') {
          state.textContent = `Live, once a second. Last at ${clock(Date.now())}.`;
          draw(data);
          return;
        }
        shown.unshift(line(name, data));
        shown.length = Math.min(shown.length, EVENTS);
        replace(
            log,
            shown.map((x) => h('li', {}, h('time', {}, x.at), h('b', {}, x.name), ` ${x.text}`)));
      });
      throw new Error('The service ended the stream of events.');
    } catch (e) {
      if (e.name === 'AbortError') return;
      replace(state, errorBox(e));
      // A refusal stays one; a service that is started again comes back, and says 503 until then.
      if (!e.status || e.status >= 500) again = setTimeout(listen, RETRY_MS);
    }
  };
  state.removeAttribute('aria-live');  // a new time each second is nothing to read out
  listen();
  return () => {
    control.abort();
    clearInterval(timer);
    clearTimeout(again);
  };
}
