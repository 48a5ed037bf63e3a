"""What the service replies with, as dataclasses.
Times are RFC 3339 text in UTC, durations milliseconds.

Words such as statuses are plain `str`: a newer service may know more of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from ._decode import Model
from .admin_models import (
    CacheStats,
    Evicted,
    ImportReport,
    Info,
    PinReport,
    RunningRequest,
    Tier,
    VerifyReport,
)
from .errors import ApiError, IngestError

__all__ = [
    "Block", "BulkDeletion", "CacheStats", "CacheUse", "Chunk", "Citation", "Document",
    "DocumentCache", "DocumentCounts", "Evicted", "FateCounts", "FunctionCall",
    "ImportReport", "Info", "Ingest",
    "IngestReport", "IngestUsage", "ItemError", "Job", "JobCounts", "JobItem", "JobProgress",
    "Miss", "Model", "Page", "Passage", "Passages", "PinReport", "PromptTokensDetails",
    "QueryDocument", "QueryResult", "RunningRequest", "Tier", "TierUse", "Timings",
    "ToolCall", "Usage", "VerifyReport",
]  # fmt: skip

T = TypeVar("T")


@dataclass
class Page(Generic[T]):
    """One page of a list, itself iterable."""

    data: list[T]
    has_more: bool = False
    first_id: str | None = None
    last_id: str | None = None
    counts: DocumentCounts | None = None
    """Of documents, when asked for."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)


# ---- documents and jobs


@dataclass
class ItemError(Model):
    """Why one document or job failed."""

    code: str = ""
    message: str = ""
    param: str | None = None


@dataclass
class DocumentCache(Model):
    """The KV of a document: `state` is resident, partial, evicted or stale
    (of another model); `tiers` counts blocks."""

    state: str | None = None
    fingerprint: str | None = None
    kv_dtype: str | None = None
    bytes: int = 0
    blocks: int = 0
    tiers: dict[str, int] = field(default_factory=dict)


@dataclass
class Document(Model):
    """A stored document.
    `status`: queued, tokenizing, prefilling, storing, ready, failed or deleting."""

    id: str
    namespace: str = ""
    title: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    content_hash: str = ""
    etag: str = ""
    version: int = 0
    bytes: int = 0
    tokens: int = 0
    chunks: int = 0
    status: str = ""
    error: ItemError | None = None
    pinned: bool = False
    hits: int = 0
    cache: DocumentCache = field(default_factory=DocumentCache)
    job_id: str | None = None
    progress: float | None = None
    read_behind: str | None = None
    """What stood before it when its KV was computed: nothing, lead_in or related;
    None in lists, without KV, and while it is not ready."""
    created_at: str | None = None
    updated_at: str | None = None
    last_used_at: str | None = None
    expires_at: str | None = None


@dataclass
class DocumentCounts(Model):
    """Documents of the namespace."""

    total: int = 0
    ready: int = 0
    failed: int = 0
    in_progress: int = 0
    tokens: int = 0
    bytes: int = 0


@dataclass
class Chunk(Model):
    """A part of a document cached on its own. Ranges are half-open."""

    index: int
    chars: tuple[int, int] | None = None
    bytes: tuple[int, int] | None = None
    tokens: int = 0
    blocks: int = 0
    block_tokens: int = 0
    tier: str | None = None
    page: int | None = None
    last_page: int | None = None
    heading: str | None = None


@dataclass
class Block(Model):
    """One block of a chunk's KV. Ranges are half-open."""

    index: int
    block_id: str = ""
    chunk: int = 0
    tokens: tuple[int, int] | None = None
    chars: tuple[int, int] | None = None
    tier: str | None = None


@dataclass
class BulkDeletion(Model):
    """What a bulk delete did, or with `dry_run` would do."""

    dry_run: bool = False
    count: int = 0
    deleted: list[str] = field(default_factory=list)
    not_found: list[str] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class JobCounts(Model):
    """Items of a job by state."""

    total: int = 0
    completed: int = 0
    in_progress: int = 0
    failed: int = 0
    cancelled: int = 0


@dataclass
class JobItem(Model):
    """One document of a job. `result`: created, updated, unchanged, skipped, failed, cancelled or
    warmed; None while pending."""

    index: int = 0
    id: str | None = None
    result: str | None = None
    status: str = ""
    tokens: int = 0
    blocks: int = 0
    error: ItemError | None = None


