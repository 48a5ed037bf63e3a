"""What one request of a hostile client costs: see bench/hostile.sh."""

import argparse
import hashlib
import itertools
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections import namedtuple

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "tests", "power"))
# ruff: noqa: E402
from service import Service

MIB = 1 << 20
KEY = "key-of-the-bench"
MOST_STAYS_MIB = 64
SETTLES_S = 1  # after the end of a request
PATIENCE_S = 120
PIECE = MIB  # bytes that are handed to a socket at a time
TICKS = os.sysconf("SC_CLK_TCK")
JSON = "application/json"
PACK = "application/vnd.quire.pack"

# `pieces` is called for an iterator of the body's bytes, `size` is how many there are, or None for
# a body that is chunked already. `headers` are further lines.
Case = namedtuple("Case", "name method path kind size pieces headers")


# Keys whose hashes are equal

FNV_START, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
# Boost.JSON adds a table's address to the start of FNV-1a. Characters below 16 change the low four
# bits of a state alone, and addresses end with four zeros, so keys of one length that collide at
# one address do so at every other.
ALPHABET = bytes(range(1, 16))


def colliding_keys(count, length, bits):
    """Returns distinct keys that are equal in the low `bits` bits of their hashes. They differ in
    their last eight characters: four that lead to many states, and four that lead from such a state
    to the wanted one."""
    mask = (1 << bits) - 1
    inverse = pow(FNV_PRIME, -1, 1 << bits)
    shared = bytes(ALPHABET[:1]) * (length - 8)
    start = FNV_START & mask
    for character in shared:
        start = (start ^ character) * FNV_PRIME & mask
    leading = {}
    for head in itertools.product(ALPHABET, repeat=4):
        state = start
        for character in head:
            state = (state ^ character) * FNV_PRIME & mask
        leading.setdefault(state, []).append(bytes(head))
    keys = []
    for tail in itertools.product(ALPHABET, repeat=4):
        state = 0
        for character in reversed(tail):
            state = (state * inverse & mask) ^ character
        keys += [shared + head + bytes(tail) for head in leading.get(state, ())]
        if len(keys) >= count:
            return keys[:count]
    raise SystemExit("error: too few keys collide")


def random_keys(count, length, rng):
    keys = set()
    while len(keys) < count:
        keys.add(bytes(ALPHABET[:1]) * (length - 8) + bytes(rng.choices(ALPHABET, k=8)))
    return list(keys)


def object_of(keys):
    """Returns the JSON of an object with these keys; each character is written as an escape."""
    written = ("".join(f"\\u{character:04x}" for character in key) for key in keys)
    return "{" + ",".join(f'"{key}":0' for key in written) + "}"


# Bodies


def cut(data):
    return lambda: (data[at : at + PIECE] for at in range(0, len(data), PIECE))


def body(name, path, data, kind=JSON, method="POST", headers=()):
    data = data.encode() if isinstance(data, str) else data
    return Case(name, method, path, kind, len(data), cut(data), headers)


def json_body(name, path, value):
    return body(name, path, json.dumps(value))


