#!/usr/bin/env python3
"""Compares two strategies of a 'quire fidelity' run, question by question.

    python3 bench/paired_differences.py RUN.json.state FIRST SECOND [--metric nll]

The report compares every strategy with recompute alone. This prints the mean of FIRST minus SECOND
over the questions that both answered, without a tenth of the questions at either end (--trim), with
a 95 % percentile bootstrap interval, and the plain means of both. Strategies are named as in the
state's lines.
"""

import argparse
import json
import random


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("state")
    p.add_argument("first")
    p.add_argument("second")
    p.add_argument("--metric", default="nll")
    p.add_argument("--trim", type=float, default=0.1)
    p.add_argument("--resamples", type=int, default=2000)
    return p.parse_args()


def values_of(path, metric):
    """Returns strategy -> question -> value, of the rows that have one."""
    out = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row.get("strategy") and not row["skipped"] and row.get(metric) is not None:
                out.setdefault(row["strategy"], {})[row["question"]] = float(row[metric])
    return out


def trimmed_mean(values, share):
    cut = int(len(values) * share)
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


def main():
    args = parse()
    values = values_of(args.state, args.metric)
    for name in (args.first, args.second):
        if name not in values:
            raise SystemExit(f"no row of {name}; there are: {', '.join(sorted(values))}")
    first, second = values[args.first], values[args.second]
    both = sorted(first.keys() & second.keys())
    differences = [first[q] - second[q] for q in both]
    rng = random.Random(1)
    means = sorted(
        trimmed_mean(rng.choices(differences, k=len(differences)), args.trim)
        for _ in range(args.resamples)
    )
    low, high = means[int(0.025 * len(means))], means[int(0.975 * len(means)) - 1]
    plain = [sum(v[q] for q in both) / len(both) for v in (first, second)]
    print(
        f"{args.metric}: {trimmed_mean(differences, args.trim):+.3f} [{low:+.3f}, {high:+.3f}], "
        f"n={len(both)}; plain means {plain[0]:.3f} and {plain[1]:.3f}"
    )


if __name__ == "__main__":
    main()
