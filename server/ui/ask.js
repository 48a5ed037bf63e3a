// Ask: a question over documents, its answer as it comes, and the sources of the answer.
import {cited, cost} from './answer.js';
import {info, stream, who} from './api.js';
import {announce, check, errorBox, field, h, replace, select} from './dom.js';
import {points} from './format.js';
import {StrategyControls} from './options.js';
import {Scope} from './scope.js';
import {remember} from './session.js';
import {showSource} from './source.js';

export const about = 'Ask over cached documents; click a number in the answer to see its source.';

// {asker, question, result, text}: shown again when the same key and namespace come back
let last = null;

// Shows the choice where the service has several models.
async function offerModels(control, node) {
  const of = await info();
  if (!of.further_models.length) return;
  const names = [of.model, ...of.further_models.map((m) => m.model)].map((m) => m.id);
  replace(control, names.map((name) => h('option', {value: name}, name)));
  node.hidden = false;
}

export function render(root, [documentId]) {
  const question =
      h('textarea', {rows: 3, required: true, placeholder: 'What do you want to know?'});
  const scope = new Scope(documentId ? [documentId] : []);
  const model = select([], '');
  const modelField = field('Model', model, 'Each model keeps its own cache of the documents.');
  modelField.hidden = true;
  void offerModels(model, modelField);
  const strategy = new StrategyControls();
  const maxTokens = h('input', {type: 'number', min: 1, max: 1048576, value: '256'});
  const temperature =
      h('input', {type: 'number', min: 0, max: 2, step: 0.1, placeholder: 'default'});
  const system = h('textarea', {rows: 2});
  const citations = check('Name the sources', {checked: true});
  const go = h('button', {type: 'submit', class: 'primary'}, 'Ask');
  const stop = h('button', {type: 'button', disabled: true}, 'Stop');
  const status = h('p', {class: 'hint', 'aria-live': 'polite'});
  const text = h('div', {class: 'reply', 'aria-live': 'polite'});
  const numbers = h('div');
  const used = h('div');
  const source = h('section', {class: 'card sourcecard', 'aria-label': 'Source', hidden: true});
  const answer =
      h('section', {class: 'card', 'aria-label': 'Answer'}, h('h2', {}, 'Answer'), status, text);
  const spent =
      h('section', {class: 'card', 'aria-label': 'What it took', hidden: true}, numbers, used);
  const form =
      h('form', {class: 'card ask'}, field('Question', question, 'Ctrl+Enter asks.'), modelField,
        scope.node,
        h('details', {}, h('summary', {}, 'Strategy and budget'), strategy.node,
          h('div', {class: 'grid2'}, field('Most tokens of the answer', maxTokens),
            field('Temperature', temperature)),
          field('System', system, 'Instructions in front of the documents.'), citations),
        h('div', {class: 'row'}, go, stop));
  replace(root, h('div', {class: 'columns'}, form, h('div', {}, answer, source, spent)));

  let control = null;
  const open = (result) => (citation, button) => {
    for (const b of text.querySelectorAll('.cite')) b.removeAttribute('aria-pressed');
    button.setAttribute('aria-pressed', 'true');
    source.hidden = false;
    showSource(source, citation, result.documents[citation.document_index]);
  };
  const finish = (result, whole) => {
    replace(text, cited(whole, result.citations, result.unsupported, open(result)));
    cost(numbers, result);
    spent.hidden = false;
    replace(used, sources(result));
    status.textContent = !citations.box.checked ? '' :
        !result.citations.length                ? 'No support was found for this answer.' :
        result.unsupported.length               ? 'No support was found for the underlined part.' :
                                                  '';
    last = {asker: who(), question: question.value, result, text: whole};
  };

  const fail = (e) => {
    spent.hidden = false;
    replace(numbers, errorBox(e));
  };

  async function ask() {
    let body;
    try {
      body = {
        query: question.value,
        stream: true,
        citations: citations.box.checked,
        max_tokens: Number(maxTokens.value) || undefined,
        cache: strategy.request(),
        ...scope.request()
      };
      if (!modelField.hidden) body.model = model.value;
      if (temperature.value) body.temperature = Number(temperature.value);
      if (system.value.trim()) body.system = system.value;
    } catch (e) {
      fail(e);
      return;
    }
    control = new AbortController();
    go.disabled = true;
    stop.disabled = false;
    source.hidden = true;
    spent.hidden = true;
    replace(numbers);
    replace(used);
    const piece = h('p', {class: 'answer'});
    replace(text, piece);
    text.setAttribute('aria-busy', 'true');
    status.textContent = 'Waiting for the service…';
    answer.scrollIntoView({block: 'nearest'});  // on narrow screens it is below the form
    let whole = '';
    let ended = false;
    try {
      await stream('POST', '/v1/query', {body, signal: control.signal}, (name, data) => {
        if (name === 'plan') {
          remember(data.id, body.query);
          status.textContent =
              `Reading ${data.documents.length} documents with ${data.cache.strategy}…`;
        } else if (name === 'delta') {
          if (!whole) status.textContent = 'Answering…';
          whole += data.text;
          piece.append(document.createTextNode(data.text));
        } else if (name === 'done') {
          ended = true;
          finish(data, whole);
          announce('The answer is complete.');
        } else if (name === 'error') {
          throw Object.assign(new Error(data.detail), {
            title: data.title,
            param: data.error?.param,
            code: data.error?.code,
            status: data.status,
            requestId: data.request_id
          });
        }
      });
      if (!ended) throw new Error('The stream ended before the answer was complete.');
    } catch (e) {
      if (e.name === 'AbortError') {
        status.textContent = `Stopped after ${points(whole).length} characters.`;
      } else {
        status.textContent = '';
        fail(e);
      }
    } finally {
      text.removeAttribute('aria-busy');
      go.disabled = false;
      stop.disabled = true;
      control = null;
    }
  }

  form.addEventListener('submit', (e) => {
    e.preventDefault();
    if (!control) ask();
  });
  question.addEventListener('keydown', (e) => {
    if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) form.requestSubmit();
  });
  stop.addEventListener('click', () => control?.abort());
  if (last?.asker === who() && !documentId) {
    question.value = last.question;
    finish(last.result, last.text);
  } else {
    status.textContent = 'The answer appears here.';
  }
  return () => control?.abort();
}

// The documents that were in the prompt.
function sources(result) {
  if (!result.documents.length) return [];
  return h(
      'details', {open: result.documents.length <= 5},
      h('summary', {}, `Documents in the prompt (${result.documents.length})`),
      h('ol', {class: 'plain'},
        result.documents.map(
            (d) =>
                h('li', {},
                  h('a', {href: `./#/documents/${encodeURIComponent(d.id ?? '')}`},
                    d.id ?? d.title ?? 'inline'),
                  h('small', {}, [
                    `${d.tokens} tokens`,
                    d.score !== undefined && `score ${d.score.toFixed(2)}`,
                    d.chunks && `chunks ${d.chunks.join(', ')} of ${d.num_chunks}`,
                    `${d.kept_blocks} of ${d.blocks} blocks kept`,
                    d.recomputed_blocks > 0 && `${d.recomputed_blocks} recomputed`,
                  ].filter(Boolean).join(' · '))))));
}
