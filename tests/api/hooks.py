"""Gives made-up requests the names of things that exist, which no generator can guess.

QUIRE_API_NAMES is a JSON object: for a template of a path, values of its parameters.
"""

import json
import os
import re
import zlib

import schemathesis

NAMES = json.loads(os.environ["QUIRE_API_NAMES"])
# Members of bodies that name documents, and vector stores.
DOCUMENTS = ("document_id", "document_ids", "file_id", "file_ids")
STORES = ("vector_store_ids",)


def chosen(value, among):
    """Returns `value` or a name that exists; the same each time for the same value."""
    text = json.dumps(value, default=str, sort_keys=True)
    at = zlib.crc32(text.encode()) % (2 * len(among))
    return among[at] if at < len(among) else value


def with_names(body):
    """Returns the body with names that exist in some of the members that hold names."""
    if isinstance(body, list):
        return [with_names(item) for item in body]
    if not isinstance(body, dict):
        return body
    out = {}
    for key, value in body.items():
        among = NAMES["stores"] if key in STORES else NAMES["documents"]
        if key not in DOCUMENTS + STORES:
            out[key] = with_names(value)
        elif isinstance(value, list):
            out[key] = [chosen(item, among) if isinstance(item, str) else item for item in value]
        else:
            out[key] = chosen(value, among) if isinstance(value, str) else value
    return out


@schemathesis.hook
def before_call(context, case, kwargs):
    # What is deleted must be there for the requests behind it.
    if case.method != "DELETE" and isinstance(case.path_parameters, dict):
        for path, parameters in NAMES["paths"].items():
            if not case.path.startswith(path):
                continue
            for name, among in parameters.items():
                if name in case.path_parameters:
                    case.path_parameters[name] = chosen(case.path_parameters[name], among)
            break
    case.body = with_names(case.body)


# What the service says of a body whose shape is wrong. A description that lets such a body through
# is too loose. Refusals for what a description cannot say (two members that exclude each other, a
# token id past the vocabulary, a scorer that is not set up) have other words.
SHAPE = re.compile(
    r"unknown field|is missing|must be (an? (string|object|array|integer|number|boolean)|true)"
    r"|has \d+ items?;|'; use (?!the type of one of the tools)|does not have; use "
)
# Requests of other APIs have many members that are refused with words of their own; docs/openai.md
# and docs/protocols.md list them.
OTHER_APIS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


@schemathesis.check
def shapes_are_described(ctx, response, case):
    """A request that the description allows is not refused for its shape."""
    meta = case.meta
    if response.status_code != 400 or meta is None or not meta.generation.mode.is_positive:
        return
    error = json.loads(response.content).get("error", {})
    text = error if isinstance(error, str) else error.get("message", "")
    if re.match(r"(guided_|structured_outputs\.)?grammar: ", text):  # a language of its own
        return
    if text.startswith("unknown field") and case.path.startswith(OTHER_APIS):
        return
    if SHAPE.search(text):
        raise AssertionError(f"{case.method} {case.path} was refused: {text}")


@schemathesis.serializer("application/vnd.quire.pack")
def pack(context, value):
    return {"data": str(value).encode(errors="replace")}
