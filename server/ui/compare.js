// Compare: one question under two to four strategies, side by side.
import {fateParts} from './answer.js';
import {post} from './api.js';
import {announce, errorBox, field, h, replace, table} from './dom.js';
import {ms, number, percent} from './format.js';
import {StrategyControls} from './options.js';
import {stacked} from './plot.js';
import {Scope} from './scope.js';
import {hitClass, remember} from './session.js';

export const about =
    'The first strategy is the reference; the others are held against it token by token.';

const TOP = 20;  // likeliest tokens that the API gives at each position
const MOST = 4;

const tokensOf = (result) => result.logprobs?.content ?? [];

// Share of positions with the reference's token; the longer answer counts.
export function agreement(reference, other) {
  const most = Math.max(reference.length, other.length);
  if (!most) return 1;
  let same = 0;
  for (let i = 0; i < Math.min(reference.length, other.length); ++i)
    same += reference[i].token === other[i].token ? 1 : 0;
  return same / most;
}

// A lower bound of KL(reference ‖ other) in nats, the mean over the positions that both reached by
// the same tokens. Tokens that both name stand for themselves, all others together for one; joining
// outcomes never makes a divergence larger (the log sum inequality).
export function leastDivergence(reference, other) {
  let sum = 0;
  let n = 0;
  for (let i = 0; i < Math.min(reference.length, other.length); ++i) {
    const q = new Map(other[i].top_logprobs.map((t) => [t.token, t.logprob]));
    let kl = 0;
    let p0 = 1;
    let q0 = 1;
    for (const {token, logprob} of reference[i].top_logprobs) {
      if (!q.has(token)) continue;
      const p = Math.exp(logprob);
      kl += p * (logprob - q.get(token));
      p0 -= p;
      q0 -= Math.exp(q.get(token));
    }
    if (p0 > 1e-9) kl += p0 * Math.log(p0 / Math.max(q0, 1e-9));
    sum += Math.max(0, kl);
    ++n;
    if (reference[i].token !== other[i].token) break;
  }
  return n ? {nats: sum / n, positions: n} : null;
}

function tokens(result, reference) {
  const list = tokensOf(result);
  const ref = reference && tokensOf(reference);
  return h(
      'p', {class: 'answer tokens'},
      list.length ? list.map((t, i) => {
        const same = !ref || ref[i]?.token === t.token;
        return h(
            'span', {
              class: same ? 'tok' : 'tok other',
              title: [
                `probability ${percent(Math.exp(t.logprob), 1)}`,
                !same && `reference: ${JSON.stringify(ref[i]?.token ?? 'has ended')}`
              ].filter(Boolean)
                         .join('; ')
            },
            t.token);
      }) :
                    result.answer);
}

function column(name, outcome, reference) {
  if (outcome.error)
    return h('section', {class: 'card'}, h('h3', {}, name), errorBox(outcome.error));
  const r = outcome.result;
  const against = reference && reference !== outcome && reference.result;
  return h(
      'section', {class: 'card', 'aria-label': name},
      h('h3', {}, name, against ? '' : h('small', {}, ' reference')), tokens(r, against),
      stacked('Fate of the prompt tokens', fateParts(r.usage.cache_details), {legend: false}),
      h('p', {class: 'hint'}, r.cache.strategy !== name && `in use: ${r.cache.strategy} · `,
        r.cache.fallback ?? '',
        h('a', {href: `./#/blocks/${encodeURIComponent(r.id)}`}, 'block map'), ' · ',
        h('a', {href: `./#/time/${encodeURIComponent(r.id)}`}, 'time')));
}

