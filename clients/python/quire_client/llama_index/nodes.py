"""Nodes of LlamaIndex as documents of Quire, under their own ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle

from .._ids import taken_id
from ..client import QuireClient
from ..errors import DocumentNotFoundError
from ..options import DocumentInput

#: Documents one query may name.
PER_QUERY = 64

#: The metadata of a passage that says where in its document it stands.
PLACE = "quire"


def input_of(node: BaseNode) -> DocumentInput:
    """A node to add: its own text, without the metadata that LlamaIndex can write around it."""
    return {
        "id": taken_id(node.node_id),
        "text": node.get_content(metadata_mode=MetadataMode.NONE),
        "metadata": {"llama_index": True},
    }


def missing_nodes(
    error: DocumentNotFoundError, nodes: Sequence[NodeWithScore]
) -> list[DocumentInput]:
    """What can be added so that a question can be asked again. Raises the error when that is not
    all that is missing, or only a passage of it is at hand."""
    known = {taken_id(n.node.node_id): n.node for n in nodes if not is_passage(n.node)}
    if not error.document_ids or not set(error.document_ids) <= set(known):
        raise error
    return [input_of(known[i]) for i in error.document_ids]


def is_passage(node: BaseNode) -> bool:
    """Whether `QuireNodeRetriever` made it: its id is that of the document it stands in, so that it
    must not be added as if it were all of it."""
    place = node.metadata.get(PLACE)
    return isinstance(place, Mapping) and "chunk" in place


def ids_of(nodes: Sequence[NodeWithScore]) -> list[str]:
    """Ids in order, as Quire has them, each once."""
    return list(dict.fromkeys(taken_id(n.node.node_id) for n in nodes))


class QuireNodePostprocessor(BaseNodePostprocessor):
    """Sees to it that retrieved nodes are cached before they are asked about;
    nodes that are need no text to be sent."""

    _client: QuireClient = PrivateAttr()

    def __init__(self, client: QuireClient) -> None:
        super().__init__()
        self._client = client

    @classmethod
    def class_name(cls) -> str:
        """The name LlamaIndex knows the class by."""
        return "QuireNodePostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        for start in range(0, len(nodes), PER_QUERY):
            part = nodes[start : start + PER_QUERY]
            try:
                # A plan generates nothing and names at once all ids that are not there.
                self._client.plan(
                    "?",
                    document_ids=ids_of(part),
                    cache={"strategy": "reuse"},
                    on_not_ready="compute",
                )
            except DocumentNotFoundError as error:
                self._client.documents.add_many(missing_nodes(error, part)).raise_for_failures()
        return nodes
