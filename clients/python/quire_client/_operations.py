"""Every operation of the API, described once (see _exchange.py); both clients run these."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from . import models as m
from ._decode import Model
from ._exchange import Call, Reply, json_call
from .errors import ConfigurationError, InvalidReplyError
from .explain import Explanation, QueryPlan
from .options import EvictOptions

M = TypeVar("M", bound=Model)


def model(cls: type[M]) -> Callable[[Reply], M]:
    """Reads the body as one object."""
    return lambda reply: cls.from_json(reply.json())


def page(cls: type[M]) -> Callable[[Reply], m.Page[M]]:
    """Reads the body as one page of a list."""

    def parse(reply: Reply) -> m.Page[M]:
        body = reply.json()
        if not isinstance(body, Mapping) or not isinstance(body.get("data"), list):
            raise InvalidReplyError("the reply is no list; is this the address of a Quire service?")
        data = [cls.from_json(item, f"data[{i}]") for i, item in enumerate(body["data"])]
        counts = body.get("counts")
        return m.Page(
            data=data,
            has_more=bool(body.get("has_more")),
            first_id=body.get("first_id"),
            last_id=body.get("last_id"),
            counts=None if counts is None else m.DocumentCounts.from_json(counts, "counts"),
        )

    return parse


def nothing(_: Reply) -> None:
    """The body says nothing that the status does not."""
    return


def opened(reply: Reply) -> Any:
    """The open response of a stream."""
    return reply.stream


def given(**members: Any) -> dict[str, Any]:
    """The members that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def texts(values: Sequence[str], what: str) -> list[str]:
    """A list of texts.
    Raises ConfigurationError for one text, which would count as a list of its characters."""
    if isinstance(values, str):
        raise ConfigurationError(f"{what} is one text; give a list")
    return list(values)


def segment(value: str, what: str = "id") -> str:
    """An id as a path segment."""
    if not value:
        raise ConfigurationError(f"{what} is empty")
    return quote(value, safe="")


# ---- documents


def put_document(
    id: str,
    body: Mapping[str, Any],
    if_match: str | None,
    only_new: bool,
    wait_seconds: float,
    timeout: float | None,
) -> Call[m.Ingest]:
    headers = {"Prefer": f"wait={int(wait_seconds)}", **tag_header(if_match)}
    if only_new:
        headers["If-None-Match"] = "*"
    # A conditional PUT that is repeated fails at what the first one did.
    repeatable = if_match is None and not only_new
    return json_call(
        "PUT",
        f"/v1/documents/{segment(id)}",
        model(m.Ingest),
        body,
        headers=headers,
        repeatable=repeatable,
        timeout=timeout,
    )


def post_documents(
    body: Mapping[str, Any], wait_seconds: float, idempotency_key: str | None, timeout: float | None
) -> Call[m.Ingest]:
    headers = {"Prefer": f"wait={int(wait_seconds)}"}
    return json_call(
        "POST",
        "/v1/documents",
        model(m.Ingest),
        body,
        headers=headers,
        idempotency_key=idempotency_key,
        timeout=timeout,
    )


def post_file(
    name: str,
    data: bytes,
    metadata: Mapping[str, Any],
    options: Mapping[str, Any],
    wait_seconds: float,
    timeout: float | None,
) -> Call[m.Ingest]:
    """One file in a form; options stand beside it as fields."""
    fields = {k: v for k, v in options.items() if k != "chunking"}
    fields.update(options.get("chunking") or {})
    boundary = f"quire-{uuid.uuid4().hex}"
    parts: list[bytes] = []

    def part(head: str, body: bytes) -> None:
        parts.append(f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode())
        parts.append(body + b"\r\n")

    for key, value in fields.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        part(f'name="{key}"', text.encode())
    if metadata:
        part('name="metadata"', json.dumps(metadata, ensure_ascii=False).encode())
    quoted = name.encode(errors="replace").decode().replace("\\", "\\\\").replace('"', '\\"')
    part(f'name="file"; filename="{quoted}"', data)
    parts.append(f"--{boundary}--\r\n".encode())
    return Call(
        "POST",
        "/v1/documents",
        model(m.Ingest),
        headers={
            "Prefer": f"wait={int(wait_seconds)}",
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Idempotency-Key": f"quire-client-{uuid.uuid4().hex}",
        },
        content=b"".join(parts),
        repeatable=True,
        timeout=timeout,
    )


