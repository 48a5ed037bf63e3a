// Charts as inline SVG. Each has a text that says what it shows.
import {fresh, h, s} from './dom.js';
import {ms} from './format.js';

// Round steps between two numbers, at most about n of them.
export function ticks(from, to, n = 5) {
  if (!(to > from)) return [from];
  const raw = (to - from) / n;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= raw * 0.999);
  const out = [];
  for (let t = Math.ceil(from / step - 1e-9) * step; t <= to + step * 1e-9; t += step)
    out.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  return out;
}

// Powers of ten, with 2 and 5 between them while these are few.
export function logTicks(from, to) {
  const out = [];
  for (let p = Math.floor(Math.log10(from)); p <= Math.ceil(Math.log10(to)); ++p)
    for (const k of Math.log10(to / from) > 2.5 ? [1] : [1, 2, 5]) {
      const t = k * 10 ** p;
      if (t >= from * 0.999 && t <= to * 1.001) out.push(t);
    }
  return out;
}

function frame(title, about, width, height) {
  const t = fresh('t');
  const d = fresh('t');
  return s(
      'svg', {
        viewBox: `0 0 ${width} ${height}`,
        role: 'img',
        class: 'plot',
        'aria-labelledby': `${t} ${d}`
      },
      s('title', {id: t}, title), s('desc', {id: d}, about));
}

// rows: [{name, start, ms, kind, about}]; `total` in ms.
export function waterfall(title, rows, total) {
  const about = rows.map((r) => `${r.name}: ${ms(r.ms)} from ${ms(r.start)}`).join('; ');
  const width = 720;
  const left = 118;
  const right = 76;
  const line = 24;
  const height = rows.length * line + 26;
  const x = (t) => left + (width - left - right) * Math.min(1, t / total);
  const svg = frame(title, about, width, height);
  for (const t of ticks(0, total, 6)) {
    if (x(t) > width - right + 1) continue;
    svg.append(s('line', {class: 'grid', x1: x(t), x2: x(t), y1: 0, y2: rows.length * line}));
    svg.append(
        s('text', {class: 'tick', x: x(t), y: height - 8, 'text-anchor': 'middle'},
          t === 0 ? '0' : ms(t).replace('.00', '').replace(/\.0 /, ' ')));
  }
  rows.forEach((r, i) => {
    const y = i * line + 4;
    const begin = x(r.start);
    const end = Math.max(begin + 1.5, x(r.start + r.ms));
    svg.append(s('text', {class: 'label', x: left - 8, y: y + 12, 'text-anchor': 'end'}, r.name));
    svg.append(
        s('rect', {class: `bar k-${r.kind}`, x: begin, y, width: end - begin, height: 16, rx: 2},
          s('title', {}, `${r.name}: ${ms(r.ms)}${r.about ? ` – ${r.about}` : ''}`)));
    svg.append(s('text', {class: 'value', x: Math.min(end + 6, width - 70), y: y + 12}, ms(r.ms)));
  });
  return svg;
}

