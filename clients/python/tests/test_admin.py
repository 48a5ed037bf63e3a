"""Administration against a real service of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK
from service import Service, running

from quire_client import (
    AsyncQuireClient,
    NotFoundError,
    QuireClient,
    QuireError,
    RetryPolicy,
    ServiceUnavailableError,
)


@pytest.fixture(scope="module")
def own() -> Iterator[Service]:
    with running() as one:
        yield one


@pytest.fixture
def administrator(own: Service, namespace: str) -> Iterator[QuireClient]:
    with QuireClient(own.url, namespace=namespace, retry=QUICK) as client:
        yield client


@pytest.fixture
async def async_administrator(own: Service, namespace: str) -> AsyncIterator[AsyncQuireClient]:
    async with AsyncQuireClient(own.url, namespace=namespace, retry=QUICK) as one:
        yield one


def test_the_cache_can_be_pinned_evicted_and_checked(
    administrator: QuireClient, corpus: list[Any]
) -> None:
    admin = administrator.admin
    administrator.documents.add_many(corpus)
    ids = [d["id"] for d in corpus]
    assert admin.pin(ids[:2]).pinned_bytes > 0
    would = admin.evict(tier="dram", dry_run=True)
    assert would.blocks > 0
    assert admin.evict(tier="dram", document_ids=ids[2:4]).blocks > 0
    assert administrator.documents.get(ids[0]).pinned
    admin.unpin(ids[:2])
    assert not administrator.documents.get(ids[0]).pinned
    assert admin.flush()["flushed"] is True
    assert admin.backup()["bytes"] > 0
    report = admin.verify()
    assert report.checked > 0
    assert report.bad == 0
    stats = admin.stats(by="namespace")
    assert administrator.namespace in [n["name"] for n in stats.raw["namespaces"]]


def test_a_pack_carries_documents_to_another_namespace(
    administrator: QuireClient, corpus: list[Any], questions: list[Any], tmp_path: Path
) -> None:
    administrator.documents.add_many(corpus)
    pack = tmp_path / "corpus.pack"
    assert administrator.admin.export(pack) == pack.stat().st_size > 0
    other = administrator.with_namespace(f"{administrator.namespace}-copy")
    report = other.admin.import_pack(pack)
    assert (report.documents, report.rejected) == (len(corpus), [])
    q = questions[0]
    assert other.query(q["question"], document_ids=q["document_ids"]).answer.strip() in q["answers"]
    part = tmp_path / "one.pack"
    administrator.admin.export(part, q["document_ids"][:1])
    assert part.stat().st_size < pack.stat().st_size


def test_requests_can_be_seen_and_keys_read_again(administrator: QuireClient) -> None:
    assert list(administrator.admin.requests()) == []
    with pytest.raises(NotFoundError):
        administrator.admin.cancel_request("qry_nothing")
    assert administrator.admin.reload()["reloaded"] is True


async def test_the_asynchronous_client_does_the_same(
    async_administrator: AsyncQuireClient, corpus: list[Any], tmp_path: Path
) -> None:
    admin = async_administrator.admin
    await async_administrator.documents.add_many(corpus)
    ids = [d["id"] for d in corpus]
    assert (await admin.pin(ids[:1])).pinned_bytes > 0
    await admin.unpin(ids[:1])
    assert (await admin.evict(tier="dram", dry_run=True)).blocks > 0
    assert (await admin.flush())["flushed"] is True
    assert (await admin.backup())["bytes"] > 0
    assert (await admin.verify()).bad == 0
    pack = tmp_path / "corpus.pack"
    assert await admin.export(pack) == pack.stat().st_size
    assert (await admin.import_pack(pack)).rejected == []
    assert len(await admin.requests()) == 0
    with pytest.raises(NotFoundError):
        await admin.cancel_request("qry_nothing")
    assert (await admin.reload())["reloaded"] is True


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_service_that_drains_takes_no_more_work(asynchronous: bool) -> None:
    with (
        running("--server.drain_seconds=60") as service,
        QuireClient(service.url, retry=RetryPolicy(max_retries=0)) as client,
    ):
        if asynchronous:
            async with AsyncQuireClient(service.url) as other:
                assert (await other.admin.drain())["draining"] is True
        else:
            assert client.admin.drain()["draining"] is True
        with pytest.raises(QuireError) as caught:
            client.query("Who?")
        assert isinstance(caught.value, ServiceUnavailableError)
        assert caught.value.code == "draining"