@dataclass
class JobProgress(Model):
    """How far a job is."""

    tokens_done: int = 0
    tokens_total: int = 0
    ratio: float = 0.0
    tokens_per_second: float = 0.0
    eta_ms: float | None = None


@dataclass
class IngestUsage(Model):
    """Tokens of the documents, those whose KV was computed and written,
    and those another document had already."""

    tokens: int = 0
    cache_write_tokens: int = 0
    deduplicated_tokens: int = 0


#: Results of items whose documents are not cached, and what is said where there is no error.
_NOT_DONE = {"failed": "no reason given", "cancelled": "it was cancelled"}


class _Results:
    """What replies with a list of job items share."""

    results: list[JobItem]

    @property
    def ids(self) -> list[str]:
        """The ids of all documents but those in `failed`, in the order they were given."""
        return [r.id for r in self.results if r.id and r.result not in _NOT_DONE]

    @property
    def failed(self) -> list[JobItem]:
        """The items that failed or were cancelled."""
        return [r for r in self.results if r.result in _NOT_DONE]

    def raise_for_failures(self) -> None:
        """Raises IngestError when a document failed or was cancelled."""
        failed = self.failed
        if not failed:
            return
        first = failed[0]
        reason = first.error.message if first.error else _NOT_DONE[str(first.result)]
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        name = first.id or f"number {first.index}"
        raise IngestError(
            f"{len(failed)} of {len(self.results)} documents could not be cached: {name}: "
            f"{reason}{more}",
            failed,
        )


@dataclass
class Ingest(Model, _Results):
    """What became of posted documents. `status` is that of the job;
    results stand in the order of the documents."""

    job_id: str = ""
    status: str = ""
    counts: JobCounts = field(default_factory=JobCounts)
    results: list[JobItem] = field(default_factory=list)
    usage: IngestUsage = field(default_factory=IngestUsage)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.status in ("succeeded", "partial", "failed", "cancelled")


@dataclass
class IngestReport(_Results):
    """What became of many documents, posted in batches;
    the index of each result is the document's own."""

    results: list[JobItem] = field(default_factory=list)
    usage: IngestUsage = field(default_factory=IngestUsage)
    job_ids: list[str] = field(default_factory=list)

    def add(self, start: int, job_id: str, results: list[JobItem], usage: IngestUsage) -> None:
        """Takes in the results of a batch that begins at document `start`."""
        self.job_ids.append(job_id)
        self.results.extend(replace(r, index=start + r.index) for r in results)
        self.usage.tokens += usage.tokens
        self.usage.cache_write_tokens += usage.cache_write_tokens
        self.usage.deduplicated_tokens += usage.deduplicated_tokens

    def refuse(self, index: int, id: str | None, error: ApiError, param: str) -> None:
        """Takes in that the service refused the document as a whole."""
        reason = ItemError(error.code, error.detail, param)
        self.results.append(
            JobItem(index=index, id=id, result="failed", status="failed", error=reason)
        )


@dataclass
class Job(Model, _Results):
    """Work in the background.
    `status`: queued, running, succeeded, partial, failed or cancelled."""

    id: str
    type: str = ""
    status: str = ""
    counts: JobCounts = field(default_factory=JobCounts)
    progress: JobProgress = field(default_factory=JobProgress)
    created_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    usage: IngestUsage = field(default_factory=IngestUsage)
    results: list[JobItem] = field(default_factory=list)
    error: ItemError | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.status in ("succeeded", "partial", "failed", "cancelled")


# ---- queries


@dataclass
class FateCounts(Model):
    """The fate of every prompt token; the four sum to `prompt_tokens`.

    reused: KV read from the cache as it was. recomputed: cached, but computed again for quality.
    computed: not cached (question, template, misses). dropped: cached, but attended to by no layer.
    """

    reused_tokens: int = 0
    recomputed_tokens: int = 0
    computed_tokens: int = 0
    dropped_tokens: int = 0


@dataclass
class PromptTokensDetails(Model):
    """`cached_tokens` were not prefilled;
    `cache_write_tokens` were written to the cache by this query."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


@dataclass
class Usage(Model):
    """Tokens of one query."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails = field(default_factory=PromptTokensDetails)
    cache_details: FateCounts = field(default_factory=FateCounts)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not prefilled."""
        return self.prompt_tokens_details.cached_tokens

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens the model had to compute:
        those without cached KV and those computed again for quality."""
        return self.cache_details.computed_tokens + self.cache_details.recomputed_tokens


