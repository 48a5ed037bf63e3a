#!/usr/bin/env python3
"""Draws rows of 'quire fidelity' results as an SVG: a dot with its interval for each strategy.

    python3 bench/interval_plot.py --out plot.svg --title "..." --metric nll_difference \\
        --panel "Title|FILE.json|WHERE|STRATEGY=Label;STRATEGY=Label" [--panel ...]

FILE holds {"rows": [...]}; WHERE is empty or `key=value,...` that rows must have. A label may begin
with `+`, which draws it in the second colour. --percent prints shares as percent, --zero names the
line at zero, --note is a line below. Colours follow the reader's light or dark scheme.
"""

import argparse
import json
import math
from xml.sax.saxutils import escape

STYLE = """
svg { --paper: #ffffff; --ink: #1c1c1c; --pale: #8a8a8a; --grid: #dcdcdc;
  --one: #14639e; --two: #b4471f; }
@media (prefers-color-scheme: dark) { svg { --paper: #16181c; --ink: #ececec; --pale: #9a9a9a;
  --grid: #3a3d42; --one: #6db7ee; --two: #f0976c; } }
.paper { fill: var(--paper); } text { fill: var(--ink); } .pale { fill: var(--pale); }
.grid { stroke: var(--grid); } .axis { stroke: var(--pale); stroke-dasharray: 4 3; }
.one { fill: var(--one); stroke: var(--one); } .two { fill: var(--two); stroke: var(--two); }
"""
WIDTH, LEFT, RIGHT, ROW, TOP = 760, 300, 110, 26, 62


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--panel", action="append", required=True)
    p.add_argument("--metric", default="nll_difference")
    p.add_argument("--title", default="")
    p.add_argument("--axis", default="", help="what the horizontal axis shows")
    p.add_argument("--zero", default="", help="what a value of zero is")
    p.add_argument("--note", default="")
    p.add_argument("--percent", action="store_true")
    p.add_argument("--out", required=True)
    return p.parse_args()


def rows_of(panel, metric):
    """Returns the panel's title and its rows: label, second colour or not, n, value, low, high."""
    title, file, where, names = panel.split("|")
    with open(file, encoding="utf-8") as f:
        rows = json.load(f)["rows"]
    wanted = [pair.split("=", 1) for pair in where.split(",") if pair]
    rows = [r for r in rows if r["task"] == "all" and all(str(r.get(k)) == v for k, v in wanted)]
    out = []
    for name in names.split(";"):
        strategy, label = name.rsplit("=", 1)
        found = [r for r in rows if r["strategy"] == strategy and r.get(metric)]
        if len(found) != 1:
            raise SystemExit(f"{file}: {len(found)} rows of {strategy} have {metric}")
        score = found[0][metric]
        second = label.startswith("+")
        out.append(
            (label.lstrip("+"), second, found[0]["n"], score["value"], score["low"], score["high"])
        )
    return title, out


def ticks(low, high):
    step = 10 ** math.floor(math.log10(max(high - low, 1e-9) / 4))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 7)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step) + 1)]


def svg(panels, args):
    values = [v for _, rows in panels for row in rows for v in row[3:]]
    low, high = min(0.0, *values), max(values)
    margin = (high - low) * 0.04
    low, high = low - (margin if low < 0 else 0), high + margin
    across = lambda x: LEFT + (x - low) / (high - low) * (WIDTH - LEFT - RIGHT)
    shown = lambda x: f"{x * 100:.0f} %" if args.percent else f"{x:+.2f}"
    out, y = [], TOP
    for title, rows in panels:
        counts = sorted({row[2] for row in rows})
        n = " to ".join(str(c) for c in {counts[0], counts[-1]})
        out.append(f'<text x="16" y="{y}" font-weight="bold">{escape(title)}, n = {n}</text>')
        begin, y = y + 8, y + 8
        end = begin + ROW * len(rows) + 6
        for x in ticks(low, high):
            out.append(
                f'<line class="grid" x1="{across(x):.1f}" x2="{across(x):.1f}" '
                f'y1="{begin}" y2="{end}"/>'
            )
        out.append(
            f'<line class="axis" stroke-width="1.5" x1="{across(0):.1f}" x2="{across(0):.1f}" '
            f'y1="{begin}" y2="{end}"/>'
        )
        for label, second, _, value, least, most in rows:
            y += ROW
            colour = "two" if second else "one"
            out.append(
                f'<text x="{LEFT - 14}" y="{y - 4}" text-anchor="end">{escape(label)}</text>'
                f'<line class="{colour}" stroke-width="3" x1="{across(least):.1f}" '
                f'x2="{across(most):.1f}" y1="{y - 9}" y2="{y - 9}"/>'
                f'<circle class="{colour}" cx="{across(value):.1f}" cy="{y - 9}" r="5.5"/>'
                f'<text x="{WIDTH - RIGHT + 16}" y="{y - 4}">{shown(value)}</text>'
            )
        y = end + 16
        for x in ticks(low, high):
            text = f"{x * 100:.0f}" if args.percent else f"{x:g}"
            out.append(
                f'<text class="pale" x="{across(x):.1f}" y="{y}" font-size="12" '
                f'text-anchor="middle">{text}</text>'
            )
        y += 32
    axis = args.axis + (f" (dashed: {args.zero})" if args.zero else "")
    for line in filter(None, (axis, args.note)):
        out.append(f'<text class="pale" x="16" y="{y - 6}" font-size="13">{escape(line)}</text>')
        y += 20
    height = y
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="14">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text x="16" y="28" font-size="17" font-weight="bold">{escape(args.title)}</text>',
    )
    return "\n".join([*head, *out, "</svg>", ""])


def main():
    args = parse()
    panels = [rows_of(panel, args.metric) for panel in args.panel]
    with open(args.out, "w", encoding="utf-8") as file:
        file.write(svg(panels, args))


if __name__ == "__main__":
    main()
