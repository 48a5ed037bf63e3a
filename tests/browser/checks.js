// Checks of a view, run inside the page. Returns what is wrong, as a list of texts.
const problems = [];
const shown = (e) => e.getClientRects().length > 0 && getComputedStyle(e).visibility !== 'hidden';
const where = (e) =>
    `${e.tagName.toLowerCase()}${e.id ? `#${e.id}` : ''}.${[...e.classList].join('.')} ` +
    `"${(e.textContent ?? '').trim().slice(0, 30)}"`;

// Structure: one heading of the first level, the landmarks, names of images.
if (document.querySelectorAll('h1').length !== 1) problems.push('there is not exactly one h1');
for (const tag of ['header', 'nav', 'main'])
  if (document.querySelectorAll(tag).length !== 1) problems.push(`there is not exactly one ${tag}`);
if (!document.documentElement.lang) problems.push('the language is not named');
for (const img of document.querySelectorAll('img'))
  if (!img.hasAttribute('alt')) problems.push('an image without alt');
const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
for (const id of ids)
  if (ids.indexOf(id) !== ids.lastIndexOf(id)) problems.push(`the id ${id} stands twice`);
for (const label of document.querySelectorAll('label[for]'))
  if (!document.getElementById(label.htmlFor))
    problems.push(`a label for nothing: ${where(label)}`);

// Width: nothing makes the page itself scroll sideways.
if (document.documentElement.scrollWidth > innerWidth) {
  const wide = [...document.querySelectorAll('main *, header *')].filter(
      (e) => e.getBoundingClientRect().right > innerWidth + 1 &&
          !e.closest('.scroll, nav, .tall, .sr'));
  problems.push(`wider than the window: ${wide.slice(0, 3).map(where).join('; ')}`);
}

// Contrast of texts against what is behind them (WCAG 2.1, 1.4.3).
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgba = (text) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = text;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light =
    ([r, g, b]) => [r, g, b]
                       .map((v) => v / 255)
                       .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
                       .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (e) => {
  for (let at = e; at; at = at.parentElement) {
    const c = rgba(getComputedStyle(at).backgroundColor);
    if (c[3] > 250) return c;
  }
  return [255, 255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const seen = new Set();
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || seen.has(e) || !shown(e)) continue;
  seen.add(e);
  if (e.closest(':disabled, .sr, .skip, option, noscript, svg')) continue;
  const style = getComputedStyle(e);
  const a = light(rgba(style.color));
  const b = light(behind(e));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const large = parseFloat(style.fontSize) >= 24 ||
      (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 600);
  if (ratio < (large ? 3 : 4.5)) problems.push(`contrast ${ratio.toFixed(2)} of ${where(e)}`);
}
return problems;
