// Server-sent events from the body of a fetch (the WHATWG event stream format).

// Takes text piece by piece; gives the events that are complete.
export class EventParser {
  #rest = '';
  #name = 'message';
  #data = [];

  feed(text) {
    const out = [];
    this.#rest += text;
    let end;
    while ((end = this.#rest.search(/\r\n|\n|\r(?!$)/)) >= 0) {
      const line = this.#rest.slice(0, end);
      this.#rest = this.#rest.slice(end + (this.#rest.startsWith('\r\n', end) ? 2 : 1));
      if (line === '') {
        if (this.#data.length) out.push({name: this.#name, data: this.#data.join('\n')});
        this.#name = 'message';
        this.#data = [];
      } else if (!line.startsWith(':')) {
        const colon = line.indexOf(':');
        const key = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
        if (key === 'event')
          this.#name = value;
        else if (key === 'data')
          this.#data.push(value);
      }
    }
    return out;
  }
}

// Calls onEvent(name, value) for each event, with its data read as JSON where it is JSON.
export async function readEvents(response, onEvent) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    for (const e of parser.feed(value)) {
      let data = e.data;
      try {
        data = JSON.parse(e.data);
      } catch {
        // "[DONE]" and the like stay text
      }
      onEvent(e.name, data);
    }
  }
}
