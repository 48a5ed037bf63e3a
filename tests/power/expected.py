"""What clients of a service were told, what they therefore may find after it died, and the clients
themselves."""

import random
import threading
import time
from datetime import datetime

from service import Client, Gone

WORDS = (
    "river market old bridge the of and was built by a mayor in north copper guild letters "
    "harbour school known"
).split()
QUESTION = "What was built by the guild?"
KEPT_BACKUPS = 4
CLOCK_S = 0.5  # how far a time of expiry may be off


def text_of(number):
    """Returns the text of a number: a few words, or now and then several hundred."""
    rng = random.Random(number)
    words = rng.choice((8, 20, 40, 60)) if number % 12 else 400
    return f"Report {number}. " + " ".join(rng.choice(WORDS) for _ in range(words)) + "."


def expiry_of(found):
    """Returns when a document that the service shows expires, Unix s, or None."""
    when = found["expires_at"]
    return time_of(when) if when else None


def time_of(text):
    """Returns a time as the service shows it, as Unix s."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def chosen(allowed, found, text, asked):
    """Returns a problem, or None, and what a document that was found is of the allowed values: of
    two that differ only in their expiry the one whose time it has. It keeps that time from now
    on. asked: when it was asked for, Unix s."""
    reasons = []
    for value in allowed:
        if value is None:
            continue
        reason = value.differs(found, text)
        if reason:
            reasons.append(reason)
            continue
        if value.expires is None:
            return None, value
        when = expiry_of(found)
        if asked > when + CLOCK_S:
            return f"there at {asked}, though it expired at {when}", None
        return None, value.changed(expires=(when, when))
    if not reasons:
        return f"there, though it was deleted: {found}", None
    shown = [d.shown() if d else None for d in allowed]
    return f"differs in {reasons}: {found} {text[:30]!r}; expected {shown}", None


class Document:
    """What a client set."""

    def __init__(self, number, title, metadata, pinned, expires=None):
        self.number, self.title, self.metadata = number, title, dict(metadata)
        self.pinned, self.expires = pinned, expires  # expires: earliest and latest time, Unix s

    def changed(self, **members):
        out = Document(self.number, self.title, self.metadata, self.pinned, self.expires)
        out.__dict__.update(members)
        return out

    def may_expire_at(self, when):
        """Returns whether a time of expiry, Unix s or None, is one that was asked for."""
        if self.expires is None or when is None:
            return self.expires is None and when is None
        return self.expires[0] <= when <= self.expires[1]

    def shown(self):
        return [self.number, self.title, self.metadata, self.pinned, self.expires]

    def differs(self, found, text):
        """Returns what is other than it was set; empty: nothing."""
        out = []
        if text != text_of(self.number):
            out.append("text")
        for member in ("title", "metadata", "pinned"):
            if found[member] != getattr(self, member):
                out.append(member)
        if not self.may_expire_at(expiry_of(found)):
            out.append("expires_at")
        if found["status"] != "ready":
            out.append("status " + found["status"])
        return out


class Expected:
    """Per id, the values that a reader may find: one where the last change was acknowledged, more
    where a change was not. None: no document. A document that expires may be absent after its
    earliest time, and must be after the time that it shows. With `failing` disks a job may fail
    that was taken, and its documents then are as before."""

    def __init__(self, failing=False):
        self.failing = failing
        self.mu = threading.Lock()
        self.allowed = {}
        self.jobs = []
        self.acknowledged = {}  # kind of change -> count
        self.refused = {}
        self.problems = []
        self.backups = {}  # number of one that was acknowledged -> what it may hold, as `allowed`
        self.unsure = []  # the same of others that may be there
        self.open_backups = []  # the same of those under way

    def values(self, name):
        with self.mu:
            return list(self.allowed.get(name, [None]))

    def begin(self, changes):
        """Notes changes, id -> value, that are about to be asked for."""
        with self.mu:
            for name, value in changes.items():
                for values in (self.allowed, *self.open_backups):
                    values[name] = [*values.get(name, [None]), value]

    def refuse(self, kind, changes):
        """Forgets changes that were refused, the last ones of their documents."""
        with self.mu:
            self.refused[kind] = self.refused.get(kind, 0) + len(changes)
            for name, value in changes.items():
                for values in (self.allowed, *self.open_backups):
                    values[name] = [v for v in values.get(name, [None]) if v is not value]

    def acknowledge(self, kind, changes):
        with self.mu:
            for name, value in changes.items():
                if not (self.failing and kind.endswith("later")):
                    self.allowed[name] = [value]
            self.acknowledged[kind] = self.acknowledged.get(kind, 0) + len(changes)

    def begin_backup(self):
        """Returns what a backup may hold that is about to be asked for: of each document what it is
        now, and what it becomes until the end of the backup."""
        with self.mu:
            self.open_backups.append(dict(self.allowed))
            return self.open_backups[-1]

    def end_backup(self, values, number, refused=False):
        """Notes the end of a backup, with its number if it was acknowledged."""
        with self.mu:
            self.open_backups = [o for o in self.open_backups if o is not values]
            if number is None:
                self.unsure += [values] * (not refused)
                return
            self.backups[number] = values
            for old in sorted(self.backups)[:-KEPT_BACKUPS]:
                del self.backups[old]

    def problem(self, text):
        with self.mu:
            self.problems.append(text)

    def shown(self):
        """Returns lines: an id and its values, the last ones perhaps not acknowledged."""
        with self.mu:
            return [
                f"{name}: {[d.shown() if d else None for d in values]}"
                for name, values in sorted(self.allowed.items())
            ]


class Writer(threading.Thread):
    """A client with ids of its own, so that their changes have one order. Ends when the service
    goes away, or when `until` (monotonic s) comes."""

    kinds = {
        "put": 8, "post": 5, "post later": 6, "batch": 2, "batch later": 3, "delete": 4,
        "delete some": 1, "patch": 4, "pin": 2, "flush": 1, "evict": 2, "query": 2, "chat": 1,
        "export": 1, "import": 1, "backup": 1,
    }  # fmt: skip

    def __init__(self, expected, number, seed, port, until):
        super().__init__()
        self.expected, self.until = expected, until
        self.rng = random.Random(seed)
        self.ids = [f"w{number}-{i}" for i in range(6)]
        self.client = Client(port)
        self.waits = set()  # ids that a job may still work on
        self.packs = []  # (id, document, pack)
        self.kind = None  # of the change that is under way
        self.cut_off = None  # the one that was when the service went away

    def run(self):
        try:
            while time.monotonic() < self.until:
                self.step()
        except Gone:
            self.cut_off = self.kind

    def step(self):
        self.kind = self.rng.choices(list(self.kinds), list(self.kinds.values()))[0]
        getattr(self, "do_" + self.kind.replace(" ", "_"))()

    def options(self):
        """Returns members of a request that hold for all its documents, and the times at which
        these run out."""
        options, expires = {"pinned": self.rng.random() < 0.2}, None
        if self.rng.random() < 0.2 and not self.expected.failing:  # the clock is right
            options["ttl_seconds"] = seconds = self.rng.choice((2, 3600, 3600))
            expires = (time.time() + seconds - CLOCK_S, time.time() + seconds + 60)
        return options, expires

    def body(self, name, options, expires):
        """Returns a new document as it is sent, and as it is expected."""
        number = self.rng.randrange(240)
        known = [d.number for d in self.expected.values(name) if d]
        if known and self.rng.random() < 0.1:  # the text that it has
            number = known[-1]
        body = {
            "id": name,
            "text": text_of(number),
            "title": f"Title {number}",
            "metadata": {"n": self.rng.randrange(5), "number": number},
        }
        return body, Document(number, body["title"], body["metadata"], options["pinned"], expires)

    def send(self, method, path, body):
        """Sends a change. Returns the status and the reply."""
        return self.client.call(method, path, body)

    def ask(self, kind, method, path, body, changes, good=(200, 201)):
        """Asks for changes, id -> value. Returns the reply if they are acknowledged."""
        self.expected.begin(changes)
        status, reply = self.send(method, path, body)
        if status not in good:
            if status < 500 and status not in (404, 429):
                self.expected.problem(f"{kind} {sorted(changes)}: {status} {reply}")
            return None
        for result in reply.get("results", []):
            if result.get("status") == "failed":
                return None  # one of the documents may be as before
        if reply.get("failed"):
            return None
        now = time.time()
        for value in changes.values():
            if value and value.expires and value.expires[1] - value.expires[0] > 59:
                seconds = body.get("ttl_seconds", 3600)
                value.expires = (value.expires[0], max(value.expires[1], now + seconds + CLOCK_S))
        self.expected.acknowledge(kind, changes)
        return reply

    def do_put(self):
        name = self.rng.choice(self.ids)
        options, expires = self.options()
        body, value = self.body(name, options, expires)
        body.update(options)
        del body["id"]
        if self.ask("put", "PUT", f"/v1/documents/{name}?wait=true", body, {name: value}):
            self.waits.discard(name)

    def do_post(self):
        self.post("post", [self.rng.choice(self.ids)], True)

    def do_post_later(self):
        self.post("post later", [self.rng.choice(self.ids)], False)

    def do_batch(self):
        self.post("batch", self.rng.sample(self.ids, 3), True)

    def do_batch_later(self):
        self.post("batch later", self.rng.sample(self.ids, 4), False)

    def post(self, kind, names, wait):
        bodies, changes = [], {}
        options, expires = self.options()
        for name in names:
            body, changes[name] = self.body(name, options, expires)
            bodies.append(body)
        body = {**(bodies[0] if len(bodies) == 1 else {"documents": bodies}), **options}
        path = "/v1/documents" + ("?wait=true" if wait else "")
        reply = self.ask(kind, "POST", path, body, changes, (200, 202))
        if not reply:
            return
        if reply["status"] == "succeeded":
            self.waits -= set(names)
        else:
            self.waits |= set(names)
            with self.expected.mu:
                self.expected.jobs.append(reply["job_id"])

    def do_delete(self):
        name = self.rng.choice(self.ids)
        if self.ask("delete", "DELETE", f"/v1/documents/{name}", None, {name: None}):
            self.waits.discard(name)

    def do_delete_some(self):
        names = self.rng.sample(self.ids, 2)
        body = {"ids": names}
        if self.ask("delete some", "POST", "/v1/documents/delete", body, {n: None for n in names}):
            self.waits -= set(names)

    def settled(self):
        """Returns an id whose document is known and no job's, and this document; or nothing."""
        names = [n for n in self.ids if n not in self.waits]
        if not names:
            return None, None
        name = self.rng.choice(names)
        values = self.expected.values(name)
        if len(values) != 1 or values[0] is None or values[0].expires:
            return None, None
        return name, values[0]

    def do_patch(self):
        name, now = self.settled()
        if not name:
            return
        n, title = self.rng.randrange(5), f"Changed {self.rng.randrange(1000)}"
        body = {"title": title, "metadata": {"n": n, "changed": True}}
        value = now.changed(title=title, metadata={**now.metadata, **body["metadata"]})
        self.ask("patch", "PATCH", f"/v1/documents/{name}", body, {name: value})

    def do_pin(self):
        name, now = self.settled()
        if not name:
            return
        if now.pinned:
            body, path = {"document_ids": [name]}, "/v1/admin/cache/unpin"
            self.ask("unpin", "POST", path, body, {name: now.changed(pinned=False)})
        else:
            body, path = {"document_ids": [name]}, "/v1/admin/cache/pin"
            self.ask("pin", "POST", path, body, {name: now.changed(pinned=True)})

    def do_flush(self):
        self.client.call("POST", "/v1/admin/cache/flush")

    def do_evict(self):
        body = {"tier": "disk"}
        if self.rng.random() < 0.5:  # else all
            body["document_ids"] = [self.rng.choice(self.ids)]
        self.client.call("POST", "/v1/admin/cache/evict", body)

    def do_export(self):
        name, now = self.settled()
        if not name:
            return
        path = "/v1/admin/cache/export"
        status, pack = self.client.call("POST", path, {"document_ids": [name]})
        if status == 200 and isinstance(pack, bytes):
            self.packs = [*self.packs[-2:], (name, now, pack)]

    def do_import(self):
        if not self.packs:
            return
        name, value, pack = self.rng.choice(self.packs)
        if name in self.waits:
            return
        before = self.expected.values(name)
        reply = self.ask("import", "POST", "/v1/admin/cache/import", pack, {name: value})
        if reply and reply["skipped"]:  # it is what is there
            with self.expected.mu:
                self.expected.allowed[name] = before

    def do_backup(self):
        made, number, refused = self.expected.begin_backup(), None, False
        try:
            status, reply = self.client.call("POST", "/v1/admin/backup")
            number = reply["number"] if status == 200 else None
            # One at a time, and only with a folder for them.
            refused = status < 500 or "being made already" in str(reply)
        finally:
            self.expected.end_backup(made, number, refused)

    def do_query(self):
        self.client.call("POST", "/v1/query", question([self.rng.choice(self.ids)]))

    def do_chat(self):
        self.client.call("POST", "/v1/chat/completions", chat(self.rng.randrange(4)))


def question(ids, strategy="reuse"):
    return {
        "query": QUESTION,
        "document_ids": ids,
        "max_tokens": 6,
        "temperature": 0,
        "cache": {"strategy": strategy},
    }


def chat(number):
    """A prompt of several pages, whose beginning another one has, too."""
    text = text_of(1000) + " " + text_of(1001 + number)
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        "temperature": 0,
    }
