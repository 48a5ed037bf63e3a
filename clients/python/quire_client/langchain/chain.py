"""A chain that is ready to use: retrieve with the user's own vector store,
answer from cached KV."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnablePassthrough

from ..errors import ConfigurationError
from .chat import ChatQuire


class QuireAnswer(Runnable[dict[str, Any], AIMessage]):
    """Answers `question` over the documents in `context`,
    after the messages in `chat_history` if there are any.

    Documents go by their ids; one that Quire does not know yet, or no more,
    is cached from the text at hand, unless that is a passage of `QuireRetriever`.
    """

    def __init__(self, llm: ChatQuire) -> None:
        self.llm = llm

    def _messages(self, inputs: dict[str, Any]) -> tuple[list[BaseMessage], Sequence[Document]]:
        try:
            question, documents = inputs["question"], inputs["context"]
        except KeyError as error:
            raise ConfigurationError(
                f"the input lacks {error.args[0]!r}; give question and context"
            ) from None
        return [*inputs.get("chat_history", []), HumanMessage(question)], documents

    def invoke(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AIMessage:
        """The answer."""
        messages, documents = self._messages(input)
        return self.llm.invoke(messages, config, documents=documents, **kwargs)

    async def ainvoke(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AIMessage:
        """The answer."""
        messages, documents = self._messages(input)
        return await self.llm.ainvoke(messages, config, documents=documents, **kwargs)

    def stream(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[AIMessageChunk]:
        """The answer, piece by piece."""
        messages, documents = self._messages(input)
        yield from self.llm.stream(messages, config, documents=documents, **kwargs)

    async def astream(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[AIMessageChunk]:
        """The answer, piece by piece."""
        messages, documents = self._messages(input)
        async for chunk in self.llm.astream(messages, config, documents=documents, **kwargs):
            yield chunk


def quire_rag_chain(
    retriever: BaseRetriever, llm: ChatQuire
) -> Runnable[str | dict[str, Any], dict[str, Any]]:
    """From a question (text, or a dict with `question` and `chat_history`) to a dict that adds
    `context` and `answer`.

    `retriever` is any of LangChain's whose documents have ids, such as
    `vector_store.as_retriever()`. `answer` is an AIMessage; its `usage_metadata` says what came
    from the cache.
    """
    as_dict: Runnable[str | dict[str, Any], dict[str, Any]] = RunnableLambda(_as_dict)
    retrieve: Any = RunnableLambda(_question_of) | retriever
    return (
        as_dict
        | RunnablePassthrough.assign(context=retrieve)
        | RunnablePassthrough.assign(answer=QuireAnswer(llm))
    )


def _as_dict(input: str | dict[str, Any]) -> dict[str, Any]:
    return {"question": input} if isinstance(input, str) else input


def _question_of(input: dict[str, Any]) -> str:
    if not isinstance(input.get("question"), str):
        raise ConfigurationError(
            "the input lacks 'question'; give a text, or a dict with question and chat_history"
        )
    return str(input["question"])
