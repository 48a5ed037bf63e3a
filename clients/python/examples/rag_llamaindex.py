"""Questions over 30 documents with LlamaIndex: found by its vector index, answered by node ids from
KV that Quire computed once.

    pip install 'quire-client[llama-index]'
    python rag_llamaindex.py

The prompt of every question holds the texts of four nodes, but only their ids are sent, and only
the question is computed once a node is cached. The documents are written in the language of the
model that comes with Quire; the address of the service comes from QUIRE_SERVER.
"""

import json
import sys
import uuid
from pathlib import Path
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.base.response.schema import Response
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode
from words import embed

from quire_client.llama_index import QuireLLM, QuireNodePostprocessor, QuireSynthesizer

DATA = Path(__file__).parent / "data"


class WordEmbedding(BaseEmbedding):
    """LlamaIndex's interface to `words.embed`."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return embed(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return embed(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return embed(query)


def run(**connection: Any) -> list[tuple[str, str, bool, int, int]]:
    """Question, answer, whether it is right, prompt tokens,
    and those of them that were computed."""
    lines = (DATA / "documents.jsonl").read_text(encoding="utf-8").splitlines()
    nodes = [TextNode(id_=d["id"], text=d["text"]) for d in map(json.loads, lines)]
    llm = QuireLLM(cache_options={"strategy": "reuse"}, **connection)
    engine = RetrieverQueryEngine(
        retriever=VectorStoreIndex(nodes, embed_model=WordEmbedding()).as_retriever(
            similarity_top_k=4
        ),
        response_synthesizer=QuireSynthesizer(llm),
        node_postprocessors=[QuireNodePostprocessor(llm.client)],
    )
    out = []
    for q in map(json.loads, (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines()):
        response = engine.query(q["question"])
        assert isinstance(response, Response)
        assert response.metadata is not None
        usage = response.metadata["quire"]["usage"]
        tokens, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        out.append(
            (
                q["question"],
                str(response),
                str(response).strip() == q["answer"],
                tokens,
                tokens - cached,
            )
        )
    return out


def main() -> int:
    answers = run(namespace=f"example-{uuid.uuid4().hex[:8]}")
    for question, answer, right, tokens, computed in answers:
        print(
            f"{question:<52} {answer:<18} {computed:>4} of {tokens} prompt tokens "
            f"computed{'' if right else '  WRONG'}"
        )
    return 0 if all(right for _, _, right, _, _ in answers) else 1


if __name__ == "__main__":
    sys.exit(main())
