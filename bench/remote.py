"""Reads contexts from a Redis cluster, beside redis-benchmark, for remote.sh.

remote.py PROGRAM ROUNDS
"""

import json
import os
import statistics
import subprocess
import sys

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "cluster")
)
# ruff: noqa: E402
from backends import RedisCluster, wait_for

VALUE_KIB = (32, 128, 256)
VALUES = 96  # of a context
MIB_IN_ALL = 256
PASSES = 8  # over the contexts in a row: both read for a second or more without a pause
# redis-benchmark looks every quarter of a second whether it is done, so its runs must be long.
THEIR_MIB = 4096
PRIMARIES = 3
UNDER_WAY_KIB = 512
CONNECTIONS = 2  # to each primary; the service reads over four in all


def ours(program, cluster, kib):
    contexts = max(16, MIB_IN_ALL * 1024 // (VALUES * kib))
    command = [program, "--url", cluster.url(), "--contexts", str(contexts), "--values",
               str(VALUES), "--value-kib", str(kib), "--rounds", "3",
               "--passes", str(PASSES)]  # fmt: skip
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return statistics.median(r["mib_per_s"] for r in json.loads(done.stdout)["rows"])


def benchmark(cluster, node, kib, count, command, data=None):
    """Starts redis-benchmark at a node. It calls the command so often, each time with one of so
    many fields that all nodes together have as many bytes as we read."""
    # As many replies under way in a connection as we have on one machine (redis_cluster.cc).
    pipeline = max(1, min(64, UNDER_WAY_KIB // kib))
    fields = MIB_IN_ALL * 1024 // kib // PRIMARIES
    more = ["-x"] if data else []
    process = subprocess.Popen(
        ["redis-benchmark", "-p", str(cluster.nodes[node].port), "-n", str(count), "-r",
         str(fields), "-c", str(CONNECTIONS), "-P", str(pipeline), "--csv", *more, *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    if data:
        process.stdin.write(data)
    process.stdin.close()
    return process


def key_at(cluster, node):
    """Returns the name of a hash that belongs to the node, always the same."""
    ours = min(k for k in cluster.keys(node) if k.startswith("quire:1:{"))
    return "benchmark:" + ours[ours.index("{") :]


def fill_theirs(cluster, kib):
    data = os.urandom(kib * 1024).replace(b"\0", b"x")  # which would end the value
    count = 8 * MIB_IN_ALL * 1024 // kib // PRIMARIES  # so that hardly a field is missing
    for node in cluster.primaries():
        command = ["hset", key_at(cluster, node), "__rand_int__"]
        process = benchmark(cluster, node, kib, count, command, data)
        process.stdout.read()
        if process.wait() != 0:
            raise RuntimeError("redis-benchmark cannot write")


def theirs(cluster, kib):
    """Returns MiB/s of redis-benchmark, one at each primary, all at the same time."""
    count = THEIR_MIB * 1024 // kib // PRIMARIES
    running = [
        benchmark(cluster, node, kib, count, ["hget", key_at(cluster, node), "__rand_int__"])
        for node in cluster.primaries()
    ]
    rates = []
    for process in running:
        last = process.stdout.read().decode().splitlines()[-1]
        if process.wait() != 0 or not last.startswith('"hget'):
            raise RuntimeError("redis-benchmark printed no rate: " + last)
        rates.append(float(last.split('","')[1]))
    return sum(rates) * kib / 1024


def main():
    program, rounds = sys.argv[1], int(sys.argv[2])
    cluster = RedisCluster("0")
    rows = []
    try:
        wait_for("the whole cluster", cluster.is_whole)
        for kib in VALUE_KIB:
            ours(program, cluster, kib)
            fill_theirs(cluster, kib)
            pairs = []
            for i in range(rounds):
                pairs.append((ours(program, cluster, kib), theirs(cluster, kib)))
                print(f"{kib} KiB, round {i + 1}: {pairs[-1]}", file=sys.stderr)
            both = [sorted(x) for x in zip(*pairs, strict=True)]
            ratios = sorted(a / b for a, b in pairs)
            rows.append(
                {
                    "value_kib": kib,
                    "mib_per_s": round(statistics.median(both[0]), 1),
                    "mib_per_s_range": [round(both[0][0], 1), round(both[0][-1], 1)],
                    "redis_benchmark_mib_per_s": round(statistics.median(both[1]), 1),
                    "redis_benchmark_range": [round(both[1][0], 1), round(both[1][-1], 1)],
                    "ratio": round(statistics.median(ratios), 3),
                    "ratio_range": [round(ratios[0], 3), round(ratios[-1], 3)],
                }
            )
            cluster.empty()
    finally:
        cluster.end()
    settings = {"values": VALUES, "mib": MIB_IN_ALL, "connections": CONNECTIONS, "rounds": rounds}
    json.dump({"settings": settings, "rows": rows}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
