"""Retrieval by the service, through both clients and both integrations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from quire_client import AsyncQuireClient, DocumentNotFoundError, QuireClient
from quire_client.langchain import ChatQuire, QuireRetriever, quire_rag_chain
from quire_client.llama_index import QuireNodeRetriever


@pytest.fixture
def library(client: QuireClient, corpus: list[Any]) -> QuireClient:
    """A client of a namespace with the sample in it."""
    client.documents.add_many(corpus)
    return client


def test_passages_come_ranked_with_their_places(library: QuireClient, questions: list[Any]) -> None:
    q = questions[0]
    passages = library.retrieve(q["question"], k=3)
    assert len(passages) == 3
    assert passages.scorer
    assert [p.score for p in passages] == sorted((p.score for p in passages), reverse=True)
    assert set(q["supporting"]) <= {p.document_id for p in passages}
    for passage in passages:
        assert (
            library.documents.content(passage.document_id)[passage.start : passage.end]
            == passage.text
        )
    assert {
        p.document_id
        for p in library.retrieve(q["question"], k=2, document_ids=q["document_ids"][:2])
    } <= set(q["document_ids"][:2])
    assert {
        p.metadata["world"]
        for p in library.retrieve(q["question"], k=3, metadata={"world": 2}, unit="document")
    } == {2}


def test_a_document_deleted_between_retrieval_and_query_is_named(
    library: QuireClient, questions: list[Any]
) -> None:
    found = [p.document_id for p in library.retrieve(questions[0]["question"], k=3)]
    library.documents.delete(found[0])
    with pytest.raises(DocumentNotFoundError, match="add them again") as caught:
        library.query(questions[0]["question"], document_ids=list(dict.fromkeys(found)))
    assert caught.value.document_ids == [found[0]]


async def test_the_asynchronous_client_retrieves_too(
    library: QuireClient, async_client: AsyncQuireClient, questions: list[Any]
) -> None:
    question = questions[0]["question"]
    assert [p.text for p in await async_client.retrieve(question, k=2)] == [
        p.text for p in library.retrieve(question, k=2)
    ]


@pytest.fixture
async def retriever(library: QuireClient) -> AsyncIterator[QuireRetriever]:
    one = QuireRetriever(base_url=library.url, namespace=library.namespace)
    yield one
    await one.async_client.aclose()


async def test_a_chain_can_retrieve_with_the_service_itself(
    retriever: QuireRetriever, questions: list[Any]
) -> None:
    q = questions[0]
    llm = ChatQuire(
        base_url=retriever.base_url,
        namespace=retriever.namespace,
        cache_options={"strategy": "reuse"},
    )
    assert quire_rag_chain(retriever, llm).invoke(q["question"])["answer"].content in q["answers"]
    filtered = QuireRetriever(
        base_url=retriever.base_url, namespace=retriever.namespace, filter={"world": 2}, k=2
    )
    assert {d.metadata["world"] for d in filtered.invoke(q["question"])} == {2}
    (first,) = await retriever.ainvoke(q["question"], k=1)
    assert first.metadata["quire"]["score"] > 0


async def test_llama_index_retrieves_nodes(
    library: QuireClient, async_client: AsyncQuireClient, questions: list[Any]
) -> None:
    question = questions[0]["question"]
    expected = [p.document_id for p in library.retrieve(question, k=3)]
    assert [n.node.node_id for n in QuireNodeRetriever(library, k=3).retrieve(question)] == expected
    assert [
        n.node.node_id for n in await QuireNodeRetriever(library, k=3).aretrieve(question)
    ] == expected
    found = await QuireNodeRetriever(library, k=3, async_client=async_client).aretrieve(question)
    assert [n.node.node_id for n in found] == expected
    assert found[0].score is not None


class TestQuireRetrieverIntegration(RetrieversIntegrationTests):
    """LangChain's own standard tests."""

    @pytest.fixture(autouse=True)
    def _with_library(self, library: QuireClient, questions: list[Any]) -> None:
        self._library, self._question = library, questions[0]["question"]

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return QuireRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"base_url": self._library.url, "namespace": self._library.namespace}

    @property
    def retriever_query_example(self) -> str:
        return str(self._question)
