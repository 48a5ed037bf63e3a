"""The examples as a user runs them:
a process of their own, told by the environment where the service is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bulk_ingest
import pytest
import rag_langchain
from service import Service

from quire_client import DocumentInput, QuireClient

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name: str, service: Service, *arguments: str) -> str:
    """What the example prints. It must succeed."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, "QUIRE_SERVER": service.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_begins_with_working_code(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    assert "```python" in "".join(page.splitlines(keepends=True)[:10])
    code = page.split("```python\n", 1)[1].split("```", 1)[0]
    assert "http://127.0.0.1:8080" in code
    exec(code.replace("http://127.0.0.1:8080", service.url), {})
    assert re.search(r"[1-9]\d* of \d+ prompt tokens came from the cache", capsys.readouterr().out)


def test_langchain_answers_right_and_computes_less_the_second_time(service: Service) -> None:
    turns = rag_langchain.run(base_url=service.url, namespace="example-langchain")
    assert all(cached.right and plain.right for cached, plain in turns)
    first, second = turns[0][0], turns[1][0]
    assert second.computed_tokens <= 0.2 * first.computed_tokens
    for cached, plain in turns:
        assert cached.prompt_tokens == plain.prompt_tokens == plain.computed_tokens
        assert cached.computed_tokens <= plain.computed_tokens
    shown = run("rag_langchain.py", service)
    assert "WRONG" not in shown
    assert re.search(r"the second question computed (8\d|9\d|100)% fewer prompt tokens", shown)


def test_llama_index_answers_right(service: Service) -> None:
    shown = run("rag_llamaindex.py", service)
    assert "WRONG" not in shown
    assert shown.count("prompt tokens computed") == 8


def test_a_stopped_ingest_goes_on(client: QuireClient) -> None:
    def stopping() -> Iterator[DocumentInput]:
        yield from bulk_ingest.made_up(40)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bulk_ingest.ingest(client, stopping(), progress=False, batch_size=20)
    assert bulk_ingest.ingest(client, bulk_ingest.made_up(50), progress=False) == (40, 10)
    assert bulk_ingest.ingest(client, bulk_ingest.made_up(50), progress=False) == (50, 0)
    counts = client.documents.list(limit=1, counts=True).counts
    assert counts is not None
    assert (counts.total, counts.ready) == (50, 50)


def test_documents_of_a_file_are_ingested(service: Service, namespace: str, tmp_path: Path) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_text(
        "\n".join(json.dumps({"id": f"n{i}", "text": f"Note {i}."}) for i in range(3)) + "\n\n"
    )
    assert run("bulk_ingest.py", service, str(file), "--namespace", namespace).startswith(
        "0 documents were there already, 3 were sent; 3 are ready"
    )
    assert run("bulk_ingest.py", service, str(file), "--namespace", namespace).startswith(
        "3 documents were there already, 0 were sent"
    )
    file.write_text(file.read_text().replace("Note 1.", "Another note."))
    assert run("bulk_ingest.py", service, str(file), "--namespace", namespace, "--all").startswith(
        "0 documents were there already, 3 were sent; 3 are ready"
    )
    with QuireClient(service.url, namespace=namespace) as client:
        assert client.documents.content("n1") == "Another note."
    file.write_text('{"text": "nameless"}\n')
    with pytest.raises(AssertionError, match=r"notes.jsonl:1 has no id"):
        run("bulk_ingest.py", service, str(file), "--namespace", namespace)


def test_the_openai_sdk_answers_from_the_cache(service: Service) -> None:
    shown = run("openai_sdk.py", service)
    assert "WRONG" not in shown
    assert re.findall(r"(\d+) of \d+ prompt tokens from the cache", shown)


def test_litellm_answers_from_the_cache(
    service: Service, corpus: list[Any], questions: list[Any]
) -> None:
    import litellm

    q = questions[0]
    with QuireClient(service.url) as client:
        client.documents.add_many(corpus)
    reply: Any = litellm.completion(
        model="openai/default",
        api_base=f"{service.url}/v1",
        api_key="none",
        messages=[{"role": "user", "content": q["question"]}],
        temperature=0,
        max_tokens=32,
        extra_body={"document_ids": q["document_ids"], "cache": {"strategy": "reuse"}},
    )
    assert reply.choices[0].message.content.strip() in q["answers"]
    assert reply.usage.prompt_tokens_details.cached_tokens > 0
