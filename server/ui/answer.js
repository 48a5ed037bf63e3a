// The answer of a query: text with marks of its citations, and what it cost.
import {add, h, replace} from './dom.js';
import {count, ms, percent, plural, points} from './format.js';
import {stacked} from './plot.js';
import {hitClass} from './session.js';

// Text with a button behind each cited passage, and a mark on sentences without support. Positions
// are code points.
export function cited(text, citations, unsupported, onOpen) {
  const all = points(text);
  const sorted = [...citations].sort((a, b) => a.answer_end - b.answer_end || a.id - b.id);
  const out = h('p', {class: 'answer'});
  const edges = [...new Set([
                  0, all.length, ...sorted.flatMap((c) => [c.answer_start, c.answer_end]),
                  ...unsupported.flat()
                ])].filter((p) => p >= 0 && p <= all.length)
                    .sort((a, b) => a - b);
  edges.forEach((begin, i) => {
    for (const c of sorted)
      if (c.answer_end === begin && (i > 0 || begin === 0)) out.append(citeButton(c, onOpen));
    const end = edges[i + 1];
    if (end === undefined) return;
    const inside = sorted.filter((c) => c.answer_start <= begin && c.answer_end >= end);
    const piece = all.slice(begin, end).join('');
    const alone = unsupported.some(([from, to]) => from <= begin && to >= end);
    if (inside.length)
      out.append(h('span', {class: 'cited'}, piece));
    else if (alone)
      out.append(
          h('span', {class: 'unsupported', title: 'No support found in the documents'}, piece));
    else
      add(out, piece);
  });
  return out;
}

function citeButton(c, onOpen) {
  const name = c.document_id ?? 'an inline document';
  return h(
      'button', {
        type: 'button',
        class: 'cite',
        'aria-label': `Source ${c.id}: ${name}`,
        title: c.quote ?? name,
        onclick: (e) => onOpen(c, e.currentTarget)
      },
      c.id);
}

// One sentence on where the time to the first token went.
export function why(result) {
  const t = result.timings;
  const parts = [
    ['waiting for other queries', t.queue_ms],
    ['loading cached blocks', t.load_ms],
    ['computing what was not reused', t.prefill_ms],
    ['computing cached tokens again', t.recompute_ms],
    ['choosing blocks', (t.query_pass_ms ?? 0) + (t.select_ms ?? 0)],
    ['finding the documents in the store', (t.lookup_ms ?? 0) + (t.resolve_ms ?? 0)],
    ['cutting the prompt', t.prompt_compression_ms ?? 0],
    ['compressing the cache', t.compress_ms ?? 0],
  ].sort((a, b) => b[1] - a[1]);
  const [name, most] = parts[0];
  const reasons = {};
  for (const m of result.cache.misses) reasons[m.reason] = (reasons[m.reason] ?? 0) + m.tokens;
  const missed = Object.entries(reasons).map(([r, n]) => `${plural(n, 'token')} ${missText(r)}`);
  const rest = missed.length ? ` Not reused: ${missed.join('; ')}.` : '';
  return `First token after ${ms(t.ttft_ms)}, most of it ${name} (${ms(most)}).${rest}`;
}

const missTexts = {
  not_cached: 'were not cached',
  evicted: 'had been evicted',
  model_changed: 'were made by another model',
  salt_mismatch: 'have another salt',
  corrupt: 'were damaged on disk',
  record_missing: 'had lost a record',
  tier_unavailable: 'are in a tier that does not answer',
  policy_off: 'are cached, but the strategy may not reuse them at this place',
};
export const missText = (reason) => missTexts[reason] ?? reason;

export const fateParts = (details) =>
    [{
      name: 'reused',
      kind: 'reused',
      value: details.reused_tokens,
      text: count(details.reused_tokens)
    },
     {
       name: 'recomputed',
       kind: 'recomputed',
       value: details.recomputed_tokens,
       text: count(details.recomputed_tokens)
     },
     {
       name: 'computed',
       kind: 'computed',
       value: details.computed_tokens,
       text: count(details.computed_tokens)
     },
     {
       name: 'dropped',
       kind: 'dropped',
       value: details.dropped_tokens,
       text: count(details.dropped_tokens)
     },
];

export function stat(name, value, about) {
  return h('div', {class: 'stat', title: about}, h('dt', {}, name), h('dd', {}, value));
}

// The numbers below an answer.
export function cost(node, result) {
  const hit = hitClass(result);
  const t = result.timings;
  replace(
      node, h('p', {class: 'why'}, why(result)),
      h('dl', {class: 'stats'},
        stat('first token', ms(t.ttft_ms), 'From the request to the first token'),
        stat('whole reply', ms(t.total_ms)),
        stat('decode', t.tokens_per_second ? `${t.tokens_per_second} tok/s` : '–'),
        stat('cache', h('span', {}, h('i', {class: `badge k-${hit.kind}`}), hit.name)),
        stat('not prefilled', percent(result.cache.hit_ratio), 'Share of the prompt'),
        stat('strategy', result.cache.strategy, result.cache.reason)),
      stacked('Fate of the prompt tokens', fateParts(result.usage.cache_details)),
      result.cache.fallback &&
          h('p', {class: 'note'}, `Other than asked for: ${result.cache.fallback}`),
      result.cache.reason && h('p', {class: 'hint'}, result.cache.reason),
      h('p', {class: 'row'},
        h('a', {href: `./#/blocks/${encodeURIComponent(result.id)}`}, 'Block map of this query'),
        h('a', {href: `./#/time/${encodeURIComponent(result.id)}`}, 'Where its time went')));
}
