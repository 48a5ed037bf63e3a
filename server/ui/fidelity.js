// Fidelity: what is known of each approximation on this model, and what `auto` makes of it.
import {info} from './api.js';
import {h, replace, table} from './dom.js';
import {ago, count, ms, number, percent, plural} from './format.js';
import {legend, scatter} from './plot.js';

export const about = 'Which approximations are good enough here, and by what evidence.';

const interval = (d, digits = 3) =>
    (d?.value === null || d === undefined ?
         '–' :
         `${number(d.value, digits)} (${number(d.low, digits)} to ${number(d.high, digits)})`);
const verdict = (passed) =>
    h('span', {class: `tag ${passed ? 's-ready' : 's-failed'}`}, passed ? 'passed' : 'not passed');

// How the documents that a row speaks of were read.
const READ = {
  nothing: 'alone',
  lead_in: 'behind the lead-in',
  related: 'behind related chunks'
};
const read = (r) => READ[r.read_behind] ?? 'alone';

// The points that no other one beats in both time and agreement.
export function front(points) {
  const best = [];
  for (const p of [...points].sort((a, b) => a.x - b.x || b.y - a.y))
    if (!best.length || p.y > best[best.length - 1].y) best.push(p);
  return best;
}

function pareto(fidelity) {
  const of = (rows, kind, from, name, agree) =>
      rows.filter((r) => r.ttft_ms > 0 && agree(r) !== null && agree(r) !== undefined)
          .map((r) => ({
                 x: r.ttft_ms,
                 y: agree(r),
                 text: name(r),
                 label: `${name(r)}, ${from}, documents read ${read(r)}: ${ms(r.ttft_ms)}, ` +
                     `agreement ${percent(agree(r), 1)}`
               }));
  const certified =
      of(fidelity.certificates, 'hit', 'certificate', (r) => r.settings ?? r.strategy,
         (r) => r.agreement);
  const probed = of(
      fidelity.evidence, 'partial', 'own documents', (r) => r.strategy, (r) => r.agreement?.value);
  const points = [...certified, ...probed];
  const base = fidelity.evidence.filter((r) => r.recompute_ttft_ms > 0)
                   .slice(0, 1)
                   .map((r) => ({
                          x: r.recompute_ttft_ms,
                          y: 1,
                          text: 'recompute',
                          label: `recompute: ${ms(r.recompute_ttft_ms)}, the reference`
                        }));
  if (!points.length) {
    return h(
        'p', {class: 'empty'},
        'Nothing has been measured yet. The service probes its own documents while it is idle ' +
            '(policy.evidence); ',
        h('code', {}, 'quire fidelity --certify'), ' measures with labelled questions.');
  }
  return [
    legend([
      ['hit', 'certificates'], ['partial', 'the service\'s own documents'],
      ['bypass', 'full recompute']
    ]),
    h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Pareto plot'},
      scatter(
          'Agreement against time to the first token',
          [
            {kind: 'hit', points: certified},
            {kind: 'partial', shape: 'square', points: probed},
            {kind: 'bypass', points: base},
          ],
          {
            xLog: true,
            xText: (t) => ms(t).replace('.00', '').replace('.0 ', ' '),
            xName: 'time to the first token',
            yName: 'agreement with recompute',
            yText: (t) => percent(t),
            line: front([...points, ...base]),
            about: [...points, ...base].map((p) => p.label).join('; ')
          })),
    h('p', {class: 'hint'},
      'Better is up and to the left. The line joins the choices that no other one beats in both.'),
  ];
}

