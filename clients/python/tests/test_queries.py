"""Queries, streams, plans and explanations against a real service, through both clients."""

from __future__ import annotations

import inspect
from typing import Any

import httpx
import pytest
from service import Service

from quire_client import (
    AsyncQuireClient,
    ConfigurationError,
    ContextLengthExceededError,
    DeltaEvent,
    DoneEvent,
    InvalidRequestError,
    NotFoundError,
    PlanEvent,
    QuireClient,
    affinity,
)
from quire_client.async_client import Admin as AsyncAdmin
from quire_client.async_client import Documents as AsyncDocuments
from quire_client.async_client import Jobs as AsyncJobs
from quire_client.client import Admin, Documents, Jobs


@pytest.fixture
def question(client: QuireClient, corpus: list[Any], questions: list[Any]) -> dict[str, Any]:
    """A question whose documents are cached in the test's namespace."""
    client.documents.add_many(corpus)
    return dict(questions[0])


def test_the_sample_is_answered_right_from_the_cache(
    client: QuireClient, corpus: list[Any], questions: list[Any]
) -> None:
    client.documents.add_many(corpus)
    for q in questions:
        result = client.query(
            q["question"], document_ids=q["document_ids"], cache={"strategy": "reuse"}
        )
        assert result.answer.strip() in q["answers"]
        fates = result.usage.cache_details
        assert (
            fates.reused_tokens
            + fates.recomputed_tokens
            + fates.computed_tokens
            + fates.dropped_tokens
            == result.usage.prompt_tokens
        )
        assert result.usage.cached_tokens == fates.reused_tokens + fates.dropped_tokens
        assert (
            result.usage.computed_tokens == result.usage.prompt_tokens - result.usage.cached_tokens
        )
        assert [d.id for d in result.documents] == q["document_ids"]
        assert result.cache.strategy == "reuse"
        assert result.cache.misses == []


def test_the_affinity_that_is_sent_is_the_one_that_the_service_tells(
    service: Service, client: QuireClient, corpus: list[Any], questions: list[Any]
) -> None:
    client.documents.add_many(corpus)
    sent: list[str | None] = []
    told: list[str | None] = []
    hooks: dict[str, list[Any]] = {
        "request": [lambda request: sent.append(request.headers.get("x-quire-affinity"))],
        "response": [lambda response: told.append(response.headers.get("x-quire-affinity"))],
    }
    ids = [corpus[1]["id"], corpus[0]["id"]]
    expected = affinity(reversed(ids), client.namespace or "")
    assert len(expected) == 16
    with (
        httpx.Client(event_hooks=hooks) as http,
        QuireClient(service.url, namespace=client.namespace, http_client=http) as hooked,
    ):
        result = hooked.query("Who?", document_ids=ids, max_tokens=1)
        hooked.stream("Who?", document_ids=ids, max_tokens=1).until_done()
        hooked.plan("Who?", document_ids=ids)
        assert sent == told == [expected] * 3
        hooked.explain(result)
        assert sent[3] == expected
        # The service chooses, so only the reply can tell.
        chosen = hooked.query(questions[0]["question"], max_tokens=1)
        assert sent[4] is None
        names = [d.id for d in chosen.documents if d.id is not None]
        assert told[4] == affinity(names, client.namespace or "")


def test_messages_and_inline_documents_are_taken(
    client: QuireClient, corpus: list[Any], questions: list[Any]
) -> None:
    texts = {d["id"]: d["text"] for d in corpus}
    q = questions[0]
    result = client.query(
        messages=[{"role": "user", "content": q["question"]}],
        documents=[{"text": texts[i]} for i in q["document_ids"]],
        cache={"strategy": "recompute"},
        max_tokens=32,
        timeout_ms=60_000,
    )
    assert result.answer.strip() in q["answers"]
    assert {d.id for d in result.documents} == {None}


