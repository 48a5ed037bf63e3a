"""What both clients are configured with, and how they speak of failures of the connection."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from ._affinity import HEADER, affinity
from ._exchange import Attempt, FailedBeforeSendingError, Reply, RetryPolicy
from ._files import awaited, pieces_of
from .errors import ConfigurationError, ConnectionFailedError, QuireError, RequestTimeoutError
from .version import __version__

DEFAULT_URL = "http://127.0.0.1:8080"
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def url_of(url: str | None) -> str:
    """The address; where none is given that of QUIRE_SERVER, or the default."""
    return (url or os.environ.get("QUIRE_SERVER") or DEFAULT_URL).rstrip("/")


@dataclass(frozen=True)
class Settings:
    """Where the service is and how it is spoken to.
    Raises ConfigurationError for what cannot work."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    namespace: str | None = None
    timeout: float = 60.0
    connect_timeout: float = 5.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    @classmethod
    def make(
        cls,
        url: str | None,
        api_key: str | None,
        namespace: str | None,
        timeout: float,
        connect_timeout: float,
        retry: RetryPolicy | None,
    ) -> Settings:
        """Takes what is None from QUIRE_SERVER and QUIRE_API_KEY,
        the variables of the `quire` program."""
        return cls(
            url=url_of(url),
            api_key=api_key or os.environ.get("QUIRE_API_KEY") or None,
            namespace=namespace,
            timeout=timeout,
            connect_timeout=connect_timeout,
            retry=retry or RetryPolicy(),
        )

    def __post_init__(self) -> None:
        try:
            parts = httpx.URL(self.url)
        except httpx.InvalidURL:
            parts = httpx.URL()
        if parts.scheme not in ("http", "https") or not parts.host:
            raise ConfigurationError(f"url is {self.url!r}; give one such as {DEFAULT_URL}")
        if self.namespace is not None and not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigurationError(
                f"namespace is {self.namespace!r}; it has 1 to 64 of "
                "A-Z a-z 0-9 . _ - and begins with a letter or digit"
            )
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ConfigurationError(
                "api_key has characters that no key has; was a line break copied with it?"
            )
        for name in ("timeout", "connect_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be above 0")

    def in_namespace(self, namespace: str) -> Settings:
        """The same in another namespace."""
        return replace(self, namespace=namespace)

    def request(self, http: httpx.Client | httpx.AsyncClient, attempt: Attempt) -> httpx.Request:
        """The request of one attempt."""
        call = attempt.call
        headers = {
            "User-Agent": f"quire-client/{__version__}",
            "Accept": "application/json, */*;q=0.5",
        }
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        if self.namespace is not None:
            headers["X-Namespace"] = self.namespace
        if call.document_ids:
            headers[HEADER] = affinity(call.document_ids, self.namespace or "default")
        headers.update(call.headers)
        read = self.timeout if call.timeout is None else max(self.timeout, call.timeout)
        connect = self.connect_timeout
        if attempt.limit is not None:
            read, connect = min(read, attempt.limit), min(connect, attempt.limit)
        timeout = httpx.Timeout(read, connect=connect)
        content: bytes | Iterator[bytes] | AsyncIterator[bytes] | None
        if isinstance(call.content, Path):
            headers["Content-Length"] = str(call.content.stat().st_size)
            pieces = pieces_of(call.content)
            content = awaited(pieces) if isinstance(http, httpx.AsyncClient) else pieces
        else:
            content = call.content
        return http.build_request(
            call.method,
            self.url + call.path,
            params=dict(call.params) or None,
            headers=headers,
            content=content,
            timeout=timeout,
        )

    def failure(self, error: httpx.HTTPError, what: str) -> QuireError:
        """A failure of the connection as an error of ours."""
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.PoolTimeout):
            return FailedBeforeSendingError(
                f"{what}: all connections of this client stayed in use; close streams that are "
                "read no further, ask less at once, or pass an http_client with higher limits"
            )
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return FailedBeforeSendingError(
                f"cannot reach Quire at {self.url} ({reason}); is `quire serve` running there?"
            )
        if isinstance(error, httpx.TimeoutException):
            return RequestTimeoutError(
                f"{what}: no byte came from {self.url} in time ({type(error).__name__}); "
                "raise timeout if the service is slow"
            )
        if isinstance(error, httpx.UnsupportedProtocol):
            return ConfigurationError(f"{what}: {reason}")
        return ConnectionFailedError(
            f"{what}: the connection to {self.url} broke before the reply was complete ({reason})"
        )


def reply_of(response: httpx.Response, content: bytes, stream: object = None) -> Reply:
    """An httpx response as a reply."""
    return Reply(
        response.status_code,
        {name.lower(): value for name, value in response.headers.items()},
        content,
        stream,
    )
