"""Files of models whose sizes lie, or that cost a lot to read. Each is small."""

import json
import os
import shutil
import struct

MOST = (1 << 64) - 1
STRING, ARRAY, UINT32, FLOAT32 = 8, 9, 4, 6


def sized(data):
    data = data if isinstance(data, bytes) else data.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    """Returns a key of a GGUF file with its value, which is bytes already."""
    return sized(key) + struct.pack("<I", kind) + value


def text(key, value):
    return entry(key, STRING, sized(value))


def number(key, value):
    return entry(key, UINT32, struct.pack("<I", value))


def array(key, kind, count, values):
    return entry(key, ARRAY, struct.pack("<IQ", kind, count) + values)


def tensor(name, shape, kind=0, offset=0):
    return sized(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf(entries=(), tensors=(), counts=None, data=b"\0" * 4096):
    """Returns a GGUF file; `counts` says how many tensors and entries there are."""
    counts = counts or (len(tensors), len(entries))
    head = struct.pack("<4sIQQ", b"GGUF", 3, *counts)
    return head + b"".join(entries) + b"".join(tensors) + data


LLAMA = (
    text("general.architecture", "llama"), number("llama.context_length", 512),
    number("llama.embedding_length", 32), number("llama.block_count", 1),
    number("llama.feed_forward_length", 64), number("llama.attention.head_count", 2),
    entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, struct.pack("<f", 1e-5)),
)  # fmt: skip
TOKENS = (
    text("tokenizer.ggml.model", "gpt2"),
    array("tokenizer.ggml.tokens", STRING, 4, b"".join(map(sized, ("a", "b", "c", "d")))),
    array("tokenizer.ggml.merges", STRING, 1, sized("a b")),
)


def ggufs():
    """Yields names and GGUF files."""
    yield "counts of 2^64", gguf(counts=(MOST, MOST))
    yield "counts of 2^60", gguf(LLAMA, counts=(1 << 60, 1 << 60))
    yield "a million entries that are not there", gguf(LLAMA, counts=(0, 1000000))
    yield "a million tensors that are not there", gguf(LLAMA, counts=(1000000, len(LLAMA)))
    yield "a key of 2^62 bytes", gguf((struct.pack("<Q", 1 << 62),), counts=(0, 1))
    yield (
        "a text of 2^63 bytes",
        gguf((sized("general.architecture") + struct.pack("<IQ", STRING, 1 << 63),), counts=(0, 1)),
    )
    yield "an array of 2^61 numbers", gguf((array("x", UINT32, 1 << 61, b"\1" * 100),))
    yield "an array of 2^40 texts", gguf((array("x", STRING, 1 << 40, b"\0" * 800),))
    nested = b"".join(struct.pack("<IQ", ARRAY, 1) for _ in range(100000))
    yield "100,000 levels of arrays", gguf((sized("x") + struct.pack("<I", ARRAY) + nested,))
    wide = struct.pack("<IQ", ARRAY, 1 << 20) + struct.pack("<IQ", UINT32, 0) * 1000
    yield "2^20 arrays of nothing", gguf((sized("x") + struct.pack("<I", ARRAY) + wide,))
    yield "a shape that overflows", gguf(
        LLAMA + TOKENS, (tensor("token_embd.weight", (1 << 32, 1 << 32)),))  # fmt: skip
    yield "a shape of 2^63", gguf(LLAMA + TOKENS, (tensor("token_embd.weight", (1 << 63, 2)),))
    yield "4,000,000,000 dimensions", gguf(
        LLAMA, (sized("t") + struct.pack("<I", 4000000000),), data=b"\1" * 100)  # fmt: skip
    yield "an offset past the end", gguf(
        LLAMA + TOKENS, (tensor("token_embd.weight", (32, 4), offset=1 << 50),))  # fmt: skip
    yield "an offset that wraps", gguf(
        LLAMA + TOKENS, (tensor("token_embd.weight", (32, 4), offset=MOST - 31),))  # fmt: skip
    yield "an alignment of nothing", gguf((*LLAMA, number("general.alignment", 0)))
    yield "an alignment of 2^31", gguf((*LLAMA, number("general.alignment", 1 << 31)))
    for key, value in (("block_count", 4000000000), ("embedding_length", 4294967295),
                       ("attention.head_count", 0), ("context_length", 4294967295)):  # fmt: skip
        lies = tuple(e for e in LLAMA if not e.startswith(sized("llama." + key)))
        lies += TOKENS + (number("llama." + key, value),)
        yield f"{key} {value}", gguf(lies, (tensor("token_embd.weight", (32, 4)),))
    tokens = array("tokenizer.ggml.tokens", STRING, 1 << 31, b"\0" * 4096)
    yield "a vocabulary of 2^31 tokens", gguf((*LLAMA, TOKENS[0], tokens))
    yield "100,000 tensors of one name", gguf(LLAMA, (tensor("t", (1,)),) * 100000)
    yield "a part of 65,535", gguf((*LLAMA, number("split.count", 65535), number("split.no", 0)))


