"""Drives a running service and prints {"settings": {}, "rows": []}. Started by bench/load.sh; Python's standard library only."""
import argparse
import asyncio
import json
import random
import sys
import time


def percentile(values, share):
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


class Outcome:
    """What became of one query. Times in milliseconds."""

    def __init__(self):
        self.status = 0
        self.error = ""
        self.retry_after = False
        self.first = None
        self.gaps = []
        self.finished = False


class Client:
    def __init__(self, port, documents, rng):
        self.port, self.documents, self.rng = port, documents, rng

    def body(self):
        # So warm that answers seldom end before max_tokens.
        ids = self.rng.sample(self.documents, 2)
        return json.dumps({"query": "What does it say?", "document_ids": ids, "stream": True, "temperature": 2.0, "seed": self.rng.randrange(1 << 30),
                           "max_tokens": self.rng.randrange(8, 49), "explain": "none", "timeout_ms": 600000}).encode()

    async def query(self):
        """One streamed query on a connection of its own."""
        out, writer = Outcome(), None
        begun = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            body = self.body()
            writer.write(b"POST /v1/query HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 300)).decode()
            out.status = int(head.split(" ", 2)[1])
            out.retry_after = "retry-after:" in head.lower()
            if out.status != 200:
                return out
            last = None
            while True:
                line = await asyncio.wait_for(reader.readline(), 300)
                if not line:
                    out.error = out.error or "the stream broke off"
                    return out
                now = time.monotonic()
                if line.startswith(b"event: delta"):
                    if last is None:
                        out.first = (now - begun) * 1000
                    else:
                        out.gaps.append((now - last) * 1000)
                    last = now
                elif line.startswith(b"event: error"):
                    out.error = (await reader.readline()).decode(errors="replace")[:300]
                    return out
                elif line.startswith(b"event: done"):
                    out.finished = True
                    return out
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as e:
            out.error = repr(e)
            return out
        finally:
            if writer:
                writer.close()


def summary(name, outcomes, seconds, **more):
    done = [o for o in outcomes if o.finished]
    refused = [o for o in outcomes if o.status == 503]
    failed = [o for o in outcomes if not o.finished and o.status != 503]
    first = [o.first for o in done if o.first is not None]
    gaps = [g for o in done for g in o.gaps]
    for o in failed[:3]:
        print(f"{name}: status {o.status} {o.error}", file=sys.stderr)
    return {"name": name, **more, "seconds": round(seconds, 1), "answered": len(done), "answers_per_second": round(len(done) / seconds, 2), "tokens_per_second": round((len(gaps) + len(first)) / seconds, 1),
            "errors": len(failed), "refused_503": len(refused), "refused_without_retry_after": sum(not o.retry_after for o in refused),
            "ttft_p50_ms": percentile(first, 0.5), "ttft_p99_ms": percentile(first, 0.99), "inter_token_p50_ms": percentile(gaps, 0.5), "inter_token_p99_ms": percentile(gaps, 0.99)}


async def closed_loop(client, streams, seconds):
    """`streams` clients, each asking again as soon as it was answered. Requests begun in time are waited for."""
    outcomes, end = [], time.monotonic() + seconds

    async def one():
        while time.monotonic() < end:
            outcomes.append(await client.query())

    await asyncio.gather(*(one() for _ in range(streams)))
    return outcomes


async def open_loop(client, rate, seconds):
    """Poisson arrivals at `rate` a second, whatever the service does. All are waited for."""
    tasks, at, end = [], time.monotonic(), time.monotonic() + seconds
    while at < end:
        await asyncio.sleep(max(0, at - time.monotonic()))
        tasks.append(asyncio.create_task(client.query()))
        at += client.rng.expovariate(rate)
    return await asyncio.gather(*tasks)


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


async def with_memory(pid, work):
    """The result of `work` and the resident memory each second meanwhile."""
    task, samples = asyncio.create_task(work), []
    while not task.done():
        samples.append(resident_bytes(pid))
        await asyncio.wait([task], timeout=1)
    return task.result(), samples


async def misbehave(port, kind, stop, counts):
    """A client that connects, stalls, sends a byte at a time, or vanishes, over and over."""
    request = b"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{\"query\":\""
    while not stop.is_set():
        writer = None
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 60)
            counts[kind] = counts.get(kind, 0) + 1
            if kind == "stall":
                writer.write(request[:40])
            elif kind == "trickle":
                for byte in request * 20:
                    if stop.is_set():
                        break
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(1)
            elif kind == "vanish":
                writer.write(request)
                await asyncio.sleep(0.2)
                writer.transport.abort()
                await asyncio.sleep(2)
                continue
            # Until the service closes it, or the measurement is over.
            waits = [asyncio.create_task(reader.read(1)), asyncio.create_task(stop.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        except (OSError, asyncio.TimeoutError):
            await asyncio.sleep(0.5)
        finally:
            if writer:
                writer.close()


async def hostile(client, bad, seconds):
    stop, counts = asyncio.Event(), {}
    kinds = ["connect", "stall", "trickle", "vanish"]
    others = [asyncio.create_task(misbehave(client.port, kinds[i % len(kinds)], stop, counts)) for i in range(bad)]
    await asyncio.sleep(1)
    outcomes = await closed_loop(client, 8, seconds)
    stop.set()
    await asyncio.gather(*others, return_exceptions=True)
    return outcomes, counts


async def post_documents(port, corpus):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/documents?wait=true HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n" % len(corpus) + corpus)
    reply = await reader.read()
    writer.close()
    assert reply.startswith(b"HTTP/1.1 200"), reply[:500]


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--misbehaving", type=int, default=2000)
    flags = parser.parse_args()
    short, long = (8, 20) if flags.quick else (60, 600)
    lines = open(flags.corpus, "rb").read().splitlines()[:16]
    await post_documents(flags.port, b"\n".join(lines))
    client = Client(flags.port, [json.loads(line)["id"] for line in lines], random.Random(1))
    await closed_loop(client, 4, 2)  # warm
    rows = []

    begun = time.monotonic()
    outcomes = await closed_loop(client, 16, short)
    rows.append(summary("capacity", outcomes, time.monotonic() - begun, streams=16))
    rate = max(0.5, rows[0]["answers_per_second"])

    begun = time.monotonic()
    outcomes = await open_loop(client, rate / 2, short)
    rows.append(summary("half_load", outcomes, time.monotonic() - begun, arrivals_per_second=round(rate / 2, 2)))

    begun = time.monotonic()
    outcomes, samples = await with_memory(flags.pid, closed_loop(client, flags.streams, long))
    settled = samples[len(samples) // 5:]
    # In a closed loop everybody is served as often as the others: who waits far longer than the middle one starves.
    slow = 20 * (percentile([o.first for o in outcomes if o.first], 0.5) or 1)
    rows.append(summary("streams", outcomes, time.monotonic() - begun, streams=flags.streams, starved=sum(1 for o in outcomes if o.first and o.first > slow),
                        rss_begin_bytes=settled[0], rss_end_bytes=settled[-1], rss_growth=round(settled[-1] / settled[0] - 1, 4), rss_most_bytes=max(samples)))

    begun = time.monotonic()
    most = 4 * max(row["answers_per_second"] for row in rows)
    outcomes = await open_loop(client, most, short * 2)
    row = summary("overload", outcomes, time.monotonic() - begun, arrivals_per_second=round(most, 2))
    half = rows[1]["inter_token_p99_ms"]
    row["inter_token_p99_over_half_load"] = round(row["inter_token_p99_ms"] / half, 2) if half and row["inter_token_p99_ms"] else None
    rows.append(row)

    begun = time.monotonic()
    outcomes = await closed_loop(client, 8, short)
    alone = summary("eight_alone", outcomes, time.monotonic() - begun, streams=8)
    rows.append(alone)
    begun = time.monotonic()
    outcomes, counts = await hostile(client, flags.misbehaving, short * 2)
    row = summary("eight_beside_misbehaving", outcomes, time.monotonic() - begun, streams=8, misbehaving=flags.misbehaving, connections=counts)
    row["answers_per_second_over_alone"] = round(row["answers_per_second"] / alone["answers_per_second"], 2) if alone["answers_per_second"] else None
    rows.append(row)
    rows.append({"name": "memory", "rss_end_bytes": resident_bytes(flags.pid)})
    print(json.dumps({"settings": {"quick": flags.quick, "documents": len(lines), "documents_per_query": 2, "max_tokens": "8 to 48", "generator": "asyncio, same machine"}, "rows": rows}))


asyncio.run(main())
