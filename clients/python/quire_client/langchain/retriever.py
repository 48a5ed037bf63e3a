"""QuireRetriever: passages ranked by the service."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field

from .connection import Connection
from .convert import document_of_passage


class QuireRetriever(Connection, BaseRetriever):
    """The `k` best passages for a query among the documents Quire holds, without generating.

    Their `id` is the document's, so that they can be given to `ChatQuire` as they are;
    `metadata["quire"]` says where in the document they stand and how they scored. When the document
    is gone by then, that is a DocumentNotFoundError: a passage does not bring it back.
    """

    model_config = ConfigDict(extra="forbid")

    k: int = 4
    document_ids: list[str] | None = None
    """Documents to search; without it all of the namespace."""
    filter: dict[str, Any] = Field(default_factory=dict)
    """Metadata the documents must have."""

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        options: dict[str, Any] = {
            "k": self.k,
            "document_ids": self.document_ids,
            "metadata": self.filter or None,
        }
        options.update((name, value) for name, value in given.items() if value is not None)
        return options

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return [
            document_of_passage(p) for p in self.client.retrieve(query, **self._options(kwargs))
        ]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return [
            document_of_passage(p)
            for p in await self.async_client.retrieve(query, **self._options(kwargs))
        ]
