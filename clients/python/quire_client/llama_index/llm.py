"""QuireLLM: an LLM whose documents stay cached in Quire."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from pydantic import Field, PrivateAttr

from .._exchange import RetryPolicy
from .._turns import Role, SystemMessages, call_json, turns_of
from ..async_client import AsyncQuireClient
from ..client import QuireClient
from ..errors import ConfigurationError
from ..models import QueryResult
from ..options import CacheOptions, Message
from ..stream import DeltaEvent, DoneEvent

if TYPE_CHECKING:
    from llama_index.core.tools.types import BaseTool

_ROLES: dict[MessageRole, Role] = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "tool",
    MessageRole.FUNCTION: "tool",
}


class QuireLLM(FunctionCallingLLM):
    """A LlamaIndex LLM on Quire. Options of a query, such as `document_ids`, can be given at
    construction or with a call.

    `raw` of every response is the whole `QueryResult`:
    what came from the cache, timings, documents.
    """

    base_url: str | None = None
    """Address of the service; without it QUIRE_SERVER, or http://127.0.0.1:8080."""
    api_key: str | None = Field(default=None, exclude=True, repr=False)
    """API key; without it QUIRE_API_KEY."""
    namespace: str | None = None
    model: str = "default"
    temperature: float | None = None
    max_tokens: int | None = None
    document_ids: list[str] = Field(default_factory=list)
    """Cached documents of every question."""
    cache_options: CacheOptions | None = None
    """How Quire uses its cache, such as {"strategy": "reuse"}."""
    system_messages: SystemMessages = "send"
    """"prepend" puts a system message before the first turn of the user,
    for models whose chat template has none."""
    context_window: int | None = None
    """Tokens a prompt may have; without it the service is asked once."""
    timeout: float = 60.0
    max_retries: int = 4

    _client: QuireClient | None = PrivateAttr(default=None)
    _async_client: AsyncQuireClient | None = PrivateAttr(default=None)

    @classmethod
    def class_name(cls) -> str:
        """The name LlamaIndex knows the class by."""
        return "QuireLLM"

    def _arguments(self) -> dict[str, Any]:
        return {
            "api_key": self.api_key,
            "namespace": self.namespace,
            "timeout": self.timeout,
            "retry": RetryPolicy(max_retries=self.max_retries),
        }

    @property
    def client(self) -> QuireClient:
        """The client behind this object."""
        if self._client is None:
            self._client = QuireClient(self.base_url, **self._arguments())
        return self._client

    @property
    def async_client(self) -> AsyncQuireClient:
        """The asynchronous client behind this object;
        it belongs to the event loop that uses it first."""
        if self._async_client is None:
            self._async_client = AsyncQuireClient(self.base_url, **self._arguments())
        return self._async_client

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex wants to know of the model."""
        if self.context_window is None:
            self.context_window = int(self.client.info().model.get("max_model_len") or 2048)
        return LLMMetadata(
            context_window=self.context_window,
            num_output=self.max_tokens or 128,
            is_chat_model=True,
            model_name=self.model,
            is_function_calling_model=True,
        )

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Options of a query: this object's own, and over them those of the call."""
        own = {
            "model": self.model,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "document_ids": self.document_ids or None,
        }
        options = {**own, "cache": self.cache_options, **given}
        return {name: value for name, value in options.items() if value is not None}

    def _chat_options(
        self, messages: Sequence[ChatMessage], given: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            **self.options(given),
            "messages": turns_of([_message(m) for m in messages], self.system_messages),
        }

    # ---- tools

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        messages = list(chat_history or [])
        if isinstance(user_msg, str):
            user_msg = ChatMessage(role=MessageRole.USER, content=user_msg)
        if user_msg is not None:
            messages.append(user_msg)
        options = {
            "messages": messages,
            "tools": [t.metadata.to_openai_tool(skip_length_check=True) for t in tools] or None,
            "tool_choice": "required" if tool_required and tools else None,
            "parallel_tool_calls": allow_parallel_tool_calls if tools else None,
            **kwargs,
        }
        choice = options["tool_choice"]
        if isinstance(choice, str) and choice not in ("none", "auto", "required"):
            options["tool_choice"] = {"type": "function", "function": {"name": choice}}
        return {name: value for name, value in options.items() if value is not None}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The calls of an answer. Raises ValueError where there is none, unless told not to."""
        calls = [b for b in response.message.blocks if isinstance(b, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            raise ValueError("the answer calls no tool")
        return [
            ToolSelection(
                tool_id=call.tool_call_id or "",
                tool_name=call.tool_name,
                tool_kwargs=_arguments_of(call.tool_kwargs),
            )
            for call in calls
        ]

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answers a conversation."""
        return _chat_response(self.client.query(**self._chat_options(messages, kwargs)))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """As `chat`."""
        return _chat_response(await self.async_client.query(**self._chat_options(messages, kwargs)))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """As `chat`, piece by piece; the last response has the whole `QueryResult`."""
        options = self._chat_options(messages, kwargs)

        def responses() -> ChatResponseGen:
            with self.client.stream(**options) as stream:
                for event in stream:
                    if isinstance(event, DeltaEvent):
                        yield ChatResponse(
                            message=ChatMessage(role=MessageRole.ASSISTANT, content=stream.text),
                            delta=event.text,
                        )
                    elif isinstance(event, DoneEvent):
                        yield _chat_response(event.result, delta="")

        return responses()

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        """As `stream_chat`."""
        options = self._chat_options(messages, kwargs)

        async def responses() -> ChatResponseAsyncGen:
            async with await self.async_client.stream(**options) as stream:
                async for event in stream:
                    if isinstance(event, DeltaEvent):
                        yield ChatResponse(
                            message=ChatMessage(role=MessageRole.ASSISTANT, content=stream.text),
                            delta=event.text,
                        )
                    elif isinstance(event, DoneEvent):
                        yield _chat_response(event.result, delta="")

        return responses()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answers one question."""
        return _completion(self.client.query(prompt, **self.options(kwargs)))

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        """As `complete`."""
        return _completion(await self.async_client.query(prompt, **self.options(kwargs)))

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        """As `complete`, piece by piece; the last response has the whole `QueryResult`."""
        options = self.options(kwargs)

        def responses() -> CompletionResponseGen:
            with self.client.stream(prompt, **options) as stream:
                for event in stream:
                    if isinstance(event, DeltaEvent):
                        yield CompletionResponse(text=stream.text, delta=event.text)
                    elif isinstance(event, DoneEvent):
                        yield _completion(event.result, delta="")

        return responses()

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        """As `stream_complete`."""
        options = self.options(kwargs)

        async def responses() -> CompletionResponseAsyncGen:
            async with await self.async_client.stream(prompt, **options) as stream:
                async for event in stream:
                    if isinstance(event, DeltaEvent):
                        yield CompletionResponse(text=stream.text, delta=event.text)
                    elif isinstance(event, DoneEvent):
                        yield _completion(event.result, delta="")

        return responses()


def _role(message: ChatMessage) -> Role:
    role = _ROLES.get(message.role)
    if role is None:
        raise ConfigurationError(
            f"a message of role {message.role.value!r} cannot be sent: "
            "Quire takes system, user, assistant and tool"
        )
    return role


def _arguments_of(given: dict[str, Any] | str) -> dict[str, Any]:
    """The arguments of a call; none where the model wrote no JSON object."""
    if isinstance(given, dict):
        return given
    try:
        arguments = json.loads(given)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _message(message: ChatMessage) -> Message:
    out: Message = {"role": _role(message), "content": _text(message)}
    if out["role"] == "tool":
        out["tool_call_id"] = str(message.additional_kwargs.get("tool_call_id") or "")
    calls = [b for b in message.blocks if isinstance(b, ToolCallBlock)]
    if calls:
        out["tool_calls"] = [
            call_json(
                c.tool_call_id or "",
                c.tool_name,
                c.tool_kwargs if isinstance(c.tool_kwargs, str) else json.dumps(c.tool_kwargs),
            )
            for c in calls
        ]
    return out


def _text(message: ChatMessage) -> str:
    for block in message.blocks:
        if not isinstance(block, TextBlock | ToolCallBlock):
            raise ConfigurationError(
                f"a message has a block of type {block.block_type!r}; Quire takes text"
            )
    return message.content or ""


def _counts(result: QueryResult) -> dict[str, Any]:
    usage = result.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "cached_tokens": usage.cached_tokens,
    }


def _chat_response(result: QueryResult, delta: str | None = None) -> ChatResponse:
    blocks: list[Any] = [TextBlock(text=result.answer)] if result.answer else []
    for call in result.tool_calls:
        blocks.append(
            ToolCallBlock(
                tool_call_id=call.id,
                tool_name=call.function.name,
                tool_kwargs=_arguments_of(call.function.arguments),
            )
        )
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks),
        raw=result,
        delta=delta,
        additional_kwargs=_counts(result),
    )


def _completion(result: QueryResult, delta: str | None = None) -> CompletionResponse:
    return CompletionResponse(
        text=result.answer, raw=result, delta=delta, additional_kwargs=_counts(result)
    )
