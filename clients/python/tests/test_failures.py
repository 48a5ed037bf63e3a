"""What goes wrong between a client and a service: each failure gives an error a user understands,
and nothing takes effect twice.

The service is always a real one. Where it cannot be made to misbehave, a proxy in front of it does.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import QUICK
from service import Exchange, Service, key_entry, proxy, running

from quire_client import (
    AsyncQuireClient,
    AuthenticationError,
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    DeltaEvent,
    DocumentNotFoundError,
    InvalidReplyError,
    NamespaceDeniedError,
    PermissionDeniedError,
    PlanEvent,
    QuireClient,
    RateLimitError,
    RequestTimeoutError,
    RetryPolicy,
    ServerError,
    ServiceUnavailableError,
    StreamInterruptedError,
)

TEXT = (
    "The country around Gearkbre is Paionia. Traders visit Gearkbre for tea. "
    "Its mayor is Pataus Jiley."
)
ONCE = RetryPolicy(max_retries=0)


def problem(status: int, code: str) -> bytes:
    return json.dumps(
        {
            "title": code,
            "status": status,
            "detail": f"made {code}",
            "error": {"code": code, "message": code, "param": None},
        }
    ).encode()


# ---- the service goes away


@pytest.fixture
def mortal() -> Iterator[Service]:
    """A service that a test may kill."""
    with running() as one:
        yield one


def until_first_delta(exchange: Exchange, killed: threading.Event) -> None:
    """Passes the stream on up to the first piece of the answer,
    and breaks it off when the service is dead."""
    reply = exchange.ask()
    end = reply.index(b"\n\n", reply.index(b"event: delta")) + 2
    exchange.send(reply[:end])
    killed.wait()


def test_a_service_killed_in_mid_stream_leaves_what_had_arrived(mortal: Service) -> None:
    killed = threading.Event()
    with (
        proxy(mortal, lambda exchange, _: until_first_delta(exchange, killed)) as between,
        QuireClient(between.url, retry=QUICK) as client,
    ):
        stream = client.stream("Who?", max_tokens=200, temperature=1, seed=3)
        assert isinstance(next(stream), PlanEvent)
        delta = next(stream)
        assert isinstance(delta, DeltaEvent)
        mortal.kill()
        killed.set()
        with pytest.raises(StreamInterruptedError, match="not asked again") as caught:
            next(stream)
        assert caught.value.text == delta.text
        assert stream.result is None
        assert len(between.seen) == 1
    with (
        QuireClient(mortal.url, retry=QUICK) as client,
        pytest.raises(ConnectionFailedError, match="is `quire serve` running there"),
    ):
        client.query("Who?")


async def test_the_asynchronous_stream_does_the_same(mortal: Service) -> None:
    killed = threading.Event()
    with proxy(mortal, lambda exchange, _: until_first_delta(exchange, killed)) as between:
        async with AsyncQuireClient(between.url, retry=QUICK) as client:
            stream = await client.stream("Who?", max_tokens=200, temperature=1, seed=3)
            events = [await stream.__anext__(), await stream.__anext__()]
            mortal.kill()
            killed.set()
            with pytest.raises(StreamInterruptedError, match="not asked again") as caught:
                await stream.__anext__()
            assert isinstance(events[1], DeltaEvent)
            assert caught.value.text == events[1].text
            assert len(between.seen) == 1
    async with AsyncQuireClient(mortal.url, retry=QUICK) as client:
        with pytest.raises(ConnectionFailedError, match="is `quire serve` running there"):
            await client.query("Who?")


def test_a_stream_that_ends_without_done_is_an_error(service: Service) -> None:
    def without_end(reply: bytes) -> bytes:
        return reply[: reply.index(b"event: done")].replace(b"Transfer-Encoding: chunked\r\n", b"")

    def behave(exchange: Exchange, _: int) -> None:
        exchange.send(unchunked(exchange.ask(), without_end))

    with proxy(service, behave) as between, QuireClient(between.url, retry=QUICK) as client:
        with pytest.raises(
            StreamInterruptedError, match="closed the connection before the answer was complete"
        ):
            client.stream("Who?", max_tokens=4).until_done()
        assert len(between.seen) == 1


def unchunked(reply: bytes, change: Any) -> bytes:
    """The reply with a body that ends with the connection, after `change`."""
    head, _, body = reply.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        whole = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            whole += body[: int(size, 16)]
            body = body[int(size, 16) + 2 :]
        body = whole
    lines = [
        line
        for line in head.split(b"\r\n")
        if not line.lower().startswith((b"transfer-encoding", b"content-length", b"connection"))
    ]
    return bytes(change(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n" + body))


def test_an_error_inside_a_stream_is_the_error_it_would_have_been(service: Service) -> None:
    def behave(exchange: Exchange, _: int) -> None:
        event = b"event: error\ndata: " + problem(504, "deadline_exceeded") + b"\n\n"
        exchange.send(
            unchunked(exchange.ask(), lambda reply: reply[: reply.index(b"event: delta")] + event)
        )

    with proxy(service, behave) as between, QuireClient(between.url, retry=QUICK) as client:
        with pytest.raises(DeadlineExceededError, match="made deadline_exceeded"):
            client.stream("Who?", max_tokens=4).until_done()
        assert len(between.seen) == 1


def as_stream(events: bytes) -> bytes:
    """A reply with these events, after which the connection is closed."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + events


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_error_event_that_is_none_is_an_invalid_reply(
    service: Service, asynchronous: bool
) -> None:
    events = as_stream(b'event: error\ndata: "gone"\n\n')
    with proxy(service, lambda exchange, _: exchange.send(events)) as between:
        if asynchronous:
            async with AsyncQuireClient(between.url, retry=QUICK) as other:
                with pytest.raises(InvalidReplyError, match="'gone'"):
                    await (await other.stream("Who?")).until_done()
        else:
            with (
                QuireClient(between.url, retry=QUICK) as client,
                pytest.raises(InvalidReplyError, match="'gone'"),
            ):
                client.stream("Who?").until_done()
        assert len(between.seen) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("length", ["", "Content-Length: 9999\r\n"])
