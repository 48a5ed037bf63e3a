"""JSON objects to dataclasses: unknown members are ignored, missing ones take their default."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin

from .errors import InvalidReplyError

M = TypeVar("M", bound="Model")


@dataclasses.dataclass
class Model:
    """A typed reply. `raw` keeps the JSON object as it came,
    with the members this version of the client does not know."""

    raw: Mapping[str, Any] = dataclasses.field(
        default_factory=dict, repr=False, compare=False, kw_only=True
    )

    @classmethod
    def from_json(cls: type[M], value: Any, where: str = "reply") -> M:
        """Reads a JSON object. Raises InvalidReplyError when it is none, or a member has another
        type than the API promises."""
        if not isinstance(value, Mapping):
            raise InvalidReplyError(f"{where} is {_kind(value)}, not an object")
        members = {}
        for name, hint, required in _members(cls):
            if name not in value:
                if required:
                    raise InvalidReplyError(f"{where} lacks the member {name!r}")
                continue
            item = value[name]
            if item is None and not _takes_none(hint):
                continue
            members[name] = _convert(hint, item, f"{where}.{name}")
        return cls(**members, raw=value)


#: Members of each class: name, type, and whether the reply must have it.
_MEMBERS: dict[type[Model], list[tuple[str, Any, bool]]] = {}


def _members(cls: type[Model]) -> list[tuple[str, Any, bool]]:
    known = _MEMBERS.get(cls)
    if known is not None:
        return known
    hints = typing.get_type_hints(cls)
    out = []
    for field in dataclasses.fields(cls):
        if field.name == "raw" or not field.init:
            continue
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        out.append((field.name, hints[field.name], required))
    _MEMBERS[cls] = out
    return out


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _takes_none(hint: Any) -> bool:
    return hint is Any or type(None) in get_args(hint)


def _fits(hint: Any, value: Any) -> bool:
    """Whether a member of a map with names of the service's own is one:
    beside them a newer service may say other things."""
    if isinstance(hint, type) and issubclass(hint, Model):
        return isinstance(value, Mapping)
    return hint is Any or (
        isinstance(value, (int, float) if hint is float else hint) and not isinstance(value, bool)
    )


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _convert(next(a for a in arguments if a is not type(None)), value, where)
    if origin is list and isinstance(value, list):
        return [_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is tuple and isinstance(value, list) and len(value) == len(arguments):
        return tuple(
            _convert(a, item, f"{where}[{i}]")
            for i, (a, item) in enumerate(zip(arguments, value, strict=True))
        )
    if origin is dict and isinstance(value, Mapping):
        return {
            str(k): _convert(arguments[1], v, f"{where}.{k}")
            for k, v in value.items()
            if _fits(arguments[1], v)
        }
    if isinstance(hint, type) and issubclass(hint, Model):
        return hint.from_json(value, where)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    raise InvalidReplyError(
        f"{where} is {_kind(value)}, which does not fit the API; is this a Quire service?"
    )
