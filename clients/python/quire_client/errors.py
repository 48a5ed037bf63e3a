"""Everything this package raises: `QuireError` and its subclasses.

A reply of the service becomes an `ApiError` carrying the whole problem body (RFC 9457); a reply
that never came, came too late or broke off becomes a `ConnectionFailedError`, `RequestTimeoutError`
or `StreamInterruptedError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .models import JobItem


class QuireError(Exception):
    """The base of every error of this package."""


class ConfigurationError(QuireError, ValueError):
    """The client was given arguments that cannot work; nothing was sent."""


class ConnectionFailedError(QuireError):
    """No connection, or it broke before the reply was complete."""


class RequestTimeoutError(QuireError, TimeoutError):
    """The reply, or what was waited for, did not come in time.
    The service may still finish the work."""


class InvalidReplyError(QuireError):
    """The reply is not what the API promises,
    for example because something else answers at this address."""


class StreamInterruptedError(QuireError):
    """A streamed answer broke off before its `done` event, or the events of a job before its end.
    It was not asked again."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text
        """What had arrived of the answer; nothing where it was a job."""


class IngestError(QuireError):
    """Some documents could not be cached; the others were."""

    def __init__(self, message: str, failed: list[JobItem]) -> None:
        super().__init__(message)
        self.failed = failed
        """The items that failed, each with its error."""


class ApiError(QuireError):
    """The service refused the request or failed at it."""

    def __init__(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        error = body.get("error")
        inner: Mapping[str, Any] = error if isinstance(error, Mapping) else {}
        self.status = status
        """HTTP status; of an error inside a stream the status it would have had."""
        self.body = body
        """The problem body as it came."""
        self.code = str(inner.get("code") or f"http_{status}")
        """Machine-readable name, such as `document_not_found`."""
        self.detail = str(
            body.get("detail") or inner.get("message") or body.get("title") or f"HTTP {status}"
        )
        """What went wrong, for people."""
        self.title = str(body.get("title") or "")
        self.param: str | None = inner.get("param")
        """The field of the request that is wrong, such as `document_ids[0]`."""
        self.request_id: str | None = body.get("request_id") or headers.get("x-request-id")
        """Names the request in the service's log."""
        ids = body.get("document_ids")
        self.document_ids: list[str] = [str(i) for i in ids] if isinstance(ids, list) else []
        """The documents concerned."""
        self.job_id: str | None = body.get("job_id")
        self.retry_after: float | None = retry_after_seconds(headers)
        """Seconds after which the service asks to be tried again."""
        self.should_retry: bool | None = {"true": True, "false": False}.get(
            headers.get("x-should-retry", "")
        )
        super().__init__(self._message())

    #: Appended to the message: what the caller can do.
    hint = ""

    def _message(self) -> str:
        text = f"{self.detail} ({self.code}, HTTP {self.status}"
        if self.param:
            text += f", {self.param}"
        if self.request_id:
            text += f", request {self.request_id}"
        text += ")"
        # What a question can do about a document is no help where the path names it.
        return f"{text}; {self.hint}" if self.hint and self.param != "id" else text


class InvalidRequestError(ApiError):
    """400, 405, 413, 415, 422, 431: the request is wrong as it is; sending it again cannot help."""


class DocumentTooLongError(InvalidRequestError):
    """A document has more tokens than the service takes."""


class ContextLengthExceededError(InvalidRequestError):
    """The prompt does not fit the model's window; `limit` and `actual` count tokens."""

    @property
    def limit(self) -> int | None:
        """Tokens the window holds."""
        return self.body.get("limit")

    @property
    def actual(self) -> int | None:
        """Tokens the prompt has; a long text is counted no further than to the limit."""
        return self.body.get("actual")


class AuthenticationError(ApiError):
    """401: no API key, or one the service does not know."""

    hint = "pass api_key=... or set QUIRE_API_KEY"


class PermissionDeniedError(ApiError):
    """403: the key is known but lacks the scope, or may not use the namespace."""


class NamespaceDeniedError(PermissionDeniedError):
    """403: the key may not use this namespace."""

    hint = "pass a namespace of this key, or none for the key's default"


class NotFoundError(ApiError):
    """404: no such document, job, query, model or path."""


class DocumentNotFoundError(NotFoundError):
    """404: documents the request names do not exist in the namespace; `document_ids` lists them."""

    hint = 'add them again, or ask with on_missing="skip"'


class ConflictError(ApiError):
    """409 or 412: the state of a document or request forbids it now."""


class DocumentNotReadyError(ConflictError):
    """409: a document is still being cached, or failed to be."""


class RateLimitError(ApiError):
    """429: the caller's own limit is used up; see `retry_after`."""


class ServerError(ApiError):
    """5xx: the service failed."""


class ServiceUnavailableError(ServerError):
    """503: starting, stopping, or too much to do; see `retry_after`."""


class NotSupportedError(ServerError):
    """501: this build or model cannot do it."""


class DeadlineExceededError(ServerError):
    """504: the query was not finished within `timeout_ms`."""


class CacheFullError(ServerError):
    """507: pinned documents, or a limit of the namespace, leave no room."""


_BY_CODE: dict[str, type[ApiError]] = {
    "context_length_exceeded": ContextLengthExceededError,
    "document_too_long": DocumentTooLongError,
    "namespace_denied": NamespaceDeniedError,
    "document_not_found": DocumentNotFoundError,
    "document_not_ready": DocumentNotReadyError,
}

_BY_STATUS: dict[int, type[ApiError]] = {
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    429: RateLimitError,
    501: NotSupportedError,
    503: ServiceUnavailableError,
    504: DeadlineExceededError,
    507: CacheFullError,
}


def api_error(status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> ApiError:
    """The error of the family that fits a reply. `headers` has lower-case names."""
    error = body.get("error")
    code = error.get("code") if isinstance(error, Mapping) else None
    kind = _BY_CODE.get(str(code)) or _BY_STATUS.get(status)
    if kind is None:
        kind = ServerError if status >= 500 else InvalidRequestError
    return kind(status, body, headers)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """`retry-after-ms`, else `Retry-After` in seconds; a date or nonsense counts as not given."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    return None
