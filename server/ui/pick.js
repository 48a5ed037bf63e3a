// A choice among the last queries of the namespace.
import {field, h, select} from './dom.js';
import {clock, ms} from './format.js';
import {lastQueries, questionOf} from './session.js';

export function nameOf(q) {
  const question = questionOf(q).replace(/\s+/g, ' ');
  const short = question.length > 60 ? `${question.slice(0, 59)}…` : question || q.id;
  return `${clock(q.created_at)} · ${short} · ${q.cache.strategy} · ${ms(q.timings.ttft_ms)}`;
}

// Returns {queries, chosen, control}; `view` is where a choice leads. Null: there are no queries.
export async function pickQuery(view, id) {
  const queries = await lastQueries();
  if (!queries.length) return null;
  const chosen = queries.find((q) => q.id === id) ?? queries[0];
  const control = select(queries.map((q) => [q.id, nameOf(q)]), chosen.id, {
    onchange: (e) => {
      document.location.hash = `#/${view}/${encodeURIComponent(e.target.value)}`;
    }
  });
  return {queries, chosen, control: field('Query', control, undefined, {class: 'wide'})};
}

export const noQueries = () =>
    h('div', {class: 'card empty'}, h('p', {}, 'No query has been answered in this namespace yet.'),
      h('p', {}, h('a', {href: './#/ask'}, 'Ask one'), ', and come back.'));