@dataclass
class Timings(Model):
    """Milliseconds of each part of a query; `raw` has those this version does not name."""

    queue_ms: float = 0.0
    tokenize_ms: float = 0.0
    lookup_ms: float = 0.0
    load_ms: float = 0.0
    prefill_ms: float = 0.0
    ttft_ms: float = 0.0
    decode_ms: float = 0.0
    total_ms: float = 0.0
    tokens_per_second: float = 0.0


@dataclass
class TierUse(Model):
    """Document blocks found in a tier; `bytes` only those really read."""

    blocks: int = 0
    tokens: int = 0
    bytes: int = 0


@dataclass
class Miss(Model):
    """Why tokens of a document were not taken from the cache, such as not_cached, evicted,
    corrupt or policy_off."""

    document_id: str = ""
    reason: str = ""
    tokens: int = 0


@dataclass
class CacheUse(Model):
    """How the cache was used. `fallback` says why the strategy differs from the one asked for,
    `decode_reason` why cache.decode auto became `decode`."""

    strategy: str = ""
    compress: str = ""
    decode: str = ""
    decode_reason: str | None = None
    hit_ratio: float = 0.0
    keep_ratio: float = 1.0
    sparsity: float = 0.0
    recompute_ratio: float = 0.0
    fallback: str | None = None
    reason: str | None = None
    tiers: dict[str, TierUse] = field(default_factory=dict)
    misses: list[Miss] = field(default_factory=list)


@dataclass
class QueryDocument(Model):
    """A document of the prompt; inline ones have no id."""

    id: str | None = None
    title: str | None = None
    content_hash: str | None = None
    read_behind: str = "nothing"
    """What stood before it when its KV was computed: nothing, lead_in or related."""
    score: float | None = None
    chunks: list[int] = field(default_factory=list)
    """Its chunks in the prompt, where the service chose some; empty: all of them."""
    num_chunks: int | None = None
    tokens: int = 0
    blocks: int = 0
    kept_blocks: int = 0
    recomputed_blocks: int = 0


@dataclass
class Citation(Model):
    """A pointer to evidence. Positions count code points, as Python does:
    `answer[answer_start:answer_end]`, `text[start:end]`."""

    id: str = ""
    answer_start: int = 0
    answer_end: int = 0
    document_id: str | None = None
    chunk: int = 0
    block_ids: list[str] = field(default_factory=list)
    start: int = 0
    end: int = 0
    quote: str = ""
    weight: float = 0.0
    confidence: float = 0.0
    page: int | None = None
    last_page: int | None = None
    heading: str | None = None


@dataclass
class FunctionCall(Model):
    """A function's name, and its arguments as the JSON text that the model wrote."""

    name: str = ""
    arguments: str = ""


@dataclass
class ToolCall(Model):
    """A call of a function in an answer."""

    id: str = ""
    type: str = "function"
    function: FunctionCall = field(default_factory=FunctionCall)


@dataclass
class QueryResult(Model):
    """An answer and what it took."""

    id: str
    model: str = ""
    answer: str = ""
    finish_reason: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    citations: list[Citation] = field(default_factory=list)
    unsupported: list[list[int]] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    cache: CacheUse = field(default_factory=CacheUse)
    documents: list[QueryDocument] = field(default_factory=list)
    created_at: str | None = None
    explain_url: str | None = None


@dataclass
class Passage(Model):
    """A passage of a document, ranked.
    `start` and `end` count code points of the document's text."""

    document_id: str
    text: str = ""
    score: float = 0.0
    chunk: int = 0
    start: int = 0
    end: int = 0
    title: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    page: int | None = None
    last_page: int | None = None
    heading: str | None = None


@dataclass
class RankedText(Model):
    """A text that was ranked, by its index in the request."""

    index: int = 0
    relevance_score: float = 0.0


@dataclass
class RankedTexts(Model):
    """Texts by their relevance, best first, itself iterable; `scorer` says how they were ranked:
    cross_encoder, encoder or bm25."""

    id: str = ""
    model: str = ""
    scorer: str = ""
    results: list[RankedText] = field(default_factory=list)

    def __iter__(self) -> Iterator[RankedText]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)


@dataclass
class Passages(Model):
    """Ranked passages, best first, itself iterable; `scorer` says how they were ranked, and
    `reranker` which cross-encoder then ranked the best anew."""

    data: list[Passage] = field(default_factory=list)
    scorer: str = ""
    reranker: str | None = None

    def __iter__(self) -> Iterator[Passage]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)
