"""Client of Quire, a context cache for retrieval-augmented generation.

from quire_client import QuireClient

with QuireClient() as quire:
    quire.documents.add("Staff may carry over ten days.", id="leave")
    print(quire.query("How many days carry over?", document_ids=["leave"]).answer)
"""

from ._affinity import affinity
from ._exchange import RetryPolicy
from .async_client import AsyncQuireClient
from .client import QuireClient
from .errors import (
    ApiError,
    AuthenticationError,
    CacheFullError,
    ConfigurationError,
    ConflictError,
    ConnectionFailedError,
    ContextLengthExceededError,
    DeadlineExceededError,
    DocumentNotFoundError,
    DocumentNotReadyError,
    DocumentTooLongError,
    IngestError,
    InvalidReplyError,
    InvalidRequestError,
    NamespaceDeniedError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    QuireError,
    RateLimitError,
    RequestTimeoutError,
    ServerError,
    ServiceUnavailableError,
    StreamInterruptedError,
)
from .explain import Explanation, QueryPlan
from .models import (
    Citation,
    Document,
    Ingest,
    IngestReport,
    Job,
    Page,
    Passage,
    Passages,
    QueryResult,
    RankedText,
    RankedTexts,
    Usage,
)
from .options import (
    CacheOptions,
    DocumentInput,
    DocumentOptions,
    InlineDocument,
    Message,
    QueryOptions,
    RetrieveOptions,
)
from .stream import (
    AsyncQueryStream,
    CitationEvent,
    DeltaEvent,
    DoneEvent,
    PlanEvent,
    QueryStream,
    StreamEvent,
)
from .version import __version__

__all__ = [
    "ApiError",
    "AsyncQueryStream",
    "AsyncQuireClient",
    "AuthenticationError",
    "CacheFullError",
    "CacheOptions",
    "Citation",
    "CitationEvent",
    "ConfigurationError",
    "ConflictError",
    "ConnectionFailedError",
    "ContextLengthExceededError",
    "DeadlineExceededError",
    "DeltaEvent",
    "Document",
    "DocumentInput",
    "DocumentNotFoundError",
    "DocumentNotReadyError",
    "DocumentOptions",
    "DocumentTooLongError",
    "DoneEvent",
    "Explanation",
    "Ingest",
    "IngestError",
    "IngestReport",
    "InlineDocument",
    "InvalidReplyError",
    "InvalidRequestError",
    "Job",
    "Message",
    "NamespaceDeniedError",
    "NotFoundError",
    "NotSupportedError",
    "Page",
    "Passage",
    "Passages",
    "PermissionDeniedError",
    "PlanEvent",
    "QueryOptions",
    "QueryPlan",
    "QueryResult",
    "QueryStream",
    "QuireClient",
    "QuireError",
    "RankedText",
    "RankedTexts",
    "RateLimitError",
    "RequestTimeoutError",
    "RetrieveOptions",
    "RetryPolicy",
    "ServerError",
    "ServiceUnavailableError",
    "StreamEvent",
    "StreamInterruptedError",
    "Usage",
    "__version__",
    "affinity",
]
