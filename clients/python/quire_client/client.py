"""The synchronous client."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
from typing_extensions import Self, Unpack

from . import _flows as flows
from . import _operations as ops
from . import models as m
from ._exchange import Attempt, Call, Deadline, Flow, Pause, Reply, RetryPolicy, exchange
from ._files import replacing
from ._settings import Settings, reply_of
from .errors import ConnectionFailedError, QuireError, RequestTimeoutError
from .explain import Explanation, QueryPlan
from .options import DocumentInput, DocumentOptions, EvictOptions, QueryOptions
from .stream import QueryStream

T = TypeVar("T")


class ByteStream:
    """The bytes of an open reply."""

    def __init__(self, response: httpx.Response, settings: Settings, what: str) -> None:
        self._response, self._settings, self._what = response, settings, what

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._response.iter_bytes()
        except httpx.HTTPError as error:
            raise self._settings.failure(error, self._what) from error

    def close(self) -> None:
        """Closes the reply; the service stops working on it."""
        self._response.close()


class QuireClient:
    """A Quire service.

    Threads may share one client. Without arguments it takes the address from QUIRE_SERVER
    (http://127.0.0.1:8080 when unset) and the key from QUIRE_API_KEY, as the `quire` program does.
    Every method raises errors of the family `quire_client.QuireError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        namespace: str | None = None,
        timeout: float = 60.0,
        connect_timeout: float = 5.0,
        retry: RetryPolicy | None = None,
        http_client: httpx.Client | None = None,
    ) -> None:
        """`timeout`: seconds without a byte after which a reply counts as lost. `http_client`: for
        own proxies or certificates; it stays open when this client is closed."""
        self._settings = Settings.make(url, api_key, namespace, timeout, connect_timeout, retry)
        self._http = http_client or httpx.Client()
        self._owns_http = http_client is None
        self._bind()

    def _bind(self) -> None:
        self.documents = Documents(self)
        """Adding, listing, changing and deleting documents."""
        self.jobs = Jobs(self)
        """Work in the background."""
        self.admin = Admin(self)
        """The cache and the service; needs a key with the scope admin."""

    # ---- running flows

    def _run(self, flow: Flow[T]) -> T:
        try:
            step = next(flow)
            while True:
                outcome: Any = None
                try:
                    if isinstance(step, Attempt):
                        outcome = self._attempt(step)
                    elif isinstance(step, Pause):
                        time.sleep(step.seconds)
                    else:
                        outcome = time.monotonic()
                except QuireError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def _attempt(self, attempt: Attempt) -> Reply:
        what = f"{attempt.call.method} {attempt.call.path}"
        try:
            response = self._http.send(
                self._settings.request(self._http, attempt), stream=attempt.stream
            )
            if attempt.stream and response.status_code < 400:
                return reply_of(response, b"", ByteStream(response, self._settings, what))
            try:
                return reply_of(response, response.read())
            finally:
                response.close()
        except httpx.HTTPError as error:
            raise self._settings.failure(error, what) from error

    def _call(self, call: Call[T]) -> T:
        return self._run(exchange(call, self._settings.retry))

    def _open(self, call: Call[Any]) -> ByteStream:
        stream: ByteStream = self._run(exchange(call, self._settings.retry, stream=True))
        return stream

    # ---- queries

    def query(
        self,
        question: str | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[QueryOptions],
    ) -> m.QueryResult:
        """Answers a question, or the last of `messages`, over documents."""
        return self._call(
            ops.query(
                ops.query_body(question, options), idempotency_key, ops.query_timeout(options)
            )
        )

    def stream(self, question: str | None = None, **options: Unpack[QueryOptions]) -> QueryStream:
        """As `query`, but the answer comes piece by piece.
        Returns once the service has begun to answer."""
        return QueryStream(
            self._open(
                ops.stream_query(ops.query_body(question, options), ops.query_timeout(options))
            )
        )

    def plan(self, question: str | None = None, **options: Unpack[QueryOptions]) -> QueryPlan:
        """What a query would use of the cache, without generating."""
        return self._call(ops.plan(ops.query_body(question, options), ops.query_timeout(options)))

    def explain(self, query: str | m.QueryResult, *, text: bool = False) -> Explanation:
        """The fate of every block of one of the last queries, by its result or id;
        with `text` also their texts."""
        return self._call(ops.explain(query, text))

    def retrieve(
        self,
        query: str,
        *,
        k: int = 4,
        document_ids: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        unit: str | None = None,
        min_score: float | None = None,
        rerank: int | None = None,
        links: float | None = None,
        scorer: str | None = None,
    ) -> m.Passages:
        """The `k` best passages for a query, without generating: of `document_ids`, or of all
        documents with this `metadata`.

        `unit`: "chunk" (default), or "document" for at most one passage of each.
        `rerank`: how many of the best the service's cross-encoder ranks anew; 0: none.
        `links`: part of a text's score that goes on to documents whose titles it names; 0: none.
        `scorer`: "bm25", "embedding", "hybrid", or "auto" (default: as the service is set).
        """
        return self._call(
            ops.retrieve(query, k, document_ids, metadata, unit, min_score, rerank, links, scorer)
        )

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        model: str | None = None,
    ) -> m.RankedTexts:
        """The texts by their relevance for the query, the `top_n` best; `model` names a reranker,
        an encoder or bm25, and without it the service takes the best that it has."""
        return self._call(ops.rerank(query, documents, top_n, model))

    def queries(
        self, *, limit: int = 20, after: str | None = None, order: str | None = None
    ) -> m.Page[m.QueryResult]:
        """The last queries of the namespace, the latest first."""
        return self._call(ops.list_queries(limit, after, order))

    def get_query(self, id: str) -> m.QueryResult:
        """One of the last queries."""
        return self._call(ops.get_query(id))

    # ---- service

    def info(self) -> m.Info:
        """What the service and its model can do."""
        return self._call(ops.info())

    def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Returns once queries can be answered. Raises RequestTimeoutError when that takes longer
        than `timeout` seconds."""
        self._run(flows.wait_until_ready(timeout))

    def with_namespace(self, namespace: str) -> QuireClient:
        """The same service in another namespace, over the same connections."""
        other = QuireClient.__new__(QuireClient)
        other._settings = self._settings.in_namespace(namespace)
        other._http, other._owns_http = self._http, False
        other._bind()
        return other

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._settings.url

    @property
    def namespace(self) -> str | None:
        """The namespace asked for; None: the key's default."""
        return self._settings.namespace

    def close(self) -> None:
        """Closes the connections."""
        if self._owns_http:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Documents:
    """`QuireClient.documents`."""

    def __init__(self, client: QuireClient) -> None:
        self._client = client

    def add(
        self,
        text: str | None = None,
        *,
        id: str | None = None,
        title: str | None = None,
        chunks: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        wait: bool = True,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[DocumentOptions],
    ) -> m.Ingest:
        """Adds one document and, with `wait`, returns once it is cached
        (RequestTimeoutError after `timeout` seconds)."""
        document: Any = ops.given(text=text, id=id, title=title, chunks=chunks, metadata=metadata)
        return self._client._run(
            flows.add_document(
                document, options, wait, timeout, idempotency_key, self._client._settings.retry
            )
        )

    def put(
        self,
        id: str,
        text: str | None = None,
        *,
        title: str | None = None,
        chunks: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        if_match: str | None = None,
        only_new: bool = False,
        wait: bool = True,
        timeout: float | None = None,
        **options: Unpack[DocumentOptions],
    ) -> m.Ingest:
        """Creates or replaces a document: with `if_match` only while its `etag` (or its
        `content_hash`) is this, with `only_new` only when there is none."""
        body = ops.given(text=text, title=title, chunks=chunks, metadata=metadata, **options)
        return self._client._run(
            flows.put_document(
                id, body, if_match, only_new, wait, timeout, self._client._settings.retry
            )
        )

    def add_many(
        self,
        documents: Iterable[DocumentInput | str],
        *,
        batch_size: int = 64,
        batch_bytes: int = 4 << 20,
        wait: bool = True,
        timeout: float | None = None,
        progress: flows.Progress = False,
        **options: Unpack[DocumentOptions],
    ) -> m.IngestReport:
        """Adds documents in batches, any number of them. Those that failed are in the report
        (`raise_for_failures()`).

        `progress`: True for a tqdm bar, or a callable that is given the number of
        documents done since its last call.
        """
        retry = self._client._settings.retry
        flow = flows.add_documents(
            documents,
            options,
            batch_size=batch_size,
            batch_bytes=batch_bytes,
            wait=wait,
            deadline=Deadline(timeout),
            progress=progress,
            policy=retry,
        )
        return self._client._run(flow)

    def add_files(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        root: str | Path | None = None,
        metadata: Mapping[str, Any] | None = None,
        progress: flows.Progress = False,
        wait: bool = True,
        timeout: float | None = None,
        **options: Unpack[DocumentOptions],
    ) -> m.IngestReport:
        """Adds files, and those of folders with all below them but hidden ones. The id of each is
        its path below `root`, or below the folder that was named; adding again replaces. Texts in
        UTF-8 are sent as they are; PDF, HTML, office files and other encodings are read by the
        service. One that it cannot read is a failure in the report, in which texts come first."""
        flow = flows.add_files(
            flows.find_files(paths, root),
            metadata or {},
            options,
            wait=wait,
            timeout=timeout,
            progress=progress,
            policy=self._client._settings.retry,
        )
        return self._client._run(flow)

    def wait(self, ids: Sequence[str], *, timeout: float | None = None) -> list[m.Document]:
        """Returns the documents once each is ready. Raises IngestError when one failed,
        RequestTimeoutError after `timeout` seconds."""
        return self._client._run(
            flows.wait_for_documents(ids, self._client._settings.retry, timeout)
        )

    def list(
        self,
        *,
        status: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 20,
        after: str | None = None,
        order: str | None = None,
        counts: bool = False,
    ) -> m.Page[m.Document]:
        """One page of documents, those with this status and metadata;
        with `counts` also how many the namespace has."""
        return self._client._call(ops.list_documents(status, metadata, limit, after, order, counts))

    def iter(
        self,
        *,
        status: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        order: str | None = None,
    ) -> Iterator[m.Document]:
        """All documents, page by page."""
        after = None
        while True:
            page = self.list(status=status, metadata=metadata, limit=100, after=after, order=order)
            yield from page
            if not page.has_more or page.last_id is None:
                return
            after = page.last_id

    def get(self, id: str) -> m.Document:
        """One document and the state of its cache."""
        return self._client._call(ops.get_document(id))

    def content(self, id: str) -> str:
        """The stored text."""
        return self._client._call(ops.document_content(id))

    def chunks(self, id: str) -> m.Page[m.Chunk]:
        """The parts that are cached on their own."""
        return self._client._call(ops.document_chunks(id))

    def blocks(self, id: str) -> m.Page[m.Block]:
        """The blocks of KV."""
        return self._client._call(ops.document_blocks(id))

    def update(
        self,
        id: str,
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        if_match: str | None = None,
    ) -> m.Document:
        """Changes the title, and merges `metadata` into what is there; with `if_match` only while
        the document's `etag` is this."""
        return self._client._call(
            ops.patch_document(id, ops.given(title=title, metadata=metadata), if_match)
        )

    def set_ttl(
        self,
        id: str,
        seconds: int | None = None,
        *,
        anchor: str | None = None,
        expires_at: str | None = None,
    ) -> m.Document:
        """The document goes `seconds` from now (anchor "last_used": from its last use), or at
        a time (RFC 3339); with neither it stays for ever."""
        return self._client._call(ops.set_ttl(id, seconds, anchor, expires_at))

    def pin(self, id: str) -> m.Document:
        """Keeps the document's blocks in the cache."""
        return self._client._call(ops.patch_document(id, {"pinned": True}))

    def unpin(self, id: str) -> m.Document:
        """Lets the cache drop the document's blocks when it needs room."""
        return self._client._call(ops.patch_document(id, {"pinned": False}))

    def warm(self, id: str, *, tier: str | None = None) -> m.Job:
        """Loads or computes again what the cache lacks, in the background."""
        return self._client._call(ops.warm_document(id, tier))

    def delete(self, id: str, *, if_match: str | None = None) -> None:
        """Deletes text and blocks; running queries finish. With `if_match` only while the
        document's `etag` is this."""
        self._client._call(ops.delete_document(id, if_match))

    def delete_many(
        self,
        ids: Sequence[str] | None = None,
        *,
        filter: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> m.BulkDeletion:
        """Deletes by ids, or by a filter such as {"metadata": {"source": "faq"}}
        or {"status": "failed"}."""
        return self._client._call(ops.delete_documents(ids, filter, dry_run))


class Jobs:
    """`QuireClient.jobs`."""

    def __init__(self, client: QuireClient) -> None:
        self._client = client

    def list(
        self,
        *,
        status: str | None = None,
        limit: int = 20,
        after: str | None = None,
        order: str | None = None,
    ) -> m.Page[m.Job]:
        """One page of jobs."""
        return self._client._call(ops.list_jobs(status, limit, after, order))

    def get(self, id: str) -> m.Job:
        """One job."""
        return self._client._call(ops.get_job(id))

    def cancel(self, id: str) -> m.Job:
        """Cancels what is not finished; finished documents stay."""
        return self._client._call(ops.cancel_job(id))

    def wait(self, id: str, *, timeout: float | None = None) -> m.Job:
        """Returns the job once it is finished, however it ended.
        Raises RequestTimeoutError after `timeout` seconds."""
        return self._client._run(
            flows.wait_for_job(id, self._client._settings.retry, Deadline(timeout))
        )

    def events(self, id: str) -> Iterator[m.Job]:
        """The job each time it has come further; the last one is finished. Raises
        StreamInterruptedError when the events break off before that."""
        source = self._client._open(ops.job_events(id))
        events = flows.JobEvents(id)
        try:
            for piece in source:
                yield from events.feed(piece)
        except (ConnectionFailedError, RequestTimeoutError) as error:
            events.end(error)
        else:
            events.end()
        finally:
            source.close()


class Admin:
    """`QuireClient.admin`: needs a key with the scope admin."""

    def __init__(self, client: QuireClient) -> None:
        self._client = client

    def stats(self, *, by: str | None = None) -> m.CacheStats:
        """Tiers, bytes and savings; `by`: namespace or tier."""
        return self._client._call(ops.cache_stats(by))

    def evict(self, **selection: Unpack[EvictOptions]) -> m.Evicted:
        """Takes blocks out of the cache; texts stay."""
        return self._client._call(ops.evict(selection))

    def pin(self, document_ids: Sequence[str], *, tier: str | None = None) -> m.PinReport:
        """Keeps the documents' blocks."""
        return self._client._call(ops.pin(document_ids, tier, True))

    def unpin(self, document_ids: Sequence[str], *, tier: str | None = None) -> m.PinReport:
        """Lets the documents' blocks go when room is needed."""
        return self._client._call(ops.pin(document_ids, tier, False))

    def flush(self) -> dict[str, Any]:
        """Writes what is in memory alone to disk."""
        return self._client._call(ops.flush())

    def backup(self) -> dict[str, Any]:
        """Adds a backup of all documents and jobs, without KV, to the service's `backup.path`."""
        return self._client._call(ops.backup())

    def verify(self) -> m.VerifyReport:
        """Reads every block again and checks its checksum."""
        return self._client._call(ops.verify())

    def export(self, path: str | Path, document_ids: Sequence[str] | None = None) -> int:
        """Writes documents and blocks into a pack; all of the namespace without ids.
        Returns its bytes. A file that is there is replaced once the pack is complete."""
        source = self._client._open(ops.export_pack(document_ids))
        try:
            with replacing(path) as out:
                return sum(out.write(piece) for piece in source)
        finally:
            source.close()

    def import_pack(self, path: str | Path, *, mode: str = "merge") -> m.ImportReport:
        """Takes in a pack written by `export`."""
        return self._client._call(ops.import_pack(Path(path), mode))

    def requests(self) -> m.Page[m.RunningRequest]:
        """Running and queued requests."""
        return self._client._call(ops.list_requests())

    def cancel_request(self, id: str) -> dict[str, Any]:
        """Cancels a running or queued request."""
        return self._client._call(ops.cancel_request(id))

    def config(self) -> dict[str, Any]:
        """The effective configuration, secrets masked."""
        return self._client._call(ops.config())

    def reload(self) -> dict[str, Any]:
        """Reads keys and limits again."""
        return self._client._call(ops.reload())

    def drain(self) -> dict[str, Any]:
        """Stops taking work; what runs finishes."""
        return self._client._call(ops.drain())