def list_documents(
    status: str | None,
    metadata: Mapping[str, Any] | None,
    limit: int,
    after: str | None,
    order: str | None,
    counts: bool,
) -> Call[m.Page[m.Document]]:
    params = given(
        status=status,
        limit=str(limit),
        after=after,
        order=order,
        include="counts" if counts else None,
    )
    for name, value in (metadata or {}).items():
        for suffix, one in _conditions(name, value):
            params[f"metadata.{name}{suffix}"] = one
    return json_call("GET", "/v1/documents", page(m.Document), params=params)


def _conditions(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Conditions on one key as query parameters: ends of their names, and values."""
    if isinstance(value, Mapping):
        for operator, bound in value.items():
            many = operator in ("in", "not")
            yield f"[{operator}]", _values(name, bound) if many else _scalar(name, bound)
    elif isinstance(value, (list, tuple)) and len(value) != 1:
        yield "[in]", _values(name, value)
    else:
        yield "", _scalar(name, value[0] if isinstance(value, (list, tuple)) else value)


def _values(name: str, value: Any) -> str:
    """One value or several, with commas between. The service cuts there, so none may have one."""
    texts = [_scalar(name, v) for v in (value if isinstance(value, (list, tuple)) else [value])]
    for text in texts:
        if "," in text:
            raise ConfigurationError(
                f"metadata[{name!r}] names {text!r} as one of several values or one that is "
                "excluded, which lists take without commas only"
            )
    return ",".join(texts)


def _scalar(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ConfigurationError(
        f"metadata[{name!r}] is {type(value).__name__}; "
        "documents can be filtered by text, numbers, booleans, lists of them, and "
        '{"gte": 1, "not": "x"}'
    )


def get_document(id: str) -> Call[m.Document]:
    return json_call("GET", f"/v1/documents/{segment(id)}", model(m.Document))


def document_content(id: str) -> Call[str]:
    return json_call("GET", f"/v1/documents/{segment(id)}/content", Reply.text)


def document_chunks(id: str) -> Call[m.Page[m.Chunk]]:
    return json_call("GET", f"/v1/documents/{segment(id)}/chunks", page(m.Chunk))


def document_blocks(id: str) -> Call[m.Page[m.Block]]:
    return json_call("GET", f"/v1/documents/{segment(id)}/blocks", page(m.Block))


def tag_header(if_match: str | None) -> dict[str, str]:
    return {} if if_match is None else {"If-Match": f'"{if_match}"'}


def patch_document(
    id: str, changes: Mapping[str, Any], if_match: str | None = None
) -> Call[m.Document]:
    if not changes:
        raise ConfigurationError(
            "nothing to change; give title, metadata, ttl_seconds, expires_at or pinned"
        )
    return json_call(
        "PATCH",
        f"/v1/documents/{segment(id)}",
        model(m.Document),
        changes,
        headers=tag_header(if_match),
        repeatable=if_match is None,
    )


def set_ttl(
    id: str, seconds: int | None, anchor: str | None, expires_at: str | None
) -> Call[m.Document]:
    if seconds is not None and expires_at is not None:
        raise ConfigurationError("give either seconds or expires_at")
    if expires_at is not None:
        return patch_document(id, {"expires_at": expires_at})
    if seconds is not None:
        return patch_document(id, {"ttl_seconds": seconds, **given(ttl_anchor=anchor)})
    return patch_document(id, {"ttl_seconds": None, "expires_at": None})


def delete_document(id: str, if_match: str | None = None) -> Call[None]:
    return json_call(
        "DELETE",
        f"/v1/documents/{segment(id)}",
        nothing,
        headers=tag_header(if_match),
        repeatable=if_match is None,
    )


def delete_documents(
    ids: Sequence[str] | None, filter: Mapping[str, Any] | None, dry_run: bool
) -> Call[m.BulkDeletion]:
    body = given(ids=None if ids is None else texts(ids, "ids"), filter=filter)
    if len(body) != 1:
        raise ConfigurationError("give either ids or filter")
    if dry_run:
        body["dry_run"] = True
    return json_call("POST", "/v1/documents/delete", model(m.BulkDeletion), body)


def warm_document(id: str, tier: str | None) -> Call[m.Job]:
    return json_call("POST", f"/v1/documents/{segment(id)}/warm", model(m.Job), given(tier=tier))


# ---- jobs


def list_jobs(
    status: str | None, limit: int, after: str | None, order: str | None
) -> Call[m.Page[m.Job]]:
    return json_call(
        "GET",
        "/v1/jobs",
        page(m.Job),
        params=given(status=status, limit=str(limit), after=after, order=order),
    )


def get_job(id: str) -> Call[m.Job]:
    return json_call("GET", f"/v1/jobs/{segment(id)}", model(m.Job))


def job_events(id: str) -> Call[Any]:
    return json_call(
        "GET", f"/v1/jobs/{segment(id)}/events", opened, headers={"Accept": "text/event-stream"}
    )


def cancel_job(id: str) -> Call[m.Job]:
    return json_call("POST", f"/v1/jobs/{segment(id)}/cancel", model(m.Job))


# ---- queries

#: Seconds the client waits longer than the service was asked to.
GRACE_SECONDS = 10.0


def query_body(question: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a query.
    Raises ConfigurationError unless exactly one of question and messages is given."""
    body = given(query=question, **options)
    if ("query" in body) == ("messages" in body):
        raise ConfigurationError("give either a question or messages")
    for name in ("document_ids", "stop"):
        if isinstance(body.get(name), str):
            raise ConfigurationError(f"{name} is one text; give a list")
    for document_id in body.get("document_ids") or ():
        if not isinstance(document_id, str):
            raise ConfigurationError(f"document_ids has {document_id!r}; an id is a text")
    for document in body.get("documents") or ():
        if not isinstance(document, Mapping):
            raise ConfigurationError(f"documents has {document!r}; give {{'text': ...}}")
    return body


def query_timeout(options: Mapping[str, Any]) -> float | None:
    """Seconds without a byte that a query with a time of its own may take;
    None: the client's timeout."""
    allowed = options.get("timeout_ms")
    return None if allowed is None else allowed / 1000 + GRACE_SECONDS


def query(
    body: Mapping[str, Any], idempotency_key: str | None, timeout: float | None
) -> Call[m.QueryResult]:
    return json_call(
        "POST",
        "/v1/query",
        model(m.QueryResult),
        body,
        idempotency_key=idempotency_key,
        timeout=timeout,
        document_ids=body.get("document_ids"),
    )


def stream_query(body: Mapping[str, Any], timeout: float | None) -> Call[Any]:
    # Neither repeatable nor with a key: an answer that may have begun is not asked again.
    return json_call(
        "POST",
        "/v1/query",
        opened,
        {**body, "stream": True},
        headers={"Accept": "text/event-stream"},
        repeatable=False,
        timeout=timeout,
        document_ids=body.get("document_ids"),
    )


def plan(body: Mapping[str, Any], timeout: float | None) -> Call[QueryPlan]:
    return json_call(
        "POST",
        "/v1/query/plan",
        model(QueryPlan),
        body,
        repeatable=True,
        timeout=timeout,
        document_ids=body.get("document_ids"),
    )


def list_queries(limit: int, after: str | None, order: str | None) -> Call[m.Page[m.QueryResult]]:
    return json_call(
        "GET",
        "/v1/queries",
        page(m.QueryResult),
        params=given(limit=str(limit), after=after, order=order),
    )


def get_query(id: str) -> Call[m.QueryResult]:
    return json_call("GET", f"/v1/queries/{segment(id)}", model(m.QueryResult))


def explain(query: str | m.QueryResult, text: bool) -> Call[Explanation]:
    # Only the replica that answered remembers the query.
    result = None if isinstance(query, str) else query
    return json_call(
        "GET",
        f"/v1/queries/{segment(query if isinstance(query, str) else query.id)}/explain",
        model(Explanation),
        params={"include": "text"} if text else None,
        document_ids=[d.id for d in result.documents if d.id is not None] if result else None,
    )


def retrieve(
    query: str,
    k: int,
    document_ids: Sequence[str] | None,
    metadata: Mapping[str, Any] | None,
    unit: str | None,
    min_score: float | None,
    rerank: int | None,
    links: float | None,
    scorer: str | None,
) -> Call[m.Passages]:
    if k < 1:
        raise ConfigurationError(f"k is {k}; it must be at least 1")
    body = given(
        query=query,
        k=k,
        document_ids=None if document_ids is None else texts(document_ids, "document_ids"),
        metadata=metadata,
        unit=unit,
        min_score=min_score,
        rerank=rerank,
        links=links,
        scorer=scorer,
    )
    return json_call("POST", "/v1/retrieve", model(m.Passages), body, repeatable=True)


def rerank(
    query: str, documents: Sequence[str], top_n: int | None, name: str | None
) -> Call[m.RankedTexts]:
    body = given(query=query, documents=texts(documents, "documents"), top_n=top_n, model=name)
    return json_call("POST", "/v1/rerank", model(m.RankedTexts), body, repeatable=True)


# ---- service and administration

#: Seconds that the service may take over everything it stores.
LONG_SECONDS = 3600.0


def info() -> Call[m.Info]:
    return json_call("GET", "/v1/info", model(m.Info))


def ready() -> Call[None]:
    return json_call("GET", "/readyz", nothing)


def cache_stats(by: str | None) -> Call[m.CacheStats]:
    return json_call("GET", "/v1/admin/cache/stats", model(m.CacheStats), params=given(by=by))


def evict(body: EvictOptions) -> Call[m.Evicted]:
    return json_call("POST", "/v1/admin/cache/evict", model(m.Evicted), dict(body))


def pin(document_ids: Sequence[str], tier: str | None, pinned: bool) -> Call[m.PinReport]:
    path = "/v1/admin/cache/pin" if pinned else "/v1/admin/cache/unpin"
    return json_call(
        "POST",
        path,
        model(m.PinReport),
        given(document_ids=texts(document_ids, "document_ids"), tier=tier),
    )


def flush() -> Call[dict[str, Any]]:
    return json_call("POST", "/v1/admin/cache/flush", Reply.json, timeout=LONG_SECONDS)


def backup() -> Call[dict[str, Any]]:
    return json_call("POST", "/v1/admin/backup", Reply.json, timeout=LONG_SECONDS)


def verify() -> Call[m.VerifyReport]:
    return json_call("POST", "/v1/admin/cache/verify", model(m.VerifyReport), timeout=LONG_SECONDS)


def import_pack(pack: Path, mode: str) -> Call[m.ImportReport]:
    headers = {"Content-Type": "application/vnd.quire.pack"}
    # Documents are named by their ids and blocks by their content: importing twice changes nothing.
    return Call(
        "POST",
        "/v1/admin/cache/import",
        model(m.ImportReport),
        {"mode": mode},
        headers,
        pack,
        repeatable=True,
        timeout=LONG_SECONDS,
    )


def export_pack(document_ids: Sequence[str] | None) -> Call[Any]:
    ids = None if document_ids is None else texts(document_ids, "document_ids")
    body = given(document_ids=ids)
    return json_call(
        "POST", "/v1/admin/cache/export", opened, body, repeatable=True, timeout=LONG_SECONDS
    )


def list_requests() -> Call[m.Page[m.RunningRequest]]:
    return json_call("GET", "/v1/admin/requests", page(m.RunningRequest))


def cancel_request(id: str) -> Call[dict[str, Any]]:
    return json_call("POST", f"/v1/admin/requests/{segment(id)}/cancel", Reply.json)


def config() -> Call[dict[str, Any]]:
    return json_call("GET", "/v1/admin/config", Reply.json)


def reload() -> Call[dict[str, Any]]:
    return json_call("POST", "/v1/admin/reload", Reply.json)


def drain() -> Call[dict[str, Any]]:
    return json_call("POST", "/v1/admin/drain", Reply.json)
