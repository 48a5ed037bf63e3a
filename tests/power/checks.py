"""Looks at a service: whether it has what its clients were told, and answers as it should."""

import os
import time

from expected import chat, chosen, question, text_of
from service import Client, Service, StartFailed

CHATS = 4
PATH_OF_CHAT = "/v1/chat/completions"


class Failed(Exception):
    pass


class Reference:
    """A service that never dies: answers over a document follow from its text alone."""

    def __init__(self, binary, model, folder):
        store, log = os.path.join(folder, "reference"), os.path.join(folder, "reference.log")
        self.service = Service(binary, model, store, log)
        if not self.service.wait_until_ready():
            raise StartFailed("the reference does not start")
        self.known = {}

    def call(self, path, body):
        """Over a connection of its own: the service closes one that is idle for a minute."""
        return Client(self.service.port).call("POST", path, body)

    def answer(self, number, title):
        """Returns the answer over the document of a number."""
        key = (number, title)
        if key not in self.known:
            body = {"id": "d", "text": text_of(number), "title": title}
            status, reply = self.call("/v1/documents?wait=true", body)
            if status != 200:
                raise Failed(f"reference: {reply}")
            self.known[key] = self.call("/v1/query", question(["d"]))[1]["answer"]
        return self.known[key]

    def chat(self, number):
        if number not in self.known:
            self.known[number] = answer_of(self.call(PATH_OF_CHAT, chat(number))[1])
        return self.known[number]

    def stop(self):
        self.service.stop()


def answer_of(reply):
    """Returns the answer in the body of a chat's reply."""
    return reply["choices"][0]["message"]["content"]


class Checks:
    """Counts in `counts` what it looked at."""

    def __init__(self, expected, reference, counts):
        self.expected, self.reference, self.counts = expected, reference, counts

    def differences(self, client, rng):
        wrong = []
        status, health = client.call("GET", "/healthz")
        lost = health["checks"].get("lost_writes", "")
        if "torn end" in lost and "acknowledged ones" not in lost:
            self.counts["torn ends said"] += 1  # of writes that were not acknowledged
        elif status != 200 or {"lost_writes", "repaired"} & set(health["checks"]):
            wrong.append(f"health: {health}")
        self.wait_for_jobs(client)
        for job in self.expected.jobs:
            status, reply = client.call("GET", "/v1/jobs/" + job)
            self.counts["jobs"] += 1
            good = ("succeeded", "partial", "cancelled") + ("failed",) * self.expected.failing
            if status != 200 or reply["status"] not in good:
                wrong.append(f"job {job}: {status} {reply}")
        documents = {}
        for name in sorted(self.expected.allowed):
            problem, found = self.look_at(client, name)
            if problem:
                wrong.append(f"{name}: {problem}")
            if found:
                documents[name] = found
            self.expected.allowed[name] = [found]
        listed = {d["id"] for d in client.call("GET", "/v1/documents?limit=100")[1]["data"]}
        expiring = {n for n, d in documents.items() if d.expires}
        if listed - set(documents) or set(documents) - listed - expiring:
            wrong.append(f"the list has {sorted(listed)}, there are {sorted(documents)}")
        lasting = sorted(n for n, d in documents.items() if not d.expires)
        for name in rng.sample(lasting, min(4, len(lasting))):
            reply = client.call("POST", "/v1/query", question([name]))[1]
            document = documents[name]
            right = self.reference.answer(document.number, document.title)
            self.counts["answers"] += 1
            if reply.get("answer") != right:
                wrong.append(f"answer over {name}: {reply} instead of {right!r}")
        number = rng.randrange(CHATS)
        self.counts["answers"] += 1
        answer = answer_of(client.call("POST", PATH_OF_CHAT, chat(number))[1])
        if answer != self.reference.chat(number):
            wrong.append(f"answer in chat {number}")
        wrong += self.verified(client)
        return wrong

    def verified(self, client):
        """Returns what of the store is bad. KV may be: where KV was evicted and its space freed, a
        disk may keep the hole and lose the eviction. It is computed again."""
        verified = client.call("POST", "/v1/admin/cache/verify")[1]
        self.counts["bad KV"] += verified["bad"]
        if verified["bad"] and not all(p.startswith("segment ") for p in verified["problems"]):
            return [f"verify: {verified}"]
        return []

    def wait_for_jobs(self, client):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            status, reply = client.call("GET", "/v1/jobs?limit=100")
            if self.expected.failing and status >= 500:
                return  # they cannot be read
            jobs = reply["data"]
            if not any(j["status"] in ("queued", "running", "in_progress") for j in jobs):
                return
            time.sleep(0.02)
        raise Failed("jobs go on for more than a minute")

    def look_at(self, client, name):
        """Returns a problem, or None, and what there is as one of the allowed values."""
        allowed = self.expected.values(name)
        self.counts["documents"] += 1
        asked = time.time()
        status, found = client.call("GET", "/v1/documents/" + name)
        now = time.time()
        if status == 404:
            if None in allowed or any(d.expires and now >= d.expires[0] for d in allowed):
                return None, None
            return f"lost; expected {[d.shown() for d in allowed]}", None
        if self.expected.failing and status == 200 and found["status"] == "failed":
            self.counts["documents failed"] += 1
            client.call("DELETE", "/v1/documents/" + name)
            if None in allowed or len(allowed) > 1:
                return None, None
            return f"failed; expected {[d.shown() for d in allowed]}", None
        status, text = client.call("GET", f"/v1/documents/{name}/content")
        if status == 404:  # it expired between the two
            return None, None
        text = text.decode() if isinstance(text, bytes) else str(text)
        return chosen(allowed, found, text, asked)
