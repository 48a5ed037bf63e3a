#!/usr/bin/env python3
"""Draws rows of a benchmark as an SVG: a line for each method.

    python3 bench/line_plot.py FILE.json --x context --y step_ms_median --title "..." --out plot.svg

FILE holds {"rows": [...]}; --where key=value keeps rows with that value,
--series names the members that tell lines apart.
"""

import argparse
import json
import math
from xml.sax.saxutils import escape

COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#d98e04", "#4a4a4a", "#0f8b8d", "#b5446e")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 70, 190, 40, 50


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("file")
    p.add_argument("--x", default="context")
    p.add_argument("--y", default="step_ms_median")
    p.add_argument(
        "--series",
        default="decode,resident",
        help="members, comma-separated (default: %(default)s)",
    )
    p.add_argument("--where", action="append", default=[], metavar="KEY=VALUE")
    p.add_argument("--title", default="")
    p.add_argument("--out", required=True)
    return p.parse_args()


def number(value):
    """Scores come with an interval: their value is drawn."""
    return value["value"] if isinstance(value, dict) else value


def lines_of(rows, args):
    wanted = dict(pair.split("=", 1) for pair in args.where)
    lines = {}
    for row in rows:
        if (
            any(str(row.get(k)) != v for k, v in wanted.items())
            or number(row.get(args.x)) is None
            or number(row.get(args.y)) is None
        ):
            continue
        name = " ".join(
            str(row[s]) for s in args.series.split(",") if row.get(s) not in (None, "-", "")
        )
        lines.setdefault(name, []).append((float(number(row[args.x])), float(number(row[args.y]))))
    return {name: sorted(points) for name, points in lines.items()}


def ticks(low, high):
    step = 10 ** math.floor(math.log10(max(high - low, 1e-9) / 4))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 6)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def svg(lines, args):
    xs = [x for points in lines.values() for x, _ in points]
    top = max(y for points in lines.values() for _, y in points) * 1.05
    place = lambda x: math.log2(max(x, 0.5))  # 0 lies as far before 1 as 1 before 2
    low, high = place(min(xs)), place(max(xs))
    across = lambda x: LEFT + (place(x) - low) / max(high - low, 1e-9) * (WIDTH - LEFT - RIGHT)
    up = lambda y: HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<text x="{LEFT}" y="22" font-size="14">{escape(args.title)}</text>',
    ]
    for y in ticks(0, top):
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(y):.1f}" y2="{up(y):.1f}" '
            'stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{up(y) + 4:.1f}" text-anchor="end">{y:g}</text>'
        )
    for x in sorted(set(xs)):
        out.append(
            f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" '
            f'text-anchor="middle">{x:g}</text>'
        )
    out.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" '
        f'text-anchor="middle">{escape(args.x)}</text>'
        f'<text x="12" y="{TOP - 8}">{escape(args.y)}</text>'
    )
    for i, (name, points) in enumerate(sorted(lines.items())):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [
            f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>'
            for x, y in points
        ]
        out.append(
            f'<text x="{WIDTH - RIGHT + 12}" y="{TOP + 16 * i}" '
            f'fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join(out + ["</svg>", ""])


def main():
    args = parse()
    with open(args.file, encoding="utf-8") as file:
        lines = lines_of(json.load(file)["rows"], args)
    if not lines:
        raise SystemExit("no row has what is to be drawn")
    with open(args.out, "w", encoding="utf-8") as file:
        file.write(svg(lines, args))


if __name__ == "__main__":
    main()