function summary(names, outcomes) {
  const reference = outcomes[0].result;
  const rows =
      outcomes.map((o, i) => ({...o, name: names[i], first: i === 0})).filter((o) => o.result);
  const kl = (o) =>
      (reference && !o.first ? leastDivergence(tokensOf(reference), tokensOf(o.result)) : null);
  return [
    table(
        'Strategies',
        [
          {name: 'strategy', head: true, cell: (o) => o.name},
          {name: 'first token', num: true, cell: (o) => ms(o.result.timings.ttft_ms)},
          {name: 'whole reply', num: true, cell: (o) => ms(o.result.timings.total_ms)},
          {name: 'not prefilled', num: true, cell: (o) => percent(o.result.cache.hit_ratio)},
          {name: 'cache', cell: (o) => hitClass(o.result).name},
          {
            name: 'agreement',
            num: true,
            cell: (o) =>
                (reference && !o.first ?
                     percent(agreement(tokensOf(reference), tokensOf(o.result))) :
                     '–')
          },
          {
            name: 'KL at least',
            num: true,
            about: 'nats a token, from the likeliest tokens',
            cell: (o) => {
              const k = kl(o);
              return k ? `${number(k.nats, 4)} (${k.positions})` : '–';
            }
          },
        ],
        rows),
    h('p', {class: 'hint'}, 'Agreement: share of positions with the token of the reference. ',
      `KL at least: a lower bound in nats, from the ${TOP} likeliest tokens, the mean over the `,
      'positions (in brackets) before the answers part. Strategies run one after another, and ',
      'all once before, so that none is the first to read the documents.'),
  ];
}

export function render(root) {
  const question = h('textarea', {rows: 2, required: true});
  const scope = new Scope();
  const maxTokens = h('input', {type: 'number', min: 1, max: 4096, value: '64'});
  const controls = [];
  const choices = h('div', {class: 'choices'});
  const more = h('button', {type: 'button'}, 'One more strategy');
  const go = h('button', {type: 'submit', class: 'primary'}, 'Compare');
  const stop = h('button', {type: 'button', disabled: true}, 'Stop');
  const status = h('p', {class: 'hint', 'aria-live': 'polite'});
  const out = h('div');
  const draw = () => {
    replace(
        choices,
        controls.map(
            (c, i) =>
                h('fieldset', {class: 'card'},
                  h('legend', {}, i ? `Strategy ${i + 1}` : 'Reference'), c.node,
                  controls.length > 2 &&
                      h('button', {
                        type: 'button',
                        class: 'quiet',
                        onclick: () => {
                          controls.splice(i, 1);
                          draw();
                        }
                      },
                        'Remove'))));
    more.hidden = controls.length >= MOST;
  };
  const addOne = (name) => {
    controls.push(new StrategyControls(name));
    draw();
  };
  ['recompute', 'reuse'].forEach(addOne);
  more.addEventListener('click', () => addOne(['epic', 'samkv'][controls.length - 2] ?? 'exact'));

  let control = null;
  async function run() {
    let base;
    try {
      base = {
        query: question.value,
        temperature: 0,
        max_tokens: Number(maxTokens.value) || 64,
        ...scope.request()
      };
    } catch (e) {
      replace(out, errorBox(e));
      return;
    }
    control = new AbortController();
    go.disabled = true;
    stop.disabled = false;
    const names = controls.map((c) => c.name);
    const outcomes = [];
    try {
      for (const [i, c] of controls.entries()) {
        status.textContent = `Running ${names[i]} (${i + 1} of ${controls.length})…`;
        const cache = c.request();
        const ask = (more) => post('/v1/query', {...base, ...more, cache}, control.signal);
        try {
          await ask({max_tokens: 1});
          const result = await ask({logprobs: true, top_logprobs: TOP});
          remember(result.id, base.query);
          outcomes.push({result});
        } catch (e) {
          if (e.name === 'AbortError') throw e;
          outcomes.push({error: e});
        }
        replace(
            out,
            h('div', {class: 'beside'}, outcomes.map((o, k) => column(names[k], o, outcomes[0]))),
            h('div', {class: 'card'}, summary(names, outcomes)));
      }
      status.textContent = '';
      announce('The comparison is complete.');
    } catch (e) {
      status.textContent = e.name === 'AbortError' ? 'Stopped.' : '';
      if (e.name !== 'AbortError') replace(out, errorBox(e));
    } finally {
      go.disabled = false;
      stop.disabled = true;
      control = null;
    }
  }
  stop.addEventListener('click', () => control?.abort());
  replace(
      root,
      h('form', {
        class: 'ask',
        onsubmit: (e) => {
          e.preventDefault();
          if (!control) run();
        }
      },
        h('div', {class: 'card'}, field('Question', question), scope.node,
          h('div', {class: 'grid2'}, field('Most tokens of the answer', maxTokens))),
        choices, h('div', {class: 'row'}, more, go, stop), status),
      out);
  return () => control?.abort();
}
