"""Conversations as chat templates want them, for every integration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from .options import Message

Role = Literal["system", "user", "assistant"]
SystemMessages = Literal["send", "prepend"]


def turns_of(messages: Iterable[tuple[Role, str]], system: SystemMessages) -> list[Message]:
    """Messages of the API: neighbours of one role are joined, as templates want turns to alternate.

    `system`: "prepend" puts the system's text before the first turn of the user, for models whose
    template has no system message.
    """
    turns: list[Message] = []
    for role, text in messages:
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += "\n\n" + text
        else:
            turns.append({"role": role, "content": text})
    if system == "prepend" and turns and turns[0]["role"] == "system":
        text, rest = turns[0]["content"], turns[1:]
        if rest and rest[0]["role"] == "user":
            text, rest = f"{text}\n\n{rest[0]['content']}", rest[1:]
        return [{"role": "user", "content": text}, *rest]
    return turns
