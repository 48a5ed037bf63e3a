"""Bodies with gzip, tokens and PDFs that are made to cost a lot: each is refused in clear words or
read, costs little, and other clients are served meanwhile."""

import base64
import gzip
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

import pdf_files
from attacked import MIB, PROMPT_S, Attacked, error_of, write_private

MOST_BODY = 16 * MIB
ANONYMOUS_MS = 100  # of one thread, as bench/hostile.sh has it
ISSUER, AUDIENCE = "https://id.example", "quire"
TEXT, JSON, NDJSON = "text/plain", "application/json", "application/x-ndjson"
PACK = "application/vnd.quire.pack"


def zipped(pieces):
    """Returns the gzip of pieces, which may be more than memory holds."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(map(compressor.compress, pieces)) + compressor.flush()


def bomb(begin=b"", megabytes=64, unit=b"a"):
    block = unit * (MIB // len(unit))
    return zipped(itertools.chain([begin], itertools.repeat(block, megabytes)))


def upload(content, name="a.pdf", encoding=lambda body: body):
    edge = b"edge-of-a-part"
    body = b"--" + edge + b'\r\nContent-Disposition: form-data; name="file"; filename="'
    body += name.encode() + b'"\r\nContent-Type: application/octet-stream\r\n\r\n'
    kind = "multipart/form-data; boundary=" + edge.decode()
    return encoding(body + content + b"\r\n--" + edge + b"--\r\n"), kind


def base64url(data):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """A key pair of RSA, made by openssl."""

    def __init__(self, folder):
        self.file = os.path.join(folder, "issuer.key")
        self.openssl("genrsa", "-out", self.file, "2048")
        modulus = self.openssl("rsa", "-in", self.file, "-noout", "-modulus").decode()
        number = bytes.fromhex(modulus.strip().partition("=")[2])
        key = {"kid": "k1", "kty": "RSA", "alg": "RS256", "n": base64url(number), "e": "AQAB"}
        self.keys = {"keys": [key]}

    def openssl(self, *words, data=None):
        done = subprocess.run(["openssl", *words], input=data, capture_output=True, check=True)
        return done.stdout

    def token(self, header=None, **claims):
        header = {"alg": "RS256", "kid": "k1"} | (header or {})
        all_claims = {
            "iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(time.time()) + 600,
            "namespaces": ["default"], "scope": "read", **claims,
        }  # fmt: skip
        text = base64url(header) + "." + base64url(all_claims)
        return (
            text
            + "."
            + base64url(self.openssl("dgst", "-sha256", "-sign", self.file, data=text.encode()))
        )


class HostileRequests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = tempfile.TemporaryDirectory(prefix="quire-issuer-")
        cls.issuer = Issuer(cls.files.name)
        keys = os.path.join(cls.files.name, "jwks.json")
        write_private(keys, json.dumps(cls.issuer.keys))
        cls.attacked = Attacked((
            f"--server.max_body_bytes={MOST_BODY}",
            "--auth.jwt_issuer=" + ISSUER,
            "--auth.jwt_audience=" + AUDIENCE,
            "--auth.jwt_keys=" + keys,
        ))  # fmt: skip
        # What the first requests need is allocated once.
        cls.attacked.call("POST", "/v1/documents?wait=true", b"A text.", TEXT)
        cls.attacked.call("POST", "/v1/query", b'{"query":"What?","max_tokens":1}')

    @classmethod
    def tearDownClass(cls):
        code = cls.attacked.stop()
        cls.files.cleanup()
        if code != 0:
            raise AssertionError(f"the service stopped with {code}")

    def tearDown(self):
        self.attacked.expect_well(self)

    def expect_cheap(self, cost, thread_ms, most_mib=None):
        self.assertLess(cost["thread_ms"], thread_ms, cost)
        self.assertLess(cost["neighbour_s"], PROMPT_S, cost)
        if most_mib is not None:
            self.assertLess(cost["most_mib"], most_mib, cost)

    # ---- gzip

    def test_a_bomb_without_a_key_is_refused_by_its_head(self):
        body = bomb(megabytes=128)
        for path, kind in (("/v1/documents", TEXT), ("/v1/documents", NDJSON), ("/v1/query", JSON)):
            with self.subTest(path=path, kind=kind):
                (status, _, reply), cost = self.attacked.under(lambda: self.attacked.call(
                    "POST", path, body, kind, key=None, headers={"Content-Encoding": "gzip"}
                ))  # fmt: skip
                self.assertEqual(status, 401)
                self.assertEqual(error_of(reply)[0], "missing_api_key")
                self.expect_cheap(cost, ANONYMOUS_MS, 8)

    def test_a_bomb_ends_where_a_body_would(self):
        form, form_kind = upload(b"a" * (64 * MIB), "a.txt", lambda body: zipped([body]))
        cases = (
            ("text", "/v1/documents", TEXT, bomb()),
            ("JSON", "/v1/documents", JSON, bomb(b'{"text":"')),
            ("arrays", "/v1/query", JSON, bomb(b'{"query":', unit=b"[")),
            ("one line", "/v1/documents", NDJSON, bomb(b'{"text":"')),
            ("an uploaded file", "/v1/documents", form_kind, form),
            ("a file", "/v1/files", form_kind, form),
            ("a pack", "/v1/admin/cache/import", PACK, bomb()),
        )
        for name, path, kind, body in cases:
            with self.subTest(name):
                self.assertLess(len(body), MIB)
                (status, _, reply), cost = self.attacked.under(lambda: self.attacked.call(
                    "POST", path, body, kind, headers={"Content-Encoding": "gzip"}
                ))  # fmt: skip
                self.assertEqual(status, 413, reply)
                self.assertEqual(error_of(reply)[0], "payload_too_large")
                self.assertIn("server.max_body_bytes", error_of(reply)[1])
                self.expect_cheap(cost, 1500, 4 * MOST_BODY / MIB)

    def test_a_stream_of_lines_may_not_expand_to_a_thousand_times(self):
        line = b'{"text":"' + b"a" * 1011 + b'"}\n'
        body = bomb(megabytes=256, unit=line)
        (status, _, reply), cost = self.attacked.under(lambda: self.attacked.call(
            "POST", "/v1/documents", body, NDJSON, headers={"Content-Encoding": "gzip"}
        ))  # fmt: skip
        self.assertEqual(status, 413, reply)
        self.assertEqual(error_of(reply)[0], "payload_too_large")
        self.assertIn("100 times", error_of(reply)[1])
        self.expect_cheap(cost, 2000, 64)

    def test_many_members_without_a_byte(self):
        for count in (1, 50000):
            body = gzip.compress(b"", mtime=0) * count
            (status, _, reply), cost = self.attacked.under(lambda: self.attacked.call(
                "POST", "/v1/documents", body, TEXT, headers={"Content-Encoding": "gzip"}
            ))  # fmt: skip
            self.assertEqual(status, 422, reply)
            self.assertEqual(error_of(reply)[0], "empty_document")
            self.expect_cheap(cost, 1000, 16)

    def test_a_bomb_that_is_cut_or_damaged_is_said(self):
        whole = zipped([b"some words of a text"])
        for body in (whole[:-4], whole[:12], whole + b"more", b"\x1f\x8b\x08\xff" + b"x" * 100):
            status, _, reply = self.attacked.call(
                "POST", "/v1/documents", body, TEXT, headers={"Content-Encoding": "gzip"}
            )
            self.assertEqual(status, 400, reply)
            self.assertIn("gzip", error_of(reply)[1])

    def test_no_other_encoding_is_taken(self):
        deflated = zlib.compress(b"a" * (64 * MIB), 9)
        for encoding in ("deflate", "br", "zstd", "compress", "gzip, gzip", "gzip;q=1", "x" * 8000):
            with self.subTest(encoding[:20]):
                (status, headers, reply), cost = self.attacked.under(lambda: self.attacked.call(
                    "POST", "/v1/documents", deflated, TEXT, headers={"Content-Encoding": encoding}
                ))  # fmt: skip
                self.assertEqual(status, 415, reply)
                self.assertEqual(headers["Accept-Encoding"], "gzip")
                self.assertEqual(error_of(reply)[0], "unsupported_media_type")
                self.assertLess(len(reply), 2000)
                self.expect_cheap(cost, ANONYMOUS_MS, 8)

    # ---- tokens

    def ask_with(self, *lines):
        """Returns status and body of a request with these lines in its head."""
        with self.attacked.raw() as sock:
            head = "GET /v1/documents?limit=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            sock.sendall((head + "".join(line + "\r\n" for line in lines) + "\r\n").encode())
            reply = b""
            while data := sock.recv(1 << 16):
                reply += data
        status = re.match(rb"HTTP/1\.1 (\d+)", reply)
        return int(status[1]) if status else None, reply.partition(b"\r\n\r\n")[2]

    def tokens(self):
        """Yields names, tokens and the statuses and codes that they may get."""
        whole = self.issuer.token()
        head, claims, signature = whole.split(".")
        unauthorized = (401, ("invalid_token", "invalid_api_key"))
        yield "no signature", f"{head}.{claims}.", unauthorized
        yield "another signature", f"{head}.{claims}." + signature[::-1], unauthorized
        for algorithm in ("none", "None", "HS256", "PS256", "RS512", "", "RS256\0", 256, None, []):
            name = base64url({"alg": algorithm, "kid": "k1"})
            yield f"algorithm {algorithm}", f"{name}.{claims}.{signature}", unauthorized
        deep = b'{"alg":"RS256","x":' + b"[" * 2500 + b"]" * 2500 + b"}"
        yield "a deep header", f"{base64url(deep)}.{claims}.{signature}", unauthorized
        deep = b'{"iss":' + b'{"a":' * 700 + b"1" + b"}" * 700 + b"}"
        yield "deep claims", f"{head}.{base64url(deep)}.{signature}", unauthorized
        keys = json.dumps({f"k{i}": i for i in range(600)}).encode()
        yield "many claims", f"{head}.{base64url(keys)}.{signature}", unauthorized
        for number in (b"1e999", b"-1e999", b"1" * 4000, b"NaN", b'"soon"', b"[]"):
            odd = b'{"iss":"%s","aud":"quire","exp":%s}' % (ISSUER.encode(), number)
            yield f"exp {number[:9]}", f"{head}.{base64url(odd)}.{signature}", unauthorized
        for odd in ("=", "+/", "%41", "\u00e9", "a", " ", "\t"):
            yield f"{odd!r} in base64", f"{head}.{claims[:-1]}{odd}.{signature}", unauthorized
        yield "no JSON", f"eyJ{'A' * 4000}.{claims}.{signature}", unauthorized
        no_utf8 = base64url(b'{"' + bytes([0xFF]) * 100)
        yield "bytes that are no UTF-8", f"{no_utf8}.{claims}.{signature}", unauthorized
        twice = base64url(b'{"alg":"RS256","kid":"k1","alg":"none"}')
        yield "an algorithm twice", f"{twice}.{claims}.{signature}", unauthorized
        yield "dots", "eyJ" + "." * 4000, unauthorized
        yield "two dots", "eyJ..", unauthorized
        yield "8,200 bytes", f"{head}.{'A' * 8200}.{signature}", unauthorized
        yield "60,000 bytes", f"{head}.{'A' * 60000}.{signature}", (431, ("",))

    def test_hostile_tokens_are_refused_for_little(self):
        for name, token, (wanted, codes) in self.tokens():
            with self.subTest(name):
                (status, reply), cost = self.attacked.under(
                    lambda token=token: self.ask_with("Authorization: Bearer " + token)
                )
                self.assertEqual(status, wanted, reply)
                self.assertLess(len(reply), 3000)
                if codes != ("",):
                    self.assertIn(error_of(reply)[0], codes)
                self.expect_cheap(cost, ANONYMOUS_MS, 8)
        self.expect_taken()

    def expect_taken(self):
        status, reply = self.ask_with("Authorization: Bearer " + self.issuer.token())
        self.assertEqual(status, 200, reply)

    def test_tokens_that_are_signed_and_grant_nothing(self):
        many = [f"team-{i}" for i in range(300)]
        for name, claims, wanted in (
            ("of another issuer", {"iss": ISSUER + "/"}, 401),
            ("for another audience", {"aud": ["other"]}, 401),
            ("that has expired", {"exp": 1}, 401),
            ("that never expires", {"exp": None}, 401),
            ("whose end is no number", {"exp": "9" * 300}, 401),
            ("whose end is far before its beginning", {"exp": -(10**300)}, 401),
            ("that is not valid yet", {"nbf": 10**12}, 401),
            ("without a subject", {"sub": ""}, 401),
            ("with a long subject", {"sub": "s" * 300}, 401),
            ("with a subject of two lines", {"sub": "a\r\nX-Admin: 1"}, 401),
            ("of no namespace", {"namespaces": ["../default", "", "/", "a\0", "x" * 65]}, 401),
            ("of many namespaces, of which 64 count", {"namespaces": many}, 200),
            ("without a scope", {"scope": "root quire"}, 403),
        ):
            with self.subTest(name):
                token = self.issuer.token(**claims)
                (status, reply), cost = self.attacked.under(
                    lambda token=token: self.ask_with("Authorization: Bearer " + token)
                )
                self.assertEqual(status, wanted, reply)
                self.expect_cheap(cost, ANONYMOUS_MS, 8)
        self.expect_taken()

    def test_unknown_keys_do_not_keep_the_service_reading_keys(self):
        def ask_often():
            return {
                self.ask_with("Authorization: Bearer " + self.unsigned(f"kid-{i}"))[0]
                for i in range(200)
            }

        statuses, cost = self.attacked.under(ask_often)
        # The first one may have the keys read again.
        self.assertLessEqual(statuses, {401, 503})
        self.expect_cheap(cost, 1000, 16)
        self.expect_taken()

    def unsigned(self, key):
        return base64url({"alg": "RS256", "kid": key}) + ".e30." + base64url(b"s" * 256)

    def test_odd_lines_of_authorization(self):
        good = self.issuer.token()
        for name, lines, wanted in (
            ("twice", ["Authorization: Bearer " + good] * 2, {400}),
            ("and another one", ["Authorization: Bearer x", "Authorization: Bearer " + good],
             {400}),
            ("Basic", ["Authorization: Basic " + "QUFB" * 2000], {401}),
            ("only a scheme", ["Authorization: Bearer"], {401}),
            ("only spaces", ["Authorization: Bearer" + " " * 8000], {401}),
            ("many schemes", ["Authorization: " + "Bearer " * 1000 + good], {401}),
            ("bytes", ["Authorization: Bearer " + "\u00ff" * 2000], {400, 401}),
            ("3,000 lines", ["Authorization: Bearer x"] * 3000, {400, 401, 431}),
        ):  # fmt: skip
            with self.subTest(name):
                (status, reply), cost = self.attacked.under(
                    lambda lines=lines: self.ask_with(*lines)
                )
                self.assertIn(status, wanted, reply)
                self.expect_cheap(cost, ANONYMOUS_MS, 8)
        self.expect_taken()

    # ---- PDFs

    def read_pdf(self, data, path="/v1/documents"):
        body, kind = upload(data)
        return self.attacked.call("POST", path, body, kind)

    def test_hostile_pdfs_are_read_or_refused_in_clear_words(self):
        status, _, reply = self.read_pdf(pdf_files.PLAIN)
        if status == 415:
            self.skipTest("this build reads no PDF")
        self.assertIn(status, (200, 202), reply)
        for name, data in pdf_files.hostile():
            with self.subTest(name):
                (status, _, reply), cost = self.attacked.under(
                    lambda data=data: self.read_pdf(data)
                )
                self.assertIn(status, (200, 202, 400, 413, 422), reply)
                if status >= 400:
                    code, message, param = error_of(reply)
                    self.assertIn(
                        code, ("invalid_value", "empty_document", "payload_too_large"), reply
                    )
                    self.assertEqual((message.partition(":")[0], param), ("a.pdf", "file"), reply)
                # Another process reads it.
                self.expect_cheap(cost, 500, 32)
        self.assertIn(self.read_pdf(pdf_files.PLAIN)[0], (200, 202))

    def test_a_hostile_pdf_among_files_is_said_with_the_file(self):
        body, kind = upload(pdf_files.NAME_AND_ZEROS)
        edge = kind.partition("=")[2].encode()
        purpose = (
            b"--"
            + edge
            + b'\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n'
        )
        status, _, reply = self.attacked.call("POST", "/v1/files", purpose + body, kind)
        if status == 415:
            self.skipTest("this build reads no PDF")
        self.assertEqual(status, 400, reply)
        self.assertEqual(error_of(reply)[2], "file")
        self.assertIn("a.pdf", error_of(reply)[1])


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0], *sys.argv[1:]])
