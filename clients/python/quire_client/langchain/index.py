"""Documents of LangChain into Quire:
as an index for LangChain's indexing API, and kept in step by one call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from langchain_core.documents import Document
from langchain_core.documents.transformers import BaseDocumentTransformer
from langchain_core.indexing import IndexingResult
from langchain_core.indexing.base import DeleteResponse, DocumentIndex, UpsertResponse
from pydantic import Field

from .._flows import Progress
from .._ids import taken_id
from .._operations import texts
from ..async_client import AsyncQuireClient
from ..client import QuireClient
from ..errors import ConfigurationError, DocumentNotFoundError
from ..models import BulkDeletion, IngestReport
from ..options import DocumentOptions
from .convert import document_of, input_of
from .retriever import QuireRetriever

#: The metadata that names the collection `sync_documents` keeps.
COLLECTION = "quire_collection"


class QuireDocumentIndex(QuireRetriever, DocumentIndex):
    """Quire as a document index: takes part in `langchain_core.indexing.index(...)`, and retrieves
    as `QuireRetriever` does.

    Documents are cached when `upsert` returns. Those without an id are named by their content.
    """

    options: DocumentOptions = Field(default_factory=lambda: DocumentOptions())
    """How documents are added: chunking, ttl_seconds, pinned, ..."""
    batch_size: int = 64

    def upsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """Adds or replaces documents; each is named in the response, as `succeeded` or `failed`."""
        report = self.client.documents.add_many(
            map(input_of, items), batch_size=self.batch_size, **self.options
        )
        return _upserted(report, items)

    async def aupsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """As `upsert`."""
        report = await self.async_client.documents.add_many(
            map(input_of, items), batch_size=self.batch_size, **self.options
        )
        return _upserted(report, items)

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """Deletes documents; ids that do not exist are no failure."""
        names = _named(ids)
        return _deleted(self.client.documents.delete_many(list(names)), names)

    async def adelete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """As `delete`."""
        names = _named(ids)
        return _deleted(await self.async_client.documents.delete_many(list(names)), names)

    def get(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """Documents with their texts; ids that do not exist are left out."""
        found = (_get(self.client, name) for name in ids)
        return [d for d in found if d is not None]

    async def aget(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """As `get`."""
        found = [await _aget(self.async_client, name) for name in ids]
        return [d for d in found if d is not None]


def _get(client: QuireClient, name: str) -> Document | None:
    taken = taken_id(name)
    try:
        stored, text = client.documents.get(taken), client.documents.content(taken)
    except DocumentNotFoundError:
        return None
    return _named_as(name, document_of(stored, text))


async def _aget(client: AsyncQuireClient, name: str) -> Document | None:
    taken = taken_id(name)
    try:
        stored, text = await client.documents.get(taken), await client.documents.content(taken)
    except DocumentNotFoundError:
        return None
    return _named_as(name, document_of(stored, text))


def _named_as(name: str, document: Document) -> Document:
    document.id = name
    return document


def _named(ids: list[str] | None) -> dict[str, str]:
    """What LangChain calls each id that is to be deleted."""
    if ids is None:
        raise ConfigurationError(
            "give the ids of the documents to delete; an index never deletes everything"
        )
    return {taken_id(name): name for name in texts(ids, "ids")}


def _deleted(done: BulkDeletion, names: Mapping[str, str]) -> DeleteResponse:
    return DeleteResponse(
        num_deleted=len(done.deleted),
        succeeded=[names.get(one, one) for one in done.deleted],
        num_failed=len(done.failed),
        failed=[names.get(one, one) for one in (str(f.get("id")) for f in done.failed)],
    )


def _upserted(report: IngestReport, items: Sequence[Document]) -> UpsertResponse:
    names = {taken_id(d.id): d.id for d in items if d.id}
    failed = [items[r.index].id or r.id or f"documents[{r.index}]" for r in report.failed]
    return UpsertResponse(succeeded=[names.get(one, one) for one in report.ids], failed=failed)


def sync_documents(
    documents: Iterable[Document],
    client: QuireClient,
    *,
    collection: str = "langchain",
    splitter: BaseDocumentTransformer | None = None,
    cleanup: Literal["full", "incremental"] | None = "incremental",
    source_key: str = "source",
    progress: Progress = False,
    **options: Any,
) -> IndexingResult:
    """Brings Quire in step with `documents`, and needs no record manager:
    Quire itself is the record.

    Each document is cut by `splitter` and its parts are cached under ids made from their source and
    content, so that what has not changed is neither sent nor computed again. `cleanup`:
    "incremental" deletes parts that the given sources no longer have, "full" deletes everything of
    the collection that was not given, None deletes nothing. Metadata `source_key` names a
    document's source.
    """
    whole = list(documents)
    parts = list(_parts(whole, splitter, collection, source_key))
    wanted = {str(d.id): d for d in parts}
    there = {
        d.id: d.metadata.get(source_key)
        for d in client.documents.iter(metadata={COLLECTION: collection})
        if d.status != "failed"
    }
    new = [d for name, d in wanted.items() if name not in there]
    report = client.documents.add_many([input_of(d) for d in new], progress=progress, **options)
    report.raise_for_failures()
    # Also those of documents that have become empty, of which no part is left.
    sources = {d.metadata.get(source_key) for d in whole}
    stale = [
        name
        for name, source in there.items()
        if name not in wanted
        and (cleanup == "full" or (cleanup == "incremental" and source in sources))
    ]
    deleted = client.documents.delete_many(stale).deleted if stale else []
    return IndexingResult(
        num_added=len(new),
        num_updated=0,
        num_skipped=len(wanted) - len(new),
        num_deleted=len(deleted),
    )


def _parts(
    whole: Sequence[Document],
    splitter: BaseDocumentTransformer | None,
    collection: str,
    source_key: str,
) -> Iterator[Document]:
    for number, document in enumerate(whole):
        if document.metadata.get(source_key) is None:
            raise ConfigurationError(
                f"documents[{number}].metadata has no {source_key!r}, "
                "which tells whose parts are stale; set it or source_key"
            )
    for part in splitter.transform_documents(whole) if splitter else whole:
        metadata = {**part.metadata, COLLECTION: collection}
        yield Document(
            id=part_id(part.page_content, metadata),
            page_content=part.page_content,
            metadata=metadata,
        )


def part_id(text: str, metadata: dict[str, Any]) -> str:
    """An id that changes with the text or any of the metadata."""
    content = json.dumps([text, metadata], sort_keys=True, ensure_ascii=False, default=str)
    return "lc-" + hashlib.sha256(content.encode()).hexdigest()[:40]