// groups: [{name, kind, points: [{x, y, label, href}]}]. yLog: a logarithmic axis.
export function scatter(title, groups, o = {}) {
  const points = groups.flatMap((g) => g.points);
  const width = 720;
  const height = o.height ?? 300;
  const m = {l: 78, r: points.some((p) => p.text) ? 96 : 18, t: 14, b: 44};
  const svg = frame(title, o.about ?? `${points.length} points`, width, height);
  const range = (values, log) => {
    let a = Math.min(...values);
    let b = Math.max(...values);
    if (log) return a === b ? [a / 2, b * 2] : [a / 1.25, b * 1.25];
    const pad = (b - a) * 0.06 || Math.abs(b) * 0.1 || 1;
    return [a - pad, b + pad];
  };
  const [x0, x1] = o.x ?? range(points.map((p) => p.x), o.xLog);
  const [y0, y1] = o.y ?? range(points.map((p) => p.y), o.yLog);
  const scale = (v, a, b, log) => (log ? Math.log(v / a) / Math.log(b / a) : (v - a) / (b - a));
  const x = (v) => m.l + (width - m.l - m.r) * scale(v, x0, x1, o.xLog);
  const y = (v) => height - m.b - (height - m.t - m.b) * scale(v, y0, y1, o.yLog);
  for (const t of o.xTicks ?? (o.xLog ? logTicks(x0, x1) : ticks(x0, x1, 6))) {
    svg.append(s('line', {class: 'grid', x1: x(t), x2: x(t), y1: m.t, y2: height - m.b}));
    svg.append(
        s('text', {class: 'tick', x: x(t), y: height - m.b + 16, 'text-anchor': 'middle'},
          (o.xText ?? String)(t)));
  }
  for (const t of o.yLog ? logTicks(y0, y1) : ticks(y0, y1, 5)) {
    svg.append(s('line', {class: 'grid', x1: m.l, x2: width - m.r, y1: y(t), y2: y(t)}));
    svg.append(
        s('text', {class: 'tick', x: m.l - 8, y: y(t) + 4, 'text-anchor': 'end'},
          (o.yText ?? String)(t)));
  }
  svg.append(
      s('text', {class: 'axis', x: (m.l + width - m.r) / 2, y: height - 8, 'text-anchor': 'middle'},
        o.xName ?? ''));
  svg.append(
      s('text', {
        class: 'axis',
        transform: `translate(14 ${(m.t + height - m.b) / 2}) rotate(-90)`,
        'text-anchor': 'middle'
      },
        o.yName ?? ''));
  if (o.line?.length > 1)
    svg.append(s(
        'path',
        {class: 'front', d: o.line.map((p, i) => `${i ? 'L' : 'M'}${x(p.x)} ${y(p.y)}`).join('')}));
  for (const g of groups)
    for (const p of g.points) {
      const mark = s(
          'g', {}, s('title', {}, p.label),
          g.shape === 'square' ?
              s('rect',
                {class: `dot k-${g.kind}`, x: x(p.x) - 4.5, y: y(p.y) - 4.5, width: 9, height: 9}) :
              s('circle', {class: `dot k-${g.kind}`, cx: x(p.x), cy: y(p.y), r: 5}));
      if (p.text) {
        // Where the text would leave the plot on the right, it stands on the left of its point.
        const fits = x(p.x) + 9 + p.text.length * 8 < width;
        const at = {
          class: 'label',
          x: x(p.x) + (fits ? 9 : -9),
          y: y(p.y) + 4,
          'text-anchor': fits ? 'start' : 'end'
        };
        mark.append(s('text', at, p.text));
      }
      svg.append(p.href ? s('a', {href: p.href, 'aria-label': p.label}, mark) : mark);
    }
  return svg;
}

// A small line of numbers over time.
export function sparkline(title, values, text) {
  const width = 160;
  const height = 36;
  const svg = frame(title, text ?? '', width, height);
  svg.classList.add('spark');
  if (values.length < 2) return svg;
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  const x = (i) => (i / (values.length - 1)) * (width - 4) + 2;
  const y = (v) => height - 4 - ((v - low) / span) * (height - 8);
  const path =
      values.map((v, i) => `${i ? 'L' : 'M'}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join('');
  svg.append(
      s('path', {class: 'area', d: `${path}L${x(values.length - 1)} ${height}L2 ${height}Z`}));
  svg.append(s('path', {class: 'line', d: path}));
  return svg;
}

// parts: [{name, value, kind, text}], shares of one bar. Its legend says the same in words.
export function stacked(title, parts, {legend = true} = {}) {
  const total = parts.reduce((sum, p) => sum + p.value, 0) || 1;
  const shown = parts.filter((p) => p.value > 0);
  return h(
      'figure', {class: 'stacked'},
      h('div', {
        class: 'bar',
        role: 'img',
        'aria-label': `${title}: ${shown.map((p) => `${p.name} ${p.text ?? p.value}`).join(', ')}`
      },
        shown.map((p) => h('span', {
                    class: `k-${p.kind}`,
                    title: `${p.name}: ${p.text ?? p.value}`,
                    style: {'flex-grow': String(p.value / total)}
                  }))),
      legend &&
          h('figcaption', {},
            shown.map(
                (p) =>
                    h('span', {class: 'key'}, h('i', {class: `k-${p.kind}`}),
                      `${p.name} ${p.text ?? p.value}`))));
}

export const legend = (keys) =>
    h('p', {class: 'legend'},
      keys.map(([kind, name]) => h('span', {class: 'key'}, h('i', {class: `k-${kind}`}), name)));
