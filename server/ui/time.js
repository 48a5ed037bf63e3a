// Time: where the time of a query went, and what hits are worth against misses.
import {why} from './answer.js';
import {get} from './api.js';
import {h, replace, table} from './dom.js';
import {count, median, ms, percent, plural} from './format.js';
import {nameOf, noQueries, pickQuery} from './pick.js';
import {legend, scatter, waterfall} from './plot.js';
import {hitClass} from './session.js';

export const about =
    'What the service did during a query, and the times to the first token of hits and misses.';

const meanings = {
  queue: 'waiting for the engine',
  lookup: 'looking contexts up in the store',
  load: 'loading cached blocks',
  prefix: 'the prompt before the documents',
  place: 'putting blocks at their places',
  query_pass: 'the question over a few blocks of every document',
  select: 'choosing blocks',
  recompute: 'computing cached tokens again',
  prefill: 'computing what was not reused',
  decode: 'writing the answer',
  attribution: 'finding the sources of the answer',
  compress: 'ranking the rows of the working cache',
  draft: 'the small model that looks ahead',
  prompt_compression: 'cutting the prompt',
};
// Times that the engine does not span; they come before it takes the query.
const before = [['tokenize', 'tokenize_ms'], ['resolve', 'resolve_ms']];

function rowsOf(query, spans) {
  const t = query.timings;
  const rows = [];
  let at = 0;
  for (const [name, member] of before) {
    if (t[member] > 0) rows.push({name, start: at, ms: t[member], kind: 'other'});
    at += t[member] ?? 0;
  }
  for (const x of [...spans].sort((a, b) => a.start_ms - b.start_ms || a.ms - b.ms))
    rows.push({
      name: x.name,
      start: at + x.start_ms,
      ms: x.ms,
      about: meanings[x.name],
      kind: Object.hasOwn(meanings, x.name) ? x.name : 'other'
    });
  return rows;
}

// Medians of the time to the first token by how much came from the cache.
function groups(queries) {
  const out = new Map();
  queries.forEach((q, i) => {
    if (!(q.timings.ttft_ms > 0)) return;
    const hit = hitClass(q);
    if (!out.has(hit.kind)) out.set(hit.kind, {...hit, points: []});
    out.get(hit.kind).points.push({
      x: queries.length - i,
      y: q.timings.ttft_ms,
      label: `${nameOf(q)} · ${hit.name}`,
      href: `./#/time/${encodeURIComponent(q.id)}`,
      tokens: q.usage.prompt_tokens
    });
  });
  return ['hit', 'partial', 'miss', 'bypass', 'none'].map((k) => out.get(k)).filter(Boolean);
}

function comparison(list) {
  const rows =
      list.map((g) => ({
                 ...g,
                 ttft: median(g.points.map((p) => p.y)),
                 perToken: median(g.points.filter((p) => p.tokens).map((p) => p.y / p.tokens))
               }));
  const miss = rows.find((r) => r.kind === 'miss') ?? rows.find((r) => r.kind === 'bypass');
  const hit = rows.find((r) => r.kind === 'hit');
  return [
    table(
        'Time to the first token by cache result',
        [
          {
            name: 'cache',
            head: true,
            cell: (r) => h('span', {}, h('i', {class: `badge k-${r.kind}`}), r.name)
          },
          {name: 'queries', num: true, cell: (r) => count(r.points.length)},
          {name: 'median TTFT', num: true, cell: (r) => ms(r.ttft)},
          {name: 'per prompt token', num: true, cell: (r) => ms(r.perToken)},
        ],
        rows),
    hit && miss &&
        h('p', {}, 'By the medians of these queries, for each token of the prompt, a hit is ',
          `${(miss.perToken / hit.perToken).toFixed(1)} times as fast to its first token as `,
          miss.kind === 'miss' ? 'a miss.' : 'a full prefill.'),
  ];
}

export async function render(root, [id]) {
  const picked = await pickQuery('time', id);
  if (!picked) {
    replace(root, noQueries());
    return;
  }
  const query = picked.chosen;
  const {spans} = await get(`/v1/queries/${encodeURIComponent(query.id)}/explain`);
  const rows = rowsOf(query, spans);
  const total = Math.max(query.timings.total_ms, ...rows.map((r) => r.start + r.ms));
  const names = {ttft_ms: 'first token', total_ms: 'whole reply'};
  const times = Object.entries(query.timings).filter(([k, v]) => k.endsWith('_ms') && v > 0);
  const list = groups(picked.queries);
  replace(
      root,
      h('div', {class: 'card'}, picked.control, h('p', {class: 'why'}, why(query)),
        h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Waterfall'},
          waterfall('Waterfall of the query', rows, total)),
        h('p', {class: 'hint'}, 'Spans may overlap: blocks are loaded beside computation. ',
          `First token after ${ms(query.timings.ttft_ms)}, `,
          `all after ${ms(query.timings.total_ms)}.`),
        h('details', {}, h('summary', {}, 'All times as a table'),
          table(
              'Times of the query',
              [
                {
                  name: 'time',
                  head: true,
                  cell: ([k]) => names[k] ?? k.slice(0, -3).replaceAll('_', ' ')
                },
                {name: 'ms', num: true, cell: (e) => e[1].toFixed(3)},
                {
                  name: 'of the whole',
                  num: true,
                  cell: (e) => percent(e[1] / query.timings.total_ms)
                },
                {name: 'what', cell: ([k]) => meanings[k.slice(0, -3)] ?? ''},
              ],
              times))),
      h('div', {class: 'card'}, h('h2', {}, 'Hits against misses'),
        h('p', {class: 'hint'},
          `The last ${plural(picked.queries.length, 'query')} ` +
              'of this namespace, oldest on the left.'),
        legend(list.map((g) => [g.kind, g.name])),
        h(
            'div', {
              class: 'scroll',
              tabindex: '0',
              role: 'region',
              'aria-label': 'Times to the first token'
            },
            scatter('Time to the first token of the last queries', list, {
              yLog: true,
              yText: (t) => ms(t).replace('.00', '').replace('.0 ', ' '),
              yName: 'time to the first token',
              xName: 'query',
              xText: (t) => (Number.isInteger(t) ? String(t) : ''),
              about: list.map((g) => `${g.name}: median ${ms(median(g.points.map((p) => p.y)))}`)
                         .join('; ')
            })),
        comparison(list)));
}
