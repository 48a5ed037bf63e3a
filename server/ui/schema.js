// Reading openapi.json: references, examples, and schemas as trees.
import {get} from './api.js';
import {h, prose} from './dom.js';

let description = null;
export function openapi() {
  description ??= get('/openapi.json');
  description.catch(() => {
    description = null;
  });
  return description;
}

// "#/components/schemas/X" to what stands there.
export function resolve(document, node) {
  for (let hops = 0; node?.$ref && hops < 20; ++hops)
    node = node.$ref.slice(2).split('/').reduce(
        (at, key) => at?.[key.replaceAll('~1', '/').replaceAll('~0', '~')], document);
  return node;
}

export const refName = (node) => node?.$ref?.split('/').pop();

const groups = {
  documents: 'documents',
  jobs: 'jobs',
  query: 'queries',
  queries: 'queries',
  retrieve: 'queries',
  models: 'OpenAI-compatible',
  chat: 'OpenAI-compatible',
  completions: 'OpenAI-compatible',
  embeddings: 'OpenAI-compatible',
  tokenize: 'OpenAI-compatible',
  detokenize: 'OpenAI-compatible',
  admin: 'admin',
};

// All operations in order: {id, method, path, op, group}.
export function operations(document) {
  const out = [];
  for (const [path, methods] of Object.entries(document.paths))
    for (const [method, op] of Object.entries(methods)) {
      const parts = path.split('/').filter(Boolean);
      const group = groups[parts[0] === 'v1' ? parts[1] : parts[0]] ?? 'service';
      out.push({id: op.operationId, method: method.toUpperCase(), path, op, group});
    }
  return out;
}

export const parameters = (document, op) => (op.parameters ?? []).map((p) => resolve(document, p));

const typeOf = (schema) => {
  const types = [schema.type ?? []].flat().filter((t) => t !== 'null');
  return types[0] ?? (schema.properties ? 'object' : schema.items ? 'array' : undefined);
};

// A small valid value: required members, and those that `wanted` names.
export function example(document, node, wanted = [], depth = 0) {
  const schema = resolve(document, node) ?? {};
  if (schema.const !== undefined) return schema.const;
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  const branch = branches(schema)?.find((x) => resolve(document, x)?.type !== 'null');
  if (branch) return example(document, branch, wanted, depth);
  if (schema.enum) return schema.enum.find((x) => x !== null);
  const type = typeOf(schema);
  if (type === 'object') {
    const out = {};
    if (depth < 5)
      for (const [name, member] of Object.entries(schema.properties ?? {}))
        if (schema.required?.includes(name) || (depth === 0 && wanted.includes(name)))
          out[name] = example(document, member, wanted, depth + 1);
    return out;
  }
  if (type === 'array')
    return depth < 5 ? [example(document, schema.items ?? {}, wanted, depth + 1)] : [];
  return {integer: schema.minimum ?? 1, number: schema.minimum ?? 0, boolean: true}[type] ?? 'text';
}

// The forms that a value may take. Where the members are listed as well, the forms only say which
// of them exclude each other, and the description tells that.
function branches(schema) {
  return schema.properties ? undefined : schema.oneOf ?? schema.anyOf;
}

function typeText(document, node) {
  const schema = resolve(document, node) ?? {};
  const forms = branches(schema);
  if (forms) return forms.map((b) => refName(b) ?? typeText(document, b)).join(' or ');
  const name = refName(node);
  const type = [schema.type ?? []].flat();
  const base = schema.const !== undefined ? JSON.stringify(schema.const) :
      schema.enum                         ? schema.enum.map((v) => JSON.stringify(v)).join(' | ') :
      type.includes('array') ?
                    `list of ${refName(schema.items) ?? typeText(document, schema.items)}` :
                    type.join(' or ') || 'any';
  return name && type.includes('object') ? name : base;
}

function limits(schema) {
  const parts = [];
  const of = (name, text) => {
    if (schema[name] !== undefined) parts.push(`${text} ${schema[name]}`);
  };
  of('minimum', '≥');
  of('exclusiveMinimum', '>');
  of('maximum', '≤');
  of('minLength', 'length ≥');
  of('maxLength', 'length ≤');
  of('minItems', 'items ≥');
  of('maxItems', 'items ≤');
  if (schema.default !== undefined) parts.push(`default ${JSON.stringify(schema.default)}`);
  if (schema.pattern) parts.push(`matches ${schema.pattern}`);
  return parts.join(', ');
}

// Members of an object, each with its own members behind a summary.
export function tree(document, node, depth = 0) {
  let schema = resolve(document, node) ?? {};
  if (typeOf(schema) === 'array') schema = resolve(document, schema.items) ?? {};
  const forms = branches(schema);
  if (forms && depth < 6) {
    return h(
        'div', {class: 'branches'},
        forms.map(
            (b, i) => h(
                'div', {},
                h('p', {class: 'hint'}, `${i ? 'or ' : ''}${refName(b) ?? typeText(document, b)}`),
                tree(document, b, depth + 1))));
  }
  const members = Object.entries(schema.properties ?? {});
  if (!members.length || depth > 6)
    return schema.description ? h('p', {class: 'hint'}, prose(schema.description)) : null;
  return h('ul', {class: 'members'}, members.map(([name, member]) => {
    const of = resolve(document, member) ?? {};
    const inner = typeOf(of) === 'array' ? resolve(document, of.items) ?? {} : of;
    const head = [
      h('code', {}, name), ' ', h('span', {class: 'type'}, typeText(document, member)),
      schema.required?.includes(name) && h('b', {class: 'required'}, ' required'),
      limits(of) && h('small', {}, ` ${limits(of)}`),
      (member.description ?? of.description) &&
          h('p', {class: 'hint'}, prose(member.description ?? of.description))
    ];
    const deep = inner.properties || branches(inner);
    return h('li', {}, deep ? details(head, () => tree(document, of, depth + 1)) : head);
  }));
}

// Its content is made when it is opened, so that schemas that contain themselves end.
function details(head, make) {
  const node = h('details', {}, h('summary', {}, head));
  node.addEventListener('toggle', () => {
    if (node.open && node.childElementCount === 1) node.append(make() ?? h('p', {}, '–'));
  });
  return node;
}
