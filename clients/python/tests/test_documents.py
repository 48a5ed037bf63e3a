"""Documents and jobs against a real service, through both clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire_client import (
    ApiError,
    AsyncQuireClient,
    ConfigurationError,
    ConflictError,
    DocumentNotFoundError,
    IngestError,
    InvalidRequestError,
    NotFoundError,
    QuireClient,
    QuireError,
)

TEXT = (
    "The country around Gearkbre is Paionia. Traders visit Gearkbre for tea. "
    "Its mayor is Pataus Jiley. The river Naizoe flows through the city."
)


def test_a_document_lives_from_add_to_delete(client: QuireClient) -> None:
    added = client.documents.add(
        TEXT, id="city", title="Gearkbre", metadata={"source": "atlas", "year": 2025}
    )
    assert added.ids == ["city"]
    assert added.results[0].result == "created"
    assert added.usage.tokens > 0

    document = client.documents.get("city")
    assert (document.status, document.title, document.metadata) == (
        "ready",
        "Gearkbre",
        {"source": "atlas", "year": 2025},
    )
    assert document.cache.state == "resident"
    assert document.cache.blocks == added.results[0].blocks
    assert client.documents.content("city") == TEXT

    chunks, blocks = client.documents.chunks("city"), client.documents.blocks("city")
    assert sum(c.tokens for c in chunks) == document.tokens
    assert len(blocks) == document.cache.blocks
    assert chunks.data[0].chars == (0, len(TEXT))

    assert client.documents.update("city", title="A city", metadata={"year": 2026}).metadata == {
        "source": "atlas",
        "year": 2026,
    }
    assert client.documents.pin("city").pinned
    assert not client.documents.unpin("city").pinned
    assert client.documents.set_ttl("city", 3600, anchor="last_used").expires_at is not None
    assert (
        client.documents.set_ttl("city", expires_at="2099-01-01T00:00:00Z").expires_at
        == "2099-01-01T00:00:00.000Z"
    )
    assert client.documents.set_ttl("city").expires_at is None
    warmed = client.jobs.wait(client.documents.warm("city").id)
    assert warmed.type == "warm"
    assert warmed.status == "succeeded"

    client.documents.delete("city")
    with pytest.raises(DocumentNotFoundError) as caught:
        client.documents.get("city")
    assert caught.value.status == 404
    assert caught.value.request_id


def test_equal_content_is_unchanged_and_other_content_replaces(client: QuireClient) -> None:
    assert client.documents.add(TEXT, id="x").results[0].result == "created"
    assert client.documents.add(TEXT, id="x").results[0].result == "unchanged"
    assert client.documents.add(TEXT + " More.", id="x").results[0].result == "updated"
    with pytest.raises(ConflictError) as caught:
        client.documents.add(TEXT, id="x", if_exists="error")
    assert caught.value.code == "document_exists"


def test_put_honours_its_conditions(client: QuireClient) -> None:
    first = client.documents.put("x", TEXT, only_new=True)
    assert first.results[0].result == "created"
    with pytest.raises(ConflictError) as caught:
        client.documents.put("x", TEXT, only_new=True)
    assert caught.value.status == 412
    content_hash = client.documents.get("x").content_hash
    assert (
        client.documents.put(
            "x", chunks=["One part. " * 20, "Another part. " * 20], if_match=content_hash
        )
        .results[0]
        .result
        == "updated"
    )
    assert len(client.documents.chunks("x")) == 2
    with pytest.raises(ConflictError):
        client.documents.put("x", TEXT, if_match=content_hash)


def test_changes_can_depend_on_what_was_seen(client: QuireClient) -> None:
    client.documents.put("x", TEXT)
    seen = client.documents.get("x")
    changed = client.documents.update("x", title="New", if_match=seen.etag)
    assert changed.etag != seen.etag
    for change in (
        lambda: client.documents.update("x", title="Newer", if_match=seen.etag),
        lambda: client.documents.put("x", TEXT + " More.", if_match=seen.etag),
        lambda: client.documents.delete("x", if_match=seen.etag),
    ):
        with pytest.raises(ConflictError) as caught:
            change()
        assert caught.value.status == 412
    assert client.documents.get("x").title == "New"
    client.documents.delete("x", if_match=changed.etag)
    with pytest.raises(NotFoundError):
        client.documents.get("x")


def test_without_an_id_the_content_names_the_document(client: QuireClient) -> None:
    first, second = client.documents.add(TEXT), client.documents.add(TEXT)
    assert first.ids == second.ids
    assert first.ids[0].startswith("doc_")


def test_many_documents_go_in_batches_and_keep_their_places(
    client: QuireClient, corpus: list[Any]
) -> None:
    done: list[int] = []
    report = client.documents.add_many((d for d in corpus), batch_size=5, progress=done.append)
    assert report.ids == [d["id"] for d in corpus]
    assert [r.index for r in report.results] == list(range(len(corpus)))
    assert done == [5, 5, 5, len(corpus) - 15]
    assert len(report.job_ids) == 4
    assert report.usage.tokens == sum(d.tokens for d in client.documents.iter())
    report.raise_for_failures()
    again = client.documents.add_many(corpus)
    assert {r.result for r in again.results} == {"unchanged"}
    assert again.usage.cache_write_tokens == 0


def test_batches_are_cut_by_bytes_too(client: QuireClient) -> None:
    report = client.documents.add_many([TEXT, TEXT + "!", TEXT + "?"], batch_bytes=1)
    assert len(report.job_ids) == 3


def test_a_bar_is_drawn(client: QuireClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.documents.add_many([TEXT], progress=True)
    assert "1/1" in capsys.readouterr().err


def test_documents_that_fail_do_not_stop_the_others(client: QuireClient) -> None:
    report = client.documents.add_many(
        [
            {"id": "good", "text": TEXT},
            {"id": "empty", "text": ""},
            {"id": "good-too", "text": TEXT + " "},
        ]
    )
    assert report.ids == ["good", "good-too"]
    assert [(r.id, r.index) for r in report.failed] == [("empty", 1)]
    with pytest.raises(IngestError, match="1 of 3 documents could not be cached: empty") as caught:
        report.raise_for_failures()
    assert caught.value.failed[0].error is not None
    assert caught.value.failed[0].error.code == "empty_document"


def test_a_refused_batch_names_the_document_by_its_place_in_all(client: QuireClient) -> None:
    documents: list[Any] = [{"id": f"d{i}", "text": TEXT} for i in range(4)]
    documents[3]["titel"] = "misspelt"
    with pytest.raises(InvalidRequestError) as caught:
        client.documents.add_many(documents, batch_size=2)
    assert caught.value.code == "unknown_field"
    assert caught.value.param is not None
    assert caught.value.param.startswith("documents[3]")


def test_one_failing_document_is_an_error_of_the_service(client: QuireClient) -> None:
    with pytest.raises(ApiError) as caught:
        client.documents.add("", id="empty")
    assert caught.value.code == "empty_document"


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([{"id": "x"}], r"documents\[0\]: give either text or chunks"),
        ([{"id": "x", "text": "a", "chunks": ["b"]}], "give either text or chunks"),
        ([{"id": "x", "chunks": "text"}], "chunks is one text"),
        ("one text", "documents is one document"),
        ({"id": "x", "text": "a"}, "documents is one document"),
        (["a", {"text": "b", "metadata": {"x": object()}}], r"documents\[1\] cannot be written"),
        ([{"text": "b", "metadata": {"x": float("nan")}}], r"documents\[0\] cannot be written"),
    ],
)
def test_wrong_documents_are_refused_before_anything_is_sent(
    client: QuireClient, documents: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        client.documents.add_many(documents)
    assert len(client.jobs.list()) == 0


def test_other_wrong_arguments_are_refused_before_anything_is_sent(client: QuireClient) -> None:
    for call in (
        lambda: client.documents.add_many([TEXT], batch_size=0),
        lambda: client.documents.get(""),
        lambda: client.documents.update("x"),
        lambda: client.documents.set_ttl("x", 60, expires_at="2099-01-01T00:00:00Z"),
        lambda: client.documents.delete_many(),
        lambda: client.documents.delete_many(["x"], filter={"status": "failed"}),
        lambda: client.documents.list(metadata={"source": [["a list in one"]]}),
    ):
        with pytest.raises(ConfigurationError):
            call()


def test_a_missing_document_is_told_with_what_can_be_done(client: QuireClient) -> None:
    with pytest.raises(DocumentNotFoundError, match="on_missing"):
        client.query("Who?", document_ids=["gone"])
    for call in (client.documents.get, client.documents.content, client.documents.delete):
        with pytest.raises(DocumentNotFoundError) as caught:
            call("gone")
        assert "on_missing" not in str(caught.value)


def test_one_text_is_no_list_of_its_letters(client: QuireClient, tmp_path: Path) -> None:
    client.documents.add_many([{"id": "a", "text": "first"}, {"id": "m", "text": "second"}])
    one: Any = "am"
    for call in (
        lambda: client.documents.delete_many(one),
        lambda: client.documents.wait(one),
        lambda: client.retrieve("first", document_ids=one),
        lambda: client.rerank("first", one),
        lambda: client.admin.pin(one),
        lambda: client.admin.unpin(one),
        lambda: client.admin.export(tmp_path / "pack", one),
    ):
        with pytest.raises(ConfigurationError, match="one text; give a list"):
            call()
    assert {d.id for d in client.documents.iter()} == {"a", "m"}


def test_files_become_documents_with_stable_ids(client: QuireClient, tmp_path: Path) -> None:
    (tmp_path / "hr").mkdir()
    (tmp_path / "hr" / "leave.md").write_text(TEXT)
    (tmp_path / "Über uns.txt").write_text(TEXT + " Ü")
    files = [tmp_path / "hr" / "leave.md", tmp_path / "Über uns.txt"]
    report = client.documents.add_files(files, root=tmp_path, metadata={"team": "hr"})
    assert report.ids[0] == "hr:leave.md"
    assert client.documents.get("hr:leave.md").metadata == {"team": "hr", "source": "hr/leave.md"}
    assert client.documents.content(report.ids[1]) == TEXT + " Ü"
    assert (
        client.documents.add_files(files, root=tmp_path, metadata={"team": "hr"}).ids == report.ids
    )
    (tmp_path / "image.bin").write_bytes(b"\x7fELF\xff\xfe\x00" + bytes(range(256)))
    refused = client.documents.add_files([tmp_path / "image.bin"])
    assert refused.failed[0].id == "image.bin"
    assert refused.failed[0].error is not None
    assert "image.bin" in refused.failed[0].error.message
    with pytest.raises(ConfigurationError, match="not below root"):
        client.documents.add_files([tmp_path / "image.bin"], root=tmp_path / "hr")


def test_files_of_other_formats_are_read_by_the_service(
    client: QuireClient, tmp_path: Path
) -> None:
    (tmp_path / "deep").mkdir()
    page = "<html><body><script>x</script><h1>Rivers</h1><p>The Dern is long.</p></body></html>"
    (tmp_path / "deep" / "page.html").write_text(page)
    (tmp_path / "latin.txt").write_bytes("Café au lait, déjà vu, bientôt.".encode("latin-1"))
    (tmp_path / "plain.txt").write_text(TEXT)
    (tmp_path / "broken.docx").write_bytes(b"PK\x03\x04 and no more")
    files = [p for p in sorted(tmp_path.rglob("*")) if p.is_file()]
    report = client.documents.add_files(files, root=tmp_path, metadata={"team": "hr"}, kv="lazy")
    assert [f.id for f in report.failed] == ["broken.docx"]
    assert set(report.ids) >= {"plain.txt", "latin.txt", "deep:page.html"}
    document = client.documents.get("deep:page.html")
    assert document.metadata["team"] == "hr"
    assert document.metadata["source"] == "deep/page.html"
    assert document.cache.state == "lazy"
    assert "déjà vu" in client.documents.content("latin.txt")
    chunk = client.documents.chunks("deep:page.html").data[0]
    assert chunk.heading == "Rivers"
    assert chunk.page is None


def test_a_folder_stands_for_the_files_below_it(client: QuireClient, tmp_path: Path) -> None:
    (tmp_path / "d1").mkdir()
    (tmp_path / "d2").mkdir()
    (tmp_path / ".hidden").mkdir()
    for folder in ("d1", "d2", ".hidden"):
        (tmp_path / folder / "readme.md").write_text(f"{TEXT} In {folder}.")
    (tmp_path / "loop").symlink_to(tmp_path)
    for given in (tmp_path, str(tmp_path), [tmp_path]):
        assert client.documents.add_files(given).ids == ["d1:readme.md", "d2:readme.md"]
    assert client.documents.add_files(tmp_path / "d1" / "readme.md").ids == ["readme.md"]
    with pytest.raises(ConfigurationError, match="both have the id readme"):
        client.documents.add_files([tmp_path / "d1", tmp_path / "d2"])


def test_texts_are_ranked_for_a_query(client: QuireClient) -> None:
    texts = ["Glass is made in Corva.", "The mayor of Alba is Brun Karsten.", "Boats carry salt."]
    ranked = client.rerank("Who is mayor of Alba?", texts, top_n=2)
    assert len(ranked) == 2
    assert ranked.results[0].index == 1
    assert ranked.scorer == "bm25"
    assert ranked.results[0].relevance_score > ranked.results[1].relevance_score
    with pytest.raises(QuireError, match="nobody"):
        client.rerank("Who?", texts, model="nobody")


def test_lists_filter_by_conditions(client: QuireClient) -> None:
    for year in (2019, 2021, 2023):
        client.documents.add(
            TEXT + str(year), id=f"y{year}", metadata={"y": year, "z": ["a", year]}
        )
    listed = client.documents.list(metadata={"y": {"gte": 2020, "lt": 2023}})
    assert [d.id for d in listed.data] == ["y2021"]
    listed = client.documents.list(metadata={"z": [2019, 2023]}, order="asc")
    assert [d.id for d in listed.data] == ["y2019", "y2023"]
    listed = client.documents.list(metadata={"y": {"not": 2019}, "z": "a"}, order="asc")
    assert [d.id for d in listed.data] == ["y2021", "y2023"]


def test_lists_filter_and_page(client: QuireClient, corpus: list[Any]) -> None:
    client.documents.add_many(corpus)
    page = client.documents.list(limit=7, order="asc", counts=True)
    assert len(page) == 7
    assert page.has_more
    assert page.counts is not None
    assert page.counts.ready == len(corpus)
    rest = client.documents.list(limit=100, order="asc", after=page.last_id)
    assert sorted(d.id for d in [*page, *rest]) == sorted(d["id"] for d in corpus)
    assert len(client.documents.list(metadata={"world": 1}, status="ready")) == sum(
        d["metadata"]["world"] == 1 for d in corpus
    )
    client.documents.add_many(
        ({"id": f"small-{i}", "text": f"Note number {i}."} for i in range(90)), wait=False
    )
    assert len(list(client.documents.iter(order="asc"))) == len(corpus) + 90


def test_many_are_deleted_by_ids_or_by_filter(client: QuireClient, corpus: list[Any]) -> None:
    client.documents.add_many(corpus)
    first = corpus[0]["id"]
    deleted = client.documents.delete_many([first, "nothing"])
    assert (deleted.deleted, deleted.not_found) == ([first], ["nothing"])
    would = client.documents.delete_many(filter={"metadata": {"source": "synthetic"}}, dry_run=True)
    assert would.count == len(corpus) - 1
    assert (
        client.documents.delete_many(filter={"metadata": {"source": "synthetic"}}).count
        == len(corpus) - 1
    )
    assert len(client.documents.list()) == 0


def test_work_in_the_background_can_be_followed(client: QuireClient, corpus: list[Any]) -> None:
    report = client.documents.add_many(corpus, wait=False)
    (job_id,) = report.job_ids
    last = list(client.jobs.events(job_id))[-1]
    assert last.finished
    assert last.counts.completed == len(corpus)
    assert client.jobs.wait(job_id).ids == [d["id"] for d in corpus]
    assert client.jobs.get(job_id).progress.ratio == 1.0
    assert [j.id for j in client.jobs.list(status="succeeded")] == [job_id]
    assert client.jobs.cancel(job_id).status == "succeeded"
    documents = client.documents.wait([d["id"] for d in corpus])
    assert {d.status for d in documents} == {"ready"}
    with pytest.raises(NotFoundError):
        client.jobs.get("job_nothing")
    with pytest.raises(NotFoundError):
        next(client.jobs.events("job_nothing"))


async def test_the_asynchronous_client_does_the_same(
    async_client: AsyncQuireClient, corpus: list[Any], tmp_path: Path
) -> None:
    documents = async_client.documents
    assert (await documents.add(TEXT, id="city")).ids == ["city"]
    assert (await documents.put("city", TEXT)).results[0].result == "unchanged"
    assert await documents.content("city") == TEXT
    assert (await documents.update("city", title="A city")).title == "A city"
    assert (await documents.pin("city")).pinned
    assert not (await documents.unpin("city")).pinned
    assert (await documents.set_ttl("city", 60)).expires_at is not None
    assert len(await documents.chunks("city")) == 1
    assert len(await documents.blocks("city")) == (await documents.get("city")).cache.blocks
    warmed = await async_client.jobs.wait((await documents.warm("city")).id)
    assert warmed.status == "succeeded"
    await documents.delete("city")
    with pytest.raises(DocumentNotFoundError):
        await documents.get("city")

    report = await documents.add_many(corpus, batch_size=5, wait=False)
    events = [job async for job in async_client.jobs.events(report.job_ids[-1])]
    assert events[-1].finished
    assert len(await documents.wait(report.ids)) == len(corpus)
    assert sorted([d.id async for d in documents.iter()]) == sorted(report.ids)
    assert {j.id for j in await async_client.jobs.list()} >= set(report.job_ids)
    assert (await async_client.jobs.get(report.job_ids[0])).finished
    assert (await async_client.jobs.cancel(report.job_ids[0])).status == "succeeded"
    assert (await documents.delete_many(report.ids)).count == len(corpus)
    (tmp_path / "a.txt").write_text(TEXT)
    assert (await documents.add_files([tmp_path / "a.txt"], root=tmp_path)).ids == ["a.txt"]
    assert len(await documents.list()) == 1
