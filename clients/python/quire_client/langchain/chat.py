"""ChatQuire: a chat model that answers over cached documents."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.language_models import LangSmithParams, LanguageModelInput
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import ConfigDict, Field

from .._ids import taken_id
from .._settings import url_of
from .._turns import SystemMessages
from ..errors import ConfigurationError, DocumentNotFoundError
from ..models import QueryResult
from ..options import CacheOptions, DocumentInput
from ..stream import DeltaEvent, DoneEvent, StreamEvent, ToolCallEvent
from .connection import Connection
from .convert import (
    input_of,
    is_passage,
    messages_of,
    response_metadata,
    split_documents,
    tool_calls_of,
    usage_metadata,
)

_OPTIONS = (
    "temperature",
    "max_tokens",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "cache_options",
    "cache_salt",
    "on_missing",
    "on_not_ready",
    "citations",
    "timeout_ms",
)


class ChatQuire(Connection, BaseChatModel):
    """A chat model whose documents stay cached in Quire.

    Every option can be given at construction, bound (`llm.bind(document_ids=[...])`), or passed to
    a call. Beside ids, whole LangChain documents can be given: `documents=[...]` sends the ids of
    those that have one, which are cached at once should the service not know them, and the texts of
    the others. Passages of `QuireRetriever` stand for their documents and are never cached as such.

        llm = ChatQuire(cache_options={"strategy": "reuse"})
        llm.bind(document_ids=["handbook"]).invoke("How many leave days carry over?").usage_metadata
    """

    model_config = ConfigDict(extra="forbid")

    model_name: str = Field(default="default", alias="model")
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = Field(default=None, alias="stop_sequences")
    document_ids: list[str] = Field(default_factory=list)
    """Cached documents of every question, in the order they stand in the prompt."""
    cache_options: CacheOptions | None = None
    """How Quire uses its cache, such as {"strategy": "reuse"}. (The field `cache` is LangChain's
    own, for whole answers.)"""
    cache_salt: str | None = None
    on_missing: str | None = None
    on_not_ready: str | None = None
    citations: bool | None = None
    timeout_ms: int | None = None
    system_messages: SystemMessages = "send"
    """"prepend" puts a system message before the first turn of the user,
    for models whose chat template has none."""
    streaming: bool = False
    """Whether invoke() takes the answer as a stream; LangChain reads this of every model."""
    add_missing: bool = True
    """Whether documents given whole that the service does not know are added,
    and the question asked again."""
    refresh_documents: bool = False
    """Whether documents given whole are posted before each question, for stores whose texts change
    under their ids. Equal content costs a request and no computing. Title and metadata become
    those of the document at hand. Without it an id stands for the text that was cached under
    it."""

    # ---- what LangChain asks for

    @property
    def _llm_type(self) -> str:
        return "quire"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """All that changes an answer beside its call: LangChain caches whole answers by it."""
        return {
            "model": self.model_name,
            "base_url": url_of(self.base_url),
            "namespace": self.namespace,
            "document_ids": self.document_ids,
            # Under `stop` LangChain puts what a call was given, even if that is nothing.
            "stop_sequences": self.stop,
            "system_messages": self.system_messages,
            **self._own_options(),
        }

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        text = super()._get_llm_string(stop=stop, **kwargs)
        if self.namespace is None and self.api_key:
            # The key chooses the namespace, and so the documents that the ids mean. It is named
            # here alone, as parameters that identify a model go into traces.
            secret = self.api_key.get_secret_value()
            text += f"---{hashlib.sha256(secret.encode()).hexdigest()[:16]}"
        return text

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "quire"
        params["ls_model_name"] = kwargs.get("model") or self.model_name
        return params

    # ---- requests

    def _own_options(self) -> dict[str, Any]:
        return {name: value for name in _OPTIONS if (value := getattr(self, name)) is not None}

    def _request(
        self, messages: list[BaseMessage], stop: list[str] | None, given: dict[str, Any]
    ) -> tuple[dict[str, Any], list[Document]]:
        """Options of the query, and the documents that were given whole and go by their ids."""
        options = {
            "model": self.model_name,
            **self._own_options(),
            **{k: v for k, v in given.items() if v is not None},
        }
        documents: Sequence[Document] = options.pop("documents", None) or []
        system: SystemMessages = options.pop("system_messages", self.system_messages)
        ids, inline = split_documents(documents)
        options["document_ids"] = list(
            dict.fromkeys([*options.get("document_ids", self.document_ids), *ids])
        )
        if inline:
            options["documents"] = inline
        wanted = stop if stop is not None else self.stop
        if wanted:
            options["stop"] = list(wanted)
        if "cache_options" in options:
            options["cache"] = options.pop("cache_options")
        options["messages"] = messages_of(messages, system)
        return options, [d for d in documents if d.id]

    def _missing(self, error: DocumentNotFoundError, documents: list[Document]) -> list[Any]:
        """What can be added so that the question can be asked again. Raises the error when that is
        not all that is missing, or only a passage of it is at hand."""
        known = {taken_id(d.id): d for d in documents if d.id and not is_passage(d)}
        if (
            not self.add_missing
            or not error.document_ids
            or not set(error.document_ids) <= set(known)
        ):
            raise error
        return [input_of(known[i]) for i in error.document_ids]

    def _to_refresh(self, documents: list[Document]) -> list[DocumentInput]:
        whole = [d for d in documents if not is_passage(d)]
        return [input_of(d) for d in whole] if self.refresh_documents else []

    def _refresh(self, documents: list[Document]) -> int:
        if not (given := self._to_refresh(documents)):
            return 0
        report = self.client.documents.add_many(given)
        report.raise_for_failures()
        return report.usage.cache_write_tokens

    async def _arefresh(self, documents: list[Document]) -> int:
        if not (given := self._to_refresh(documents)):
            return 0
        report = await self.async_client.documents.add_many(given)
        report.raise_for_failures()
        return report.usage.cache_write_tokens

    def _add(self, error: DocumentNotFoundError, documents: list[Document]) -> int:
        report = self.client.documents.add_many(self._missing(error, documents))
        report.raise_for_failures()
        return report.usage.cache_write_tokens

    async def _aadd(self, error: DocumentNotFoundError, documents: list[Document]) -> int:
        report = await self.async_client.documents.add_many(self._missing(error, documents))
        report.raise_for_failures()
        return report.usage.cache_write_tokens

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        options, documents = self._request(messages, stop, kwargs)
        added = self._refresh(documents)
        try:
            return _chat_result(self.client.query(**options), added)
        except DocumentNotFoundError as error:
            added += self._add(error, documents)
        return _chat_result(self.client.query(**options), added)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        options, documents = self._request(messages, stop, kwargs)
        added = await self._arefresh(documents)
        try:
            return _chat_result(await self.async_client.query(**options), added)
        except DocumentNotFoundError as error:
            added += await self._aadd(error, documents)
        return _chat_result(await self.async_client.query(**options), added)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        options, documents = self._request(messages, stop, kwargs)
        added = self._refresh(documents)
        try:
            stream = self.client.stream(**options)
        except DocumentNotFoundError as error:
            added += self._add(error, documents)
            stream = self.client.stream(**options)
        with stream:
            for event in stream:
                chunk = _chunk(event, added)
                if chunk is not None:
                    if run_manager:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        options, documents = self._request(messages, stop, kwargs)
        added = await self._arefresh(documents)
        try:
            stream = await self.async_client.stream(**options)
        except DocumentNotFoundError as error:
            added += await self._aadd(error, documents)
            stream = await self.async_client.stream(**options)
        async with stream:
            async for event in stream:
                chunk = _chunk(event, added)
                if chunk is not None:
                    if run_manager:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """A model that may call functions.

        `tool_choice`: "auto", "none", "any" or "required" (or True), or a function's name: the
        service then lets the model write nothing but such calls. `strict`: calls follow the
        functions' schemas, also where the model is free to answer.
        """
        bound: dict[str, Any] = {
            "tools": [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        }
        if parallel_tool_calls is not None:
            bound["parallel_tool_calls"] = parallel_tool_calls
        if tool_choice in ("any", "required", True):
            bound["tool_choice"] = "required"
        elif isinstance(tool_choice, str) and tool_choice not in ("auto", "none"):
            bound["tool_choice"] = {"type": "function", "function": {"name": tool_choice}}
        elif tool_choice:
            bound["tool_choice"] = tool_choice
        return self.bind(**bound, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        method: Literal["json_schema", "json_mode", "function_calling"] = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Answers that fit a schema (a pydantic class, a TypedDict or a JSON schema): the service
        lets the model write nothing else.

        With a pydantic class the answer is one of its objects, otherwise a dict. `include_raw`: a
        dict of `raw`, `parsed` and `parsing_error`. `method`: "json_mode" asks for any JSON object,
        "function_calling" for a call of a function with this schema.
        `strict`: taken and ignored, the schema always binds. The service ends an answer within
        `max_tokens` if the schema allows one so short; `finish_reason` "length" says that the model
        wanted more.
        """
        if kwargs:
            raise ConfigurationError(f"with_structured_output takes no {', '.join(sorted(kwargs))}")
        json_schema = convert_to_json_schema(schema)
        if method == "function_calling":
            name = convert_to_openai_tool(schema)["function"]["name"]
            caller = self.bind_tools(
                [schema],
                tool_choice=name,
                parallel_tool_calls=False,
                ls_structured_output_format={"kwargs": {"method": method}, "schema": json_schema},
            )
            calls: Runnable[Any, Any] = (
                PydanticToolsParser(tools=[schema], first_tool_only=True)
                if isinstance(schema, type) and is_basemodel_subclass(schema)
                else JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
            )
            return _with_parser(caller, calls, include_raw)
        wanted: dict[str, Any] = {"type": "json_object"}
        if method == "json_schema":
            wanted = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": json_schema},
            }
        llm = self.bind(
            response_format=wanted,
            ls_structured_output_format={"kwargs": {"method": method}, "schema": json_schema},
        )
        parser: Runnable[Any, Any] = JsonOutputParser()
        if isinstance(schema, type) and is_basemodel_subclass(schema):
            parser = PydanticOutputParser(pydantic_object=schema)
        return _with_parser(llm, parser, include_raw)