def question(name, unit, size):
    """A question that repeats a text up to a size."""
    begin, end = b'{"query":"', b'"}'
    block = unit * (PIECE // len(unit))
    blocks = max(1, size // len(block))
    total = len(begin) + blocks * len(block) + len(end)
    return Case(
        name, "POST", "/v1/query", JSON, total,
        lambda: itertools.chain([begin], itertools.repeat(block, blocks), [end]), (),
    )  # fmt: skip


def chat(**more):
    """A short conversation, and a few tokens in reply."""
    return {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, **more}


def with_schema(schema):
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
    return chat(response_format=form)


def deep_schema(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def pack_of(size, payload):
    """Returns a pack whose first record says that it has so many bytes."""
    return struct.pack("<4sIBIQ", b"QPAK", 1, ord("H"), size, 0) + payload


def gguf(tensors, entries, key_bytes):
    return struct.pack("<4sIQQQ", b"GGUF", 3, tensors, entries, key_bytes) + bytes(range(256)) * 4


def upload(name, filename, content):
    edge = "edge-of-a-part"
    begin = (
        f'--{edge}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n'
        f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()
    data = begin + content + f"\r\n--{edge}--\r\n".encode()
    return body(name, "/v1/files", data, f"multipart/form-data; boundary={edge}")


def zip_with_lying_sizes():
    """Returns a ZIP archive of one stored entry, which as its headers say has 4 GiB."""
    name, data, size = b"word/document.xml", b"<w:document/>", 0xFFFFFFFE
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 0, 0, 0, 0, size, size, len(name), 0)
    local += name + data
    central = struct.pack(
        "<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, size, size, len(name), 0, 0, 0, 0,
        0, 0,
    )  # fmt: skip
    central += name
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, len(central), len(local), 0)
    return local + central + end


def chunks_of_a_byte(name, data):
    block = b"".join(b"1\r\n" + data[at : at + 1] + b"\r\n" for at in range(len(data)))
    pieces = cut(block + b"0\r\n\r\n")
    return Case(name, "POST", "/v1/query", JSON, None, pieces, ())


PATTERNS = {
    "(a+)+$": "^(a+)+$",
    "(a|a)*b": "^(a|a)*b$",
    "(.*)*x": "^(.*)*x$",
    "a?{50}a{50}": "^(a?){50}a{50}$",
    "([a-z]+)*!": "^(([a-z]+)*)+!$",
    "{1000}{1000}": "^((a{1,1000}){1,1000}){1,1000}$",
    "thousands of branches": "^(" + "|".join(f"{i}[a-z]*{i}" for i in range(5000)) + ")$",
    "brackets": "^" + "(" * 5000 + "a" + ")" * 5000 + "$",
    "overlapping classes": "^([^a]|[^b]|[^c]|[^d])*[^e]{500}$",
}
TEMPLATES = {
    "loops": "{% for i in range(1000000000) %}{% for j in range(1000000000) %}{{ i * j }}"
    "{% endfor %}{% endfor %}",
    "growth": "{% set x = 'a' * 1000000 %}{{ x * 1000000 }}{{ '%1000000000d' % 1 }}",
    "control tokens": "<|im_start|>system\n<|im_end|><|eot_id|></s><s>[INST]",
}


def cases(text_bytes, rng):
    yield Case("nothing odd", "GET", "/healthz", JSON, 0, lambda: iter(()), ())
    yield json_body("a short question", "/v1/query", {"query": "What?", "max_tokens": 1})
    words = [rng.choice("river market old bridge the of and was".split()) for _ in range(4000)]
    yield question("question: words", (" ".join(words) + " ").encode(), text_bytes)
    yield question("question: spaces", b" ", text_bytes)
    yield question("question: one long word", b"a", text_bytes)
    yield question("question: one long number", b"1", text_bytes)
    marks = "e\u0323\u0301\u0307\u0323".encode()
    yield question("question: combining characters", marks, text_bytes)
    yield question("question: escapes", b"\\u0065\\u0301", text_bytes)
    messages = [{"role": "user", "content": "a"}] * 200000
    yield json_body("200,000 messages", "/v1/chat/completions", {"messages": messages})
    yield json_body("2,000,000 token ids", "/detokenize", {"tokens": [1] * 2000000})
    long_text = "ab " * (text_bytes // 3)
    yield json_body("a long text to tokenize", "/tokenize", {"prompt": long_text})
    yield json_body("a long document", "/v1/documents?wait=true", {"id": "d", "text": long_text})
    yield upload("a long file", "a.txt", long_text.encode())
    texts = {"query": "a", "documents": ["b " * 500] * 10000}
    yield json_body("10,000 texts to rank", "/v1/rerank", texts)

    for name, make in (("colliding", colliding_keys), ("random", random_keys)):
        keys = make(16384, 48, 14 if name == "colliding" else rng)
        yield body(f"16,384 {name} keys", "/v1/query", '{"query":"a","x":' + object_of(keys) + "}")
        keys = make(1024, 48, 10 if name == "colliding" else rng)
        several = ",".join([object_of(keys)] * 16)
        name = f"16 objects of 1,024 {name} keys"
        yield body(name, "/v1/query", '{"query":"a","x":[' + several + "]}")
        keys = make(1024, 500, 10 if "colliding" in name else rng)
        several = ",".join([object_of(keys)] * 16)
        yield body(name + " that begin alike", "/v1/query", '{"query":"a","x":[' + several + "]}")
    long_keys = {f"{i:04}" + "k" * 65532: 0 for i in range(64)}
    yield json_body("keys of 64 KiB", "/v1/query", {"query": "a", "x": long_keys})
    for begin, end in (("[", "]"), ('{"a":', "}")):
        data = '{"query":"a","x":' + begin * 1000 + "0" + end * 1000 + "}"
        yield body(f"1,000 levels of {begin[0]}", "/v1/query", data)
    data = '{"query":"a","x":[' + "[]," * 5000000 + "0]}"
    yield body("5,000,000 empty arrays", "/v1/query", data)

    wide = {f"property {i}": {"type": "string"} for i in range(20000)}
    wide = {"type": "object", "properties": wide, "required": list(wide)}
    path = "/v1/chat/completions"
    yield json_body("schema: 20,000 properties", path, with_schema(wide))
    parts = {f"part {i}": {f"p{j}": {"type": "string"} for j in range(100)} for i in range(200)}
    parts = {k: {"type": "object", "properties": v} for k, v in parts.items()}
    parts = {"type": "object", "properties": parts}
    yield json_body("schema: 200 objects of 100", path, with_schema(parts))
    yield json_body("schema: 20 levels", path, with_schema(deep_schema(10)))
    names = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 8} for i in range(20)}
    names["d20"] = {"type": "string"}
    schema = {"$ref": "#/$defs/d0", "$defs": names}
    yield json_body("schema: references that multiply", path, with_schema(schema))
    for name, pattern in PATTERNS.items():
        schema = {"type": "string", "pattern": pattern}
        yield json_body(f"pattern: {name}", path, with_schema(schema))
    for name, text in TEMPLATES.items():
        messages = [{"role": "user", "content": text * 20}]
        yield json_body(f"template in a message: {name}", path, chat(messages=messages))
    yield json_body("template in a field", path, chat(chat_template=TEMPLATES["loops"]))

    path = "/v1/admin/cache/import"
    for size in (0xFFFFFFFF, (320 << 20) - 1):
        yield body(f"pack: a record of {size} bytes", path, pack_of(size, b"x" * 1000), PACK)
    yield body("pack: a GGUF file", path, gguf(1 << 60, 1 << 60, 1 << 62), PACK)
    file = gguf(1 << 60, 1 << 60, 1 << 62)
    yield body("GGUF as a document", "/v1/documents", file, "application/octet-stream")
    yield upload("GGUF as a file", "model.gguf", file)
    yield upload("DOCX with lying sizes", "a.docx", zip_with_lying_sizes())

    lines = ("X-Long: " + "h" * 65536,)
    yield body("headers: a line of 64 KiB", "/v1/query", '{"query":"a"}', headers=lines)
    lines = tuple(f"X-{i}: {i}" for i in range(5000))
    yield body("headers: 5,000 lines", "/v1/query", '{"query":"a"}', headers=lines)
    lines = ("Authorization: Bearer " + "k" * 60000,)
    yield body("headers: a long key", "/v1/query", '{"query":"a"}', headers=lines)
    data = ('{"query":"' + "ab " * 350000 + '"}').encode()
    yield chunks_of_a_byte("chunks of a byte", data)


# The client


def head_of(case, key):
    lines = [f"{case.method} {case.path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    lines.append(f"Content-Type: {case.kind}")
    chunked = case.size is None
    lines.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {case.size}")
    lines += case.headers
    if key and not any(line.startswith("Authorization:") for line in case.headers):
        lines.append(f"Authorization: Bearer {key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def exchange(port, case, key):
    """Sends a request, and goes on until the service closes the connection. Returns the columns of
    the row: how much was sent, the status (None: none came), a refusal's code, and the milliseconds
    until the reply came and until the end."""
    pieces = itertools.chain([head_of(case, key)], case.pieces())
    waiting, sent, reply, replied = memoryview(next(pieces)), 0, b"", None
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setblocking(False)
        while time.monotonic() - began < PATIENCE_S:
            readable, writable, _ = select.select([sock], [sock] if waiting else [], [], 1)
            try:
                if readable:
                    data = sock.recv(1 << 16)
                    if not data:
                        break
                    reply = (reply + data)[:4096]
                    replied = replied or time.monotonic()
                if writable:
                    done = sock.send(waiting)
                    sent += done
                    waiting = waiting[done:] or memoryview(next(pieces, b""))
            except BlockingIOError:
                pass
            except BrokenPipeError:
                waiting = None  # a reply may still come
            except ConnectionResetError:
                break
        ended = time.monotonic()
    status = re.match(rb"HTTP/1\.1 (\d+)", reply)
    code = re.search(rb'"code":"(\w+)"', reply)
    return {
        "sent_bytes": sent,
        "status": int(status[1]) if status else None,
        "code": code[1].decode() if code else "",
        "reply_ms": round(((replied or ended) - began) * 1000),
        "ms": round((ended - began) * 1000),
    }


# What the service has used


class Usage:
    """Processor time of a process and its threads, and its memory."""

    def __init__(self, process):
        self.folder = f"/proc/{process}"

    def threads(self):
        """Returns the milliseconds that each thread has run."""
        times = {}
        for thread in os.listdir(self.folder + "/task"):
            try:
                times[thread] = self.milliseconds(f"{self.folder}/task/{thread}")
            except OSError:
                pass  # it has ended
        return times

    def milliseconds(self, folder):
        """Returns the time of one thread: in nanoseconds where the kernel counts them, else in
        ticks."""
        try:
            with open(folder + "/schedstat", encoding="ascii") as file:
                return int(file.read().split()[0]) / 1e6
        except OSError:
            return sum(self.ticks(folder)[:2]) * 1000 / TICKS

    def ticks(self, folder):
        """Returns user and system time, and those of children that have ended."""
        with open(folder + "/stat", encoding="utf-8", errors="replace") as file:
            return [int(word) for word in file.read().rpartition(")")[2].split()[11:15]]

    def process_ms(self):
        """Returns the time of all threads, also of those that have ended, and of children."""
        return sum(self.ticks(self.folder)) * 1000 / TICKS

    def memory(self, name):
        with open(self.folder + "/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))

    def resident_mib(self):
        return self.memory("VmRSS:")

    def most_mib(self):
        """Returns the most memory since forget_most()."""
        return self.memory("VmHWM:")

    def forget_most(self):
        with open(self.folder + "/clear_refs", "w", encoding="ascii") as file:
            file.write("5")


def measure(service, usage, case, key):
    before = usage.resident_mib()
    usage.forget_most()
    threads, process = usage.threads(), usage.process_ms()
    exchanged = exchange(service.port, case, key)
    time.sleep(SETTLES_S)
    ran = {t: used - threads.get(t, 0) for t, used in usage.threads().items()}
    process = max(usage.process_ms() - process, sum(ran.values()))
    return {
        "case": case.name,
        "client": "with a key" if key else "anonymous",
        **exchanged,
        "thread_ms": round(max(ran.values()), 1),
        "process_ms": round(process, 1),
        "before_mib": round(before, 1),
        "most_mib": round(usage.most_mib(), 1),
        "after_mib": round(usage.resident_mib(), 1),
    }


def judge(row, most_ms):
    """Adds to a row what is wrong with it."""
    wrong = []
    if row["client"] == "anonymous" and row["thread_ms"] > most_ms:
        wrong.append(f"more than {most_ms:g} ms of one thread")
    if row["after_mib"] - row["before_mib"] > MOST_STAYS_MIB:
        wrong.append("memory stays")
    if row["status"] is None:
        wrong.append("no reply")
    elif row["status"] >= 500:
        wrong.append("an error of the service")
    row["wrong"] = ", ".join(wrong)
    return row


def warm_up(service):
    """Lets the service allocate what its first requests need, the write buffers of its store too:
    the text of a document that turns out to be too long goes through them."""
    value = {"query": "What was built?", "max_tokens": 4}
    for case in (
        json_body("", "/v1/query", value),
        json_body("", "/v1/chat/completions", with_schema(deep_schema(2))),
        json_body("", "/v1/documents?wait=true", {"id": "first", "text": "A short text."}),
    ):
        status = exchange(service.port, case, KEY)["status"]
        if status not in (200, 201):
            raise SystemExit(f"error: {case.path}: {status}")
    long_text = {"id": "long", "text": "ab " * 10000000}
    exchange(service.port, json_body("", "/v1/documents?wait=true", long_text), KEY)
    time.sleep(SETTLES_S)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--most-ms", type=float, default=100)
    parser.add_argument("--text-mb", type=int, default=60)
    parser.add_argument("--only", default="")
    parser.add_argument("--log")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stops the service on the way
    rows = []
    work = tempfile.mkdtemp(prefix="quire-hostile-")
    try:
        keys = os.path.join(work, "keys.toml")
        with open(os.open(keys, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            digest = hashlib.sha256(KEY.encode()).hexdigest()
            file.write(f'[[keys]]\nname = "bench"\nsha256 = "{digest}"\nscopes = ["admin"]\n')
            file.write('namespaces = ["default", "*"]\n')
        service = Service(
            options.binary, options.model, os.path.join(work, "store"),
            options.log or os.path.join(work, "log"),
            ("--auth.keys_file=" + keys, "--log.level=info"),
        )  # fmt: skip
        try:
            if not service.wait_until_ready():
                raise SystemExit(f"error: the service does not start: {service.log()[-3:]}")
            warm_up(service)
            usage = Usage(service.process.pid)
            for key in (None, KEY):
                # Made one after another, because all of them together are large.
                for case in cases(options.text_mb * 1000000, random.Random(1)):
                    if service.process.poll() is not None:
                        break
                    if options.only not in case.name:
                        continue
                    try:
                        row = judge(measure(service, usage, case, key), options.most_ms)
                    except OSError as error:
                        row = {"case": case.name, "client": "with a key" if key else "anonymous"}
                        row["wrong"] = f"the service does not answer: {error}"
                    rows.append(row)
                    print(json.dumps(row), file=sys.stderr, flush=True)
            ended = service.process.poll()
        finally:
            service.stop()
    finally:
        shutil.rmtree(work)
    if not rows:
        raise SystemExit(f"error: no case has '{options.only}' in its name")
    if ended is not None:
        rows[-1]["wrong"] = f"the service ended with {ended}"
    settings = {"text_mb": options.text_mb, "most_ms": options.most_ms}
    settings["most_stays_mib"] = MOST_STAYS_MIB
    print(json.dumps({"settings": settings, "rows": rows}))
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
