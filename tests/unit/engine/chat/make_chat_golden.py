"""Writes chat_golden.json: conversations rendered by the models' own chat templates, the way
transformers renders them.

Usage: make_chat_golden.py FOLDER_OF_REAL_TOKENIZERS
Needs jinja2 and tokenizers; the tests read only the result. Templates are in chat_templates/, as
the models publish them. Ids come from Hugging Face's tokenizers where the vocabulary can be loaded
with it (the Qwen and Llama-2 families); elsewhere the test compares texts only.
"""

import json
import sys
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

HERE = Path(__file__).parent
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
IM, THINK = ["<|im_start|>", "<|im_end|>"], ["<think>", "</think>"]
LLAMA3 = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
# template -> vocabulary, bos, eos, does the template spell the bos
FAMILIES = {
    "qwen2": ("qwen2", None, "<|im_end|>"),
    "qwen2-turns": ("qwen2", None, "<|im_end|>"),
    "qwen2.5": ("qwen2.5", None, "<|im_end|>"),
    "qwen3": ("qwen3", None, "<|im_end|>"),
    "chatml": ("qwen2", None, "<|im_end|>"),
    "yi-1.5": ("qwen2", None, "<|im_end|>"),
    "llama2": ("llama2", "<s>", "</s>"),
    "zephyr": ("llama2", "<s>", "</s>"),
    "llama3": ("llama3", "<|begin_of_text|>", "<|eot_id|>"),
    "llama3.1": ("llama3", "<|begin_of_text|>", "<|eot_id|>"),
    "mistral-v0.1": ("mistral/v1", "<s>", "</s>"),
    "mistral-v0.2": ("mistral/v1", "<s>", "</s>"),
    "mistral-v0.3": ("mistral/v3", "<s>", "</s>"),
    "deepseek-r1": ("deepseek", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
}
U, A, S = ({"role": r} for r in ("user", "assistant", "system"))
CONVERSATIONS = {
    "one question": [{**U, "content": "What is the capital of France?"}],
    "system": [{**S, "content": "Answer in one word."}, {**U, "content": "Capital of Norway?"}],
    "turns": [
        {**U, "content": "Hi"},
        {**A, "content": "Hello! How can I help?"},
        {**U, "content": 'Say "caf\u00e9" \u4f60\u597d.'},
    ],
    "system and turns": [
        {**S, "content": "Be brief.\nBe kind."},
        {**U, "content": "1+1?"},
        {**A, "content": "2"},
        {**U, "content": "And 12345 + 1?"},
    ],
    "white space": [
        {**U, "content": "  \n two\n\n lines \n"},
        {**A, "content": " ok \n"},
        {**U, "content": "\ttab"},
    ],
    "ends with an answer": [{**U, "content": "Hi"}, {**A, "content": "Hello."}],
    "thoughts": [
        {**U, "content": "Hi"},
        {**A, "content": "<think>\nA greeting.\n</think>\n\nHello."},
        {**U, "content": "Bye"},
    ],
    "ends with thoughts": [
        {**U, "content": "Hi"},
        {**A, "content": "<think>\nA greeting.\n</think>\n\nHello."},
    ],
}
NO_SYSTEM = {"mistral-v0.1"}


def render(template, messages, generation, thinking, bos, eos):
    def fail(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    env.globals["raise_exception"] = fail
    return env.from_string(template).render(
        messages=messages,
        add_generation_prompt=generation,
        enable_thinking=thinking,
        bos_token=bos or "",
        eos_token=eos,
    )


def qwen(root, name):
    vocab = json.loads((root / "qwen2" / "vocab.json").read_text())
    merges = [
        tuple(x.split(" "))
        for x in (root / "qwen2" / "merges.txt").read_text().split("\n")
        if x and x[:8] != "#version"
    ]
    t = Tokenizer(models.BPE(vocab, merges))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    added = json.loads((root / name / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    for key in sorted(added, key=int):
        t.add_tokens(
            [AddedToken(added[key]["content"], normalized=False, special=added[key]["special"])]
        )
        assert t.token_to_id(added[key]["content"]) == int(key)
    return t


def llama2(root):
    config = json.loads((root / "llama2" / "tokenizer.json").read_text())
    vocab, merges = config["model"]["vocab"], []
    for line in config["model"]["merges"]:  # three merges of pieces with spaces need care
        cuts = [
            i
            for i, c in enumerate(line)
            if c == " " and line[:i] in vocab and line[i + 1 :] in vocab
        ]
        merges.append([line[: cuts[0]], line[cuts[0] + 1 :]])
    for token in config["added_tokens"]:
        token["normalized"] = (
            False  # as in the models' current files; otherwise "</s>" is found only behind a space
        )
    config["model"]["merges"], config["post_processor"] = merges, None
    return Tokenizer.from_str(json.dumps(config))


def main():
    root = Path(sys.argv[1])
    tokenizers = {n: qwen(root, n) for n in ("qwen2", "qwen2.5", "qwen3")} | {
        "llama2": llama2(root)
    }
    cases = []
    for family, (vocabulary, bos, eos) in FAMILIES.items():
        template = (HERE / "chat_templates" / f"{family}.jinja").read_text()
        for name, messages in CONVERSATIONS.items():
            if family in NO_SYSTEM and messages[0]["role"] == "system":
                continue
            if "thoughts" in name and family not in ("qwen3", "deepseek-r1"):
                continue
            last_user = messages[-1]["role"] == "user"
            for thinking in (True, False) if family == "qwen3" else (False,):
                if family in ("qwen2-turns", "yi-1.5") and not last_user:
                    continue  # these open the answer after every question
                text = render(template, messages, last_user, thinking, bos, eos)
                case = {
                    "template": family,
                    "conversation": name,
                    "vocabulary": vocabulary,
                    "bos": bos,
                    "eos": eos,
                    "messages": messages,
                    "generation": last_user,
                    "thinking": thinking,
                    "text": text,
                }
                if vocabulary in tokenizers:
                    case["ids"] = tokenizers[vocabulary].encode(text, add_special_tokens=False).ids
                cases.append(case)
    (HERE / "chat_golden.json").write_text(
        "[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n"
    )
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
