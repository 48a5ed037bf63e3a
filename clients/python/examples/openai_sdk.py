"""Cached documents through the OpenAI SDK: they go along in `extra_body`.

    pip install quire-client openai
    python openai_sdk.py

Everything else is the SDK as it is, and so is any tool that speaks OpenAI's protocol and lets extra
fields through, LiteLLM for one:

    litellm.completion(model="openai/default", api_base=QUIRE_SERVER + "/v1", api_key="...",
                       messages=[...],
                       extra_body={"document_ids": ["loine"], "cache": {"strategy": "reuse"}})

The address of the service comes from QUIRE_SERVER, the key from QUIRE_API_KEY.
"""

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from openai import OpenAI

from quire_client import QuireClient

DATA = Path(__file__).parent / "data"


def run(url: str, api_key: str | None, namespace: str) -> list[tuple[str, str, bool, int, int]]:
    """Question, answer, whether it is right, prompt tokens,
    and those of them that came from the cache."""
    documents: list[Any] = [
        json.loads(line)
        for line in (DATA / "documents.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    with QuireClient(url, api_key=api_key, namespace=namespace) as quire:
        quire.documents.add_many(documents).raise_for_failures()

    client = OpenAI(
        base_url=f"{url}/v1", api_key=api_key or "none", default_headers={"X-Namespace": namespace}
    )
    out = []
    for line in (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines():
        q = json.loads(line)
        about = [
            d["id"] for d in documents if any(name in d["text"] for name in names(q["question"]))
        ]
        stream = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": q["question"]}],
            temperature=0,
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"document_ids": about[:4], "cache": {"strategy": "reuse"}},
        )
        answer, tokens, cached = "", 0, 0
        for chunk in stream:
            if chunk.choices:
                answer += chunk.choices[0].delta.content or ""
            if chunk.usage and chunk.usage.prompt_tokens_details:
                tokens, cached = (
                    chunk.usage.prompt_tokens,
                    chunk.usage.prompt_tokens_details.cached_tokens or 0,
                )
        out.append((q["question"], answer.strip(), answer.strip() == q["answer"], tokens, cached))
    return out


def names(question: str) -> list[str]:
    """The names in a question: its words in capitals but the first."""
    return [word.strip("?") for word in question.split()[1:] if word[0].isupper()]


def main() -> int:
    url = os.environ.get("QUIRE_SERVER", "http://127.0.0.1:8080")
    answers = run(url, os.environ.get("QUIRE_API_KEY"), f"example-{uuid.uuid4().hex[:8]}")
    for question, answer, right, tokens, cached in answers:
        print(
            f"{question:<52} {answer:<18} {cached:>4} of {tokens} prompt tokens "
            f"from the cache{'' if right else '  WRONG'}"
        )
    return 0 if all(right for _, _, right, _, _ in answers) else 1


if __name__ == "__main__":
    sys.exit(main())