async def test_events_of_a_job_that_break_off_are_an_error(
    service: Service, asynchronous: bool, length: str
) -> None:
    def events(status: str) -> bytes:
        data = json.dumps({"id": "job_1", "status": status})
        reply = as_stream(f"event: progress\ndata: {data}\n\n".encode())
        return reply.replace(b"\r\n\r\n", f"\r\n{length}\r\n".encode(), 1)

    def behave(exchange: Exchange, number: int) -> None:
        exchange.send(events("succeeded" if number else "running"))

    seen = []
    with proxy(service, behave) as between:
        broken = pytest.raises(StreamInterruptedError, match="job_1 broke off while it was running")
        if asynchronous:
            async with AsyncQuireClient(between.url, retry=QUICK) as other:
                with broken:
                    async for job in other.jobs.events("job_1"):
                        seen.append(job.status)
                seen += [job.status async for job in other.jobs.events("job_1")]
        else:
            with QuireClient(between.url, retry=QUICK) as client:
                with broken:
                    for job in client.jobs.events("job_1"):
                        seen.append(job.status)
                seen += [job.status for job in client.jobs.events("job_1")]
    assert seen == ["running", "succeeded"], "what comes after its end does not matter"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_pack_that_breaks_off_leaves_the_one_before(
    service: Service, namespace: str, tmp_path: Path, asynchronous: bool
) -> None:
    def behave(exchange: Exchange, number: int) -> None:
        if number < 2:
            reply = exchange.ask()
            exchange.send(reply[: reply.index(b"\r\n\r\n") + 200])
        else:
            exchange.forward()

    pack, other = tmp_path / "one.pack", tmp_path / "other.pack"
    pack.write_bytes(b"a good one")
    pack.chmod(0o600)
    with QuireClient(service.url, namespace=namespace) as direct:
        direct.documents.add(TEXT, id="x")
    with proxy(service, behave) as between:
        if asynchronous:
            async with AsyncQuireClient(between.url, namespace=namespace, retry=QUICK) as one:
                for path in (pack, other):
                    with pytest.raises(ConnectionFailedError):
                        await one.admin.export(path)
        else:
            with QuireClient(between.url, namespace=namespace, retry=QUICK) as client:
                for path in (pack, other):
                    with pytest.raises(ConnectionFailedError):
                        client.admin.export(path)
        assert pack.read_bytes() == b"a good one"
        assert names(tmp_path) == ["one.pack"], "nothing half-written is left"
        link = tmp_path / "link.pack"
        link.symlink_to(pack)
        with QuireClient(between.url, namespace=namespace, retry=QUICK) as client:
            assert client.admin.export(link) == pack.stat().st_size > 10
            assert client.admin.export(os.devnull) == pack.stat().st_size
        assert link.is_symlink()
        assert pack.stat().st_mode & 0o777 == 0o600
        assert names(tmp_path) == ["link.pack", "one.pack"]


