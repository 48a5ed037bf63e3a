"""LangChain's messages and documents to Quire's, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, time
from numbers import Integral, Real
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata

from .._ids import taken_id
from .._turns import Role, SystemMessages, call_json, turns_of
from ..errors import ConfigurationError
from ..models import Document as StoredDocument
from ..models import Passage, QueryResult, Usage
from ..options import DocumentInput, Message

#: The metadata of a passage that says where in its document it stands.
PLACE = "quire"


def messages_of(messages: Sequence[BaseMessage], system: SystemMessages) -> list[Message]:
    """Messages of the API; see `turns_of`. Raises ConfigurationError for what Quire cannot take."""
    return turns_of([_message(m) for m in messages], system)


def _message(message: BaseMessage) -> Message:
    out: Message = {"role": _role(message), "content": _text(message)}
    if isinstance(message, ToolMessage):
        out["tool_call_id"] = message.tool_call_id
        if message.name:
            out["name"] = message.name
    if isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls):
        out["tool_calls"] = [
            call_json(c["id"] or "", c["name"], json.dumps(c["args"], ensure_ascii=False))
            for c in message.tool_calls
        ] + [
            call_json(c["id"] or "", c["name"] or "", c["args"] or "")
            for c in message.invalid_tool_calls
        ]
    return out


def tool_calls_of(result: QueryResult) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    """The calls of an answer, and those whose arguments are no JSON object."""
    good: list[ToolCall] = []
    bad: list[InvalidToolCall] = []
    for call in result.tool_calls:
        name, text = call.function.name, call.function.arguments
        try:
            arguments = json.loads(text)
            if not isinstance(arguments, dict):
                raise ValueError("the arguments are no JSON object")
        except ValueError as error:
            bad.append(
                InvalidToolCall(
                    name=name, args=text, id=call.id, error=str(error), type="invalid_tool_call"
                )
            )
        else:
            good.append(ToolCall(name=name, args=arguments, id=call.id, type="tool_call"))
    return good, bad


def _role(message: BaseMessage) -> Role:
    if isinstance(message, SystemMessage):
        return "system"
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, AIMessage):
        return "assistant"
    if isinstance(message, ToolMessage):
        return "tool"
    if isinstance(message, ChatMessage) and message.role in ("system", "user", "assistant"):
        return message.role  # type: ignore[return-value]
    raise ConfigurationError(
        f"a message of type {message.type!r} cannot be sent: "
        "Quire takes system, human, AI and tool messages"
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
        elif part.get("type") in ("tool_use", "tool_call"):
            continue  # the message has them as tool_calls
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
    """Ids of those that have one, as Quire has them, and the texts of the others, to be sent
    inline."""
    ids = [taken_id(d.id) for d in documents if d.id]
    inline = [{"text": d.page_content} for d in documents if not d.id]
    return list(dict.fromkeys(ids)), inline


def input_of(document: Document) -> DocumentInput:
    """A document to add. The title, if any, is the metadata's. What JSON cannot hold of the
    metadata goes as text."""
    out: DocumentInput = {"text": document.page_content, "metadata": _plain(document.metadata)}
    if document.id:
        out["id"] = taken_id(document.id)
    if isinstance(document.metadata.get("title"), str):
        out["title"] = document.metadata["title"]
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Integral):  # of numpy
        return int(value)
    if isinstance(value, Real):
        try:
            number = float(value)
        except OverflowError:
            return str(value)
        return number if math.isfinite(number) else None  # NaN: a missing value of a table
    if isinstance(value, (date, time)):
        return value.isoformat()
    return str(value)


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
        metadata={**passage.metadata, PLACE: place},
    )


def is_passage(document: Document) -> bool:
    """Whether this is a passage that was retrieved: its id is that of the document it stands in,
    so that it must not be added as if it were all of it."""
    place = document.metadata.get(PLACE)
    return isinstance(place, Mapping) and "chunk" in place
