#!/usr/bin/env python3
"""Writes what sentence-transformers and transformers compute, for the tests of this folder.

    python make_encoder_golden.py [FOLDER of all-MiniLM-L6-v2]

Needs torch, transformers, sentence-transformers and safetensors; the product and its tests do not.
Writes minilm.json (vectors of all-MiniLM-L6-v2, as whole numbers of 1e-5; models/minilm is the
folder's default) and golden/: tiny random models with their vectors or scores in expected.json.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from sentence_transformers import SentenceTransformer
from tokenizers import BertWordPieceTokenizer

HERE = Path(__file__).resolve().parent
TEXTS = [
    "How many leave days carry over?",
    "Staff may carry over ten days of unused leave into the next calendar year.",
    "The quick brown fox jumps over the lazy dog.",
    "",
    " ",
    "a",
    "?",
    "I can't believe it's not butter -- really!",
    "Café crème à la française, naïve façade, Ångström, Zürich",
    "İstanbul'da ILIK bir akşam; ığdır",
    "Straße GROSSE STRASSE ẞ",
    "北京是中华人民共和国的首都。",
    "東京タワーはとても高いです。カタカナ",
    "서울은 대한민국의 수도이다.",
    "Москва — столица России, ёлка Й",
    "القاهرة هي عاصمة مصر، أكبر مدينة",
    "ירושלים היא בירת ישראל שָׁלוֹם",
    "नई दिल्ली भारत की राजधानी है",
    "กรุงเทพมหานครเป็นเมืองหลวง",
    "Αθήνα είναι η πρωτεύουσα της Ελλάδας· τέλος;",
    "emoji 😀 👩‍👩‍👧‍👦 🦙🪿 flag 🇩🇪 end",
    'x = [i**2 for i in range(10) if i % 3 == 0]; print(f"{x!r}")',
    "SELECT name, COUNT(*) FROM users WHERE age >= 21 GROUP BY name;",
    "https://example.org/path/to/page.html?query=1&other=%20#fragment",
    "someone.else+tag@mail.example.co.uk",
    "3.14159 1,000,000 1e-9 0xDEADBEEF 12:34:56 2024-02-29 $99.95 50% №5 ½ ² ٣",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "z" * 100,
    "z" * 101,
    "one\ttwo\nthree\r\nfour\u00a0five\u2003six\u3000seven\u200beight\u00adnine\ufefften",
    "null\u0000byte \ufffd replaced \u0007bell \ue000private",
    "“Curly quotes” ‘single’ «guillemets» … – — ‐ ‑ • § ¶ † ‡",
    "a^2 + b_1 ~ c|d `code` <tag> @user #hash $dollar",
    "ﬁ ligature ﬂ, Ｆｕｌｌｗｉｄｔｈ １２３, ① ⅷ ㎏",
    "e\u0301 combining, o\u0308 u\u0308, a\u030a, n\u0303o",
    "豈 更 compat han, 𠀀 𪜀 ext han, 㐀",
    "The mitochondria is the powerhouse of the cell, producing most of its ATP.",
    "Barack Obama was the 44th president of the United States.",
    "Shares of Acme Corp. fell 4.2% on Tuesday after its quarterly report.",
    "To be, or not to be: that is the question.",
    "How do I reset my password?",
    "password reset instructions",
    "The committee approved the invoice without further discussion.",
    "no punctuation lower case words only here",
    "ALL CAPS SHOUTING TEXT WITH NUMBERS 42",
    "Mixed-Case_snake_case camelCase PascalCase kebab-case",
    "Zoë, José & François visited São Paulo's Praça da Sé.",
    "word " * 60,
    "The Treaty of Westphalia, signed in October 1648, ended the Thirty Years' War in the Holy "
    "Roman Empire and the Eighty Years' War between Spain and the Dutch Republic. " * 3,
    "Q: What is the capital of France?\nA: Paris.\n\nQ: And of Spain?\nA: Madrid.",
    "Ω Å K ſ ǅ ﬀ ᾳ",
]
WORDS = (
    "the of a red blue fish tea green dog cat runs sleeps house river and in on is "
    "un ##able ##ing ##s ##ed ##er walk talk jump ##ers . , ? ! - ' the ##re"
).split()


def vocabulary():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + list(dict.fromkeys(WORDS))
    letters = "abcdefghijklmnopqrstuvwxyzABC0123456789é"
    pieces += [c for c in letters if c not in pieces] + ["##" + c for c in letters]
    return pieces


def whole_numbers(vector):
    return [round(float(x) * 1e5) for x in vector]


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def minilm(folder):
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(TEXTS, batch_size=1, normalize_embeddings=True)
    out = []
    for text, vector in zip(TEXTS, vectors):
        out.append(
            {
                "text": text,
                "ids": model.tokenizer(text)["input_ids"],
                "vector": whole_numbers(vector),
            }
        )
        assert len(out[-1]["ids"]) <= 256
    lines = ",\n".join(json.dumps(o, ensure_ascii=False, separators=(",", ":")) for o in out)
    (HERE / "minilm.json").write_text("[\n" + lines + "\n]\n")


def tiny(name, seed, dtype, head=None, lower=True, tokenizer_json=True, **more):
    """Makes a folder with a random model and returns it with its model and tokenizer."""
    torch.manual_seed(seed)
    folder = HERE / "golden" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pieces = vocabulary()
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    config = transformers.BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=40,
        num_labels=1,
        initializer_range=0.3,
        **more,
    )
    kind = head or transformers.BertModel
    model = kind(config).to(dtype).eval()
    for parameter_name, parameter in model.named_parameters():
        if "bias" in parameter_name:  # they are zero otherwise
            parameter.data.uniform_(-0.3, 0.3)
    model.save_pretrained(folder, safe_serialization=True)
    write_json(
        folder / "tokenizer_config.json",
        {"do_lower_case": lower, "tokenizer_class": "BertTokenizer", "model_max_length": 40},
    )
    tokenizer = transformers.BertTokenizerFast(
        tokenizer_object=BertWordPieceTokenizer(
            str(folder / "vocab.txt"), lowercase=lower
        )._tokenizer,
        do_lower_case=lower,
    )
    if tokenizer_json:
        tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "vocab.txt").unlink()
    return folder, model.float(), tokenizer


SHORT = [
    "the red fish runs",
    "Walking DOGS, jumpers & talkers!",
    "a",
    "",
    "unwalkable green tea in a house on the river is blue, and the cat sleeps - not 42.",
    "Café ABC",
]


def embeddings(name, seed, dtype, pooling, prompts=None, **more):
    folder, model, tokenizer = tiny(name, seed, dtype, **more)
    (folder / "1_Pooling").mkdir()
    write_json(
        folder / "1_Pooling/config.json",
        {
            "word_embedding_dimension": 32,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
        },
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 24})
    if prompts:
        write_json(folder / "config_sentence_transformers.json", {"prompts": prompts})
    out = []
    for role, prompt in (
        ("query", (prompts or {}).get("query", "")),
        ("document", (prompts or {}).get("document", "")),
    ):
        for text in SHORT:
            batch = tokenizer(prompt + text, return_tensors="pt", truncation=True, max_length=24)
            with torch.no_grad():
                states = model(**batch).last_hidden_state[0]
            vector = states[0] if pooling == "cls" else states.mean(0)
            vector = torch.nn.functional.normalize(vector, dim=0)
            ids = tokenizer(prompt + text)["input_ids"]
            out.append({"role": role, "text": text, "ids": ids, "vector": whole_numbers(vector)})
    write_json(folder / "expected.json", out)


def pairs(name, seed, dtype, **more):
    folder, model, tokenizer = tiny(
        name, seed, dtype, head=transformers.BertForSequenceClassification, **more
    )
    out = []
    for question in (
        "is the fish red ?",
        "",
        "the cat sleeps in the green house on the river " * 3,
    ):
        for text in SHORT + ["the dog runs and the cat jumps in the river " * 4]:
            batch = tokenizer(
                [question], [text], return_tensors="pt", truncation="longest_first", max_length=40
            )
            with torch.no_grad():
                score = torch.sigmoid(model(**batch).logits[0, 0])
            out.append(
                {
                    "question": question,
                    "text": text,
                    "score": round(float(score), 6),
                    "tokens": batch["input_ids"].shape[1],
                }
            )
    write_json(folder / "expected.json", out)


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[3] / "models/minilm"
    minilm(folder)
    embeddings("mean_f32", 1, torch.float32, "mean")
    embeddings(
        "cls_bf16_cased",
        2,
        torch.bfloat16,
        "cls",
        lower=False,
        tokenizer_json=False,
        prompts={"query": "ask: ", "document": "the text: "},
    )
    pairs("cross_f16", 3, torch.float16, tokenizer_json=False)


if __name__ == "__main__":
    main()
