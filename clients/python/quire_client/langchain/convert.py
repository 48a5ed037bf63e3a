"""LangChain's messages and documents to Quire's, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata

from .._turns import Role, SystemMessages, turns_of
from ..errors import ConfigurationError
from ..models import Document as StoredDocument
from ..models import Passage, QueryResult, Usage
from ..options import DocumentInput, Message


def messages_of(messages: Sequence[BaseMessage], system: SystemMessages) -> list[Message]:
    """Messages of the API; see `turns_of`. Raises ConfigurationError for what Quire cannot take."""
    return turns_of([(_role(m), _text(m)) for m in messages], system)


def _role(message: BaseMessage) -> Role:
    if isinstance(message, SystemMessage):
        return "system"
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, AIMessage):
        return "assistant"
    if isinstance(message, ChatMessage) and message.role in ("system", "user", "assistant"):
        return message.role  # type: ignore[return-value]
    raise ConfigurationError(
        f"a message of type {message.type!r} cannot be sent: "
        "Quire takes system, human and AI messages"
    )


def _text(message: BaseMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = []
    for part in message.content:
        if isinstance(part, str):
            parts.append(part)
        elif part.get("type") == "text":
            parts.append(str(part.get("text", "")))
        else:
            raise ConfigurationError(
                f"a message has content of type {part.get('type')!r}; Quire takes text"
            )
    return "".join(parts)


def usage_metadata(usage: Usage, added: int) -> UsageMetadata:
    """`cache_read`: prompt tokens that were in the cache before. `cache_creation`: tokens whose KV
    was written on the way.

    `added`: tokens of documents cached for this very question. The query itself found them in the
    cache, the caller had none.
    """
    details = usage.prompt_tokens_details
    read, created = max(0, details.cached_tokens - added), details.cache_write_tokens + added
    return UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        input_token_details=InputTokenDetails(cache_read=read, cache_creation=created),
    )


def response_metadata(result: QueryResult) -> dict[str, Any]:
    """What a message says of how it came to be."""
    return {
        "model_name": result.model,
        "model_provider": "quire",
        "finish_reason": result.finish_reason,
        "query_id": result.id,
        "usage": result.raw.get("usage", {}),
        "cache": result.raw.get("cache", {}),
        "timings": result.raw.get("timings", {}),
        "documents": result.raw.get("documents", []),
        "citations": result.raw.get("citations", []),
    }


def split_documents(documents: Sequence[Document]) -> tuple[list[str], list[dict[str, str]]]:
    """Ids of those that have one, and the texts of the others, to be sent inline."""
    ids = [d.id for d in documents if d.id]
    inline = [{"text": d.page_content} for d in documents if not d.id]
    return list(dict.fromkeys(ids)), inline


def input_of(document: Document) -> DocumentInput:
    """A document to add. The title, if any, is the metadata's."""
    out: DocumentInput = {"text": document.page_content, "metadata": document.metadata}
    if document.id:
        out["id"] = document.id
    if isinstance(document.metadata.get("title"), str):
        out["title"] = document.metadata["title"]
    return out


def document_of(stored: StoredDocument, text: str) -> Document:
    """A stored document as LangChain's."""
    return Document(id=stored.id, page_content=text, metadata=stored.metadata)


def document_of_passage(passage: Passage) -> Document:
    """A passage as a document: its id is that of the document it stands in;
    metadata says where, and how it scored."""
    place = {
        "chunk": passage.chunk,
        "start": passage.start,
        "end": passage.end,
        "score": passage.score,
    }
    return Document(
        id=passage.document_id,
        page_content=passage.text,
        metadata={**passage.metadata, "quire": place},
    )
