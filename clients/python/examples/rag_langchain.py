"""Questions over 30 documents with LangChain:
found by FAISS, answered from KV that Quire computed once.

    pip install 'quire-client[langchain]' langchain-community langchain-text-splitters faiss-cpu
    python rag_langchain.py

Each question is asked twice: with Quire's cache, where a passage is computed when it is first asked
about and read from then on, and without (strategy `recompute`). Prints prompt tokens computed and
time to first token of both. The documents are written in the language of the model that comes with
Quire, so that it answers them right; the address of the service comes from QUIRE_SERVER.
"""

import json
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessageChunk
from langchain_text_splitters import RecursiveCharacterTextSplitter
from words import embed

from quire_client.langchain import ChatQuire, quire_rag_chain
from quire_client.langchain.index import part_id

DATA = Path(__file__).parent / "data"


class WordEmbeddings(Embeddings):
    """LangChain's interface to `words.embed`."""

    def embed_query(self, text: str) -> list[float]:
        return embed(text)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [embed(text) for text in texts]


@dataclass
class Turn:
    """One question, asked one way."""

    question: str
    answer: str
    right: bool
    prompt_tokens: int
    computed_tokens: int
    first_token_ms: float


def vector_store() -> FAISS:
    """The documents in passages, each under an id made from its content."""
    lines = (DATA / "documents.jsonl").read_text(encoding="utf-8").splitlines()
    documents = [
        Document(page_content=d["text"], metadata={"source": d["id"]})
        for d in map(json.loads, lines)
    ]
    passages = RecursiveCharacterTextSplitter(chunk_size=700, chunk_overlap=0).split_documents(
        documents
    )
    for passage in passages:
        passage.id = part_id(passage.page_content, passage.metadata)
    return FAISS.from_documents(passages, WordEmbeddings(), ids=[str(p.id) for p in passages])


def ask(chain: Any, question: str, expected: str) -> Turn:
    """Asks once; the time runs from the question to the first piece of the answer,
    retrieval and caching included."""
    begun, first = time.perf_counter(), 0.0
    answer: AIMessageChunk | None = None
    for piece in chain.stream(question):
        if "answer" in piece:
            first = first or time.perf_counter()
            answer = piece["answer"] if answer is None else answer + piece["answer"]
    assert answer is not None
    assert answer.usage_metadata is not None
    tokens, cached = (
        answer.usage_metadata["input_tokens"],
        answer.usage_metadata["input_token_details"]["cache_read"],
    )
    text = str(answer.content).strip()
    return Turn(question, text, text == expected, tokens, tokens - cached, (first - begun) * 1000)


def run(**connection: Any) -> list[tuple[Turn, Turn]]:
    """Every question with the cache and without."""
    retriever = vector_store().as_retriever(search_kwargs={"k": 4})
    with_cache = quire_rag_chain(
        retriever, ChatQuire(cache_options={"strategy": "reuse"}, **connection)
    )
    without = quire_rag_chain(
        retriever, ChatQuire(cache_options={"strategy": "recompute"}, **connection)
    )
    questions = [
        json.loads(line)
        for line in (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return [
        (ask(with_cache, q["question"], q["answer"]), ask(without, q["question"], q["answer"]))
        for q in questions
    ]


def main() -> int:
    # A namespace of its own, so that the first question finds an empty cache.
    turns = run(namespace=f"example-{uuid.uuid4().hex[:8]}")
    print(f"{'question':<52} {'answer':<18} {'computed prompt tokens':>24} {'first token, ms':>20}")
    print(f"{'':<52} {'':<18} {'with':>14} {'without':>9} {'with':>10} {'without':>9}")
    for cached, plain in turns:
        mark = "" if cached.right and plain.right else "  WRONG"
        print(
            f"{cached.question:<52} {cached.answer:<18} {cached.computed_tokens:>14} "
            f"{plain.computed_tokens:>9} {cached.first_token_ms:>10.1f} "
            f"{plain.first_token_ms:>9.1f}{mark}"
        )
    saved = 1 - turns[1][0].computed_tokens / turns[0][0].computed_tokens
    print(f"the second question computed {saved:.0%} fewer prompt tokens than the first")
    return 0 if all(c.right and p.right for c, p in turns) else 1


if __name__ == "__main__":
    sys.exit(main())
