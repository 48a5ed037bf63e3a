// Controls of a query's cache: strategy, budgets, and the strategy's own options.
import {info} from './api.js';
import {field, h, replace, select} from './dom.js';
import {number} from './format.js';

const AUTO = 'the service decides; it approximates only where evidence allows it';

export class StrategyControls {
  #details = [];
  #more = h('div', {class: 'grid2'});
  #given = new Map();  // option -> control

  constructor(strategy = 'auto') {
    this.strategy = select([strategy], strategy, {onchange: () => this.#show()});
    this.hint = h('p', {class: 'hint'});
    const share = (placeholder) =>
        h('input', {type: 'number', min: 0, max: 1, step: 0.05, placeholder, inputmode: 'decimal'});
    this.keep = share('default');
    this.recompute = share('default');
    this.keepField = field('Keep', this.keep, 'share of the document tokens, 0 to 1');
    this.recomputeField =
        field('Recompute', this.recompute, 'share of the document tokens, 0 to 1');
    this.positions = select([['', 'default'], 'global', 'compact', 'naive', 'parallel'], '');
    this.decode = select([['', 'default']], '');
    this.compress = select([['', 'default']], '');
    this.node =
        h('div', {class: 'strategy'}, field('Strategy', this.strategy), this.hint,
          h('div', {class: 'grid2'}, this.keepField, this.recomputeField),
          h('details', {}, h('summary', {}, 'Options of the strategy, the answer and compression'),
            h('div', {class: 'grid2'}, field('Positions', this.positions),
              field('Decode', this.decode), field('Compress', this.compress)),
            this.#more));
    this.ready = this.#load(strategy);
  }

  async #load(strategy) {
    const of = await info();
    this.#details = of.strategy_details;
    const fill = (control, names, value) => replace(control, names.map((n) => {
      const [key, text] = Array.isArray(n) ? n : [n, n];
      return h('option', {value: key, selected: key === value}, text);
    }));
    fill(this.strategy, of.strategies, strategy);
    fill(this.decode, [['', 'default'], ...of.retrievers], '');
    fill(this.compress, [['', 'default'], ...of.compressors], '');
    this.#show();
  }

  #show() {
    const of = this.#details.find((d) => d.name === this.strategy.value);
    replace(this.hint, of?.summary ?? AUTO);
    this.keepField.hidden = !of?.takes_keep_ratio;
    this.recomputeField.hidden = !of?.takes_recompute_ratio;
    this.#given.clear();
    replace(this.#more, Object.entries(of?.options ?? {}).map(([name, o]) => {
      const control = o.values ?
          select([['', `default (${o.default})`], ...o.values], '') :
          h('input', {placeholder: String(o.default ?? ''), inputmode: 'decimal'});
      this.#given.set(name, control);
      const span =
          o.max !== undefined && o.max < 1e6 ? ` (${number(o.min)} to ${number(o.max)})` : '';
      return field(name, control, o.summary + span);
    }));
  }

  // The member `cache` of a request.
  request() {
    const cache = {strategy: this.strategy.value};
    if (!this.keepField.hidden && this.keep.value) cache.keep_ratio = Number(this.keep.value);
    if (!this.recomputeField.hidden && this.recompute.value)
      cache.recompute_ratio = Number(this.recompute.value);
    for (const name of ['positions', 'decode', 'compress'])
      if (this[name].value) cache[name] = this[name].value;
    const options = {};
    for (const [name, control] of this.#given)
      if (control.value !== '')
        options[name] = Number.isNaN(Number(control.value)) ? control.value : Number(control.value);
    if (Object.keys(options).length) cache.options = options;
    return cache;
  }

  // What the choice is called where several stand side by side.
  get name() {
    const {strategy, ...rest} = this.request();
    const parts = Object.entries({...rest, ...rest.options}).filter(([k]) => k !== 'options');
    return parts.length ? `${strategy} (${parts.map(([k, v]) => `${k}=${v}`).join(', ')})` :
                          strategy;
  }
}
