"""LangChain on Quire: a chat model, a retriever, an index and a chain.
Needs `pip install quire-client[langchain]`."""

try:
    import langchain_core as _langchain_core
except ImportError as _error:  # pragma: no cover - the tests have it
    raise ImportError(
        "quire_client.langchain needs LangChain: pip install 'quire-client[langchain]'"
    ) from _error

from .chain import QuireAnswer, quire_rag_chain
from .chat import ChatQuire
from .index import QuireDocumentIndex, sync_documents
from .retriever import QuireRetriever

__all__ = [
    "ChatQuire",
    "QuireAnswer",
    "QuireDocumentIndex",
    "QuireRetriever",
    "quire_rag_chain",
    "sync_documents",
]

del _langchain_core
