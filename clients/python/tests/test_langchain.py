"""ChatQuire, the index and the chain with LangChain's real packages, against a real service."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from langchain_community.vectorstores import FAISS
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.globals import set_llm_cache
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.retrievers import BaseRetriever
from langchain_text_splitters import RecursiveCharacterTextSplitter
from pydantic import BaseModel, Field, ValidationError
from rag_langchain import WordEmbeddings
from service import Service

from quire_client import ConfigurationError, DocumentNotFoundError, QuireClient
from quire_client.langchain import (
    ChatQuire,
    QuireDocumentIndex,
    QuireRetriever,
    quire_rag_chain,
    sync_documents,
)
from quire_client.langchain.convert import messages_of, tool_calls_of
from quire_client.models import QueryResult

REUSE: Any = {"strategy": "reuse"}


@pytest.fixture
def llm(service: Service, namespace: str) -> ChatQuire:
    return ChatQuire(base_url=service.url, namespace=namespace, cache_options=REUSE)


@pytest.fixture
def documents(corpus: list[Any]) -> list[Document]:
    return [
        Document(
            id=d["id"],
            page_content=d["text"],
            metadata={"title": d["title"], "source": d["id"].split("-part")[0]},
        )
        for d in corpus
    ]


def chosen(documents: list[Document], ids: list[str]) -> list[Document]:
    by_id = {d.id: d for d in documents}
    return [by_id[i] for i in ids]


def test_documents_given_whole_are_cached_once_and_read_from_the_cache_then(
    llm: ChatQuire, client: QuireClient, documents: list[Document], questions: list[Any]
) -> None:
    q = questions[0]
    mine = chosen(documents, q["document_ids"])
    for first in (True, False):
        answer = llm.invoke(q["question"], documents=mine)
        assert answer.content in q["answers"]
        usage = answer.usage_metadata
        assert usage is not None
        tokens = sum(d.tokens for d in client.documents.iter())
        details = usage["input_token_details"]
        assert details["cache_creation"] == (tokens if first else 0)
        # What stands before the documents may be known from earlier prompts.
        assert 0 <= details["cache_read"] - (0 if first else tokens) < 40
        assert 0 < usage["input_tokens"] - tokens < 40
    assert len(client.jobs.list()) == 1
    assert {d.id: d.title for d in client.documents.iter()} == {
        d.id: d.metadata["title"] for d in mine
    }
    assert answer.response_metadata["cache"]["strategy"] == "reuse"
    assert client.explain(answer.response_metadata["query_id"]).counts["reused"] > 0


def test_documents_of_other_stores_keep_ids_and_metadata_that_quire_does_not_take(
    llm: ChatQuire, client: QuireClient
) -> None:
    made = datetime.datetime(2026, 1, 2, 3, 4, 5)
    document = Document(
        id="docs/varo.md#3",
        page_content="The Varo company is led by Mira Tolen.",
        metadata={"made": made, "path": Path("docs"), "score": float("nan"), "page": 3}
        | {"half": Fraction(1, 2), "huge": Fraction(10**400)},
    )
    for _ in range(2):
        assert llm.invoke("Who leads the Varo company?", documents=[document]).content
    assert len(client.jobs.list()) == 1
    (stored,) = client.documents.iter()
    assert stored.metadata == {
        "made": "2026-01-02T03:04:05",
        "path": "docs",
        "score": None,
        "page": 3,
        "half": 0.5,
        "huge": str(10**400),
    }


async def test_texts_that_change_under_their_ids_are_read_anew_if_asked_for(
    llm: ChatQuire, client: QuireClient
) -> None:
    fresh = llm.model_copy(update={"refresh_documents": True})

    def document(leader: str) -> list[Document]:
        return [Document(id="varo", page_content=f"The Varo company is led by {leader}.")]

    question = "Who leads the Varo company?"
    assert fresh.invoke(question, documents=document("Mira Tolen")).content
    assert llm.invoke(question, documents=document("Anna Halden")).content
    assert "Mira" in client.documents.content("varo"), "an id stands for what was cached"
    changed = fresh.invoke(question, documents=document("Anna Halden"))
    assert "Anna" in client.documents.content("varo")
    assert changed.usage_metadata is not None
    assert changed.usage_metadata["input_token_details"]["cache_creation"] > 0
    again = await fresh.ainvoke(question, documents=document("Anna Halden"))
    assert again.usage_metadata is not None
    assert again.usage_metadata["input_token_details"]["cache_creation"] == 0
    assert list(fresh.stream(question, documents=document("Otto Brask")))
    assert "Otto" in client.documents.content("varo")
    assert [c async for c in fresh.astream(question, documents=document("Ida Lund"))]
    assert "Ida" in client.documents.content("varo")
    await fresh.async_client.aclose()


def test_documents_without_an_id_go_inline(
    llm: ChatQuire, client: QuireClient, documents: list[Document], questions: list[Any]
) -> None:
    q = questions[0]
    inline = [Document(page_content=d.page_content) for d in chosen(documents, q["document_ids"])]
    assert (
        llm.invoke(q["question"], documents=inline, cache_options={"strategy": "recompute"}).content
        in q["answers"]
    )
    assert len(client.documents.list()) == 0


async def test_every_way_of_asking_adds_what_is_missing(
    llm: ChatQuire, documents: list[Document], questions: list[Any], client: QuireClient
) -> None:
    q = questions[0]
    mine = chosen(documents, q["document_ids"])

    def forget() -> None:
        client.documents.delete_many([str(d.id) for d in mine])

    assert (
        "".join(str(c.content) for c in llm.stream(q["question"], documents=mine)) in q["answers"]
    )
    forget()
    assert (await llm.ainvoke(q["question"], documents=mine)).content in q["answers"]
    forget()
    assert (
        "".join([str(c.content) async for c in llm.astream(q["question"], documents=mine)])
        in q["answers"]
    )
    assert (
        llm.bind(document_ids=q["document_ids"]).batch([q["question"]] * 2)[1].content
        in q["answers"]
    )
    await llm.async_client.aclose()


def test_what_cannot_be_added_stays_an_error(
    llm: ChatQuire, client: QuireClient, documents: list[Document]
) -> None:
    with pytest.raises(DocumentNotFoundError) as caught:
        llm.bind(document_ids=["unknown"]).invoke("Who?", documents=documents[:1])
    assert set(caught.value.document_ids) == {"unknown", documents[0].id}
    strict = llm.model_copy(update={"add_missing": False})
    with pytest.raises(DocumentNotFoundError):
        strict.invoke("Who?", documents=documents[:1])
    assert len(client.documents.list()) == 0


def test_a_document_deleted_between_retrieval_and_question_is_cached_again(
    llm: ChatQuire, client: QuireClient, documents: list[Document], questions: list[Any]
) -> None:
    q = questions[0]
    mine = chosen(documents, q["document_ids"])
    llm.invoke(q["question"], documents=mine)
    client.documents.delete(str(mine[2].id))
    assert llm.invoke(q["question"], documents=mine).content in q["answers"]
    assert client.documents.get(str(mine[2].id)).status == "ready"


#: A text of which a retriever brings a part.
HANDBOOK = " ".join(f"Sentence {i} of the handbook says that rule {i} holds." for i in range(200))


async def test_a_passage_does_not_bring_its_document_back(
    llm: ChatQuire, client: QuireClient, service: Service, namespace: str
) -> None:
    client.documents.add(HANDBOOK, id="handbook")
    passages = QuireRetriever(base_url=service.url, namespace=namespace, k=1).invoke("rule 150")
    assert [p.id for p in passages] == ["handbook"]
    assert len(passages[0].page_content) < len(HANDBOOK)
    client.documents.delete("handbook")
    with pytest.raises(DocumentNotFoundError) as caught:
        llm.invoke("What of rule 150?", documents=passages, max_tokens=2)
    assert caught.value.document_ids == ["handbook"]
    with pytest.raises(DocumentNotFoundError):
        await llm.ainvoke("What of rule 150?", documents=passages, max_tokens=2)
    with pytest.raises(DocumentNotFoundError):
        list(llm.stream("What of rule 150?", documents=passages, max_tokens=2))
    assert len(client.documents.list()) == 0
    # The whole document, which is at hand as well, does bring it back.
    whole = Document(id="handbook", page_content=HANDBOOK)
    llm.invoke("What of rule 150?", documents=[whole, *passages], max_tokens=2)
    assert client.documents.content("handbook") == HANDBOOK
    await llm.async_client.aclose()


def test_arguments_that_nobody_reads_are_refused() -> None:
    with pytest.raises(ValidationError, match="tempreature"):
        ChatQuire(tempreature=0)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="client"):
        QuireRetriever(client=None)  # type: ignore[call-arg]


def test_messages_become_turns() -> None:
    history = [
        SystemMessage("S"),
        SystemMessage("T"),
        HumanMessage([{"type": "text", "text": "a"}, "b"]),
        HumanMessage("c"),
        AIMessage("d"),
        ChatMessage(content="e", role="user"),
    ]
    assert messages_of(history, "send") == [
        {"role": "system", "content": "S\n\nT"},
        {"role": "user", "content": "ab\n\nc"},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"},
    ]
    assert messages_of(history[:4], "prepend") == [{"role": "user", "content": "S\n\nT\n\nab\n\nc"}]
    assert messages_of(history[:1], "prepend") == [{"role": "user", "content": "S"}]
    with pytest.raises(ConfigurationError, match="'function'"):
        messages_of([FunctionMessage(content="x", name="f")], "send")
    with pytest.raises(ConfigurationError, match="'image_url'"):
        messages_of([HumanMessage([{"type": "image_url", "image_url": "x"}])], "send")


# ---- LangChain's cache of whole answers


@pytest.fixture
def answers() -> Iterator[None]:
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(None)


@pytest.mark.usefixtures("answers")
def test_an_answer_is_cached_under_all_that_changes_it(
    service: Service, llm: ChatQuire, client: QuireClient, documents: list[Document]
) -> None:
    def number() -> int:
        return len(client.queries(limit=100))

    client.documents.add_many([{"id": i, "text": f"The {i} rule."} for i in ("old", "new")])
    question = "What is the rule?"
    old = llm.model_copy(update={"document_ids": ["old"], "max_tokens": 2})
    variants = [
        old,
        *(
            old.model_copy(update=change)
            for change in (
                {"document_ids": ["new"]},
                {"document_ids": ["old", "new"]},
                {"stop": ["."]},
                {"system_messages": "prepend"},
                {"cache_options": {"strategy": "recompute"}},
                {"max_tokens": 1},
            )
        ),
        old.bind(document_ids=["new", "old"]),
        old.bind(stop=["rule"]),
        old.bind(documents=[Document(page_content="A rule.")]),
        old.bind(documents=[Document(page_content="Another rule.")]),
        old.bind(documents=[Document(id="new", page_content="A rule.")]),
    ]
    for count, variant in enumerate(variants, 1):
        variant.invoke(question)
        assert number() == count, variant
    for variant in variants:
        variant.invoke(question)
    assert number() == len(variants), "each answer was kept"


def test_the_cache_of_answers_keeps_services_and_keys_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def string(**changes: Any) -> str:
        return ChatQuire(**changes)._get_llm_string()

    monkeypatch.delenv("QUIRE_API_KEY", raising=False)
    monkeypatch.setenv("QUIRE_SERVER", "http://127.0.0.1:1/")
    assert string() == string(base_url="http://127.0.0.1:1")
    assert string() != string(base_url="http://127.0.0.1:2")
    keys = [string(), string(api_key="secret-1"), string(api_key="secret-2")]
    assert len(set(keys)) == 3, "a key chooses the namespace"
    assert not any("secret" in k for k in keys)
    named = {"namespace": "team-a"}
    assert string(api_key="secret-1", **named) == string(api_key="secret-2", **named)


# ---- tools


def look_up(company: Annotated[str, Field(max_length=12)]) -> str:
    """Looks up a company."""
    return f"{company} is led by Mira Tolen."


def test_a_bound_tool_is_called_and_its_result_answered(llm: ChatQuire) -> None:
    bound = llm.bind_tools([look_up], tool_choice="any", parallel_tool_calls=False)
    question = HumanMessage("Who leads the Varo company?")
    call = bound.invoke([question], max_tokens=128)
    assert [c["name"] for c in call.tool_calls] == ["look_up"]
    assert list(call.tool_calls[0]["args"]) == ["company"]
    assert call.response_metadata["finish_reason"] == "tool_calls"
    streamed: Any = None
    for chunk in bound.stream([question], max_tokens=128):
        streamed = chunk if streamed is None else streamed + chunk
    assert [(c["name"], c["args"]) for c in streamed.tool_calls] == [
        (c["name"], c["args"]) for c in call.tool_calls
    ]
    result = ToolMessage(look_up("Varo"), tool_call_id=call.tool_calls[0]["id"])
    answer = llm.bind_tools([look_up]).invoke([question, call, result], max_tokens=16)
    assert isinstance(answer, AIMessage)


def test_the_choice_of_a_tool_is_the_apis(llm: ChatQuire) -> None:
    def choice(given: Any) -> Any:
        bound: Any = llm.bind_tools([look_up], tool_choice=given)
        return bound.kwargs.get("tool_choice")

    assert choice("any") == choice("required") == choice(True) == "required"
    assert choice("auto") == "auto"
    assert choice(None) is None
    named = {"type": "function", "function": {"name": "look_up"}}
    assert choice("look_up") == choice(named) == named
    strict: Any = llm.bind_tools([look_up], strict=True)
    assert strict.kwargs["tools"][0]["function"]["strict"] is True


def test_messages_with_calls_keep_them(llm: ChatQuire) -> None:
    calls = AIMessage(
        "",
        tool_calls=[{"name": "look_up", "args": {"company": "Varo"}, "id": "c1"}],
        invalid_tool_calls=[{"name": "look_up", "args": "{", "id": "c2", "error": None}],
    )
    turns = messages_of([HumanMessage("a"), calls, ToolMessage("b", tool_call_id="c1")], "send")
    assert [t["role"] for t in turns] == ["user", "assistant", "tool"]
    assert [c["function"]["arguments"] for c in turns[1]["tool_calls"]] == [
        '{"company": "Varo"}',
        "{",
    ]
    assert turns[2]["tool_call_id"] == "c1"


def test_arguments_that_are_no_json_are_invalid_calls() -> None:
    result = QueryResult.from_json(
        {
            "id": "q",
            "tool_calls": [
                {"id": "c1", "function": {"name": "f", "arguments": '{"a": 1}'}},
                {"id": "c2", "function": {"name": "g", "arguments": "[1]"}},
                {"id": "c3", "function": {"name": "h", "arguments": '{"a"'}},
            ],
        }
    )
    good, bad = tool_calls_of(result)
    assert [(c["name"], c["args"]) for c in good] == [("f", {"a": 1})]
    assert [c["name"] for c in bad] == ["g", "h"]


def test_structured_output_by_a_call(llm: ChatQuire) -> None:
    by_call = llm.with_structured_output(Verdict, method="function_calling")
    assert isinstance(by_call.invoke("Is the Varo company old?", max_tokens=128), Verdict)
    raw: Any = llm.with_structured_output(
        {
            "title": "Size",
            "description": "A size.",
            "type": "object",
            "properties": {"size": {"type": "integer"}},
            "required": ["size"],
        },
        method="function_calling",
        include_raw=True,
    ).invoke("How many?", max_tokens=64)
    assert raw["parsing_error"] is None
    assert list(raw["parsed"]) == ["size"]


# ---- structured output


class Verdict(BaseModel):
    """Whether it is so."""

    verdict: Literal["yes", "no"]
    sure: bool


async def test_answers_fit_their_schema(llm: ChatQuire) -> None:
    answer = llm.with_structured_output(Verdict).invoke("Is it so?")
    assert isinstance(answer, Verdict)
    as_dict = await llm.with_structured_output(Verdict.model_json_schema()).ainvoke("Is it so?")
    assert as_dict == answer.model_dump()
    whole = llm.with_structured_output(Verdict, include_raw=True).invoke("Is it so?")
    assert (whole["parsed"], whole["parsing_error"]) == (answer, None)
    assert isinstance(whole["raw"], AIMessage)
    short = (
        llm.model_copy(update={"max_tokens": 1})
        .with_structured_output(Verdict, include_raw=True)
        .invoke("Is it so?")
    )
    assert short["parsed"] is None
    assert short["parsing_error"] is not None
    await llm.async_client.aclose()


class Order(BaseModel):
    """What pydantic makes of the types people use."""

    number: int = Field(ge=1, le=500)
    share: float = Field(ge=0, le=1)
    when: datetime.datetime
    day: datetime.date
    key: uuid.UUID
    note: str | None = None
    verdict: Verdict
    earlier: list[Verdict] = Field(default_factory=list, max_length=2)
    pair: tuple[int, bool]
    by_name: dict[str, Verdict] = Field(default_factory=dict)


def test_schemas_of_everyday_models_are_taken_and_their_answers_end(llm: ChatQuire) -> None:
    whole = (
        llm.model_copy(update={"max_tokens": 400})
        .with_structured_output(Order, include_raw=True)
        .invoke("What was ordered?")
    )
    assert whole["parsing_error"] is None
    assert isinstance(whole["parsed"], Order)


class Story(BaseModel):
    """A text without an end of its own."""

    text: str


def test_an_answer_ends_within_its_tokens(llm: ChatQuire) -> None:
    whole = (
        llm.model_copy(update={"max_tokens": 24})
        .with_structured_output(Story, include_raw=True)
        .invoke("Tell me a story.")
    )
    assert isinstance(whole["parsed"], Story)
    assert whole["raw"].response_metadata["finish_reason"] == "length"
    assert whole["raw"].usage_metadata["output_tokens"] <= 24


def test_what_structured_output_cannot_take_is_refused(llm: ChatQuire) -> None:
    with pytest.raises(ConfigurationError, match="other"):
        llm.with_structured_output(Verdict, other=[])
    bound: Any = llm.with_structured_output(Verdict, method="json_mode")
    assert bound.first.kwargs["response_format"] == {"type": "json_object"}


# ---- the index


def test_the_indexing_api_adds_skips_and_deletes(
    service: Service, namespace: str, client: QuireClient, documents: list[Document]
) -> None:
    target = QuireDocumentIndex(base_url=service.url, namespace=namespace)
    manager = InMemoryRecordManager("quire")
    manager.create_schema()

    def run(given: list[Document], cleanup: Any) -> tuple[int, int, int, int]:
        done = index(
            given, manager, target, cleanup=cleanup, source_id_key="source", key_encoder="sha256"
        )
        return done["num_added"], done["num_updated"], done["num_skipped"], done["num_deleted"]

    plain = [Document(page_content=d.page_content, metadata=d.metadata) for d in documents]
    assert run(plain, "full") == (len(plain), 0, 0, 0)
    assert run(plain, "full") == (0, 0, len(plain), 0)
    assert run(plain[:10], "full") == (0, 0, 10, len(plain) - 10)
    sources = [d.metadata["source"] for d in plain[:10]]
    alone = next(d for d in plain[:10] if sources.count(d.metadata["source"]) == 1)
    changed = [Document(page_content=alone.page_content + " Changed.", metadata=alone.metadata)]
    assert run(changed, "incremental") == (1, 0, 0, 1)
    assert (
        client.documents.list(counts=True).counts
        == client.documents.list(counts=True, limit=1).counts
    )
    assert len(list(client.documents.iter())) == 10


def test_documents_are_kept_in_step_without_a_record_manager(
    client: QuireClient, documents: list[Document]
) -> None:
    splitter = RecursiveCharacterTextSplitter(chunk_size=200, chunk_overlap=0)
    first = sync_documents(documents, client, splitter=splitter)
    assert first["num_added"] > len(documents)
    assert first["num_added"] == len(list(client.documents.iter()))
    again = sync_documents(documents, client, splitter=splitter)
    assert again == {
        "num_added": 0,
        "num_updated": 0,
        "num_skipped": first["num_added"],
        "num_deleted": 0,
    }
    assert len(client.jobs.list()) == 1, "nothing was sent"

    source = documents[0].metadata["source"]
    rewritten = [Document(page_content="Now everything is different.", metadata={"source": source})]
    changed = sync_documents(rewritten, client, splitter=splitter)
    assert changed["num_added"] == 1
    assert changed["num_deleted"] > 0
    assert [d.metadata["source"] for d in client.documents.iter()].count(source) == 1
    emptied = sync_documents(
        [Document(page_content="", metadata={"source": source})], client, splitter=splitter
    )
    assert (emptied["num_added"], emptied["num_deleted"]) == (0, 1)
    assert source not in [d.metadata["source"] for d in client.documents.iter()]

    kept = sync_documents([], client, cleanup=None)
    assert kept["num_deleted"] == 0
    other = sync_documents(documents[:1], client, collection="other")
    assert other["num_added"] == 1
    everything = sync_documents([], client, cleanup="full")
    assert everything["num_deleted"] > 0
    assert {d.metadata["quire_collection"] for d in client.documents.iter()} == {"other"}
    with pytest.raises(ConfigurationError, match="no 'source'"):
        sync_documents([Document(page_content="x")], client)


def test_an_index_names_what_failed_and_never_deletes_everything(
    service: Service, namespace: str
) -> None:
    target = QuireDocumentIndex(base_url=service.url, namespace=namespace)
    done = target.upsert(
        [Document(id="good", page_content="Some text."), Document(id="empty", page_content="")]
    )
    assert done == {"succeeded": ["good"], "failed": ["empty"]}
    assert target.upsert([Document(id="a/b#1", page_content="Other text.")]) == {
        "succeeded": ["a/b#1"],
        "failed": [],
    }
    assert [d.id for d in target.get(["a/b#1", "a/b"])] == ["a/b#1"]
    assert target.delete(["a/b#1"])["succeeded"] == ["a/b#1"]
    with pytest.raises(ConfigurationError, match="never deletes everything"):
        target.delete()


# ---- the chain


@pytest.fixture
def retriever(documents: list[Document]) -> BaseRetriever:
    store = FAISS.from_documents(documents, WordEmbeddings(), ids=[str(d.id) for d in documents])
    return store.as_retriever(search_kwargs={"k": 4})


async def test_the_chain_answers_from_the_users_own_vector_store(
    llm: ChatQuire, retriever: BaseRetriever, questions: list[Any]
) -> None:
    chain = quire_rag_chain(retriever, llm)
    q = questions[0]
    whole = chain.invoke(q["question"])
    assert whole["question"] == q["question"]
    assert len(whole["context"]) == 4
    assert set(q["supporting"]) <= {d.id for d in whole["context"]}
    assert whole["answer"].content in q["answers"]
    assert (await chain.ainvoke({"question": q["question"]}))["answer"].content == whole[
        "answer"
    ].content
    pieces = [c["answer"] for c in chain.stream(q["question"]) if "answer" in c]
    assert len(pieces) > 1
    assert "".join(str(p.content) for p in pieces) == whole["answer"].content
    later = [c["answer"] async for c in chain.astream(q["question"]) if "answer" in c]
    assert "".join(str(p.content) for p in later) == whole["answer"].content
    wrong: Any = {"query": "?"}
    with pytest.raises(ConfigurationError, match="lacks 'question'"):
        chain.invoke(wrong)
    await llm.async_client.aclose()


def test_a_history_stands_before_the_question(
    llm: ChatQuire, retriever: BaseRetriever, questions: list[Any], client: QuireClient
) -> None:
    chain = quire_rag_chain(retriever, llm)
    first, second = questions[0], questions[1]
    alone = chain.invoke(second["question"])
    history = [HumanMessage(first["question"]), AIMessage(first["answers"][0])]
    after = chain.invoke({"question": second["question"], "chat_history": history})
    assert (
        after["answer"].usage_metadata["input_tokens"]
        > alone["answer"].usage_metadata["input_tokens"]
    )
