"""Writes template_golden.json: every template of chat_templates/ over many conversations, and small
templates that try one feature of Jinja each, rendered by transformers' own environment.

Usage: make_template_golden.py
Needs transformers (tried with 5.23) and jinja2 3.1.6; the tests read only the result. A
conversation a template refuses is kept with null as its text: ours has to refuse it too.
"""

import datetime
import json
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = Path(__file__).parent
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The weather in a city, "now" & <later>.',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                    "days": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdef123",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}},
        }
    ],
}
U, A, S = ({"role": r} for r in ("user", "assistant", "system"))
CONVERSATIONS = {
    "question": [{**U, "content": "What is the capital of France?"}],
    "system": [{**S, "content": "Answer in one word."}, {**U, "content": "Capital of Norway?"}],
    "turns": [
        {**U, "content": "Hi"},
        {**A, "content": "Hello! How can I help?"},
        {**U, "content": 'Say "café" 你好 🦙.'},
    ],
    "system and turns": [
        {**S, "content": " Be brief.\nBe kind. "},
        {**U, "content": "1+1?"},
        {**A, "content": "2"},
        {**U, "content": "And\u00a0more?\n"},
    ],
    "white space": [
        {**U, "content": "  \n two\n\n lines \n"},
        {**A, "content": " ok \n"},
        {**U, "content": "\ttab\u3000"},
    ],
    "answered": [{**U, "content": "Hi"}, {**A, "content": "Hello."}],
    "thoughts": [
        {**U, "content": "Hi"},
        {**A, "content": "<think>\nA greeting.\n</think>\n\nHello."},
        {**U, "content": "Bye"},
    ],
    "reasoning": [
        {**U, "content": "Hi"},
        {**A, "content": "Hello.", "reasoning_content": "A greeting."},
        {**U, "content": "Bye"},
    ],
    "two users": [{**U, "content": "Hi"}, {**U, "content": "Again"}],
    "tools": [{**S, "content": "Use tools."}, {**U, "content": "Weather in Oslo?"}],
    "tool result": [
        {**U, "content": "Weather in Oslo?"},
        CALL,
        {
            "role": "tool",
            "name": "get_weather",
            "tool_call_id": "abcdef123",
            "content": '{"celsius": -3.5}',
        },
        {**A, "content": "It is cold."},
        {**U, "content": "Thanks <b>"},
    ],
}
# Two templates of which ours makes more sense with tools: transformers escapes what is added to a
# "safe" text as if for a web page, and cannot write what map() gives as JSON.
DIFFERENT = {
    "published/meetkai-functionary-medium-v3.1.jinja",
    "published/llama-cpp-deepseek-r1.jinja",
}
# Each renders with: text "a<b> Çd", words, numbers, thing (a dictionary), nothing (None).
VALUES = {
    "text": " a<b> Çd ",
    "words": ["pear", "Fig", "apple"],
    "numbers": [3, 1, 2],
    "nothing": None,
    "deep": {"a": {"b": [1, {"c": "x"}]}},
    "thing": {
        "name": "N",
        "size": 2,
        "ok": True,
        "part": 0.5,
        "none": None,
        "quote": 'it\'s "q"\n\té\u0001',
    },
}
SNIPPETS = Path(HERE / "jinja_snippets.txt").read_text(encoding="utf-8").split("\n%%\n")


def render(template, **inputs):
    try:
        return template.render(
            strftime_now=lambda f: datetime.datetime(2024, 7, 26).strftime(f), **inputs
        )
    except Exception as error:  # noqa: BLE001 - whatever the template met
        return None


def main():
    cases, refused = [], 0
    for path in sorted((HERE / "chat_templates").rglob("*.jinja")):
        template = _compile_jinja_template(path.read_text(encoding="utf-8"))
        name = str(path.relative_to(HERE / "chat_templates"))
        for conversation, messages in CONVERSATIONS.items():
            tools = TOOLS if "tool" in conversation else None
            answered = messages[-1]["role"] == "assistant"
            for thinking in (
                (True, False) if "enable_thinking" in path.read_text(encoding="utf-8") else (False,)
            ):
                inputs = {
                    "messages": messages,
                    "tools": tools,
                    "documents": None,
                    "add_generation_prompt": not answered,
                    "enable_thinking": thinking,
                    "bos_token": "<s>",
                    "eos_token": "</s>",
                }
                text = render(template, **inputs)
                refused += text is None
                if tools and name in DIFFERENT:
                    continue
                cases.append(
                    {
                        "template": name,
                        "conversation": conversation,
                        "thinking": thinking,
                        "text": text,
                    }
                )
    snippets = []
    for source in SNIPPETS:
        try:
            text = render(_compile_jinja_template(source), **VALUES)
        except Exception:  # noqa: BLE001
            text = None
        snippets.append({"source": source, "text": text})
    lines = [json.dumps(c, ensure_ascii=False) for c in cases]
    golden = {"tools": TOOLS, "conversations": CONVERSATIONS, "values": VALUES}
    (HERE / "template_golden.json").write_text(
        json.dumps(golden, ensure_ascii=False)[:-1]
        + ',\n"snippets": [\n'
        + ",\n".join(json.dumps(s, ensure_ascii=False) for s in snippets)
        + '\n],\n"cases": [\n'
        + ",\n".join(lines)
        + "\n]}\n",
        encoding="utf-8",
    )
    print(
        len(cases),
        "cases,",
        refused,
        "refused;",
        len(snippets),
        "snippets,",
        sum(s["text"] is None for s in snippets),
        "refused",
    )


if __name__ == "__main__":
    main()
