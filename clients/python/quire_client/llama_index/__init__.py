"""LlamaIndex on Quire: an LLM, a retriever, and nodes that go by their ids.
Needs `pip install quire-client[llama-index]`."""

try:
    import llama_index.core as _llama_index_core
except ImportError as _error:  # pragma: no cover - the tests have it
    raise ImportError(
        "quire_client.llama_index needs LlamaIndex: pip install 'quire-client[llama-index]'"
    ) from _error

from .llm import QuireLLM
from .nodes import QuireNodePostprocessor
from .retriever import QuireNodeRetriever
from .synthesizer import QuireSynthesizer

__all__ = ["QuireLLM", "QuireNodePostprocessor", "QuireNodeRetriever", "QuireSynthesizer"]

del _llama_index_core