def safetensors(header, data=b"\0" * 64, length=None):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def weights():
    """Yields names and safetensors files."""
    one = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    yield "a header of 2^63 bytes", safetensors({"a": one}, length=1 << 63)
    yield "a header of 2^40 bytes", safetensors({"a": one}, length=1 << 40)
    yield "a header of 100 MB that is not there", safetensors({"a": one}, length=100000000)
    yield "a header of no bytes", safetensors(b"")
    yield "200,000 levels", safetensors(b'{"a":' * 200000 + b"1" + b"}" * 200000)
    yield "a shape that overflows", safetensors({"a": one | {"shape": [1 << 33, 1 << 33]}})
    yield "a shape of 2^63", safetensors({"a": one | {"shape": [1 << 63]}})
    yield "a shape below zero", safetensors({"a": one | {"shape": [-4]}})
    yield "100,000 dimensions", safetensors({"a": one | {"shape": [1] * 100000}})
    yield "offsets past the end", safetensors({"a": one | {"data_offsets": [0, 1 << 50]}})
    yield "offsets that go back", safetensors({"a": one | {"data_offsets": [16, 0]}})
    yield "offsets of 2^64", safetensors({"a": one | {"data_offsets": [MOST - 15, MOST]}})
    yield "tensors that overlap", safetensors({"a": one, "b": one})
    yield "an unknown type", safetensors({"a": one | {"dtype": "X" * 100000}})
    many = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100000)}
    yield "100,000 tensors of nothing", safetensors(many)


def varint(value):
    out = b""
    while value >= 128:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def letters_of_bytes():
    """Returns the letters that stand for the 256 bytes in a vocabulary of GPT-2's kind."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in own)
    return [chr(byte) for byte in own] + [chr(256 + i) for i, _ in enumerate(others)]


def tokenizers():
    """Yields names, the file's name and tokenizer files."""
    letters = {letter: id for id, letter in enumerate(letters_of_bytes())}
    plain = {
        "version": "1.0", "added_tokens": [],
        "model": {"type": "BPE", "vocab": letters | {"ab": 256}, "merges": ["a b"]},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "decoder": {"type": "ByteLevel"},
    }  # fmt: skip

    def changed(**members):
        return "tokenizer.json", json.dumps(plain | members).encode()

    def model(**members):
        return changed(model=plain["model"] | members)

    yield "nothing odd", *changed()
    yield "200,000 levels", "tokenizer.json", b'{"model":' + b"[" * 200000 + b"]" * 200000 + b"}"
    yield "an id of 2^31", *model(vocab=letters | {"ab": (1 << 31) - 1})
    yield "an id of 2^63", *model(vocab=letters | {"ab": (1 << 63) - 1})
    yield "an id below zero", *model(vocab=letters | {"ab": -1})
    yield "one id twice", *model(vocab=letters | {"ab": 0})
    yield "merges of nothing", *model(merges=["a b"] * 200000)
    yield "merges of what is not there", *model(merges=["x y", "a", "", "a b c d", "a  b"])
    yield "a long token", *model(vocab=letters | {"ab": 256, "x" * 5000000: 257})
    added = {"content": "<x>", "special": True}
    yield "an added token of 2^31", *changed(added_tokens=[added | {"id": (1 << 31) - 1}])
    yield "an added token below zero", *changed(added_tokens=[added | {"id": -5}])
    bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    for pattern in ("(a+)+$", "((a{1,1000}){1,1000}){1,1000}", "(" * 20000 + ")" * 20000, "[z-a]",
                    "(?<=a{1,60000})b", "\\p{Nothing}"):  # fmt: skip
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
        both = {"type": "Sequence", "pretokenizers": [split, bytes_alone]}
        yield f"the pattern {pattern[:20]}", *changed(pre_tokenizer=both)
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000000}
    yield "a normalizer that makes much of little", *changed(
        normalizer={"type": "Sequence", "normalizers": [replace] * 8})  # fmt: skip
    sequence = {"type": "Lowercase"}
    for _ in range(400):
        sequence = {"type": "Sequence", "normalizers": [sequence]}
    yield "400 sequences", *changed(normalizer=sequence)
    piece = b"\x0a" + varint((1 << 31) - 1) + b"\x0a\x01a"
    yield "a piece of 2^31 bytes", "tokenizer.model", piece
    yield "a piece of 2^63 bytes", "tokenizer.model", b"\x0a" + b"\xff" * 8 + b"\x7f" + b"a" * 100
    yield "nested messages", "tokenizer.model", b"\x0b" * 100000
    yield "zeros", "tokenizer.model", bytes(1000000)
    yield "100,000 pieces without a text", "tokenizer.model", b"\x0a\x00" * 100000


def folder_with(demo, folder, name, data):
    """Makes a model's folder that has one file of its own, in place of the demo's. Beside another
    kind of tokenizer there is nothing, as its vocabulary goes with no other file."""
    os.mkdir(folder)
    for file in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.model",
                 "tokenizer_config.json"):  # fmt: skip
        if file != name and name != "tokenizer.json":
            shutil.copyfile(os.path.join(demo, file), os.path.join(folder, file))
    with open(os.path.join(folder, name), "wb") as out:
        out.write(data)
    return folder
