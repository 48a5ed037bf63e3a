"""Conversations as chat templates want them, for every integration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from .options import Message

Role = Literal["system", "user", "assistant", "tool"]
SystemMessages = Literal["send", "prepend"]


def call_json(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a function as the API has it."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def turns_of(messages: Iterable[Message], system: SystemMessages) -> list[Message]:
    """Messages of the API: neighbours of one role are joined, as templates want turns to alternate.
    Results of tools stay apart, as do messages that call tools.

    `system`: "prepend" puts the system's text before the first turn of the user, for models whose
    template has no system message.
    """
    turns: list[Message] = []
    for message in messages:
        joins = (
            turns
            and turns[-1]["role"] == message["role"] != "tool"
            and "tool_calls" not in turns[-1]
            and "tool_calls" not in message
        )
        if joins:
            turns[-1]["content"] += "\n\n" + message["content"]
        else:
            turns.append(message)
    if system == "prepend" and turns and turns[0]["role"] == "system":
        text, rest = turns[0]["content"], turns[1:]
        if rest and rest[0]["role"] == "user":
            text, rest = f"{text}\n\n{rest[0]['content']}", rest[1:]
        return [{"role": "user", "content": text}, *rest]
    return turns
