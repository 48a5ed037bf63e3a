"""QuireSynthesizer: answers over nodes by their ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any

from llama_index.core.base.response.schema import RESPONSE_TYPE, Response
from llama_index.core.response_synthesizers.base import BaseSynthesizer, QueryTextType
from llama_index.core.schema import NodeWithScore
from llama_index.core.types import RESPONSE_TEXT_TYPE

from ..async_client import AsyncQuireClient
from ..errors import DocumentNotFoundError
from ..models import QueryResult
from ..stream import AsyncQueryStream, QueryStream
from .llm import QuireLLM
from .nodes import ids_of, missing_nodes


class Answer(str):
    """The answer's text, with what it took."""

    result: QueryResult


class QuireSynthesizer(BaseSynthesizer):
    """Sends ids of nodes instead of their texts. Nodes that Quire does not know, or no more, are
    cached from the text at hand, unless that is a passage of `QuireNodeRetriever`.

    `metadata["quire"]` of a response, unless it is streamed, has `usage`, `cache` and `query_id`.
    """

    def __init__(self, llm: QuireLLM, *, streaming: bool = False, **options: Any) -> None:
        """`options`: of every query, such as cache or max_tokens."""
        super().__init__(llm=llm, streaming=streaming)
        self._quire = llm
        self._options = options

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None:
        """The model's own template is the prompt."""

    def synthesize(
        self,
        query: QueryTextType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """Answers the query over the nodes."""
        return super().synthesize(
            query, nodes, additional_source_nodes, quire_nodes=nodes, **response_kwargs
        )

    async def asynthesize(
        self,
        query: QueryTextType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """As `synthesize`."""
        return await super().asynthesize(
            query, nodes, additional_source_nodes, quire_nodes=nodes, **response_kwargs
        )

    def _query(self, nodes: Sequence[NodeWithScore]) -> dict[str, Any]:
        return {**self._quire.options(self._options), "document_ids": ids_of(nodes)}

    def get_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        """Called by `synthesize`; the texts stay here."""
        nodes: list[NodeWithScore] = response_kwargs["quire_nodes"]
        client, options = self._quire.client, self._query(nodes)

        def ask() -> Answer | QueryStream:
            return (
                client.stream(query_str, **options)
                if self._streaming
                else _answer(client.query(query_str, **options))
            )

        try:
            answer = ask()
        except DocumentNotFoundError as error:
            client.documents.add_many(missing_nodes(error, nodes)).raise_for_failures()
            answer = ask()
        return answer if isinstance(answer, Answer) else _texts(answer)

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        """Called by `asynthesize`; the texts stay here."""
        nodes: list[NodeWithScore] = response_kwargs["quire_nodes"]
        options = self._query(nodes)
        client: AsyncQuireClient = self._quire.async_client

        async def ask() -> Answer | AsyncQueryStream:
            return (
                await client.stream(query_str, **options)
                if self._streaming
                else _answer(await client.query(query_str, **options))
            )

        try:
            answer = await ask()
        except DocumentNotFoundError as error:
            (await client.documents.add_many(missing_nodes(error, nodes))).raise_for_failures()
            answer = await ask()
        return answer if isinstance(answer, Answer) else _atexts(answer)

    def _prepare_response_output(
        self, response_str: RESPONSE_TEXT_TYPE | None, source_nodes: list[NodeWithScore]
    ) -> RESPONSE_TYPE:
        response = super()._prepare_response_output(response_str, source_nodes)
        if isinstance(response_str, Answer) and isinstance(response, Response):
            result = response_str.result
            quire = {
                "query_id": result.id,
                "usage": result.raw.get("usage"),
                "cache": result.raw.get("cache"),
                "timings": result.raw.get("timings"),
            }
            response.metadata = {**(response.metadata or {}), "quire": quire}
        return response


def _answer(result: QueryResult) -> Answer:
    answer = Answer(result.answer)
    answer.result = result
    return answer


def _texts(stream: QueryStream) -> Generator[str, None, None]:
    with stream:
        yield from stream.texts()


async def _atexts(stream: AsyncQueryStream) -> AsyncGenerator[str, None]:
    async with stream:
        async for text in stream.texts():
            yield text
