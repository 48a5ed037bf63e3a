// Which documents a question is asked over: all of them, or chosen ones.
import {all, get, info, post} from './api.js';
import {check, debounce, errorBox, field, fresh, h, replace, select} from './dom.js';
import {count, plural} from './format.js';
import {placeOf} from './source.js';

const MOST = 500;  // documents that are listed; more are found one by one

export class Scope {
  #chosen = new Map();  // id -> title
  #documents = [];
  #list = h('ul', {class: 'picks'});
  #chips = h('div', {class: 'chips'});
  #found = h('p', {class: 'hint', 'aria-live': 'polite'});

  constructor(ids = []) {
    const name = fresh('scope');
    const radio = (value, text, on) =>
        h('label', {class: 'seg'},
          h('input', {type: 'radio', name, value, checked: on, onchange: () => this.#show()}),
          h('span', {}, text));
    this.mode =
        h('fieldset', {class: 'segments'}, h('legend', {}, 'Documents'),
          radio('all', 'All, by search', !ids.length), radio('some', 'Chosen ones', !!ids.length));
    this.k = h(
        'input', {type: 'number', min: 1, max: 100, placeholder: 'default', inputmode: 'numeric'});
    this.scorer = select(
        [
          ['', 'default'], ['bm25', 'words (BM25)'], ['embedding', 'embeddings'], ['hybrid', 'both']
        ],
        '');
    this.order = select(
        [['', 'default'], ['best_first', 'the best first'], ['best_last', 'the best last']], '');
    this.allPart =
        h('div', {class: 'grid2'}, field('At most', this.k, 'passages or documents'),
          field('Search by', this.scorer), field('In the prompt', this.order));
    this.search =
        h('input',
          {type: 'search', autocomplete: 'off', placeholder: 'Title, id, or words in the text'});
    this.search.addEventListener('input', debounce(250, () => this.#find()));
    this.somePart =
        h('div', {}, this.#chips, field('Find documents', this.search), this.#found, this.#list);
    this.node = h('div', {class: 'scope'}, this.mode, this.allPart, this.somePart);
    for (const id of ids) this.#chosen.set(id, id);
    this.#show();
    this.#load();
  }

  get ids() {
    return [...this.#chosen.keys()];
  }
  get whole() {
    return this.node.querySelector('input[type=radio]:checked').value === 'all';
  }

  // Members of a request. Throws with a message for the person where nothing is chosen.
  request() {
    if (!this.whole) {
      if (!this.#chosen.size)
        throw new Error('Choose at least one document, or ask over all of them.');
      return {document_ids: this.ids};
    }
    const retrieve = {};
    if (this.k.value) retrieve.k = Number(this.k.value);
    if (this.scorer.value) retrieve.scorer = this.scorer.value;
    if (this.order.value) retrieve.order = this.order.value;
    return {retrieve};
  }

  #show() {
    this.allPart.hidden = !this.whole;
    this.somePart.hidden = this.whole;
    this.#draw();
  }

  async #load() {
    try {
      this.#documents = await all('/v1/documents', {status: 'ready'}, MOST);
      for (const d of this.#documents)
        if (this.#chosen.has(d.id)) this.#chosen.set(d.id, d.title ?? d.id);
      this.#find();
      const {retrieval} = await info();
      if (retrieval && !retrieval.embeddings)
        for (const o of this.scorer.options)
          if (['embedding', 'hybrid'].includes(o.value)) o.disabled = true;
    } catch (e) {
      replace(this.#list, h('li', {}, errorBox(e)));
    }
  }

  // Titles and ids first, then passages that the service finds for the words.
  async #find() {
    const given = this.search.value.trim();
    const words = given.toLowerCase();
    const near = this.#documents.filter(
        (d) => !words || d.id.toLowerCase().includes(words) ||
            (d.title ?? '').toLowerCase().includes(words));
    const rows = near.slice(0, 50).map(
        (d) => ({id: d.id, title: d.title ?? d.id, note: plural(d.tokens, 'token')}));
    const complete = this.#documents.length < MOST;
    if (given && !complete && !rows.some((r) => r.id === given)) {
      try {
        const d = await get(`/v1/documents/${encodeURIComponent(given)}`);
        if (d.status === 'ready')
          rows.unshift({id: d.id, title: d.title ?? d.id, note: plural(d.tokens, 'token')});
      } catch {
        // it is no id
      }
      if (given !== this.search.value.trim()) return;
    }
    if (words.length > 2) {
      try {
        const passages = await post('/v1/retrieve', {query: words, k: 10, links: 0});
        if (words !== this.search.value.trim().toLowerCase()) return;
        for (const p of passages.data)
          if (!rows.some((r) => r.id === p.document_id))
            rows.push({
              id: p.document_id,
              title: p.title ?? p.document_id,
              note: [...placeOf(p), p.text.slice(0, 90)].join(' · ')
            });
      } catch {
        // without retrieval the titles remain
      }
    }
    this.#rows = rows;
    replace(
        this.#found,
        !this.#documents.length ?
            'There are no documents yet. Add some under Documents.' :
            `${count(rows.length)} of ${count(this.#documents.length)} shown` +
                (complete ? '' :
                            '; there are more: their ids, and words of their texts, find them'));
    this.#draw();
  }

  #rows = [];

  #draw() {
    replace(this.#list, this.#rows.map((r) => {
      const box = check(
          h('span', {}, h('b', {}, r.title), ' ', h('code', {}, r.id), h('small', {}, r.note)),
          {checked: this.#chosen.has(r.id), onchange: (e) => this.#choose(r, e.target.checked)});
      return h('li', {}, box);
    }));
    replace(
        this.#chips,
        [...this.#chosen].map(
            ([id, title]) =>
                h('button', {
                  type: 'button',
                  class: 'chip',
                  'aria-label': `Remove ${title}`,
                  onclick: () => this.#choose({id}, false, true)
                },
                  title, h('span', {'aria-hidden': 'true'}, ' ×'))));
  }

  #choose(row, on, draw = false) {
    if (on)
      this.#chosen.set(row.id, row.title);
    else
      this.#chosen.delete(row.id);
    this.#draw();
    if (draw)
      this.search.focus();
    else
      this.#refocus(row);
  }

  #refocus(row) {
    const i = this.#rows.findIndex((r) => r.id === row.id);
    this.#list.querySelectorAll('input')[i]?.focus();
  }
}
