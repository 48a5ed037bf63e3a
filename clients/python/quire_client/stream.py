"""Streamed answers: typed events, and the iterators over them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol

from ._decode import Model
from ._sse import EventDecoder, ServerEvent, error_of
from .errors import (
    ConnectionFailedError,
    QuireError,
    RequestTimeoutError,
    StreamInterruptedError,
)
from .models import CacheUse, Citation, QueryDocument, QueryResult

__all__ = [
    "AsyncQueryStream",
    "CitationEvent",
    "DeltaEvent",
    "DoneEvent",
    "PlanEvent",
    "QueryStream",
    "StreamEvent",
    "ToolCallEvent",
]


@dataclass
class PlanEvent(Model):
    """The first event: which documents are used, and how the cache is."""

    id: str = ""
    cache: CacheUse = field(default_factory=CacheUse)
    documents: list[QueryDocument] = field(default_factory=list)


@dataclass
class DeltaEvent(Model):
    """The next piece of the answer."""

    text: str = ""


@dataclass
class ToolCallEvent(Model):
    """A piece of a call of a function: its id and name first, then its arguments."""

    index: int = 0
    """Which call of the answer."""
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass
class CitationEvent:
    """A pointer to evidence for what was answered."""

    citation: Citation


@dataclass
class DoneEvent:
    """The last event: the whole result, with the answer put together from its pieces."""

    result: QueryResult


StreamEvent = PlanEvent | DeltaEvent | ToolCallEvent | CitationEvent | DoneEvent


class _ByteStream(Protocol):
    """What a synchronous stream reads from."""

    def __iter__(self) -> Iterator[bytes]: ...
    def close(self) -> None: ...


class _AsyncByteStream(Protocol):
    """What an asynchronous stream reads from."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class _Answer:
    """What both streams know of an answer while it comes."""

    def __init__(self) -> None:
        self._decoder = EventDecoder()
        self._pieces: list[str] = []
        self.result: QueryResult | None = None
        """The whole result, once the stream has ended."""

    @property
    def text(self) -> str:
        """What has arrived of the answer."""
        return "".join(self._pieces)

    def _take(self, piece: bytes) -> Iterator[StreamEvent]:
        for server_event in self._decoder.feed(piece):
            event = self._typed(server_event)
            if event is not None:
                yield event

    def _typed(self, event: ServerEvent) -> StreamEvent | None:
        """None: an event that a newer service sends and this version does not know."""
        if event.name == "plan":
            return PlanEvent.from_json(event.json(), "plan")
        if event.name == "delta":
            delta = DeltaEvent.from_json(event.json(), "delta")
            self._pieces.append(delta.text)
            return delta
        if event.name == "tool_call":
            return ToolCallEvent.from_json(event.json(), "tool_call")
        if event.name == "citation":
            return CitationEvent(Citation.from_json(event.json(), "citation"))
        if event.name == "done":
            self.result = replace(QueryResult.from_json(event.json(), "done"), answer=self.text)
            return DoneEvent(self.result)
        if event.name == "error":
            raise error_of(event)
        return None

    def _broken(self, error: QuireError | None) -> StreamInterruptedError:
        reason = (
            str(error)
            if error
            else "the service closed the connection before the answer was complete"
        )
        text = self.text
        return StreamInterruptedError(
            f"the answer broke off after {len(text)} characters: {reason}; it was not asked again",
            text,
        )


class QueryStream(_Answer):
    """Events of an answer as they come.
    Iterate over it, and use it in `with` to cancel the query when leaving early."""

    def __init__(self, source: _ByteStream) -> None:
        super().__init__()
        self._source = source
        self._events = self._run()

    def __iter__(self) -> Iterator[StreamEvent]:
        return self._events

    def __next__(self) -> StreamEvent:
        return next(self._events)

    def _run(self) -> Iterator[StreamEvent]:
        try:
            for piece in self._source:
                yield from self._take(piece)
        except (ConnectionFailedError, RequestTimeoutError) as error:
            if self.result is None:
                raise self._broken(error) from error
        finally:
            self._source.close()
        if self.result is None:
            raise self._broken(None)

    def texts(self) -> Iterator[str]:
        """The answer's pieces alone."""
        for event in self:
            if isinstance(event, DeltaEvent):
                yield event.text

    def until_done(self) -> QueryResult:
        """Reads to the end and returns the whole result."""
        for _ in self:
            pass
        if self.result is None:
            raise self._broken(None)
        return self.result

    def close(self) -> None:
        """Ends the stream; the service stops working on the answer."""
        self._source.close()

    def __enter__(self) -> QueryStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncQueryStream(_Answer):
    """Events of an answer as they come. Iterate over it, and use it in `async with` to cancel the
    query when leaving early."""

    def __init__(self, source: _AsyncByteStream) -> None:
        super().__init__()
        self._source = source
        self._events = self._run()

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self._events

    async def __anext__(self) -> StreamEvent:
        return await self._events.__anext__()

    async def _run(self) -> AsyncIterator[StreamEvent]:
        try:
            async for piece in self._source:
                for event in self._take(piece):
                    yield event
        except (ConnectionFailedError, RequestTimeoutError) as error:
            if self.result is None:
                raise self._broken(error) from error
        finally:
            await self._source.aclose()
        if self.result is None:
            raise self._broken(None)

    async def texts(self) -> AsyncIterator[str]:
        """The answer's pieces alone."""
        async for event in self:
            if isinstance(event, DeltaEvent):
                yield event.text

    async def until_done(self) -> QueryResult:
        """Reads to the end and returns the whole result."""
        async for _ in self:
            pass
        if self.result is None:
            raise self._broken(None)
        return self.result

    async def aclose(self) -> None:
        """Ends the stream; the service stops working on the answer."""
        await self._source.aclose()

    async def __aenter__(self) -> AsyncQueryStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
