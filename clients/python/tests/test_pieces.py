"""What needs no service: retrying, waiting, event streams, decoding,
and how explanations are shown."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire_client import (
    ConfigurationError,
    Explanation,
    IngestError,
    InvalidReplyError,
    QuireError,
    RequestTimeoutError,
    RetryPolicy,
    ServerError,
    ServiceUnavailableError,
    StreamInterruptedError,
    affinity,
)
from quire_client._exchange import (
    Attempt,
    Call,
    Deadline,
    FailedBeforeSendingError,
    Flow,
    Now,
    Pause,
    Reply,
    exchange,
    json_call,
)
from quire_client._files import replacing
from quire_client._flows import (
    FoundFile,
    JobEvents,
    add_document,
    add_documents,
    add_files,
    document_of,
    find_files,
    job_of_event,
    put_document,
    text_of,
    wait_for_documents,
    wait_for_job,
    wait_until_ready,
)
from quire_client._ids import document_id_of_path, taken_id
from quire_client._operations import (
    backup,
    export_pack,
    flush,
    import_pack,
    list_documents,
    verify,
)
from quire_client._settings import Settings
from quire_client._sse import EventDecoder, ServerEvent
from quire_client.errors import ConnectionFailedError, retry_after_seconds
from quire_client.models import CacheUse, Document

POLICY = RetryPolicy(max_retries=2, initial_delay=1.0, max_delay=4.0, max_retry_after=10.0)


def reply(status: int, **headers: str) -> Reply:
    return Reply(status, {k.replace("_", "-"): v for k, v in headers.items()}, b"{}")


def answer(flow: Flow[Any], *outcomes: Reply | QuireError) -> tuple[list[float], Any]:
    """Runs a flow on given outcomes: the pauses it made, and what it returned or raised."""
    left, pauses = list(outcomes), []
    try:
        step = next(flow)
        while True:
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                step = flow.send(None)
                continue
            assert isinstance(step, Attempt)
            outcome = left.pop(0)
            step = flow.throw(outcome) if isinstance(outcome, QuireError) else flow.send(outcome)
    except StopIteration as end:
        assert not left, "not every outcome was asked for"
        return pauses, end.value
    except QuireError as error:
        assert not left, "not every outcome was asked for"
        return pauses, error


def call(method: str = "POST", **options: Any) -> Flow[int]:
    return exchange(json_call(method, "/x", lambda r: r.status, {}, **options), POLICY)


def test_the_service_says_how_long_to_wait() -> None:
    assert answer(
        call(),
        reply(503, retry_after="7"),
        reply(429, retry_after="9", retry_after_ms="1500"),
        reply(200),
    ) == ([7.0, 1.5], 200)


def test_without_a_time_the_waits_grow_to_a_bound() -> None:
    policy = RetryPolicy(max_retries=5, initial_delay=1.0, max_delay=4.0)
    call = exchange(json_call("GET", "/x", lambda r: r.status), policy)
    pauses, result = answer(call, *[reply(503)] * 5, reply(200))
    assert result == 200
    for pause, most in zip(pauses, [1.0, 2.0, 4.0, 4.0, 4.0], strict=True):
        assert most / 2 <= pause <= most


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (400, {}),
        (404, {}),
        (409, {"retry_after": "1"}),
        (500, {}),
        (504, {}),
        (503, {"retry_after": "11"}),
    ],
)
def test_other_replies_are_final(status: int, headers: Any) -> None:
    pauses, error = answer(call(), reply(status, **headers))
    assert pauses == []
    assert error.status == status


def test_a_request_that_still_runs_is_asked_after() -> None:
    running = Reply(409, {"retry-after-ms": "5"}, b'{"error": {"code": "idempotency_in_progress"}}')
    assert answer(call(), running, reply(200)) == ([0.005], 200)


def test_only_what_cannot_take_effect_twice_is_sent_again() -> None:
    lost, unsent = ConnectionFailedError("lost"), FailedBeforeSendingError("unsent")
    for method, options, again in (
        ("GET", {}, True),
        ("PUT", {}, True),
        ("DELETE", {}, True),
        ("POST", {}, True),
        ("POST", {"repeatable": False}, False),
        ("PUT", {"repeatable": False}, False),
    ):
        pauses, result = answer(call(method, **options), lost, *([reply(200)] if again else []))
        assert (len(pauses), result) == ((1, 200) if again else (0, lost))
        assert answer(call(method, **options), unsent, reply(200))[1] == 200
        assert answer(call(method, **options), reply(503), reply(200))[1] == 200
    assert answer(call("POST", repeatable=False), reply(502))[1].status == 502


def test_a_post_has_a_key_unless_it_only_reads() -> None:
    def keys(**options: Any) -> str | None:
        return json_call("POST", "/x", lambda r: r, {}, **options).headers.get("Idempotency-Key")

    assert keys() != keys() is not None
    assert keys(idempotency_key="mine") == "mine"
    assert keys(repeatable=True) is None
    assert keys(repeatable=False) is None


def test_what_cannot_be_written_is_refused_before_anything_is_sent() -> None:
    for value in (object(), float("nan"), {1, 2}):
        with pytest.raises(ConfigurationError, match="cannot be written as JSON"):
            json_call("POST", "/x", lambda r: r, {"metadata": value})


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after-ms": "nan", "retry-after": "2"}, 2.0),
        ({"retry-after": "-1"}, None),
    ],
)
def test_times_to_wait_are_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers) == seconds


def timed(flow: Flow[Any], content: bytes) -> list[float]:
    """Runs a flow whose every request is answered so, on a clock that only pauses move. Returns the
    pauses; raises what it raises."""
    clock, pauses = 100.0, []
    outcome: Any = None
    step = next(flow)
    while True:
        if isinstance(step, Now):
            outcome = clock
        elif isinstance(step, Pause):
            pauses.append(step.seconds)
            clock += step.seconds
            outcome = None
        else:
            outcome = Reply(503 if step.call.path == "/readyz" else 200, {}, content)
        step = flow.send(outcome)
        assert clock <= 110.0, "the deadline is past"


def test_waiting_for_a_job_ends_with_its_time() -> None:
    content = b'{"id": "job_1", "status": "running", "progress": {"ratio": 0.25}}'
    with pytest.raises(
        RequestTimeoutError, match=r"job job_1 was at 25% and not finished within 10 s"
    ):
        timed(wait_for_job("job_1", POLICY, Deadline(10.0)), content)


def test_waiting_for_the_service_ends_with_its_time() -> None:
    with pytest.raises(RequestTimeoutError, match=r"the service was not ready \(.*\) within 10 s"):
        timed(wait_until_ready(10.0), b"{}")


class Clock:
    """Runs a flow on a clock that pauses move, and each request by `each` seconds; the replies are
    given, the last one for all that follow."""

    def __init__(self, each: float, *replies: Reply) -> None:
        self.now, self._each, self._replies = 100.0, each, list(replies)
        self.pauses: list[float] = []
        self.limits: list[float | None] = []

    def run(self, flow: Flow[Any]) -> Any:
        outcome: Any = None
        try:
            step = next(flow)
            while True:
                if isinstance(step, Now):
                    outcome = self.now
                elif isinstance(step, Pause):
                    self.pauses.append(step.seconds)
                    self.now, outcome = self.now + step.seconds, None
                else:
                    self.limits.append(step.limit)
                    self.now += self._each
                    outcome = self._replies[0]
                    del self._replies[: len(self._replies) > 1]
                step = flow.send(outcome)
        except StopIteration as end:
            return end.value


INGESTED = Reply(200, {}, b'{"job_id": "job_1", "status": "succeeded", "results": []}')


def many(deadline: Deadline, count: int) -> Flow[Any]:
    return add_documents(
        ["text"] * count,
        {},
        batch_size=1,
        batch_bytes=100,
        wait=True,
        deadline=deadline,
        progress=False,
        policy=POLICY,
    )


@pytest.mark.parametrize(
    "flow",
    [
        add_document({"text": "x"}, {}, True, 2.0, None, POLICY),
        put_document("x", {"text": "x"}, None, False, True, 2.0, POLICY),
        many(Deadline(2.0), 1),
        wait_for_documents(["x"], POLICY, 2.0),
        wait_for_job("job_1", POLICY, Deadline(2.0)),
    ],
)
def test_a_refusal_is_not_waited_for_past_the_callers_time(flow: Flow[Any]) -> None:
    clock = Clock(0.0, reply(503, retry_after="3"))
    with pytest.raises(
        RequestTimeoutError, match=r"was not answered \(.*503.*\) within 2 s"
    ) as seen:
        clock.run(flow)
    assert isinstance(seen.value.__cause__, ServiceUnavailableError)
    assert (clock.pauses, clock.limits) == ([2.0], [2.0]), "the service was not asked too soon"


def test_no_request_outlasts_the_callers_time_by_more_than_a_last_look() -> None:
    clock = Clock(0.75, reply(503, retry_after="0"), reply(503, retry_after="0"), INGESTED)
    clock.run(add_document({"text": "x"}, {}, True, 2.0, None, POLICY))
    assert clock.limits == [2.0, 1.25, 0.5]
    settings = Settings.make("http://x", None, None, 60.0, 5.0, None)
    attempt = Attempt(json_call("GET", "/x", lambda r: r.status, timeout=30.0), limit=2.0)
    with httpx.Client() as http:
        given = settings.request(http, attempt).extensions["timeout"]
        assert (given["read"], given["connect"]) == (2.0, 2.0)
        unlimited = settings.request(http, replace(attempt, limit=None)).extensions["timeout"]
        assert (unlimited["read"], unlimited["connect"]) == (60.0, 5.0)


def test_no_batch_is_begun_past_the_callers_time() -> None:
    clock = Clock(0.75, INGESTED)
    with pytest.raises(RequestTimeoutError, match="3 documents were added, and not all within 2 s"):
        clock.run(many(Deadline(2.0), 10))
    assert len(clock.limits) == 3


def test_texts_and_other_files_share_the_callers_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.pdf").write_bytes(b"%PDF")
    files = find_files(tmp_path, None)
    clock = Clock(1.5, INGESTED)
    clock.run(add_files(files, {}, {}, wait=True, timeout=2.0, progress=False, policy=POLICY))
    assert clock.limits == [2.0, 0.5]


def sent_by(flow: Flow[Any], *replies: Reply) -> tuple[list[Attempt], Any]:
    """What a flow sends where these are the replies, the last one for all that follow, and what it
    returns."""
    sent: list[Attempt] = []
    outcome: Any = None
    try:
        step = next(flow)
        while True:
            outcome = None
            if isinstance(step, Attempt):
                sent.append(step)
                outcome = replies[min(len(sent), len(replies)) - 1]
            elif isinstance(step, Now):
                outcome = 100.0
            step = flow.send(outcome)
    except StopIteration as end:
        return sent, end.value


def documents_in(attempt: Attempt) -> list[Any]:
    assert isinstance(attempt.call.content, bytes)
    documents: list[Any] = json.loads(attempt.call.content)["documents"]
    return documents


def adding(*documents: Any, batch_size: int = 64) -> Flow[Any]:
    return add_documents(
        documents,
        {},
        batch_size=batch_size,
        batch_bytes=1 << 20,
        wait=True,
        deadline=Deadline(None),
        progress=False,
        policy=POLICY,
    )


def test_an_address_stands_for_the_text_and_has_time_to_be_fetched() -> None:
    address = {"id": "a", "url": "https://example.org/a.pdf"}
    (attempt,), _ = sent_by(adding(address, {"text": "x"}), INGESTED)
    assert documents_in(attempt) == [address, {"text": "x"}]
    (without,), _ = sent_by(adding({"text": "x"}), INGESTED)
    assert attempt.call.timeout == (without.call.timeout or 0) + 60
    with pytest.raises(ConfigurationError, match=r"documents\[0\]: url stands for the text"):
        sent_by(adding({**address, "text": "x"}), INGESTED)


def test_a_document_whose_job_was_cancelled_is_not_cached() -> None:
    items = [
        {"index": 0, "id": "a", "result": "created", "status": "ready"},
        {"index": 1, "id": "b", "result": "cancelled", "status": "cancelled"},
    ]
    reply = json.dumps({"job_id": "job_1", "status": "cancelled", "results": items}).encode()
    _, report = sent_by(adding({"text": "x"}, {"text": "y"}), Reply(200, {}, reply))
    assert (report.ids, [r.id for r in report.failed]) == (["a"], ["b"])
    with pytest.raises(
        IngestError, match="1 of 2 documents could not be cached: b: it was cancelled"
    ):
        report.raise_for_failures()


def test_a_batch_that_is_too_large_is_sent_in_parts() -> None:
    def posted(name: str) -> Reply:
        item = {"index": 0, "id": name, "result": "created", "status": "ready"}
        body = {"job_id": f"job_{name}", "status": "succeeded", "results": [item]}
        return Reply(200, {}, json.dumps(body).encode())

    large = Reply(413, {}, b'{"error": {"code": "payload_too_large"}, "detail": "too large"}')
    documents = [{"id": name, "text": name} for name in "abcd"]
    replies = [large, posted("a"), large, large, posted("c"), posted("d")]
    sent, report = sent_by(adding(*documents, batch_size=3), *replies)
    names = ["".join(d["id"] for d in documents_in(attempt)) for attempt in sent]
    assert names == ["abc", "a", "bc", "b", "c", "d"]
    assert [(r.index, r.id) for r in report.results] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert (report.ids, [r.id for r in report.failed]) == (["a", "c", "d"], ["b"])
    with pytest.raises(IngestError, match="b: too large"):
        report.raise_for_failures()


def test_what_goes_over_the_whole_store_has_time() -> None:
    settings = Settings.make("http://x", None, None, 60.0, 5.0, None)
    pack = import_pack(Path(__file__), "merge")
    calls: list[Call[Any]] = [flush(), backup(), verify(), pack, export_pack(None)]
    with httpx.Client() as http:
        for one in calls:
            given = settings.request(http, Attempt(one)).extensions["timeout"]
            assert (given["read"], given["connect"]) == (3600.0, 5.0), one.path


async def test_a_pack_is_read_while_it_is_sent(tmp_path: Path) -> None:
    pack = tmp_path / "all.pack"
    pack.write_bytes(bytes(range(256)) * 10_000)
    settings = Settings.make("http://x", None, None, 60.0, 5.0, None)
    attempt = Attempt(import_pack(pack, "merge"))
    with httpx.Client() as http:
        for _ in range(2):  # as often as it is tried
            request = settings.request(http, attempt)
            assert request.headers["Content-Length"] == str(pack.stat().st_size)
            assert "Transfer-Encoding" not in request.headers
            assert isinstance(request.stream, httpx.SyncByteStream)
            pieces = list(request.stream)
            assert (len(pieces), b"".join(pieces)) == (3, pack.read_bytes())
    async with httpx.AsyncClient() as asynchronous:
        request = settings.request(asynchronous, attempt)
        assert isinstance(request.stream, httpx.AsyncByteStream)
        assert b"".join([piece async for piece in request.stream]) == pack.read_bytes()


def test_filters_of_lists_keep_their_meaning_or_are_refused() -> None:
    def sent(value: Any) -> Mapping[str, str]:
        params = list_documents(None, {"k": value}, 20, None, None, False).params
        return {name: text for name, text in params.items() if name != "limit"}

    assert sent("a,b") == sent(["a,b"]) == {"metadata.k": "a,b"}
    assert sent(["a", 2]) == sent({"in": ("a", 2)}) == {"metadata.k[in]": "a,2"}
    assert sent({"gte": "a,b", "not": True}) == {
        "metadata.k[gte]": "a,b",
        "metadata.k[not]": "true",
    }
    refused: list[Any] = [["a,b", "c"], {"in": ["a,b"]}, {"not": "a,b"}, {"gte": [1, 2]}]
    for value in refused:
        with pytest.raises(ConfigurationError, match=r"metadata\['k'\]"):
            sent(value)


def test_files_are_read_when_their_batch_is_sent(tmp_path: Path) -> None:
    for number in range(70):
        (tmp_path / f"{number:02}.txt").write_text("before")
    flow = add_files(
        find_files(tmp_path, None), {}, {}, wait=True, timeout=None, progress=False, policy=POLICY
    )
    first = next(flow)
    (tmp_path / "69.txt").write_text("after")
    assert isinstance(first, Attempt)
    second = flow.send(INGESTED)
    assert isinstance(second, Attempt)
    assert (len(documents_in(first)), documents_in(second)[-1]["text"]) == (64, "after")
    flow.close()
    files = [*find_files(tmp_path, None), FoundFile(tmp_path / "none", "none")]
    with pytest.raises(FileNotFoundError):
        next(add_files(files, {}, {}, wait=True, timeout=None, progress=False, policy=POLICY))


# ---- event streams

STREAM = (
    b': ping\n\nevent: a\ndata: {"t": "x\xe2\x80\xa8y"}\n\ndata: one\r\ndata:two\r\n\r\n'
    b"event: b\rdata: 3\r\rid: 7\n\nevent: cut\ndata: off"
)
EVENTS = [
    ServerEvent("a", '{"t": "x\u2028y"}'),
    ServerEvent("message", "one\ntwo"),
    ServerEvent("b", "3"),
]


def test_a_file_that_is_written_can_be_read_by_its_user_alone(tmp_path: Path) -> None:
    def mode_of_new(path: Path) -> int:
        with replacing(path) as out:
            out.write(b"texts")
            assert (tmp_path / "a.pack.new").stat().st_mode & 0o077 == path_mode & 0o077
        assert path.read_bytes() == b"texts"
        return path.stat().st_mode & 0o777

    pack, left = tmp_path / "a.pack", tmp_path / "a.pack.new"
    before = os.umask(0)
    try:
        left.write_bytes(b"of a program that was killed")
        path_mode = 0o600
        assert mode_of_new(pack) == 0o600
        path_mode = 0o640
        pack.chmod(path_mode)
        assert mode_of_new(pack) == path_mode, "what is there says who may read it"
    finally:
        os.umask(before)


def test_events_come_out_however_the_bytes_are_cut() -> None:
    for size in range(1, len(STREAM) + 1):
        decoder = EventDecoder()
        found = [
            e for at in range(0, len(STREAM), size) for e in decoder.feed(STREAM[at : at + size])
        ]
        assert found == EVENTS, f"pieces of {size} bytes"
    for cut in range(len(STREAM)):
        decoder = EventDecoder()
        assert [*decoder.feed(STREAM[:cut]), *decoder.feed(STREAM[cut:])] == EVENTS, f"cut at {cut}"


def test_data_that_is_no_json_is_an_error() -> None:
    assert EVENTS[0].json() == {"t": "x\u2028y"}
    with pytest.raises(InvalidReplyError, match="event 'b'"):
        ServerEvent("b", "{").json()


@pytest.mark.parametrize("data", ['"gone"', "[1]", "null", '{"status": "x"}', '{"status": [1]}'])
def test_an_error_event_that_is_none_is_an_invalid_reply(data: str) -> None:
    with pytest.raises(InvalidReplyError, match="the event 'error' is no problem"):
        job_of_event(ServerEvent("error", data))


def test_an_error_event_keeps_what_it_says() -> None:
    data = '{"detail": "d", "document_ids": 7}'
    with pytest.raises(ServerError, match="d") as caught:
        job_of_event(ServerEvent("error", data))
    assert (caught.value.status, caught.value.document_ids) == (500, [])


# ---- decoding


def test_members_that_do_not_fit_are_named() -> None:
    for body, message in (
        ({}, "lacks the member 'id'"),
        ({"id": "x", "tokens": "many"}, "reply.tokens is str"),
        ({"id": "x", "pinned": 1}, "reply.pinned is int"),
        ({"id": "x", "cache": []}, "reply.cache is list"),
        ({"id": "x", "metadata": "text"}, "reply.metadata is str"),
    ):
        with pytest.raises(InvalidReplyError, match=message):
            Document.from_json(body)


def test_maps_keep_what_fits_and_null_takes_the_default() -> None:
    use = CacheUse.from_json(
        {"tiers": {"dram": {"blocks": 2}, "comment": "new"}, "misses": None, "hit_ratio": 1}
    )
    assert list(use.tiers) == ["dram"]
    assert use.misses == []
    assert use.hit_ratio == 1.0


# ---- files


def test_a_service_that_stops_breaks_the_events_of_a_job_off() -> None:
    events = JobEvents("job_1")
    running = b'event: progress\ndata: {"id": "job_1", "status": "running"}\n\n'
    assert [job.status for job in events.feed(running)] == ["running"]
    stopped = {"status": 503, "detail": "it shuts down", "error": {"code": "draining"}}
    with pytest.raises(StreamInterruptedError, match=r"was running: it shuts down .*jobs.wait"):
        list(events.feed(b"event: error\ndata: " + json.dumps(stopped).encode() + b"\n\n"))


def test_ids_of_files_are_those_of_the_shared_table(tmp_path: Path) -> None:
    table = Path(__file__).parents[3] / "tests" / "data" / "document_ids.json"
    ids = set()
    for row in json.loads(table.read_text(encoding="utf-8")):
        path = row["path"] if "path" in row else os.fsdecode(bytes.fromhex(row["path_hex"]))
        assert document_id_of_path(path) == row["id"]
        assert len(row["id"].encode()) <= 200
        ids.add(row["id"])
    assert len(ids) > 30
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbfHello")
    file = find_files([tmp_path / "bom.txt"], tmp_path)[0]
    assert document_of(file, text_of(file) or "", {}) == {
        "id": "bom.txt",
        "title": "bom",
        "text": "Hello",
        "metadata": {"source": "bom.txt"},
    }


def test_affinities_are_those_of_the_shared_table() -> None:
    table = Path(__file__).parents[3] / "tests" / "data" / "affinity.json"
    rows = json.loads(table.read_text(encoding="utf-8"))
    assert len(rows) >= 20
    for row in rows:
        assert affinity(row["document_ids"], row["namespace"]) == row["affinity"]
    assert affinity(["b", "a"]) == affinity(["a", "b"], "default") != affinity(["a"])


def test_two_files_with_one_id_are_refused(
    tmp_path: Path,
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "readme.md").write_text("Hello")
    files = [tmp_path / "a" / "readme.md", tmp_path / "b" / "readme.md"]
    with pytest.raises(ConfigurationError, match=r"readme\.md and .* both have the id readme\.md"):
        find_files(files, None)
    assert [document_id_of_path(f.name) for f in find_files(files, tmp_path)] == [
        "a:readme.md",
        "b:readme.md",
    ]


def test_ids_of_other_systems_become_ids_that_are_taken() -> None:
    for taken in ("handbook-7", "ünï:größe-1.md~ab8df9b0", "日本語", "a" * 200):
        assert taken_id(taken) == taken
    others = ["docs/a.md#3", "docs/a.md 3", "my doc", "_x", "-x", "#", "a" * 201, "é" * 101, "x\n"]
    ids = [taken_id(one) for one in others]
    assert ids[0].startswith("docs-a.md-3~")
    assert ids[3].startswith("x~")
    assert len(set(ids)) == len(others)
    for one in ids:
        assert taken_id(one) == one
        assert len(one.encode()) <= 200


def test_the_service_reads_what_is_no_text_in_utf8(tmp_path: Path) -> None:
    (tmp_path / "x.pdf").write_text("looks like text")
    (tmp_path / "latin.txt").write_bytes("déjà".encode("latin-1"))
    (tmp_path / "plain.txt").write_bytes(b"one\r\ntwo")
    texts = [text_of(FoundFile(tmp_path / n, n)) for n in ("x.pdf", "latin.txt", "plain.txt")]
    assert texts == [None, None, "one\ntwo"]


# ---- explanations


def explanation(**changes: Any) -> Explanation:
    def block(index: int, action: str, **more: Any) -> Mapping[str, Any]:
        return {
            "index": index,
            "document_id": "handbook<7>",
            "action": action,
            "block_id": f"b-{index}",
            "tokens": [0, 64],
            **more,
        }

    return Explanation.from_json(
        {
            "id": "qry_<1>",
            "policy": {"strategy": "samkv", "fallback": "because <b>", "reason": None},
            "blocks": [
                block(0, "reused", tier="dram", text='say "hi" & <script>'),
                block(1, "recomputed", recomputed_tokens=20),
                block(2, "dropped"),
                block(3, "sublimated"),
                {"index": 4, "action": "computed"},
            ],
            "spans": [
                {"name": "load", "start_ms": 5.0, "ms": 5.0},
                {"name": "look<up>", "start_ms": 0, "ms": 5.0},
            ],
            **changes,
        }
    )


def test_an_explanation_is_shown_as_text() -> None:
    lines = repr(explanation()).splitlines()
    assert lines[0] == (
        "<Explanation qry_<1>: strategy samkv, 5 blocks: 1 reused (20%), 1 recomputed (20%), "
        "1 computed (20%), 1 dropped (20%), 1 sublimated (20%)"
    )
    assert lines[1].strip() == "because <b>"
    assert lines[2].split() == ["handbook<7>", "█▓·?"]
    assert lines[3].split() == ["(inline)", "▒"]
    assert lines[5] == "  look<up>  " + "━" * 15 + " " * 15 + "  5.00 ms"
    assert lines[6] == "  load      " + " " * 15 + "━" * 15 + "  5.00 ms>"


def test_html_has_a_cell_for_each_block_and_escapes_everything() -> None:
    shown = explanation()._repr_html_()
    assert shown.count("<span title=") == 5
    assert "<script" not in shown
    assert "handbook&lt;7&gt;" in shown
    assert "say &quot;hi&quot; &amp; &lt;script&gt;" in shown
    assert "because &lt;b&gt;" in shown
    assert "look&lt;up&gt;" in shown
    assert "left:50.00%;width:50.00%" in shown


def test_an_empty_explanation_can_be_shown() -> None:
    empty = explanation(blocks=[], spans=[])
    assert repr(empty).startswith("<Explanation qry_<1>: strategy samkv, 0 blocks")
    assert empty._repr_html_().count("<table") == 1
