"""The LlamaIndex integration with LlamaIndex's real package, against a real service."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole
from llama_index.core.base.response.schema import (
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from llama_index.core.tools import FunctionTool
from rag_llamaindex import WordEmbedding
from service import SAMPLE, Service

from quire_client import ConfigurationError, DocumentNotFoundError, QuireClient
from quire_client.llama_index import (
    QuireLLM,
    QuireNodePostprocessor,
    QuireNodeRetriever,
    QuireSynthesizer,
)

REUSE: Any = {"strategy": "reuse"}


@pytest.fixture
async def llm(service: Service, namespace: str) -> AsyncIterator[QuireLLM]:
    one = QuireLLM(base_url=service.url, namespace=namespace, cache_options=REUSE)
    yield one
    await one.async_client.aclose()


@pytest.fixture
def nodes(corpus: list[Any], questions: list[Any]) -> list[NodeWithScore]:
    """The documents of the first question, as nodes that were retrieved."""
    wanted = questions[0]["document_ids"]
    return [
        NodeWithScore(
            node=TextNode(id_=d["id"], text=d["text"], metadata={"title": d["title"]}), score=1.0
        )
        for d in corpus
        if d["id"] in wanted
    ]


async def test_every_way_of_asking_gives_the_same_answer(
    llm: QuireLLM, client: QuireClient, corpus: list[Any], questions: list[Any]
) -> None:
    client.documents.add_many(corpus)
    q = questions[0]
    ids = q["document_ids"]
    answer = llm.complete(q["question"], document_ids=ids)
    assert answer.text in q["answers"]
    assert answer.additional_kwargs["cached_tokens"] > 0
    assert answer.raw.usage.cached_tokens == answer.additional_kwargs["cached_tokens"]
    messages = [ChatMessage(role=MessageRole.USER, content=q["question"])]
    assert (await llm.acomplete(q["question"], document_ids=ids)).text == answer.text
    assert llm.chat(messages, document_ids=ids).message.content == answer.text
    assert (await llm.achat(messages, document_ids=ids)).message.content == answer.text
    for pieces in (
        [(r.text, r.delta, r.raw) for r in llm.stream_complete(q["question"], document_ids=ids)],
        [
            (r.text, r.delta, r.raw)
            async for r in await llm.astream_complete(q["question"], document_ids=ids)
        ],
        [(r.message.content, r.delta, r.raw) for r in llm.stream_chat(messages, document_ids=ids)],
        [
            (r.message.content, r.delta, r.raw)
            async for r in await llm.astream_chat(messages, document_ids=ids)
        ],
    ):
        assert "".join(delta or "" for _, delta, _ in pieces) == answer.text
        assert pieces[-1][0] == answer.text
        # What stands before the documents may be known from earlier prompts.
        assert 0 <= pieces[-1][2].usage.cached_tokens - answer.raw.usage.cached_tokens < 40


def test_what_the_model_is_told_and_tells(llm: QuireLLM) -> None:
    assert (
        llm.metadata.context_window
        == json.loads((SAMPLE.parent / "config.json").read_text())["max_position_embeddings"]
    )
    assert llm.metadata.is_chat_model
    assert QuireLLM.class_name() == "QuireLLM"
    assert llm.metadata.is_function_calling_model
    with pytest.raises(ConfigurationError, match="'image'"):
        llm.chat([ChatMessage(role=MessageRole.USER, blocks=[ImageBlock(url="http://x/y.png")])])
    system = [
        ChatMessage(role=MessageRole.SYSTEM, content="Be short."),
        ChatMessage(role=MessageRole.USER, content="Who?"),
    ]
    assert llm.model_copy(update={"system_messages": "prepend"}).chat(system).raw is not None


def look_up(company: str) -> str:
    """Looks up a company."""
    return f"{company} is led by Mira Tolen."


async def test_tools_are_called_and_their_results_answered(llm: QuireLLM) -> None:
    tool = FunctionTool.from_defaults(look_up)
    question = "Who leads the Varo company?"
    options: Any = {"tool_required": True, "max_tokens": 64}
    response = llm.chat_with_tools([tool], question, **options)
    calls = llm.get_tool_calls_from_response(response)
    assert [(c.tool_name, list(c.tool_kwargs)) for c in calls] == [("look_up", ["company"])]
    again = await llm.achat_with_tools([tool], question, **options)
    assert llm.get_tool_calls_from_response(again)[0].tool_kwargs == calls[0].tool_kwargs
    last = list(llm.stream_chat_with_tools([tool], question, **options))[-1]
    assert llm.get_tool_calls_from_response(last)[0].tool_kwargs == calls[0].tool_kwargs
    history = [
        ChatMessage(role=MessageRole.USER, content=question),
        response.message,
        ChatMessage(
            role=MessageRole.TOOL,
            content=look_up("Varo"),
            additional_kwargs={"tool_call_id": calls[0].tool_id},
        ),
    ]
    answer = llm.chat_with_tools([tool], chat_history=history, max_tokens=16)
    assert answer.message.role == MessageRole.ASSISTANT
    with pytest.raises(ValueError, match="calls no tool"):
        llm.get_tool_calls_from_response(llm.chat(history[:1], max_tokens=4))


async def test_an_agent_runs(llm: QuireLLM) -> None:
    seen = []

    def remember(company: str) -> str:
        """Looks up a company."""
        seen.append(company)
        return "It is led by Mira Tolen."

    small = llm.model_copy(update={"max_tokens": 96})
    agent = FunctionAgent(
        tools=[FunctionTool.from_defaults(remember)],
        llm=small,
        system_prompt=None,
        initial_tool_choice="remember",
    )
    answer = await agent.run("Who leads the Varo company?")
    assert len(seen) >= 1
    assert str(answer) is not None


def test_nodes_go_by_their_ids(
    llm: QuireLLM, client: QuireClient, nodes: list[NodeWithScore], questions: list[Any]
) -> None:
    synthesizer = QuireSynthesizer(llm)
    q = questions[0]
    for _ in range(2):
        response = synthesizer.synthesize(q["question"], nodes)
        assert isinstance(response, Response)
        assert response.response in q["answers"]
        assert response.metadata is not None
        assert response.metadata["quire"]["cache"]["strategy"] == "reuse"
        assert [n.node.node_id for n in response.source_nodes] == [n.node.node_id for n in nodes]
    assert len(client.jobs.list()) == 1, "the texts were sent once"
    client.documents.delete(nodes[0].node.node_id)
    assert str(synthesizer.synthesize(q["question"], nodes)) in q["answers"]
    assert str(synthesizer.synthesize(q["question"], [])) == "Empty Response"


def test_nodes_keep_ids_that_quire_does_not_take(
    llm: QuireLLM, client: QuireClient, nodes: list[NodeWithScore], questions: list[Any]
) -> None:
    named = [
        NodeWithScore(node=TextNode(id_=f"data/{n.node.node_id}#0", text=n.node.get_content()))
        for n in nodes
    ]
    for _ in range(2):
        answer = QuireSynthesizer(llm).synthesize(questions[0]["question"], named)
        assert str(answer) in questions[0]["answers"]
    assert len(client.jobs.list()) == 1, "the texts were sent once"


async def test_answers_over_nodes_can_be_streamed_and_awaited(
    llm: QuireLLM, client: QuireClient, nodes: list[NodeWithScore], questions: list[Any]
) -> None:
    q = questions[0]
    streamed = QuireSynthesizer(llm, streaming=True).synthesize(q["question"], nodes)
    assert isinstance(streamed, StreamingResponse)
    assert "".join(streamed.response_gen) in q["answers"]
    client.documents.delete_many([n.node.node_id for n in nodes])
    awaited = await QuireSynthesizer(llm, max_tokens=32).asynthesize(q["question"], nodes)
    assert str(awaited) in q["answers"]
    both = await QuireSynthesizer(llm, streaming=True).asynthesize(q["question"], nodes)
    assert isinstance(both, AsyncStreamingResponse)
    assert "".join([t async for t in both.async_response_gen()]) in q["answers"]


def test_the_postprocessor_caches_what_is_missing(
    client: QuireClient, nodes: list[NodeWithScore]
) -> None:
    postprocessor = QuireNodePostprocessor(client)
    client.documents.add(nodes[0].node.get_content(), id=nodes[0].node.node_id)
    assert postprocessor.postprocess_nodes(nodes, query_str="Who?") == nodes
    assert {d.id for d in client.documents.iter(status="ready")} == {n.node.node_id for n in nodes}
    assert len(client.jobs.list()) == 2
    postprocessor.postprocess_nodes(nodes, query_str="Who?")
    assert len(client.jobs.list()) == 2
    assert QuireNodePostprocessor.class_name() == "QuireNodePostprocessor"


async def test_a_passage_does_not_bring_its_document_back(
    llm: QuireLLM, client: QuireClient
) -> None:
    text = " ".join(f"Sentence {i} of the handbook says that rule {i} holds." for i in range(200))
    client.documents.add(text, id="handbook", metadata={"title": "Handbook"})
    passages = QuireNodeRetriever(client, k=1).retrieve("rule 150")
    assert [p.node.node_id for p in passages] == ["handbook"]
    assert len(passages[0].node.get_content()) < len(text)
    seen = passages[0].node.get_content(metadata_mode=MetadataMode.LLM)
    assert "title: Handbook" in seen
    assert "quire" not in seen
    client.documents.delete("handbook")
    synthesizer = QuireSynthesizer(llm, max_tokens=2)
    with pytest.raises(DocumentNotFoundError) as caught:
        synthesizer.synthesize("What of rule 150?", passages)
    assert caught.value.document_ids == ["handbook"]
    with pytest.raises(DocumentNotFoundError):
        await synthesizer.asynthesize("What of rule 150?", passages)
    with pytest.raises(DocumentNotFoundError):
        QuireNodePostprocessor(client).postprocess_nodes(passages, query_str="Who?")
    assert len(client.documents.list()) == 0
    # A node of one's own is a whole document, also where it says of which chunk it is.
    own = NodeWithScore(node=TextNode(id_="handbook", text=text, metadata={"chunk": 1}))
    synthesizer.synthesize("What of rule 150?", [own])
    assert client.documents.content("handbook") == text


def test_ids_that_are_no_nodes_stay_an_error(
    llm: QuireLLM, client: QuireClient, nodes: list[NodeWithScore]
) -> None:
    with pytest.raises(DocumentNotFoundError):
        llm.complete("Who?", document_ids=["unknown"])
    assert len(client.documents.list()) == 0


def test_a_query_engine_answers_from_the_users_own_index(
    llm: QuireLLM, client: QuireClient, corpus: list[Any], questions: list[Any]
) -> None:
    nodes = [TextNode(id_=d["id"], text=d["text"]) for d in corpus]
    index = VectorStoreIndex(nodes, embed_model=WordEmbedding())
    engine = RetrieverQueryEngine(
        retriever=index.as_retriever(similarity_top_k=4),
        response_synthesizer=QuireSynthesizer(llm),
        node_postprocessors=[QuireNodePostprocessor(client)],
    )
    q = questions[0]
    response = engine.query(q["question"])
    assert str(response) in q["answers"]
    assert len(client.documents.list()) == 4
