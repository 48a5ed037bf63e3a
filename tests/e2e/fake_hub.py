"""A hub for tests: TLS with an authority made on the spot, lists of files, redirects to a second
host and port, ranges, and everything that can go wrong. Two servers: the hub (localhost) and its
store of large files (127.0.0.1), which must never see the token.
"""

import hashlib
import json
import os
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlparse

TOKEN = "hf_secret"


def make_authority(folder):
    """Returns the certificate file of a new authority,
    and one of a server it vouches for (with its key)."""

    def run(*args):
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    run(
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-days",
        "2",
        "-subj",
        "/CN=test authority",
        "-addext",
        "basicConstraints=critical,CA:TRUE",
    )
    run(
        "req",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "server.key",
        "-out",
        "server.csr",
        "-subj",
        "/CN=localhost",
    )
    with open(os.path.join(folder, "san.ext"), "w") as f:
        f.write("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    run(
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-out",
        "server.pem",
        "-days",
        "2",
        "-extfile",
        "san.ext",
    )
    return (
        os.path.join(folder, "ca.pem"),
        os.path.join(folder, "server.pem"),
        os.path.join(folder, "server.key"),
    )


class FakeHub:
    """repos: {"org/repo": {"main": {"path": bytes}}}. Files above `large` bytes are LFS and are
    sent by the second server."""

    def __init__(self, folder, repos, large=1000):
        self.repos, self.large = repos, large
        self.gated = set()
        # path -> bytes after which the connection breaks, as a list of breaks still to come
        self.cut_after = {}
        self.wrong = {}  # path -> how many replies are changed on the way
        self.statuses = []  # statuses to answer with before anything else
        self.page = 1000
        self.no_range = False
        self.log = []  # (server, path, headers)
        self.ca, cert, key = make_authority(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        self.servers = []
        for name, host in (("hub", "localhost"), ("store", "127.0.0.1")):
            server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler(name))
            server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.servers.append(server)
            setattr(self, name, f"https://{host}:{server.server_address[1]}")

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def handler(self, name):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                hub.log.append((name, self.path, dict(self.headers)))
                try:
                    if name == "hub":
                        self.hub()
                    else:
                        self.send_file(hub.by_hash(urlparse(self.path).path.split("/")[-1]))
                except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                    self.close_connection = True

            def reply(self, status, body=b"", **headers):
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def hub(self):
                if hub.statuses:
                    return self.reply(hub.statuses.pop(0), b"later")
                url = urlparse(self.path)
                parts = [unquote(part) for part in url.path.strip("/").split("/")]
                if parts[:2] == ["api", "models"]:
                    repo, revision = "/".join(parts[2:4]), parts[5]
                    files = self.files_of(repo, revision)
                    if files is None:
                        return
                    rows = []
                    for path, data in sorted(files.items()):
                        row = {
                            "type": "file",
                            "path": path,
                            "size": len(data),
                            "oid": git_sha1(data),
                        }
                        if len(data) > hub.large:
                            row["lfs"] = {
                                "oid": hashlib.sha256(data).hexdigest(),
                                "size": len(data),
                                "pointerSize": 130,
                            }
                        rows.append(row)
                    rows.insert(
                        0, {"type": "directory", "path": "folder", "size": 0, "oid": "0" * 40}
                    )
                    start = int(parse_qs(url.query).get("cursor", ["0"])[0])
                    headers = {}
                    if start + hub.page < len(rows):
                        headers["Link"] = (
                            f"<{hub.hub}{url.path}?recursive=true&cursor={start + hub.page}>; "
                            'rel="next"'
                        )
                    return self.reply(
                        200,
                        json.dumps(rows[start : start + hub.page]).encode(),
                        Content_Type="application/json",
                        **headers,
                    )
                repo, revision, path = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
                files = self.files_of(repo, revision)
                if files is None:
                    return
                if path not in files:
                    return self.reply(404, b"Entry not found", X_Error_Code="EntryNotFound")
                if len(files[path]) > hub.large:
                    digest = hashlib.sha256(files[path]).hexdigest()
                    return self.reply(
                        302,
                        Location=f"{hub.store}/objects/{digest}?signature=x",
                        X_Linked_Etag=f'"{digest}"',
                        X_Linked_Size=str(len(files[path])),
                    )
                self.send_file((path, files[path]))

            def files_of(self, repo, revision):
                if repo in hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self.reply(401, b"Access to this model is restricted", X_Error_Code="GatedRepo")
                    return None
                if repo not in hub.repos:
                    self.reply(404, b"Repository not found", X_Error_Code="RepoNotFound")
                    return None
                if revision not in hub.repos[repo]:
                    self.reply(404, b"Invalid rev id", X_Error_Code="RevisionNotFound")
                    return None
                return hub.repos[repo][revision]

            def send_file(self, found):
                path, data = found
                etag = hashlib.sha256(data).hexdigest()[:20]
                if hub.wrong.get(path, 0) > 0:
                    hub.wrong[path] -= 1
                    data = bytes([data[0] ^ 1]) + data[1:]
                start, status = 0, 200
                wanted = self.headers.get("Range")
                if (
                    wanted
                    and not hub.no_range
                    and self.headers.get("If-Range", f'"{etag}"') == f'"{etag}"'
                ):
                    start, status = int(wanted.split("=")[1].split("-")[0]), 206
                self.send_response(status)
                self.send_header("ETag", f'"{etag}"')
                self.send_header("Content-Length", str(len(data) - start))
                if status == 206:
                    self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                self.end_headers()
                cuts = hub.cut_after.get(path)
                if cuts:
                    self.wfile.write(data[start : start + cuts.pop(0)])
                    self.wfile.flush()
                    self.connection.close()
                    self.close_connection = True
                    return
                self.wfile.write(data[start:])

        return Handler

    def by_hash(self, digest):
        for revisions in self.repos.values():
            for files in revisions.values():
                for path, data in files.items():
                    if hashlib.sha256(data).hexdigest() == digest:
                        return path, data
        raise KeyError(digest)


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