def test_a_stream_brings_plan_pieces_and_the_whole_result(
    client: QuireClient, question: dict[str, Any]
) -> None:
    whole = client.query(question["question"], document_ids=question["document_ids"])
    with client.stream(question["question"], document_ids=question["document_ids"]) as stream:
        events = list(stream)
    assert isinstance(events[0], PlanEvent)
    assert [d.id for d in events[0].documents] == question["document_ids"]
    assert isinstance(events[-1], DoneEvent)
    assert (
        "".join(e.text for e in events if isinstance(e, DeltaEvent)) == whole.answer == stream.text
    )
    assert events[-1].result is stream.result
    assert stream.result is not None
    assert stream.result.answer == whole.answer
    assert stream.result.usage.prompt_tokens == whole.usage.prompt_tokens
    assert stream.result.id == events[0].id


def test_a_stream_can_be_read_as_text_or_to_its_end(
    client: QuireClient, question: dict[str, Any]
) -> None:
    texts = list(client.stream(question["question"], document_ids=question["document_ids"]).texts())
    assert client.stream(
        question["question"], document_ids=question["document_ids"]
    ).until_done().answer == "".join(texts)
    stream = client.stream(question["question"], document_ids=question["document_ids"])
    assert isinstance(next(stream), PlanEvent)
    stream.close()
    assert stream.result is None


def test_a_plan_promises_what_the_query_does(client: QuireClient, question: dict[str, Any]) -> None:
    options: Any = {"document_ids": question["document_ids"], "cache": {"strategy": "reuse"}}
    plan = client.plan(question["question"], **options)
    result = client.query(question["question"], **options)
    assert plan.usage.cache_details == result.usage.cache_details
    assert plan.cache.strategy == "reuse"
    assert set(plan.predicted) == {"load_ms", "prefill_ms"}
    assert sum(plan.counts.values()) == len(plan.blocks) == sum(d.blocks for d in result.documents)
    assert "load (predicted)" in repr(plan)


def test_an_explanation_gives_the_fate_of_every_block(
    client: QuireClient, question: dict[str, Any], corpus: list[Any]
) -> None:
    result = client.query(
        question["question"], document_ids=question["document_ids"], cache={"strategy": "reuse"}
    )
    explanation = client.explain(result, text=True)
    assert explanation.counts["reused"] == len(explanation.blocks)
    assert [name for name, _ in explanation.by_document()] == question["document_ids"]
    texts = {d["id"]: d["text"] for d in corpus}
    for block in explanation.blocks:
        assert block.text is not None
        assert block.text in texts[str(block.document_id)]
    assert client.explain(result.id).blocks[0].text is None
    shown = repr(explanation)
    assert all(i in shown for i in question["document_ids"])
    assert "prefill" in shown
    assert explanation._repr_html_().count("<span title=") == len(explanation.blocks)


def test_the_last_queries_are_remembered(client: QuireClient, question: dict[str, Any]) -> None:
    result = client.query(question["question"], document_ids=question["document_ids"])
    assert client.queries().data[0].id == result.id
    assert client.get_query(result.id).usage == result.usage
    with pytest.raises(NotFoundError) as caught:
        client.explain("qry_nothing")
    assert caught.value.code == "query_expired"


def test_errors_of_a_query_name_the_field(client: QuireClient, question: dict[str, Any]) -> None:
    with pytest.raises(ContextLengthExceededError) as too_long:
        client.query("why? " * 5000)
    assert too_long.value.limit is not None
    assert too_long.value.actual is not None
    assert too_long.value.actual > too_long.value.limit
    with pytest.raises(InvalidRequestError) as wrong:
        client.query("q", temperature=9)
    assert wrong.value.param == "temperature"
    unknown: Any = {"temprature": 1}
    with pytest.raises(InvalidRequestError) as misspelt:
        client.query("q", **unknown)
    assert misspelt.value.code == "unknown_field"


