"""QuireNodeRetriever: passages ranked by the service, as nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ..async_client import AsyncQuireClient
from ..client import QuireClient
from ..models import Passages
from .nodes import PLACE


class QuireNodeRetriever(BaseRetriever):
    """The `k` best passages for a query among the documents Quire holds. A node's id is the
    document's, so that it can be asked about; `metadata["quire"]` says where in it the passage
    stands. When the document is gone by then, that is a DocumentNotFoundError: a passage does not
    bring it back."""

    def __init__(
        self,
        client: QuireClient,
        *,
        k: int = 4,
        document_ids: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        async_client: AsyncQuireClient | None = None,
    ) -> None:
        """`async_client`: for `aretrieve`, which otherwise asks in a thread."""
        super().__init__()
        self._client, self._async_client = client, async_client
        self._k, self._document_ids, self._metadata = k, document_ids, metadata

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(
            self._client.retrieve(
                query_bundle.query_str,
                k=self._k,
                document_ids=self._document_ids,
                metadata=self._metadata,
            )
        )

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._async_client is None:
            return await super()._aretrieve(query_bundle)
        return _nodes(
            await self._async_client.retrieve(
                query_bundle.query_str,
                k=self._k,
                document_ids=self._document_ids,
                metadata=self._metadata,
            )
        )


def _nodes(passages: Passages) -> list[NodeWithScore]:
    return [
        NodeWithScore(
            node=TextNode(
                id_=p.document_id,
                text=p.text,
                metadata={
                    **p.metadata,
                    "chunk": p.chunk,
                    PLACE: {"chunk": p.chunk, "start": p.start, "end": p.end},
                },
                # It tells a passage from a whole document, and a model nothing.
                excluded_llm_metadata_keys=[PLACE],
                excluded_embed_metadata_keys=[PLACE],
                start_char_idx=p.start,
                end_char_idx=p.end,
            ),
            score=p.score,
        )
        for p in passages
    ]
