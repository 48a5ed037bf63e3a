// Numbers and times for people.

export const count = (n) => (n ?? 0).toLocaleString('en-US');

export function bytes(n) {
  if (!n) return '0 B';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const i = Math.min(units.length - 1, Math.floor(Math.log2(n) / 10));
  const value = n / 2 ** (10 * i);
  return `${value >= 100 || i === 0 ? Math.round(value) : value.toFixed(1)} ${units[i]}`;
}

export function ms(n) {
  if (n === undefined || n === null) return '–';
  if (n >= 59_950) {
    const seconds = Math.round(n / 1000);
    const of = (size, unit, rest, name) =>
        `${Math.floor(seconds / size)} ${unit} ${Math.floor((seconds % size) / rest)} ${name}`;
    return seconds >= 86_400 ? of(86_400, 'd', 3600, 'h') :
        seconds >= 3600      ? of(3600, 'h', 60, 'min') :
                               of(60, 'min', 1, 's');
  }
  if (n >= 10_000) return `${(n / 1000).toFixed(1)} s`;
  if (n >= 1000) return `${(n / 1000).toFixed(2)} s`;
  if (n >= 100) return `${Math.round(n)} ms`;
  if (n > 0 && n < 0.1) return `${(n * 1000).toFixed(n < 0.01 ? 1 : 0)} µs`;
  return n >= 10 ? `${n.toFixed(1)} ms` : `${n.toFixed(2)} ms`;
}

export const percent = (x, digits = 0) =>
    x === undefined || x === null || Number.isNaN(x) ? '–' : `${(100 * x).toFixed(digits)} %`;

export const number = (x, digits = 3) =>
    x === undefined || x === null ? '–' : String(Number(Number(x).toFixed(digits)));

export function ago(time, now = Date.now()) {
  if (!time) return 'never';
  const seconds = (now - Date.parse(time)) / 1000;
  const of = (n, unit) => `${n} ${unit}${n === 1 ? '' : 's'}`;
  const span = Math.abs(seconds);
  const text = span < 60 ? of(Math.round(span), 'second') :
      span < 3600        ? of(Math.round(span / 60), 'minute') :
      span < 86_400      ? of(Math.round(span / 3600), 'hour') :
                           of(Math.round(span / 86_400), 'day');
  return seconds >= 0 ? `${text} ago` : `in ${text}`;
}

export const clock = (time) => new Date(time).toLocaleTimeString([], {hour12: false});

export function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const mid = sorted.length >> 1;
  return sorted.length % 2 ? sorted[mid] : (sorted[mid - 1] + sorted[mid]) / 2;
}

// Unicode code points, which positions of the API count.
export const points = (text) => Array.from(text);

export const plural = (n, word) => `${count(n)} ${n === 1 ? word : word.replace(/y$/, 'ie') + 's'}`;
