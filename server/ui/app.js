// The frame of the page: views by the address behind #, key, namespace, light and dark.
import {access, get, info} from './api.js';
import * as ask from './ask.js';
import * as blocks from './blocks.js';
import * as compare from './compare.js';
import * as docs from './docs.js';
import * as documents from './documents.js';
import {announce, dialog, errorBox, field, h, replace, select} from './dom.js';
import * as fidelity from './fidelity.js';
import * as requests from './requests.js';
import * as time from './time.js';
import * as worth from './worth.js';

const views = {
  ask,
  blocks,
  time,
  worth,
  documents,
  compare,
  fidelity,
  requests,
  docs
};
const names = {
  ask: 'Ask',
  documents: 'Documents',
  blocks: 'Block map',
  time: 'Time',
  worth: 'Worth',
  compare: 'Compare',
  fidelity: 'Fidelity',
  requests: 'Requests',
  docs: 'API reference',
};
const home = document.location.pathname.endsWith('/docs') ? 'docs' : 'ask';
const main = document.getElementById('main');
let leave = null;
let turn = 0;

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;  // typed by a person
  }
}

// "#/blocks/qry_1?x=2" is the view blocks with the argument qry_1.
function place() {
  const [path] = document.location.hash.replace(/^#\/?/, '').split('?');
  const [name, ...rest] = path.split('/');
  const view = Object.hasOwn(views, name) ? name : home;
  return {view, args: rest.map(decoded)};
}

async function show({focus = true} = {}) {
  const mine = ++turn;
  const {view, args} = place();
  leave?.();
  leave = null;
  for (const link of document.querySelectorAll('#nav a'))
    if (link.dataset.view === view)
      link.setAttribute('aria-current', 'page');
    else
      link.removeAttribute('aria-current');
  document.title = `${names[view]} – Quire`;
  const heading = h('h1', {tabindex: '-1'}, names[view]);
  const body = h('div', {class: `view v-${view}`});
  replace(main, heading, h('p', {class: 'lead'}, views[view].about), body);
  if (focus) heading.focus({preventScroll: true});
  globalThis.scrollTo(0, 0);
  document.querySelector('#nav [aria-current]')
      ?.scrollIntoView({block: 'nearest', inline: 'nearest'});
  try {
    const cleanup = await views[view].render(body, args);
    if (mine === turn)
      leave = cleanup ?? null;
    else
      cleanup?.();
  } catch (e) {
    if (mine === turn) replace(body, errorBox(e));
  }
}

access.ask = async () => {
  const key = await dialog('This service asks for an API key', (done) => {
    const input =
        h('input', {type: 'password', autocomplete: 'off', required: true, spellcheck: 'false'});
    return h(
        'form', {
          onsubmit: (e) => {
            e.preventDefault();
            done(input.value.trim());
          }
        },
        access.key && h('p', {class: 'error'}, 'The key in use is not known to the service.'),
        field('API key', input, 'Kept in this tab until it closes, and sent to this service only.'),
        h('div', {class: 'row end'},
          h('button', {type: 'button', onclick: () => done('')}, 'Cancel'),
          h('button', {type: 'submit', class: 'primary'}, 'Use this key')));
  });
  if (!key) return false;
  access.key = key;
  drawTop();
  return true;
};

async function chooseAccess() {
  let spaces = [];
  try {
    const stats = await get('/v1/admin/cache/stats', {by: 'namespace'});
    spaces = stats.namespaces.map((n) => n.name);
  } catch {
    // only keys with the scope admin may list namespaces
  }
  const changed = await dialog('Key and namespace', (done) => {
    const key = h('input', {type: 'password', autocomplete: 'off', value: access.key});
    const space = h('input', {
      value: access.namespace,
      list: 'spaces',
      spellcheck: 'false',
      pattern: '[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}'
    });
    return h(
        'form', {
          onsubmit: (e) => {
            e.preventDefault();
            access.key = key.value.trim();
            access.namespace = space.value.trim();
            done(true);
          }
        },
        field(
            'API key', key, 'Empty for a service without keys. Kept in this tab until it closes.'),
        field('Namespace', space, 'Empty: the first one of the key.'),
        h('datalist', {id: 'spaces'}, spaces.map((n) => h('option', {value: n}))),
        h('div', {class: 'row end'},
          h('button', {type: 'button', onclick: () => done(false)}, 'Cancel'),
          h('button', {type: 'submit', class: 'primary'}, 'Use')));
  });
  if (changed) {
    await drawTop();
    await show({focus: false});
  }
}

function setTheme(name) {
  if (name === 'auto')
    delete document.documentElement.dataset.theme;
  else
    document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem('quire.theme', name);
  } catch {
    // without storage
  }
}

function theme() {
  let now = 'auto';
  try {
    now = localStorage.getItem('quire.theme') ?? 'auto';
  } catch {
    // without storage
  }
  setTheme(now);
  return select(
      [['auto', 'Auto'], ['light', 'Light'], ['dark', 'Dark']], now,
      {'aria-label': 'Colours', class: 'quiet', onchange: (e) => setTheme(e.target.value)});
}

const colours = theme();

// Returns whether the service answers.
async function drawTop() {
  const space = h(
      'button', {type: 'button', class: 'quiet', onclick: chooseAccess, title: 'Key and namespace'},
      access.namespace || 'default');
  const state = h('span', {class: 'state'});
  const home = h('a', {class: 'brand', href: './#/ask'}, logo(), h('b', {}, 'Quire'));
  replace(document.getElementById('top'), home, state, h('span', {class: 'grow'}), space, colours);
  try {
    const of = await info();
    replace(state, h('span', {class: 'dot ok'}), h('span', {class: 'wide'}, [
              of.model.id, of.model.meta.type, of.backend.device, `window ${of.model.max_model_len}`
            ].join(' · ')));
    space.textContent = `namespace ${access.namespace || of.namespace}`;
    return true;
  } catch (e) {
    replace(
        state, h('span', {class: 'dot bad'}),
        h('span', {}, e.code === 'loading' ? 'loading the model' : e.message));
    if (e.code === 'loading')
      setTimeout(async () => {
        if (await drawTop()) show({focus: false});
      }, 2000);
  }
}

function logo() {
  const icon = document.querySelector('link[rel=icon]').getAttribute('href');
  return h('img', {src: icon, alt: '', width: 22, height: 22});
}

function drawNav() {
  replace(
      document.getElementById('nav'),
      h('ul', {},
        Object.entries(names).map(
            ([view, name]) => h('li', {}, h('a', {href: `./#/${view}`, dataset: {view}}, name)))));
}

// The views that ask keep their last state in their modules, so that going back shows it again.
addEventListener('hashchange', () => {
  announce(names[place().view]);
  show();
});
document.querySelector('.skip').addEventListener('click', (e) => {
  e.preventDefault();
  main.focus();
});
drawNav();
drawTop();
show({focus: false});
