#!/usr/bin/env python3
"""Compares two strategies of a 'quire fidelity' run, question by question.

    python3 bench/paired_differences.py RUN.json.state FIRST SECOND [--metric nll]
    python3 bench/paired_differences.py RUN.json.state --against NAME... [--json]
    python3 bench/paired_differences.py RUN.json.state --with OTHER.json.state [--json]

The report compares every strategy with recompute alone. This prints the mean of FIRST minus SECOND
over the questions that both answered, without a tenth of the questions at either end (--trim), with
a 95 % percentile bootstrap interval, and the plain means of both. --against compares every strategy
with each of those that it names, --with every strategy with itself in another run of the same
questions, both by `nll` and `kl` unless --metric says otherwise. --json prints a list of objects.
Strategies are named as in the state's lines.
"""

import argparse
import json
import random


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("state")
    p.add_argument("first", nargs="?")
    p.add_argument("second", nargs="?")
    p.add_argument("--against", action="append", default=[], metavar="NAME")
    p.add_argument("--with", dest="other", metavar="STATE")
    p.add_argument("--metric", action="append", metavar="NAME")
    p.add_argument("--trim", type=float, default=0.1)
    p.add_argument("--resamples", type=int, default=2000)
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    if sum(map(bool, (args.second, args.against, args.other))) != 1:
        p.error("name FIRST and SECOND, or --against, or --with")
    args.metric = args.metric or (["nll"] if args.second else ["nll", "kl"])
    return args


def rows_of(path):
    """Returns strategy -> question -> row, of the rows that were answered."""
    out = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row.get("strategy") and not row["skipped"]:
                out.setdefault(row["strategy"], {})[row["question"]] = row
    return out


def trimmed_mean(values, share):
    cut = int(len(values) * share)
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


def compared(first, second, metric, args):
    """Returns the difference of two strategies' rows by a metric; None: no question has both."""
    values = [
        {q: float(r[metric]) for q, r in rows.items() if r.get(metric) is not None}
        for rows in (first, second)
    ]
    if not values[0].keys() & values[1].keys() and len(values[0]) == len(values[1]):
        # Documents in another order make another question; both runs have theirs in one order.
        values[1] = dict(zip(values[0], values[1].values(), strict=True))
    both = sorted(values[0].keys() & values[1].keys())
    if not both:
        return None
    differences = [values[0][q] - values[1][q] for q in both]
    rng = random.Random(1)
    means = sorted(
        trimmed_mean(rng.choices(differences, k=len(differences)), args.trim)
        for _ in range(args.resamples)
    )
    return {
        "metric": metric,
        "n": len(both),
        "difference": round(trimmed_mean(differences, args.trim), 4),
        "low": round(means[int(0.025 * len(means))], 4),
        "high": round(means[int(0.975 * len(means)) - 1], 4),
        "means": [round(sum(v[q] for q in both) / len(both), 4) for v in values],
    }


def pairs_of(args):
    """Yields the names of two rows, and the rows themselves."""
    rows = rows_of(args.state)
    if args.other:
        other = rows_of(args.other)
        yield from ((name, name, rows[name], other[name]) for name in sorted(rows.keys() & other))
        return
    names = [(args.first, args.second)] if args.second else []
    names += [(name, base) for base in args.against for name in sorted(rows) if name != base]
    for name in {name for pair in names for name in pair} - rows.keys():
        raise SystemExit(f"no row of {name}; there are: {', '.join(sorted(rows))}")
    yield from ((first, second, rows[first], rows[second]) for first, second in names)


def main():
    args = parse()
    found = []
    for first, second, *rows in pairs_of(args):
        for metric in args.metric:
            difference = compared(*rows, metric, args)
            if difference:
                found.append({"first": first, "second": second, **difference})
    if args.json:
        print(json.dumps(found))
        return
    for f in found:
        print(
            f"{f['first']} - {f['second']}, {f['metric']}: {f['difference']:+.3f} "
            f"[{f['low']:+.3f}, {f['high']:+.3f}], n={f['n']}; "
            f"plain means {f['means'][0]:.3f} and {f['means'][1]:.3f}"
        )


if __name__ == "__main__":
    main()
