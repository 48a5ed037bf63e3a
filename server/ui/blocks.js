// Block map: what became of each block of the documents in a query's prompt.
import {get} from './api.js';
import {add, field, h, replace, select} from './dom.js';
import {count, number, percent, plural} from './format.js';
import {noQueries, pickQuery} from './pick.js';
import {legend, stacked} from './plot.js';

export const about = 'One cell for each cached block of the prompt, in order. ' +
    'Move over a cell, or use the arrow keys, to read it.';

const MOST = 6000;  // cells on one page
const fates = ['reused', 'recomputed', 'computed', 'dropped'];
const fateAbout = {
  reused: 'read from the cache as it was',
  recomputed: 'cached, and some tokens computed again',
  computed: 'not in the cache: computed now',
  dropped: 'cached, but attended to by no layer',
};

// Whether a layer keeps a block.
const keeps = (b, layer) =>
    b.layers ? b.layers.some(([from, to]) => layer >= from && layer < to) : b.kept_layers > 0;

// The map as one layer has it: what the layer does not keep is dropped there.
const ofLayer = (map, layer) => ({
  ...map,
  layers: 1,
  blocks: map.blocks.map((b) => ({
                           ...b,
                           action: keeps(b, layer) ? b.action : 'dropped',
                           kept_layers: keeps(b, layer) ? 1 : 0,
                           whole: b,
                         })),
});

const layerText = (b) =>
    b.layers.map(([from, to]) => (to - from > 1 ? `${from}–${to - 1}` : from)).join(', ');

// A tick for each layer, the lowest on the left.
const layerTicks = (b, map) => Array.from(
    {length: map.layers}, (_, layer) => h('i', {class: keeps(b, layer) ? 'on' : undefined}));

// Ways to colour: each gives a cell's class and, for shades, how strong it is (0 to 1).
function colouring(how, map) {
  const low = map.blocks.reduce((least, b) => Math.min(least, b.score), Infinity);
  const span = map.blocks.reduce((most, b) => Math.max(most, b.score), -Infinity) - low;
  return {
    fate: (b) =>
        [`k-${b.action}`,
         b.kept_layers > 0 && b.kept_layers < map.layers ? b.kept_layers / map.layers : 1],
    tier: (b) => [`k-tier-${b.tier ?? 'none'}`, 1],
    score: (b) => ['k-shade', span > 0 ? 0.06 + 0.94 * (b.score - low) / span : 0.06],
    layers: (b) => ['k-shade', map.layers ? b.kept_layers / map.layers : 0],
    hot: (b) => ['k-shade', b.hot_share ?? 0],
  }[how];
}

function legendOf(how, map) {
  if (how === 'fate') {
    return legend(fates.filter((f) => map.blocks.some((b) => b.action === f))
                      .map((f) => [f, `${f}: ${fateAbout[f]}`]));
  }
  if (how === 'tier') {
    const tiers = [...new Set(map.blocks.map((b) => b.tier ?? 'none'))];
    return legend(tiers.map((t) => [`tier-${t}`, t === 'none' ? 'in no tier' : t]));
  }
  const what = {
    score: 'higher score',
    layers: 'kept in more layers',
    hot: 'more rows stay hot'
  }[how];
  return legend([['shade', `darker: ${what}`]]);
}

function sentence(b, map) {
  return [
    `block ${b.index}`,
    `chunk ${b.chunk}`,
    b.action,
    b.tier ? `found in ${b.tier}` : 'in no tier',
    `score ${number(b.score)}`,
    `kept in ${b.kept_layers} of ${map.layers} layers`,
    b.recomputed_tokens > 0 && `${b.recomputed_tokens} tokens recomputed`,
  ].filter(Boolean)
      .join(', ');
}

function detail(node, b, map) {
  const row = (name, value) => [h('dt', {}, name), h('dd', {}, value)];
  replace(
      node, h('h3', {}, `Block ${b.index}`, ' ', h('span', {class: `tag k-${b.action}`}, b.action)),
      h('pre', {class: 'text'}, b.text ?? 'The text is not known (it is no longer stored).'),
      h('dl', {class: 'facts'}, row('document', b.document_id ?? 'inline'), row('chunk', b.chunk),
        row('tokens', `${b.tokens[0]}–${b.tokens[1]}`),
        b.chars && row('characters', `${count(b.chars[0])}–${count(b.chars[1])}`),
        row('tier', b.tier ?? 'none'), row('score', number(b.score, 4)),
        row('layers', `${b.kept_layers} of ${map.layers}`), b.layers && row('which', layerText(b)),
        b.layers && h('dd', {class: 'ticks'}, layerTicks(b, map)),
        row('recomputed', plural(b.recomputed_tokens, 'token')),
        row('load', `${number(b.load_ms)} ms`),
        b.cut_tokens !== undefined && row('cut away', plural(b.cut_tokens, 'token')),
        b.hot_share !== undefined && row('rows hot', percent(b.hot_share)),
        row('id', h('code', {}, b.block_id))));
}

