// The text of a document with the cited passage lit up.
import {contentOf, who} from './api.js';
import {errorBox, h, replace} from './dom.js';
import {count, percent, points} from './format.js';

const AROUND = 4000;      // code points shown on each side; the rest opens on demand
const texts = new Map();  // what was read before, by namespace, document and version

// Whether the text is the one that was cited. The service has the newest version of a document
// alone, in which the place of a citation may hold anything.
export const holds = (text, c) =>
    typeof c.quote !== 'string' || text.slice(c.start, c.end).join('') === c.quote;

async function textOf(citation, version) {
  const name = `${who()}\n${citation.document_id}\n${version}`;
  if (texts.has(name)) return texts.get(name);
  const text = points(await contentOf(citation.document_id));
  if (holds(text, citation)) texts.set(name, text);
  if (texts.size > 20) texts.delete(texts.keys().next().value);
  return text;
}

// Where a citation or a passage stands, for documents with pages and headings.
export const placeOf =
    (c) => [c.page && (c.last_page > c.page ? `pages ${c.page}–${c.last_page}` : `page ${c.page}`),
            c.heading]
               .filter(Boolean);

// What is known of a citation's place.
export const whereabouts =
    (c) => [...placeOf(c), `chunk ${c.chunk}`, `characters ${count(c.start)}–${count(c.end)}`,
            `${percent(c.weight)} of the answer's support`, `${percent(c.confidence)} sure`]
               .join(' · ');

// Fills `node` with the source of a citation. `document` is the reply's entry for it.
export async function showSource(node, citation, document) {
  const title = citation.document_id ?? document?.title ?? 'inline document';
  const heading = h('h3', {tabindex: '-1'}, `Source ${citation.id}: `, h('code', {}, title));
  const body = h('div', {class: 'source'}, h('p', {class: 'hint'}, 'Reading the document…'));
  replace(node, heading, h('p', {class: 'hint'}, whereabouts(citation)), body);
  heading.focus({preventScroll: true});
  if (!citation.document_id) {
    replace(body, h('p', {}, h('mark', {}, citation.quote ?? '')));
    return;
  }
  try {
    const text = await textOf(citation, document?.content_hash);
    if (!holds(text, citation)) {
      replace(
          body,
          h('p', {class: 'note'},
            'This document has changed since the answer was made from it. It said there:'),
          h('pre', {class: 'text'}, h('mark', {tabindex: '0'}, citation.quote)));
      return;
    }
    draw(
        body, text, citation, Math.max(0, citation.start - AROUND),
        Math.min(text.length, citation.end + AROUND));
  } catch (e) {
    replace(body, errorBox(e));
  }
}

function draw(body, text, c, from, to) {
  const part = (a, b) => text.slice(a, b).join('');
  const mark = h('mark', {tabindex: '0'}, part(c.start, c.end));
  const more = (label, a, b) => h(
      'button', {type: 'button', class: 'quiet', onclick: () => draw(body, text, c, a, b)}, label);
  replace(
      body, from > 0 && more(`Show ${count(from)} characters before`, 0, to),
      h('pre', {class: 'text'}, part(from, c.start), mark, part(c.end, to)),
      to < text.length &&
          more(`Show ${count(text.length - to)} characters after`, from, text.length));
  mark.scrollIntoView({block: 'center', inline: 'nearest'});
}
