// What this tab remembers: the questions that it asked, by query id. The service itself keeps no
// questions unless explain.keep_text is on.
import {get} from './api.js';

const NAME = 'quire.asked';
const MOST = 200;

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(NAME) ?? '[]');
  } catch {
    return [];
  }
}

export function remember(id, question) {
  const list = [...read().filter((e) => e.id !== id), {id, question}].slice(-MOST);
  try {
    sessionStorage.setItem(NAME, JSON.stringify(list));
  } catch {
    // without storage
  }
}

export const questionOf = (query) =>
    query.query ?? read().find((e) => e.id === query.id)?.question ?? '';

// The last queries of the namespace, newest first.
export async function lastQueries() {
  const page = await get('/v1/queries', {limit: 100});
  return page.data;
}

// How much of the documents came from the cache.
export function hitClass(query) {
  const cache = query.cache;
  if (!query.documents.length) return {kind: 'none', name: 'no documents'};
  if (cache.strategy === 'recompute') return {kind: 'bypass', name: 'full prefill asked for'};
  const tokens = Object.values(cache.tiers).reduce((sum, t) => sum + t.tokens, 0);
  if (tokens === 0) return {kind: 'miss', name: 'miss'};
  return cache.misses.length ? {kind: 'partial', name: 'partial hit'} : {kind: 'hit', name: 'hit'};
}