// A strip of cells: one tab stop, arrow keys inside.
function strip(name, blocks, map, paint, onShow) {
  const cells = blocks.map((b, i) => {
    const [kind, share] = paint(b);
    const cell = h('button', {
      type: 'button',
      class: `cell ${kind}`,
      tabindex: i ? '-1' : '0',
      'aria-label': sentence(b, map),
      style: {'--share': String(share)}
    });
    cell.addEventListener('focus', () => onShow(b, cell));
    cell.addEventListener('mouseenter', () => onShow(b, cell));
    return cell;
  });
  const row =
      h('div',
        {class: 'strip', role: 'group', 'aria-label': `${name}, ${plural(blocks.length, 'block')}`},
        cells);
  row.addEventListener('keydown', (e) => {
    const at = cells.indexOf(document.activeElement);
    const wide = Math.max(1, Math.floor(row.clientWidth / (cells[0].offsetWidth + 2)));
    const to = {
      ArrowRight: at + 1,
      ArrowLeft: at - 1,
      ArrowDown: at + wide,
      ArrowUp: at - wide,
      Home: 0,
      End: cells.length - 1
    }[e.key];
    if (at < 0 || to === undefined || !cells[to]) return;
    e.preventDefault();
    cells[at].tabIndex = -1;
    cells[to].tabIndex = 0;
    cells[to].focus();
  });
  return row;
}

function strips(map, how, onShow) {
  const paint = colouring(how, map);
  const shown = map.blocks.slice(0, MOST);
  const out = [];
  let at = 0;
  for (const d of map.documents) {
    const mine = shown.slice(at, at + d.blocks);
    at += d.blocks;
    const kept = d.kept_tokens === undefined ?
        '' :
        `, ${percent(d.kept_tokens / (d.tokens || 1))} attended to`;
    out.push(
        h('section', {class: 'mapdoc'},
          h('h3', {},
            d.id ? h('a', {href: `./#/documents/${encodeURIComponent(d.id)}`}, d.id) :
                   d.title ?? 'inline',
            h('small', {},
              ` ${plural(d.tokens, 'token')} in ${plural(d.blocks, 'block')}${kept}` +
                  (d.score !== undefined ? `, score ${number(d.score, 2)}` : ''))),
          mine.length ? strip(d.id ?? d.title ?? 'inline', mine, map, paint, onShow) :
                        h('p', {class: 'hint'}, 'no blocks')));
  }
  if (shown.length < map.blocks.length)
    out.push(
        h('p', {class: 'note'},
          `The first ${count(MOST)} of ${count(map.blocks.length)} blocks are shown.`));
  return out;
}

export async function render(root, [id]) {
  const picked = await pickQuery('blocks', id);
  if (!picked) {
    replace(root, noQueries());
    return;
  }
  const query = picked.chosen;
  const map = await get(`/v1/queries/${encodeURIComponent(query.id)}/explain`, {include: 'text'});
  const hot = map.blocks.some((b) => b.hot_share !== undefined);
  const how = select(
      [
        ['fate', 'fate'], ['tier', 'tier'], ['score', 'score of the selector'],
        ['layers', 'layers that keep it'], ...(hot ? [['hot', 'rows that stay hot']] : [])
      ],
      'fate');
  const side =
      h('aside', {class: 'card blockcard', 'aria-label': 'Block'},
        h('p', {class: 'hint'}, 'Move over a cell to read its block.'));
  const body = h('div');
  let lit = null;
  const onShow = (b, cell) => {
    lit?.classList.remove('lit');
    lit = cell;
    cell.classList.add('lit');
    detail(side, b.whole ?? b, map);
  };
  const layer = select(
      [
        ['', 'all layers'], ...Array.from({length: map.layers}, (_, i) => [String(i), `layer ${i}`])
      ],
      '');
  const sparse = map.blocks.some((b) => b.layers);
  const draw = () => {
    const shown = layer.value === '' ? map : ofLayer(map, Number(layer.value));
    replace(body, legendOf(how.value, shown), strips(shown, how.value, onShow));
  };
  how.addEventListener('change', draw);
  layer.addEventListener('change', draw);
  const p = map.policy;
  const tokens = (n, name) => n !== undefined && `${plural(n, 'token')} ${name}`;
  replace(
      root,
      h('div', {class: 'card'},
        h('div', {class: 'row low'}, picked.control, field('Colour', how),
          sparse && field('Layer', layer)),
        stacked('Blocks', fates.map((f) => {
          const n = map.blocks.filter((b) => b.action === f).length;
          return {name: f, kind: f, value: n, text: count(n)};
        })),
        h('p', {class: 'hint'},
          [
            `strategy ${p.strategy}`,
            p.strategy !== p.strategy_asked && `asked for: ${p.strategy_asked}`,
            p.selector && `selector ${p.selector}`,
            p.recomputer && `recomputer ${p.recomputer}`,
            `${percent(p.keep_ratio)} of the document tokens attended to`,
            `${percent(p.recompute_ratio)} recomputed`,
            `blocks of ${map.block_tokens} tokens`,
            tokens(map.prefix_tokens, 'before the documents'),
            tokens(map.suffix_tokens, 'behind them'),
          ].filter(Boolean)
              .join(' · ')),
        p.fallback && h('p', {class: 'note'}, p.fallback)),
      h('div', {class: 'columns map'}, h('div', {class: 'card'}, body), side));
  if (map.blocks.some((b) => b.kept_layers > 0 && b.kept_layers < map.layers))
    add(body.parentNode,
        h('p', {class: 'hint'},
          'A cell that is filled in part is kept in that share of the layers.'));
  draw();
}