# ---- the service is slow


@pytest.mark.parametrize("stream", [False, True])
def test_a_service_that_does_not_answer_is_given_up_and_not_asked_again(
    service: Service, stream: bool
) -> None:
    with (
        proxy(service, lambda exchange, _: between.released.wait()) as between,
        QuireClient(between.url, timeout=0.2, retry=QUICK) as client,
    ):
        with pytest.raises(RequestTimeoutError, match="no byte came"):
            client.stream("Who?") if stream else client.query("Who?")
        assert len(between.seen) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_time_to_wait_holds_for_a_silent_service(
    service: Service, asynchronous: bool
) -> None:
    begun = time.monotonic()
    with proxy(service, lambda exchange, _: between.released.wait()) as between:
        if asynchronous:
            async with AsyncQuireClient(between.url, retry=QUICK) as other:
                with pytest.raises(RequestTimeoutError, match="no byte came"):
                    await other.documents.add("x", timeout=0.1)
        else:
            with (
                QuireClient(between.url, retry=QUICK) as client,
                pytest.raises(RequestTimeoutError, match="no byte came"),
            ):
                client.documents.wait(["x"], timeout=0.1)
        assert len(between.seen) == 1
    assert time.monotonic() - begun < 30.0, "the client's own timeout is 60 s"


def test_a_stream_that_falls_silent_is_broken_off(service: Service) -> None:
    def behave(exchange: Exchange, _: int) -> None:
        until_first_delta(exchange, between.released)

    with (
        proxy(service, behave) as between,
        QuireClient(between.url, timeout=0.5, retry=QUICK) as client,
    ):
        with pytest.raises(StreamInterruptedError, match="no byte came") as caught:
            client.stream("Who?", max_tokens=4).until_done()
        assert caught.value.text
        assert isinstance(caught.value.__cause__, RequestTimeoutError)
        assert len(between.seen) == 1


# ---- the service refuses for a time