def test_wrong_arguments_are_refused_before_anything_is_sent(client: QuireClient) -> None:
    one_text: Any = "an-id"
    for call in (
        lambda: client.query(),
        lambda: client.query("q", messages=[{"role": "user", "content": "q"}]),
        lambda: client.query("q", document_ids=one_text),
        lambda: client.stream(),
        lambda: client.retrieve("q", k=0),
    ):
        with pytest.raises(ConfigurationError):
            call()
    assert len(client.queries()) == 0


def test_the_service_says_what_it_can_do(client: QuireClient, namespace: str) -> None:
    info = client.info()
    assert info.namespace == namespace == client.namespace
    assert "auto" in info.strategies
    assert info.raw["object"] == "info"
    client.wait_until_ready()
    stats = client.admin.stats()
    assert {t.name for t in stats.tiers} >= {"dram", "disk"}
    assert client.admin.config()["model"]["name"] == "default"


def test_namespaces_do_not_see_each_other(client: QuireClient) -> None:
    other = client.with_namespace("somewhere-else")
    client.documents.add("A text of one namespace.", id="x")
    assert other.url == client.url
    with pytest.raises(NotFoundError):
        other.documents.get("x")
    other.close()
    assert client.documents.get("x").namespace == client.namespace, (
        "closing the other view leaves the connections open"
    )


async def test_the_asynchronous_client_does_the_same(
    async_client: AsyncQuireClient, corpus: list[Any], questions: list[Any]
) -> None:
    await async_client.documents.add_many(corpus)
    q = questions[0]
    result = await async_client.query(
        q["question"], document_ids=q["document_ids"], cache={"strategy": "reuse"}
    )
    assert result.answer.strip() in q["answers"]
    plan = await async_client.plan(
        q["question"], document_ids=q["document_ids"], cache={"strategy": "reuse"}
    )
    assert plan.usage.cache_details == result.usage.cache_details
    assert len((await async_client.explain(result)).blocks) == len(plan.blocks)
    async with await async_client.stream(q["question"], document_ids=q["document_ids"]) as stream:
        kinds = [type(event) async for event in stream]
    assert kinds[0] is PlanEvent
    assert kinds[-1] is DoneEvent
    texts = [
        t
        async for t in (
            await async_client.stream(q["question"], document_ids=q["document_ids"])
        ).texts()
    ]
    assert "".join(texts) == stream.text
    assert (
        await (
            await async_client.stream(q["question"], document_ids=q["document_ids"])
        ).until_done()
    ).answer == stream.text
    early = await async_client.stream(q["question"], document_ids=q["document_ids"])
    assert isinstance(await early.__anext__(), PlanEvent)
    await early.aclose()
    assert (await async_client.queries(limit=100)).data[-1].id == result.id
    assert (await async_client.get_query(result.id)).usage == result.usage
    await async_client.wait_until_ready()
    assert (await async_client.info()).namespace == async_client.namespace
    assert (await async_client.admin.stats()).fingerprint
    assert (await async_client.admin.config())["model"]["name"] == "default"
    other = async_client.with_namespace("somewhere-else")
    assert other.url == async_client.url
    with pytest.raises(NotFoundError):
        await other.documents.get(corpus[0]["id"])


@pytest.mark.parametrize(
    ("synchronous", "asynchronous"),
    [
        (QuireClient, AsyncQuireClient),
        (Documents, AsyncDocuments),
        (Jobs, AsyncJobs),
        (Admin, AsyncAdmin),
    ],
)
def test_both_clients_have_the_same_methods(synchronous: type, asynchronous: type) -> None:
    def methods(cls: type) -> dict[str, Any]:
        return {
            n: m for n, m in vars(cls).items() if inspect.isfunction(m) and not n.startswith("_")
        }

    def arguments(method: Any) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]

    mine, others = methods(synchronous), methods(asynchronous)
    assert set(others) == {"aclose" if n == "close" else n for n in mine}
    for name, method in mine.items():
        twin = others["aclose" if name == "close" else name]
        assert arguments(twin) == arguments(method), name
        assert inspect.getdoc(twin), f"{name} has no docstring"