function certificates(list) {
  if (!list.length) return h('p', {class: 'empty'}, 'There is no certificate for this model.');
  return table(
      'Certificates',
      [
        {name: 'strategy', head: true, cell: (c) => c.settings ?? c.strategy},
        {name: 'documents read', cell: read},
        {name: 'verdict', cell: (c) => verdict(c.passed)},
        {name: 'suite', cell: (c) => c.suite},
        {name: 'n', num: true, cell: (c) => count(c.n)},
        {name: 'F1', num: true, cell: (c) => `${number(c.f1)} of ${number(c.recompute_f1)}`},
        {name: 'difference of F1', num: true, cell: (c) => interval(c.f1_difference)},
        {name: 'agreement', num: true, cell: (c) => percent(c.agreement, 1)},
        {name: 'KL', num: true, cell: (c) => number(c.kl, 4)},
        {name: 'recomputed', num: true, cell: (c) => percent(c.recompute_ratio)},
        {name: 'TTFT', num: true, cell: (c) => ms(c.ttft_ms)},
        {name: 'date', num: true, cell: (c) => c.date},
        {name: 'why', words: true, cell: (c) => h('small', {}, c.reason)},
      ],
      list);
}

function evidence(list) {
  if (!list.length)
    return h('p', {class: 'empty'}, 'The service has not probed its own documents yet.');
  return table(
      'Evidence from the service\'s own documents',
      [
        {name: 'strategy', head: true, cell: (e) => e.strategy},
        {name: 'documents read', cell: read},
        {name: 'verdict', cell: (e) => verdict(e.passed)},
        {name: 'probes', num: true, cell: (e) => `${count(e.probes)} of ${count(e.probes_needed)}`},
        {
          name: 'documents',
          num: true,
          about: 'that their texts are of',
          cell: (e) => `${count(e.documents)} of ${count(e.documents_needed)}`
        },
        {name: 'agreement', num: true, cell: (e) => interval(e.agreement)},
        {name: 'KL', num: true, cell: (e) => number(e.kl, 4)},
        {
          name: 'loss of likelihood',
          num: true,
          about: 'nats a token, against recompute',
          cell: (e) => interval(e.nll_difference)
        },
        {
          name: 'worth of the documents',
          num: true,
          about: 'nats a token',
          cell: (e) => interval(e.worth_nll)
        },
        {
          name: 'TTFT',
          num: true,
          cell: (e) => `${ms(e.ttft_ms)} against ${ms(e.recompute_ttft_ms)}`
        },
        {name: 'why', words: true, cell: (e) => h('small', {}, e.reason)},
      ],
      list);
}

function shadow(s) {
  return [
    h('p', {},
      s.state === 'off' ? 'Shadow checks are off (policy.shadow_ratio is 0).' :
                          [
                            `${percent(s.ratio, 1)} of the approximate queries are checked `,
                            `against full recomputation: ${s.state}.`
                          ]),
    s.checks > 0 &&
        h('p', {class: 'hint'},
          `${plural(s.checks, 'check')}, ${s.dropped} left out while busy, ${s.failed} failed; ` +
              `below ${percent(s.min_agreement)} agreement a strategy falls back.`),
    s.strategies.length > 0 &&
        table(
            'Shadow checks',
            [
              {name: 'strategy', head: true, cell: (x) => x.strategy},
              {name: 'state', cell: (x) => x.state},
              {name: 'checks', num: true, cell: (x) => count(x.checks)},
              {name: 'agreement', num: true, cell: (x) => percent(x.agreement, 1)},
            ],
            s.strategies),
  ];
}

function choice(c) {
  return [
    h('p', {class: 'hint'}, `Over documents that were read ${read(c)}`),
    h('p', {class: 'figure small'}, c.settings ?? 'exact or recompute'),
    h('p', {}, c.reason),
  ];
}

export async function render(root) {
  const of = await info({again: true});
  const f = of.fidelity;
  const card = (title, ...content) => h('section', {class: 'card'}, h('h2', {}, title), content);
  replace(
      root,
      card(
          'What auto does now', f.auto_choices.map(choice),
          h('p', {class: 'hint'},
            `Model ${of.model.meta.fingerprint}, started ${ago(of.started_at)}.`)),
      card('Agreement against time', pareto(f)), card('Certificates', certificates(f.certificates)),
      card('Evidence from your documents', evidence(f.evidence)),
      card('Shadow checks', shadow(f.shadow)));
}
