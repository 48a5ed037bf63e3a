// Checks of what the page's modules compute, run inside the page. Returns what is wrong.
const base = document.querySelector('script[type=module]').src;
const load = (name) => import(new URL(name, base));
const problems = [];
const same = (what, got, wanted) => {
  if (JSON.stringify(got) !== JSON.stringify(wanted))
    problems.push(`${what}: ${JSON.stringify(got)} instead of ${JSON.stringify(wanted)}`);
};

// Events arrive whole however the text is cut, with either kind of line end.
const {EventParser} = await load('sse.js');
const text =
    'event: a\r\ndata: {"x":1}\r\n\r\n: ping\n\ndata: l1\ndata:  l2\nid: 7\n\nevent: b\ndata: cut off';
for (let step = 1; step <= text.length; ++step) {
  const parser = new EventParser();
  const out = [];
  for (let at = 0; at < text.length; at += step)
    out.push(...parser.feed(text.slice(at, at + step)));
  same(
      `events in pieces of ${step}`, out,
      [{name: 'a', data: '{"x":1}'}, {name: 'message', data: 'l1\n l2'}]);
}

// Agreement counts the longer answer.
const {agreement, leastDivergence} = await load('compare.js');
const tokens = (...list) => list.map((token) => ({token}));
same('agreement of equals', agreement(tokens('a', 'b'), tokens('a', 'b')), 1);
same('agreement of a shorter answer', agreement(tokens('a', 'b'), tokens('a')), 0.5);
same('agreement of nothing', agreement([], []), 1);

// The bound is 0 for equals, never above the divergence itself, and ends where answers part.
const at = (token, p) =>
    ({token, top_logprobs: Object.entries(p).map(([t, x]) => ({token: t, logprob: Math.log(x)}))});
const p = {
  a: 0.6,
  b: 0.3,
  c: 0.1
};
const q = {
  a: 0.5,
  b: 0.2,
  c: 0.3
};
const whole = Object.keys(p).reduce((sum, t) => sum + p[t] * Math.log(p[t] / q[t]), 0);
const cut = (of, n) => Object.fromEntries(Object.entries(of).slice(0, n));
same('divergence of equals', leastDivergence([at('a', p)], [at('a', p)]).nats < 1e-9, true);
const full = leastDivergence([at('a', p)], [at('a', q)]).nats;
same('divergence of all tokens', Math.abs(full - whole) < 1e-9, true);
for (const n of [1, 2]) {
  const bound = leastDivergence([at('a', cut(p, n))], [at('a', cut(q, n))]).nats;
  same(`bound by ${n} tokens`, bound > 0 && bound <= whole + 1e-12, true);
}
same(
    'positions until answers part',
    leastDivergence([at('a', p), at('b', p), at('c', p)], [at('a', p), at('x', q), at('c', q)])
        .positions,
    2);

// No point of the line is beaten in both directions.
const {front} = await load('fidelity.js');
same(
    'front', front([{x: 3, y: 0.9}, {x: 1, y: 0.5}, {x: 2, y: 0.4}, {x: 4, y: 0.9}]),
    [{x: 1, y: 0.5}, {x: 3, y: 0.9}]);

const {parseMetrics} = await load('worth.js');
same(
    'metrics', parseMetrics('# HELP a\na_total{x="1",y="q\\"r"} 3\nb 4.5\n'),
    {a_total: [{labels: {x: '1', y: 'q\\"r'}, value: 3}], b: [{labels: {}, value: 4.5}]});

const format = await load('format.js');
same(
    'bytes', [0, 1023, 1536, 5 * 2 ** 30].map(format.bytes),
    ['0 B', '1023 B', '1.5 KiB', '5.0 GiB']);
same(
    'milliseconds',
    [0.5, 12.34, 345.6, 1234, 59_970, 65000, 119_700, 5 * 86_400_000].map(format.ms),
    ['0.50 ms', '12.3 ms', '346 ms', '1.23 s', '1 min 0 s', '1 min 5 s', '2 min 0 s', '5 d 0 h']);
same('a length in hours', format.ms(7_500_000), '2 h 5 min');
same('numbers', [0, 0.5, 100, 1.23456].map((x) => format.number(x)), ['0', '0.5', '100', '1.235']);
same('plurals', [1, 2].map((n) => format.plural(n, 'query')), ['1 query', '2 queries']);
same(
    'medians', [format.median([]), format.median([3, 1, 2]), format.median([1, 2])],
    [null, 2, 1.5]);

// Citations count code points, and each piece of the answer stays, in order.
const {cited} = await load('answer.js');
const c = (id, answer_start, answer_end) => ({id, answer_start, answer_end, document_id: 'd'});
const made = cited('😀 one two. Three.', [c('1', 0, 5), c('2', 6, 10)], [[11, 17]], () => {});
same('cited text', made.textContent, '😀 one1 two.2 Three.');
same(
    'text without support', [...made.querySelectorAll('.unsupported')].map((e) => e.textContent),
    ['Three.']);
same(
    'cited pieces', [...made.querySelectorAll('.cited')].map((e) => e.textContent),
    ['😀 one', 'two.']);

// Pages and headings stand where documents have them.
const {whereabouts} = await load('source.js');
const cite = {
  chunk: 2,
  start: 10,
  end: 1500,
  weight: 0.25,
  confidence: 0.8
};
same(
    'a place', whereabouts(cite),
    'chunk 2 · characters 10–1,500 · 25 % of the answer\'s support · 80 % sure');
same(
    'a place with a page',
    whereabouts({...cite, page: 3, last_page: 3, heading: 'Safety > Fire'})
        .split(' · ')
        .slice(0, 2),
    ['page 3', 'Safety > Fire']);
same('two pages', whereabouts({...cite, page: 3, last_page: 4}).split(' · ')[0], 'pages 3–4');

const {ticks, logTicks} = await load('plot.js');
same('ticks', ticks(0, 36, 6), [0, 10, 20, 30]);
same('ticks of powers', logTicks(2, 300), [2, 5, 10, 20, 50, 100, 200]);
return problems;
