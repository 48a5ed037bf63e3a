"""The calls that docs/migration.md names, against a real service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quire_client import DocumentNotFoundError, QuireClient

PAGE = Path(__file__).resolve().parents[3] / "docs" / "migration.md"
TEXT = "Staff may carry over ten days of leave. Requests go to the head of the team. " * 8


def members(owner: object, path: str) -> object:
    for name in path.split("."):
        owner = getattr(owner, name)
    return owner


def test_every_method_the_page_names_exists(client: QuireClient) -> None:
    named = set(re.findall(r"`quire\.([a-z_.]+)\(", PAGE.read_text(encoding="utf-8")))
    assert {"documents.add", "documents.set_ttl", "query", "plan", "admin.evict"} <= named
    for path in named:
        assert callable(members(client, path)), path


def test_documents_take_the_place_of_cached_prompts(client: QuireClient) -> None:
    added = client.documents.add(
        TEXT, id="handbook", ttl_seconds=3600, ttl_anchor="last_used", chunking={"max_tokens": 64}
    )
    assert added.usage.cache_write_tokens > 0
    client.documents.add("The office closes at six.", id="faq")
    for strategy in ("exact", "reuse", "cacheblend"):
        options: Any = {"strategy": strategy}
        if strategy == "cacheblend":
            options["recompute_ratio"] = 0.15
        result = client.query(
            "How many days?", document_ids=["handbook", "faq"], cache=options, max_tokens=4
        )
        assert result.cache.strategy == strategy
        assert (
            result.usage.prompt_tokens_details.cached_tokens
            + result.usage.raw["prompt_cache_miss_tokens"]
            == result.usage.prompt_tokens
        )
        fates = result.usage.cache_details
        assert (
            fates.reused_tokens
            + fates.recomputed_tokens
            + fates.computed_tokens
            + fates.dropped_tokens
            == result.usage.prompt_tokens
        )
    assert "cache_write_tokens" in result.usage.raw["prompt_tokens_details"]
    assert client.plan("How many days?", document_ids=["handbook"]).usage.prompt_tokens > 0
    assert (
        client.query("How many days?", document_ids=["faq"], citations=True, max_tokens=4).citations
        is not None
    )


def test_lifetimes_and_lists(client: QuireClient) -> None:
    client.documents.add(TEXT, id="handbook")
    assert client.documents.set_ttl("handbook", 60).expires_at is not None
    assert (
        client.documents.set_ttl("handbook", expires_at="2100-01-01T00:00:00Z").expires_at
        is not None
    )
    assert client.documents.set_ttl("handbook", None).expires_at is None
    assert client.documents.pin("handbook").pinned
    assert [d.id for d in client.documents.list()] == ["handbook"]
    client.documents.delete("handbook")
    with pytest.raises(DocumentNotFoundError):
        client.query("How many days?", document_ids=["handbook"])
    assert (
        client.query(
            "How many days?", document_ids=["handbook"], on_missing="skip", max_tokens=4
        ).usage.cached_tokens
        == 0
    )
    assert len(client.admin.requests()) == 0
