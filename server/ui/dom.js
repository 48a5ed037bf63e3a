// Elements. Every value reaches the page as text: nothing here parses HTML.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on'))
      node.addEventListener(name.slice(2), value);
    else if (name === 'dataset')
      Object.assign(node.dataset, value);
    else if (name === 'style')
      for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else if (name === 'value' || name === 'checked' || name === 'selected')
      node[name] = value;
    else
      node.setAttribute(name, value === true ? '' : String(value));
  }
  add(node, children);
  return node;
}

export function add(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) =>
    fill(document.createElementNS(SVG, tag), props, children);

export function replace(node, ...children) {
  node.replaceChildren();
  return add(node, children);
}

let serial = 0;
export const fresh = (prefix) => `${prefix}-${++serial}`;

// A control with its label and, below it, a hint.
export function field(label, control, hint, props = {}) {
  control.id ||= fresh('f');
  const hintId = hint ? fresh('hint') : undefined;
  if (hintId) control.setAttribute('aria-describedby', hintId);
  return h(
      'div', {...props, class: `field ${props.class ?? ''}`},
      h('label', {'for': control.id}, label), control,
      hint && h('p', {class: 'hint', id: hintId}, hint));
}

export function check(label, props = {}) {
  const box = h('input', {type: 'checkbox', id: fresh('c'), ...props});
  const node = h('label', {class: 'check', 'for': box.id}, box, h('span', {}, label));
  node.box = box;
  return node;
}

export function select(options, value, props = {}) {
  const node = h('select', props, options.map((o) => {
    const [key, text] = Array.isArray(o) ? o : [o, o];
    return h('option', {value: key, selected: key === value}, text);
  }));
  return node;
}

// columns: [{name, cell: row => node or text, num: right-aligned, words: long, head, about}]
export function table(caption, columns, rows, props = {}) {
  return h(
      'div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption, ...props},
      h('table', {}, h('caption', {class: 'sr'}, caption),
        h('thead', {},
          h('tr', {},
            columns.map(
                (c) =>
                    h('th', {scope: 'col', class: c.num ? 'num' : undefined, title: c.about},
                      c.name)))),
        h('tbody', {},
          rows.map(
              (row, i) =>
                  h('tr', {},
                    columns.map(
                        (c) =>
                            h(c.head ? 'th' : 'td', {
                              class: c.num ? 'num' :
                                  c.words  ? 'words' :
                                             undefined,
                              scope: c.head ?
                                  'row' :
                                  undefined
                            },
                              c.cell(row, i))))))));
}

// Says a sentence to screen readers.
export function announce(text) {
  const live = document.getElementById('live');
  if (live) live.textContent = text;
}

// Text with `words` between backticks as code.
export const prose = (text) =>
    (text ?? '').split('`').map((part, i) => (i % 2 ? h('code', {}, part) : part));

export function errorBox(error) {
  const e = error ?? {};
  return h(
      'div', {class: 'error', role: 'alert'}, h('strong', {}, e.title ?? 'It did not work'),
      h('p', {}, e.message ?? String(error)),
      e.param && h('p', {}, 'Field: ', h('code', {}, e.param)),
      (e.status || e.requestId) &&
          h('p', {class: 'hint'},
            [e.status && `status ${e.status}`, e.code, e.requestId].filter(Boolean).join(' · ')));
}

// A modal dialog that is removed when it closes. Resolves to what `done` was called with.
export function dialog(title, build) {
  return new Promise((resolve) => {
    const heading = fresh('d');
    let answer;
    const box = h('dialog', {'aria-labelledby': heading});
    const done = (value) => {
      answer = value;
      box.close();
    };
    add(box, h('h2', {id: heading}, title), build(done));
    box.addEventListener('close', () => {
      box.remove();
      resolve(answer);
    });
    document.body.append(box);
    box.showModal();
  });
}

export const confirmed = (title, text, verb) => dialog(
    title,
    (done) =>
        h('div', {}, h('p', {}, text),
          h('div', {class: 'row end'},
            h('button', {type: 'button', onclick: () => done(false)}, 'Cancel'),
            h('button', {type: 'button', class: 'danger', onclick: () => done(true)}, verb))));

export function debounce(ms, run) {
  let timer;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...args), ms);
  };
}
