"""Options of documents and queries, as keyword arguments.
What is left out is decided by the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict

__all__ = [
    "CacheOptions",
    "Chunking",
    "DocumentInput",
    "DocumentOptions",
    "EvictOptions",
    "InlineDocument",
    "Message",
    "QueryOptions",
    "TextMark",
]


class TextMark(TypedDict):
    """Where a page or a part of a text begins; citations name them."""

    start: int
    """Unicode code points of the text."""
    page: NotRequired[int]
    heading: NotRequired[str]
    """Path of headings, as in "Chapter 2 > Safety"."""


class DocumentInput(TypedDict, total=False):
    """A document to add: exactly one of `text`, `chunks` and `url`."""

    id: str
    """Unique in the namespace; without it the id is made from the content."""
    title: str
    text: str
    chunks: Sequence[str]
    """The text in parts, each cached on its own."""
    url: str
    """A file that the service fetches and reads, from hosts that its setting fetch.hosts names."""
    marks: Sequence[TextMark]
    metadata: Mapping[str, Any]
    """At most 16 KiB of JSON; scalars at the top level can be filtered by."""


class Chunking(TypedDict, total=False):
    """How a text is cut into parts that are cached on their own."""

    strategy: Literal["tokens", "markdown", "separator", "none"]
    max_tokens: int
    overlap_tokens: int
    context_tokens: int
    """Chunks are read in windows of this many tokens, each behind those before
    it (default 4096); 0: each alone."""
    related_tokens: int
    """Up to so many tokens of chunks of other documents that its words find are
    read before the document; 0 (default): none."""
    lead_in: bool
    """A short fixed text is read before the document; absent: as policy.lead_in of
    the service says."""
    separator: str


class DocumentOptions(TypedDict, total=False):
    """How documents are added."""

    if_exists: Literal["upsert", "skip", "error"]
    """upsert (default): equal content is `unchanged` and costs nothing,
    other content replaces the old."""
    chunking: Chunking
    ttl_seconds: int
    ttl_anchor: Literal["created", "last_used"]
    pinned: bool
    kv: Literal["eager", "lazy", "text_only"]
    """When KV is computed: by the job (default), by the first query that uses the document,
    or by each query without keeping it."""
    tier: Literal["dram", "disk"]
    cache_salt: str
    """8 to 128 characters: blocks written under a salt are found under it only."""


class CacheOptions(TypedDict, total=False):
    """How a query uses the cache; `GET /v1/info` lists what the service knows."""

    strategy: str
    """auto, recompute, exact, reuse, epic, cacheblend, samkv, ..."""
    keep_ratio: float
    recompute_ratio: float
    compress: str
    decode: str
    prompt_compression: str | Mapping[str, Any]
    """A method such as specpc, or {"method": "specpc", "capacity": 1024, ...}."""
    options: Mapping[str, Any]
    write: bool
    dedupe: bool
    positions: Literal["aligned", "global", "compact", "naive", "parallel"]
    """Where cached documents stand; `global` is another name of `aligned`."""


class InlineDocument(TypedDict, total=False):
    """A document sent with the query and not kept."""

    title: str
    text: str


class Message(TypedDict):
    """A turn of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: NotRequired[Sequence[Mapping[str, Any]]]
    """Of the assistant: calls of functions, as OpenAI's API has them."""
    tool_call_id: NotRequired[str]
    """Of a tool: the call that this is the result of."""
    name: NotRequired[str]


class RetrieveOptions(TypedDict, total=False):
    """What the service chooses for a question, of all documents or of `document_ids`."""

    k: int
    """Most documents, or with unit "chunk" most found chunks."""
    unit: Literal["auto", "document", "chunk", "documents", "chunks"]
    neighbours: int
    max_tokens: int
    min_score: float
    links: float
    """0 to 1: part of a text's score that goes on to documents whose titles it names."""
    metadata: Mapping[str, Any]
    scorer: Literal["auto", "bm25", "embedding", "hybrid"]
    rerank: int
    """How many of the best texts the service's cross-encoder ranks anew; 0: none."""
    order: Literal["best_first", "best_last"]
    """Where they stand in the prompt; "best_last": the best one right before the question."""


class QueryOptions(TypedDict, total=False):
    """What a query takes beside the question."""

    messages: Sequence[Message]
    """A conversation instead of one question."""
    document_ids: Sequence[str]
    """Cached documents, in the order they stand in the prompt."""
    documents: Sequence[InlineDocument]
    retrieve: RetrieveOptions
    prompt: Mapping[str, str]
    """Words of this query: "intro", "question", "citation" (how "cited_answer" shows a citation),
    and with inline documents alone "document"."""
    system: str
    model: str
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    stop: Sequence[str]
    seed: int
    cache: CacheOptions
    cache_salt: str
    on_missing: Literal["error", "skip"]
    on_not_ready: Literal["wait", "error", "compute"]
    citations: bool
    explain: Literal["none", "summary", "blocks"]
    response_format: Mapping[str, Any]
    """What the answer must be: {"type": "json_object"},
    or {"type": "json_schema", "json_schema": {"schema": ...}}."""
    structured_outputs: Mapping[str, Any]
    """Another form of the answer: one of json, regex, choice and grammar."""
    tools: Sequence[Mapping[str, Any]]
    """Functions that the answer may call, as OpenAI's API has them; with `messages`."""
    tool_choice: str | Mapping[str, Any]
    """none, auto, required, or {"type": "function", "function": {"name": ...}}."""
    parallel_tool_calls: bool
    timeout_ms: int
    """Milliseconds after which the service gives up (600,000 by default).
    The client waits a little longer."""
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[str, float]
    """Token id -> what is added to its logit, -100 to 100."""
    logprobs: bool
    top_logprobs: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: Sequence[int]
    allowed_token_ids: Sequence[int]
    """The answer has no other tokens."""
    guided_json: Mapping[str, Any] | str
    """What the answer must be, as vLLM names it; so are the next three."""
    guided_regex: str
    guided_choice: Sequence[str]
    guided_grammar: str
    grammar: str
    """A GBNF grammar, as llama.cpp names it."""
    json_schema: Mapping[str, Any]


class EvictOptions(TypedDict, total=False):
    """What to evict: blocks of a tier, of documents, not used for a time,
    or until so many bytes are free."""

    tier: str
    document_ids: Sequence[str]
    older_than_seconds: int
    target_bytes: int
    dry_run: bool
    force: bool
    """Pinned blocks too."""