@pytest.mark.parametrize(
    ("status", "code"), [(429, "rate_limited"), (503, "overloaded"), (503, "loading")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_tried_again_when_the_service_says_so(
    service: Service, namespace: str, status: int, code: str, stream: bool
) -> None:
    def behave(exchange: Exchange, number: int) -> None:
        if number < 2:
            exchange.reply(status, problem(status, code), retry_after="1", retry_after_ms="1")
        else:
            exchange.forward()

    with (
        proxy(service, behave) as between,
        QuireClient(between.url, namespace=namespace, retry=QUICK) as client,
    ):
        result = (
            client.stream("Who?", max_tokens=2).until_done()
            if stream
            else client.query("Who?", max_tokens=2)
        )
        assert len(between.seen) == 3
        assert [q.id for q in client.queries()] == [result.id], "it was answered once"


async def test_the_asynchronous_client_tries_again_too(service: Service, namespace: str) -> None:
    def behave(exchange: Exchange, number: int) -> None:
        if number == 0:
            exchange.reply(503, problem(503, "overloaded"), retry_after_ms="1")
        else:
            exchange.forward()

    with proxy(service, behave) as between:
        async with AsyncQuireClient(between.url, namespace=namespace, retry=QUICK) as client:
            assert (await client.query("Who?", max_tokens=2)).usage.completion_tokens > 0
            assert len(between.seen) == 2


def test_retries_end_and_the_last_refusal_is_raised(service: Service) -> None:
    def behave(exchange: Exchange, _: int) -> None:
        exchange.reply(503, problem(503, "overloaded"), retry_after_ms="1")

    with proxy(service, behave) as between, QuireClient(between.url, retry=QUICK) as client:
        with pytest.raises(ServiceUnavailableError, match="made overloaded") as caught:
            client.query("Who?")
        assert caught.value.retry_after == 0.001
        assert len(between.seen) == 1 + QUICK.max_retries


def test_a_long_wait_is_left_to_the_caller(service: Service) -> None:
    def behave(exchange: Exchange, _: int) -> None:
        exchange.reply(429, problem(429, "quota_exceeded"), retry_after="3600")

    with proxy(service, behave) as between, QuireClient(between.url, retry=QUICK) as client:
        with pytest.raises(RateLimitError) as caught:
            client.query("Who?")
        assert caught.value.retry_after == 3600.0
        assert len(between.seen) == 1


def test_what_must_not_be_retried_is_not(service: Service) -> None:
    def behave(exchange: Exchange, _: int) -> None:
        exchange.reply(503, problem(503, "overloaded"), retry_after_ms="1", x_should_retry="false")

    with proxy(service, behave) as between, QuireClient(between.url, retry=QUICK) as client:
        with pytest.raises(ServiceUnavailableError):
            client.query("Who?")
        assert len(between.seen) == 1


# ---- the reply is lost


def lose_first(exchange: Exchange, number: int) -> None:
    """The service does the work, but its first reply never arrives."""
    if number == 0:
        exchange.ask()
    else:
        exchange.forward()


def test_a_query_whose_reply_is_lost_is_answered_once(service: Service, namespace: str) -> None:
    with (
        proxy(service, lose_first) as between,
        QuireClient(between.url, namespace=namespace, retry=QUICK) as client,
    ):
        result = client.query("Who?", max_tokens=2)
        first, second = between.seen
        assert first.header("Idempotency-Key") == second.header("Idempotency-Key") is not None
        assert [q.id for q in client.queries()] == [result.id]


def test_documents_whose_reply_is_lost_are_added_once(service: Service, namespace: str) -> None:
    with (
        proxy(service, lose_first) as between,
        QuireClient(between.url, namespace=namespace, retry=QUICK) as client,
    ):
        assert client.documents.add(TEXT, id="x", if_exists="error").results[0].result == "created"
        assert len(between.seen) == 2
        assert len(client.jobs.list()) == 1


def test_a_key_of_the_caller_is_used(service: Service, namespace: str) -> None:
    with QuireClient(service.url, namespace=namespace, retry=QUICK) as client:
        first = client.query("Who?", max_tokens=2, idempotency_key=namespace)
        assert client.query("Who?", max_tokens=2, idempotency_key=namespace).id == first.id
        with pytest.raises(Exception, match="idempotency_mismatch"):
            client.query("What?", max_tokens=2, idempotency_key=namespace)


def test_a_delete_whose_reply_is_lost_has_succeeded(service: Service, namespace: str) -> None:
    with QuireClient(service.url, namespace=namespace) as direct:
        direct.documents.add(TEXT, id="x")
        with (
            proxy(service, lose_first) as between,
            QuireClient(between.url, namespace=namespace, retry=QUICK) as client,
        ):
            client.documents.delete("x")
            assert len(between.seen) == 2
            with pytest.raises(DocumentNotFoundError):
                client.documents.delete("x")


def test_so_has_one_that_is_refused_while_the_service_starts_again(
    service: Service, namespace: str
) -> None:
    def behave(exchange: Exchange, number: int) -> None:
        if number == 1:
            exchange.reply(503, problem(503, "loading"), Retry_After="0")
        else:
            lose_first(exchange, number)

    with QuireClient(service.url, namespace=namespace) as direct:
        direct.documents.add(TEXT, id="x")
    with (
        proxy(service, behave) as between,
        QuireClient(between.url, namespace=namespace, retry=QUICK) as client,
    ):
        client.documents.delete("x")
        assert len(between.seen) == 3


def test_a_stream_or_conditional_change_whose_reply_is_lost_is_not_sent_again(
    service: Service, namespace: str
) -> None:
    with (
        proxy(service, lambda exchange, _: exchange.ask()) as between,
        QuireClient(between.url, namespace=namespace, retry=QUICK) as client,
    ):
        with pytest.raises(ConnectionFailedError, match="broke before the reply was complete"):
            client.stream("Who?", max_tokens=2)
        with pytest.raises(ConnectionFailedError):
            client.documents.put("x", TEXT, only_new=True)
        assert [e.method for e in between.seen] == ["POST", "PUT"]


def test_a_gateway_without_a_service_is_tried_again(service: Service, namespace: str) -> None:
    def behave(exchange: Exchange, number: int) -> None:
        if number == 0:
            exchange.reply(502, b"<html>Bad Gateway</html>", content_type="text/html")
        else:
            exchange.forward()

    with (
        proxy(service, behave) as between,
        QuireClient(between.url, namespace=namespace, retry=QUICK) as client,
    ):
        assert client.query("Who?", max_tokens=2).usage.completion_tokens > 0
        assert len(between.seen) == 2
    shown = r"no problem body: <html>Bad Gateway</html> \(http_502, HTTP 502\)"
    with (
        proxy(service, behave) as between,
        QuireClient(between.url, retry=ONCE) as client,
        pytest.raises(ServerError, match=shown),
    ):
        client.info()


# ---- keys, scopes, namespaces


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with keys: one for all, one that may only read, one with a limit."""
    keys: Path = tmp_path_factory.mktemp("keys") / "keys.toml"
    everything = ["read", "write", "query", "admin"]
    keys.write_text(
        key_entry("all", "all-key", everything, ["team-a"])
        + key_entry("reader", "read-key", ["read"], ["team-a"])
        + key_entry("other", "other-key", everything, ["team-b"])
        + key_entry("limited", "limited-key", everything, ["team-c"], "requests_per_minute = 1")
    )
    with running(f"--auth.keys_file={keys}") as one:
        yield one


def test_a_wrong_or_missing_key_says_how_to_give_one(
    guarded: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUIRE_API_KEY", raising=False)
    for key, code in ((None, "missing_api_key"), ("wrong-key", "invalid_api_key")):
        with (
            QuireClient(guarded.url, api_key=key, retry=QUICK) as client,
            pytest.raises(AuthenticationError, match="QUIRE_API_KEY") as caught,
        ):
            client.query("Who?")
        assert caught.value.code == code
        assert "wrong-key" not in str(caught.value)
    monkeypatch.setenv("QUIRE_API_KEY", "all-key")
    monkeypatch.setenv("QUIRE_SERVER", guarded.url)
    with QuireClient() as client:
        assert client.info().namespace == "team-a"
        assert "all-key" not in repr(client._settings)


def test_a_key_without_the_scope_or_namespace_is_told_so(guarded: Service) -> None:
    with (
        QuireClient(guarded.url, api_key="read-key", retry=QUICK) as client,
        pytest.raises(PermissionDeniedError) as caught,
    ):
        client.query("Who?")
    assert caught.value.code == "insufficient_scope"
    with (
        QuireClient(guarded.url, api_key="all-key", namespace="team-b", retry=QUICK) as client,
        pytest.raises(NamespaceDeniedError, match="namespace"),
    ):
        client.documents.list()


def test_a_document_of_another_namespace_does_not_exist(guarded: Service) -> None:
    with (
        QuireClient(guarded.url, api_key="all-key") as mine,
        QuireClient(guarded.url, api_key="other-key") as others,
    ):
        mine.documents.add(TEXT, id="secret")
        with pytest.raises(DocumentNotFoundError, match="team-b"):
            others.query("Who?", document_ids=["secret"])


def test_the_limit_of_a_key_gives_the_time_to_wait(guarded: Service) -> None:
    with QuireClient(guarded.url, api_key="limited-key", retry=ONCE) as client:
        client.info()
        with pytest.raises(RateLimitError) as caught:
            client.info()
        assert caught.value.retry_after is not None
        assert 0 < caught.value.retry_after <= 60


# ---- documents that go


def test_a_document_deleted_between_retrieval_and_query_is_named(
    client: QuireClient, corpus: list[Any], questions: list[Any]
) -> None:
    client.documents.add_many(corpus)
    q = questions[0]
    gone = q["document_ids"][1]
    client.documents.delete(gone)
    with pytest.raises(
        DocumentNotFoundError, match='add them again, or ask with on_missing="skip"'
    ) as caught:
        client.query(q["question"], document_ids=q["document_ids"])
    assert caught.value.document_ids == [gone]
    assert caught.value.param == "document_ids[1]"
    result = client.query(q["question"], document_ids=q["document_ids"], on_missing="skip")
    assert [d.id for d in result.documents] == [i for i in q["document_ids"] if i != gone]


# ---- a newer service


def enriched(value: Any) -> Any:
    """The JSON value with members that this version has never heard of, in every object."""
    if isinstance(value, dict):
        return {
            **{k: enriched(v) for k, v in value.items()},
            "new_in_v1_9": {"deep": [1, {"x": None}]},
        }
    return [enriched(v) for v in value] if isinstance(value, list) else value


def newer(reply: bytes) -> bytes:
    """The reply of a service of a later minor version."""
    head, _, body = reply.partition(b"\r\n\r\n")
    if b"event-stream" in head:
        events = [b"event: novelty\ndata: 17"]
        for event in body.decode().strip().split("\n\n"):
            name, _, data = event.partition("\ndata: ")
            events.append(f"{name}\ndata: {json.dumps(enriched(json.loads(data)))}".encode())
        body = b"\n\n".join([*events, b""]) + b"\n"
    else:
        body = json.dumps(enriched(json.loads(body))).encode()
    return head + b"\r\n\r\n" + body


def test_unknown_members_and_events_are_ignored(
    service: Service, namespace: str, corpus: list[Any], questions: list[Any]
) -> None:
    def behave(exchange: Exchange, _: int) -> None:
        exchange.send(unchunked(exchange.ask(), newer))

    q = questions[0]
    with proxy(service, behave) as between, QuireClient(between.url, namespace=namespace) as client:
        assert client.documents.add_many(corpus).ids == [d["id"] for d in corpus]
        result = client.query(q["question"], document_ids=q["document_ids"])
        assert result.answer.strip() in q["answers"]
        assert "new_in_v1_9" in result.raw
        assert (
            client.stream(q["question"], document_ids=q["document_ids"]).until_done().answer
            == result.answer
        )
        assert list(client.jobs.events(client.jobs.list().data[0].id))[-1].finished
        assert len(client.explain(result).blocks) > 0
        assert client.documents.list(counts=True).counts is not None


# ---- something else answers


def test_another_program_at_the_address_is_recognised(service: Service) -> None:
    replies = [
        (200, b"<html>hello</html>"),
        (200, b"[1, 2]"),
        (200, b'{"data": 1}'),
        (200, b'{"id": 7}'),
    ]

    def behave(exchange: Exchange, number: int) -> None:
        exchange.reply(*replies[number])

    with proxy(service, behave) as between, QuireClient(between.url, retry=QUICK) as client:
        with pytest.raises(
            InvalidReplyError, match="is not JSON; is this the address of a Quire service"
        ):
            client.info()
        with pytest.raises(InvalidReplyError, match="not an object"):
            client.info()
        with pytest.raises(InvalidReplyError, match="no list"):
            client.documents.list()
        with pytest.raises(InvalidReplyError, match=r"reply.id is int"):
            client.documents.get("x")


def test_an_address_where_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with QuireClient(f"http://127.0.0.1:{port}", retry=QUICK) as client:
        with pytest.raises(
            ConnectionFailedError, match=f"cannot reach Quire at http://127.0.0.1:{port}"
        ):
            client.info()
        with pytest.raises(RequestTimeoutError, match="the service was not ready"):
            client.wait_until_ready(timeout=0.0)


def test_connections_that_stay_in_use_are_not_blamed_on_the_service() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        httpx.Client(limits=httpx.Limits(max_connections=1)) as http,
    ):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        patient = QuireClient(url, http_client=http, retry=ONCE)

        def ask() -> None:
            with suppress(ConnectionFailedError):
                patient.info()

        thread = threading.Thread(target=ask)
        thread.start()
        connection, _ = listener.accept()
        with pytest.raises(ConnectionFailedError, match="all connections of this client"):
            QuireClient(url, http_client=http, retry=ONCE, timeout=0.1).info()
        connection.close()
        thread.join()


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": "localhost:8080"},
        {"url": "ftp://x"},
        {"url": "http://127.0.0.1:80a"},
        {"url": "http://[::1"},
        {"namespace": "no spaces"},
        {"api_key": "key\n"},
        {"timeout": 0},
        {"connect_timeout": -1},
    ],
)
def test_settings_that_cannot_work_are_refused(arguments: Any) -> None:
    with pytest.raises(ConfigurationError):
        QuireClient(**arguments)
    with pytest.raises(ConfigurationError):
        AsyncQuireClient(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"document_ids": "a"}, "document_ids is one text"),
        ({"document_ids": ["a", 1]}, "document_ids has 1; an id is a text"),
        ({"documents": ["a text"]}, "documents has 'a text'; give"),
    ],
)
def test_questions_that_cannot_work_are_not_sent(arguments: Any, message: str) -> None:
    with (
        QuireClient("http://127.0.0.1:1") as client,
        pytest.raises(ConfigurationError, match=message),
    ):
        client.query("Who?", **arguments)
