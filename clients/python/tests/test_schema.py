"""The dataclasses of replies against the schemas that the service publishes."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import httpx
from service import Service

from quire_client import explain, models, options
from quire_client._decode import Model

#: The component of the description that each reply is; what lies inside them is found from there.
REPLIES: dict[type[Model], str] = {
    models.BulkDeletion: "BulkDeletion",
    models.Block: "Block",
    models.CacheStats: "CacheStats",
    models.Chunk: "Chunk",
    models.Document: "Document",
    models.DocumentCounts: "DocumentCounts",
    models.Evicted: "Eviction",
    models.ImportReport: "Import",
    models.Info: "Info",
    models.Ingest: "Ingest",
    models.Job: "Job",
    models.Passages: "Passages",
    models.PinReport: "Pins",
    models.QueryResult: "QueryResult",
    models.RunningRequest: "RunningRequest",
    models.VerifyReport: "Verification",
    explain.Explanation: "Explanation",
    explain.QueryPlan: "QueryPlan",
}

#: Members that stay at their default: a plan knows only a part of the usage.
ABSENT = {
    f"QueryPlan.usage.{name}"
    for name in ("completion_tokens", "total_tokens", "prompt_tokens_details")
}

#: The JSON types that a plain hint reads.
JSON_TYPES: dict[Any, set[str]] = {
    str: {"string"},
    int: {"integer"},
    float: {"integer", "number"},
    bool: {"boolean"},
    dict: {"object"},
    list: {"array"},
}


def resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The schema without references at its top, and without the choice of null."""
    while True:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
        elif "anyOf" in schema and schema["anyOf"][1:] == [{"type": "null"}]:
            schema = schema["anyOf"][0]
        else:
            return schema


def json_types(schema: dict[str, Any]) -> set[str]:
    """The types that a value of the schema may have, but null."""
    if "const" in schema:
        return {{str: "string", bool: "boolean"}[type(schema["const"])]}
    named = schema["type"]
    return set([named] if isinstance(named, str) else named) - {"null"}


def faults(
    hint: Any, schema: dict[str, Any], document: dict[str, Any], where: str
) -> Iterator[str]:
    """What of the hint the schema does not give."""
    options = [a for a in typing.get_args(hint) if a is not type(None)]
    origin = typing.get_origin(hint)
    if type(None) in typing.get_args(hint):
        yield from faults(options[0], schema, document, where)
        return
    schema = resolved(schema, document)
    if isinstance(hint, type) and issubclass(hint, Model):
        yield from model_faults(hint, schema, document, where)
    elif hint is not Any:
        plain = list if origin is tuple else origin or hint
        if not json_types(schema) <= JSON_TYPES[plain]:
            yield f"{where} is read as {plain.__name__}, and is {json_types(schema)}"
        elif origin is list and "items" in schema:
            yield from faults(options[0], schema["items"], document, f"{where}[]")
        elif origin is dict:
            for name, member in schema.get("properties", {}).items():
                yield from faults(options[1], member, document, f"{where}.{name}")


def model_faults(
    model: type[Model], schema: dict[str, Any], document: dict[str, Any], where: str
) -> Iterator[str]:
    hints = typing.get_type_hints(model)
    for field in dataclasses.fields(model):
        if field.name == "raw":
            continue
        name = f"{where}.{field.name}"
        if field.name not in schema["properties"]:
            if name not in ABSENT:
                yield f"{name} is in no reply"
            continue
        wanted = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if wanted and field.name not in schema["required"]:
            yield f"{name} has no default, and may be absent"
        yield from faults(hints[field.name], schema["properties"][field.name], document, name)


def test_what_the_client_reads_is_what_the_service_describes(service: Service) -> None:
    document = httpx.get(f"{service.url}/openapi.json").json()
    found = [
        fault
        for model, component in REPLIES.items()
        for fault in model_faults(
            model, resolved({"$ref": f"/{component}"}, document), document, model.__name__
        )
    ]
    assert found == []


#: The request that each group of options is, and the members that are arguments of their own.
OPTIONS: dict[type, tuple[str, set[str]]] = {
    options.CacheOptions: ("CacheOptions", set()),
    options.Chunking: ("Chunking", set()),
    options.DocumentInput: ("DocumentMembers", set()),
    options.DocumentOptions: ("DocumentBatchRequest", {"documents"}),
    options.QueryOptions: ("QueryRequest", {"query", "stream"}),
}


def literals(hint: Any) -> set[str]:
    """The values that a hint allows; empty: any."""
    return set(typing.get_args(hint)) if typing.get_origin(hint) is typing.Literal else set()


def option_faults(group: type, schema: dict[str, Any], without: set[str]) -> Iterator[str]:
    hints = typing.get_type_hints(group)
    if set(hints) != set(schema["properties"]) - without:
        yield f"{group.__name__}: {set(hints) ^ (set(schema['properties']) - without)}"
    for name, hint in hints.items():
        allowed = set(schema["properties"].get(name, {}).get("enum", [])) - {None}
        if literals(hint) and literals(hint) != allowed:
            yield f"{group.__name__}.{name}: {literals(hint) ^ allowed}"


def test_the_options_are_those_that_the_service_takes(service: Service) -> None:
    document = httpx.get(f"{service.url}/openapi.json").json()
    schemas = document["components"]["schemas"]
    evict = document["paths"]["/v1/admin/cache/evict"]["post"]["requestBody"]["content"]
    groups = [(group, schemas[name], without) for group, (name, without) in OPTIONS.items()]
    groups.append(
        (options.RetrieveOptions, schemas["QueryRequest"]["properties"]["retrieve"], set())
    )
    groups.append((options.EvictOptions, evict["application/json"]["schema"], set()))
    assert [fault for g in groups for fault in option_faults(*g)] == []
