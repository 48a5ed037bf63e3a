// The API reference, made from openapi.json.
import {access} from './api.js';
import {debounce, h, prose, replace} from './dom.js';
import {plural} from './format.js';
import {openapi, operations, parameters, refName, resolve, tree} from './schema.js';

export const about = 'Every route of this service, from its own openapi.json.';

const anchor = (o) => `op-${o.id}`;

function body(document, op) {
  if (!op.requestBody) return null;
  const of = resolve(document, op.requestBody);
  return h(
      'div', {}, h('h4', {}, of.required ? 'Body' : 'Body (optional)'),
      Object.entries(of.content)
          .map(
              ([type, media]) =>
                  h('div', {}, h('p', {}, h('code', {}, type), ' ', refName(media.schema) ?? ''),
                    tree(document, media.schema))));
}

function replies(document, op) {
  return h(
      'div', {}, h('h4', {}, 'Replies'),
      h('ul', {class: 'members'}, Object.entries(op.responses).map(([status, node]) => {
        const reply = resolve(document, node);
        const content = Object.entries(reply.content ?? {}).map(([type, media]) => {
          const inner = tree(document, media.schema);
          return h(
              'div', {}, h('p', {}, h('code', {}, type), ' ', refName(media.schema) ?? ''), inner);
        });
        const head =
            [h('code', {class: `status c${status[0]}`}, status), ' ', prose(reply.description)];
        return h(
            'li', {}, content.length ? h('details', {}, h('summary', {}, head), content) : head);
      })),
      op['x-events'] &&
          h('div', {}, h('h4', {}, 'Events of the stream'),
            h('ul', {class: 'members'},
              Object.entries(op['x-events'])
                  .map(
                      ([name, schema]) =>
                          h('li', {},
                            h('details', {},
                              h('summary', {}, h('code', {}, name), ' ', refName(schema) ?? ''),
                              tree(document, schema)))))));
}

function operation(document, o) {
  const list = parameters(document, o.op);
  const node =
      h('details', {class: 'card op', id: anchor(o)},
        h('summary', {}, h('span', {class: `verb v-${o.method}`}, o.method), ' ',
          h('code', {}, o.path), ' ', h('span', {}, o.op.summary)));
  node.addEventListener('toggle', () => {
    if (!node.open || node.childElementCount > 1) return;
    node.append(
        h('div', {}, o.op.description && h('p', {}, prose(o.op.description)),
          h('p', {class: 'hint'},
            o.op['x-quire-scope'] ? `Key with the scope ${o.op['x-quire-scope']}. ` :
                                    'No key is needed. ',
            h('a', {href: `./#/requests/${o.id}`}, 'Try it')),
          list.length > 0 &&
              h('div', {}, h('h4', {}, 'Parameters'),
                h('ul', {class: 'members'},
                  list.map(
                      (p) =>
                          h('li', {}, h('code', {}, p.name), ' ', h('span', {class: 'type'}, p.in),
                            p.required && h('b', {class: 'required'}, ' required'),
                            p.schema?.enum && h('small', {}, ` ${p.schema.enum.join(' | ')}`),
                            p.description && h('p', {class: 'hint'}, prose(p.description)))))),
          body(document, o.op), replies(document, o.op)));
  });
  return node;
}

export async function render(root, [id]) {
  const document = await openapi();
  const all = operations(document);
  const find =
      h('input', {type: 'search', placeholder: 'Filter routes', 'aria-label': 'Filter routes'});
  const list = h('div', {class: 'ops'});
  const draw = () => {
    const words = find.value.toLowerCase();
    const shown =
        all.filter((o) => `${o.method} ${o.path} ${o.op.summary}`.toLowerCase().includes(words));
    const groups = [...new Set(shown.map((o) => o.group))];
    replace(
        list, h('p', {class: 'hint', role: 'status'}, plural(shown.length, 'route')),
        groups.map(
            (g) =>
                h('section', {}, h('h2', {}, g),
                  shown.filter((o) => o.group === g).map((o) => operation(document, o)))));
  };
  find.addEventListener('input', debounce(120, draw));
  replace(
      root,
      h('div', {class: 'card'}, h('p', {}, prose(document.info.description)),
        h('p', {class: 'row'}, h('span', {}, `version ${document.info.version}`),
          !access.key && h('a', {href: 'openapi.json'}, 'openapi.json'),
          h('a', {href: './#/requests'}, 'Try requests')),
        find),
      list);
  draw();
  const target = id && list.querySelector(`#${CSS.escape(`op-${id}`)}`);
  if (target) {
    target.open = true;
    target.scrollIntoView();
  }
}
