"""Clients that change documents while jobs still work on them, and only what they have seen."""

import time

from expected import Writer, text_of

PAUSES_S = (0, 0, 0.002, 0.01, 0.04)


class ConditionalWriter(Writer):
    """A change of a document that a job is replacing is refused with 409. One that is acknowledged
    stays: the job has ended, also after a crash. A change with `If-Match` is refused with 412
    where the document is another version, and is never made to one that was not seen."""

    kinds = {**Writer.kinds, "change at once": 4, "patch if": 3, "put if": 3}

    def only_value(self, name):
        """Returns the one value that a document has, or will have once its job has ended; None: it
        is not known, there is none, or it expires."""
        values = self.expected.values(name)
        if len(values) != 1 or values[0] is None or values[0].expires:
            return None
        return values[0]

    def try_to(self, kind, method, path, body, changes, tag=None, refusals=(409,)):
        """Asks for a change that may be refused, and returns the status. What was refused was not
        made."""
        headers = {"If-Match": tag} if tag else None
        self.expected.begin(changes)
        status, reply = self.client.call(method, path, body, headers)
        if status in (200, 201):
            self.expected.acknowledge(kind, changes)
            self.waits -= set(changes)
            for name, value in changes.items():
                if method == "PATCH" and value.differs(reply, text_of(value.number)):
                    self.expected.problem(f"{kind} {name}: {value.shown()} became {reply}")
        elif status in refusals:
            self.expected.refuse(kind, changes)
        elif status < 500 and status != 429:
            self.expected.problem(f"{kind} {sorted(changes)}: {status} {reply}")
        return status

    def do_change_at_once(self):
        """Posts a document and changes it while the job may still work on it."""
        name = self.rng.choice(self.ids)
        self.post("post later", [name], False)
        for _ in range(self.rng.randint(1, 5)):
            now = self.only_value(name)
            if not now:
                return
            if self.change(name, now) != 409:
                return
            time.sleep(self.rng.choice(PAUSES_S))

    def change(self, name, now):
        """Pins or unpins a document in one of two ways, or changes its title."""
        pinned, how = not now.pinned, self.rng.randrange(3)
        if how == 0:
            path = "/v1/admin/cache/" + ("pin" if pinned else "unpin")
            body, value = {"document_ids": [name]}, now.changed(pinned=pinned)
            # This route knows no document that its first job has not made yet.
            return self.try_to("pin at once", "POST", path, body, {name: value}, None, (404, 409))
        body = {"pinned": pinned} if how == 1 else {"title": f"At once {self.rng.randrange(1000)}"}
        path, value = "/v1/documents/" + name, now.changed(**body)
        return self.try_to("patch at once", "PATCH", path, body, {name: value})

    def seen(self):
        """Returns an id, its value and the tag that the service shows; None: nothing to change. In
        half of the cases a post follows, which makes the tag that of an older version."""
        name = self.rng.choice(self.ids)
        status, found = self.client.call("GET", "/v1/documents/" + name)
        if status != 200 or not self.only_value(name):
            return None
        if self.rng.random() < 0.5:
            self.post("post later", [name], False)
            time.sleep(self.rng.choice(PAUSES_S))
        now = self.only_value(name)
        return (name, now, found) if now else None

    def may_be(self, found, now):
        """Returns whether the version that was seen may be the present one."""
        return all(found[m] == getattr(now, m) for m in ("title", "metadata", "pinned"))

    def check_made(self, kind, name, status, found, now):
        if status in (200, 201) and not self.may_be(found, now):
            self.expected.problem(f"{kind} {name}: made to {now.shown()}, seen was {found}")

    def do_patch_if(self):
        if not (seen := self.seen()):
            return
        name, now, found = seen
        body, path = {"pinned": not now.pinned}, "/v1/documents/" + name
        changes = {name: now.changed(**body)}
        tag = f'"{found["etag"]}"'
        status = self.try_to("patch if", "PATCH", path, body, changes, tag, (409, 412))
        self.check_made("patch if", name, status, found, now)

    def do_put_if(self):
        if not (seen := self.seen()):
            return
        name, now, found = seen
        options = {"pinned": self.rng.random() < 0.2}
        body, value = self.body(name, options, None)
        body.update(options)
        del body["id"]
        tag = f'"{found["etag"]}"'
        path = f"/v1/documents/{name}?wait=true"
        status = self.try_to("put if", "PUT", path, body, {name: value}, tag, (412,))
        self.check_made("put if", name, status, found, now)
