"""Server-sent events from bytes that come in any pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ApiError, InvalidReplyError, api_error


@dataclass(frozen=True)
class ServerEvent:
    """One event: its name and its data as text."""

    name: str
    data: str

    def json(self) -> Any:
        """The data. Raises InvalidReplyError when it is not JSON."""
        try:
            return json.loads(self.data)
        except ValueError:
            raise InvalidReplyError(f"the data of the event {self.name!r} is not JSON") from None


def error_of(event: ServerEvent) -> ApiError:
    """What an `error` event tells of. Raises InvalidReplyError when its data is no such thing."""
    body = event.json()
    status = body.get("status") if isinstance(body, Mapping) else None
    if not isinstance(body, Mapping) or not isinstance(status, int | None):
        raise InvalidReplyError(
            f"the data of the event {event.name!r} is no problem: {body!r:.200}"
        )
    return api_error(status or 500, body, {})


class EventDecoder:
    """Turns pieces of a `text/event-stream` into events. Comments, such as pings, are passed over.

    Only CR, LF and CRLF end a line: JSON text may hold the other line ends of Unicode as they are.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that `piece` completes."""
        data = self._rest + piece
        # A CR at the end may be the first half of a CRLF.
        held = data.endswith(b"\r")
        lines = (
            (data[:-1] if held else data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        )
        self._rest = lines.pop() + (b"\r" if held else b"")
        for line in lines:
            event = self._line(line.decode("utf-8", "replace"))
            if event is not None:
                yield event

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            event = (
                ServerEvent(self._name or "message", "\n".join(self._data)) if self._data else None
            )
            self._name, self._data = "", []
            return event
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        return None
