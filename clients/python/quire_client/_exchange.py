"""Requests described once for the synchronous and the asynchronous client.

An operation is a *flow*: a generator that yields what is to be done (`Attempt`: send this request;
`Pause`: wait) and receives the outcome. Flows do no input or output themselves; a driver in each
client runs them. Retrying is itself a flow, `exchange`.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from .errors import (
    ApiError,
    ConfigurationError,
    ConnectionFailedError,
    InvalidReplyError,
    QuireError,
    RequestTimeoutError,
    api_error,
)

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """When a request is sent again.

    Only requests that cannot take effect twice are: reads, PUT, PATCH and DELETE, POSTs with an
    Idempotency-Key, and anything the service refused (429, 503) or that never reached it. A
    streamed answer is never asked again once it has begun.
    """

    max_retries: int = 4
    """Attempts after the first one; 0 switches retries off."""
    initial_delay: float = 0.25
    """Seconds before the first retry where the service names none;
    doubled each time, and drawn from the upper half."""
    max_delay: float = 8.0
    """Seconds at most between attempts where the service names none."""
    max_retry_after: float = 60.0
    """A `Retry-After` longer than this is not waited for: the error is raised at once."""

    def delay(self, attempt: int, asked: float | None) -> float | None:
        """Seconds before attempt `attempt` + 1, counted from 0; None: do not try again."""
        if attempt >= self.max_retries:
            return None
        if asked is not None:
            return asked if asked <= self.max_retry_after else None
        return min(self.initial_delay * 2.0**attempt, self.max_delay) * random.uniform(0.5, 1.0)


class FailedBeforeSendingError(ConnectionFailedError):
    """No connection: the request never reached the service."""


@dataclass(frozen=True)
class Reply:
    """A reply, complete unless it is a stream. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    stream: Any = None
    """The driver's own open response, where the attempt asked for one
    and the status is no error."""

    def json(self) -> Any:
        """The body. Raises InvalidReplyError when it is not JSON."""
        try:
            return json.loads(self.content)
        except ValueError:
            kind = self.headers.get("content-type", "no content type")
            raise InvalidReplyError(
                f"the reply (HTTP {self.status}, {kind}) is not JSON; "
                "is this the address of a Quire service?"
            ) from None

    def text(self) -> str:
        """The body as text."""
        return self.content.decode("utf-8", "replace")

    def error(self) -> ApiError:
        """The reply as an error."""
        try:
            body = json.loads(self.content)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            shown = self.text()[:200].strip()
            body = {"detail": f"the reply has no problem body{': ' + shown if shown else ''}"}
        return api_error(self.status, body, self.headers)


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request and how its reply is read."""

    method: str
    path: str
    parse: Callable[[Reply], T]
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Path | None = None
    """The body; a file is read piece by piece as it is sent."""
    repeatable: bool = False
    """Sending it twice has the effect of sending it once,
    by its nature or by its Idempotency-Key."""
    timeout: float | None = None
    """Seconds without a byte after which the reply counts as lost; None: the client's own."""
    document_ids: Sequence[str] = ()
    """The documents it is about, by which a load balancer routes it."""


@dataclass(frozen=True)
class Attempt:
    """Send this request; answered with a Reply or by throwing a QuireError."""

    call: Call[Any]
    stream: bool = False
    limit: float | None = None
    """Seconds that the connection, or the next byte, may take at most, whatever the call says."""


@dataclass(frozen=True)
class Pause:
    """Wait; answered with None."""

    seconds: float


@dataclass(frozen=True)
class Now:
    """Answered with the seconds of a monotonic clock."""


Step = Attempt | Pause | Now
Flow = Generator[Step, Any, T]


#: Seconds that a reply may take at least, so that a last look is possible when the time is up.
_LAST_LOOK = 0.5


class Deadline:
    """Raises RequestTimeoutError once `seconds` are over; None never ends."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._end: float | None = None

    def left(self) -> Flow[float | None]:
        """Seconds left, at least 0; None without a limit. The first call starts the clock."""
        if self._seconds is None:
            return None
        now: float = yield Now()
        if self._end is None:
            self._end = now + self._seconds
        return max(0.0, self._end - now)

    def check(self, what: str, cause: QuireError | None = None) -> Flow[None]:
        """Raises when the time is over."""
        left = yield from self.left()
        if left == 0.0:
            raise RequestTimeoutError(f"{what} within {self._seconds:g} s") from cause

    def pause(self, seconds: float, what: str, cause: QuireError | None = None) -> Flow[None]:
        """Waits, but not past the end."""
        yield from self.check(what, cause)
        left = yield from self.left()
        yield Pause(seconds if left is None else min(seconds, left))


#: A deadline that never ends.
NEVER = Deadline(None)


def json_call(
    method: str,
    path: str,
    parse: Callable[[Reply], T],
    body: Any = None,
    *,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
    repeatable: bool | None = None,
    timeout: float | None = None,
    document_ids: Sequence[str] | None = None,
) -> Call[T]:
    """A call with a JSON body. `repeatable`: None gives a POST an Idempotency-Key; other methods
    are repeatable by nature."""
    all_headers = dict(headers or {})
    content = None
    if body is not None:
        try:
            content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the request cannot be written as JSON: {error}") from None
        all_headers["Content-Type"] = "application/json"
    if method == "POST" and repeatable is None:
        all_headers["Idempotency-Key"] = idempotency_key or f"quire-client-{uuid.uuid4().hex}"
    return Call(
        method,
        path,
        parse,
        dict(params or {}),
        all_headers,
        content,
        repeatable is not False,
        timeout,
        tuple(document_ids or ()),
    )


def retry_delay(
    error: QuireError, repeatable: bool, attempt: int, policy: RetryPolicy
) -> float | None:
    """Seconds to wait before the request is sent again; None: it must not be."""
    if isinstance(error, FailedBeforeSendingError):
        return policy.delay(attempt, None)
    if isinstance(error, ConnectionFailedError):
        return policy.delay(attempt, None) if repeatable else None
    if not isinstance(error, ApiError) or error.should_retry is False:
        return None
    if error.status in (429, 503) or error.code == "idempotency_in_progress":
        return policy.delay(attempt, error.retry_after)
    if error.status == 502 and repeatable:
        return policy.delay(attempt, error.retry_after)
    return None


def exchange(
    call: Call[T], policy: RetryPolicy, *, stream: bool = False, deadline: Deadline = NEVER
) -> Flow[T]:
    """Sends the call until it is answered or must not be sent again. It is sent at least once, and
    not again when the time is up."""
    attempt = 0
    reply_lost = False
    while True:
        left = yield from deadline.left()
        limit = None if left is None else max(left, _LAST_LOOK)
        try:
            reply: Reply = yield Attempt(call, stream, limit)
            # Gone already: by the request whose reply was lost.
            deleted_before = reply_lost and call.method == "DELETE" and reply.status == 404
            if reply.status >= 400 and not deleted_before:
                raise reply.error()
            return call.parse(reply)
        except QuireError as error:
            delay = retry_delay(error, call.repeatable, attempt, policy)
            if delay is None:
                raise
            # What is refused later on, by a service that starts again, changes nothing of that.
            reply_lost = reply_lost or (
                isinstance(error, ConnectionFailedError)
                and not isinstance(error, FailedBeforeSendingError)
            )
            refusal = error
        late = f"{call.method} {call.path} was not answered ({refusal})"
        yield from deadline.pause(delay, late, refusal)
        # A service that asks for more time than there is has been waited for, but is left alone.
        yield from deadline.check(late, refusal)
        attempt += 1