def _with_parser(
    llm: Runnable[LanguageModelInput, Any], parser: Runnable[Any, Any], include_raw: bool
) -> Runnable[LanguageModelInput, Any]:
    if not include_raw:
        return llm | parser
    parsed = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=llm) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def _chat_result(result: QueryResult, added: int) -> ChatResult:
    calls, invalid = tool_calls_of(result)
    message = AIMessage(
        content=result.answer,
        tool_calls=calls,
        invalid_tool_calls=invalid,
        usage_metadata=usage_metadata(result.usage, added),
        response_metadata=response_metadata(result),
    )
    return ChatResult(generations=[ChatGeneration(message=message)])


def _chunk(event: StreamEvent, added: int) -> ChatGenerationChunk | None:
    if isinstance(event, DeltaEvent):
        return ChatGenerationChunk(message=AIMessageChunk(content=event.text))
    if isinstance(event, ToolCallEvent):
        piece = tool_call_chunk(
            name=event.name, args=event.arguments, id=event.id, index=event.index
        )
        return ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[piece]))
    if isinstance(event, DoneEvent):
        result = event.result
        last = AIMessageChunk(
            content="",
            usage_metadata=usage_metadata(result.usage, added),
            response_metadata=response_metadata(result),
            chunk_position="last",
        )
        return ChatGenerationChunk(message=last)
    return None
