"""Fixtures: one service for all tests that do not harm it."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import service as service_module
from service import SAMPLE, Service, running

from quire_client import AsyncQuireClient, QuireClient, RetryPolicy

#: Retries without waiting: what is tested is whether, not when.
QUICK = RetryPolicy(max_retries=4, initial_delay=0.0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a service nothing can be tested: say so, once for each test."""
    if service_module.binary() is not None:
        return
    skip = pytest.mark.skip(reason="no quire program: build it, or set QUIRE_BINARY")
    for item in items:
        item.add_marker(skip)


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    with running() as one:
        yield one


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test has."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(service: Service, namespace: str) -> Iterator[QuireClient]:
    with QuireClient(service.url, namespace=namespace, retry=QUICK) as one:
        yield one


@pytest.fixture
async def async_client(service: Service, namespace: str) -> AsyncIterator[AsyncQuireClient]:
    async with AsyncQuireClient(service.url, namespace=namespace, retry=QUICK) as one:
        yield one


def read_lines(name: str) -> list[dict[str, Any]]:
    with (SAMPLE / name).open() as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def corpus() -> list[dict[str, Any]]:
    """The documents of the sample that ships with the embedded model."""
    return read_lines("corpus.jsonl")


@pytest.fixture(scope="session")
def questions() -> list[dict[str, Any]]:
    """Questions over the corpus that the embedded model answers right
    however the cache is filled."""
    return [
        q for q in read_lines("questions.jsonl") if set(q["right_under"]) >= {"recompute", "reuse"}
    ]
