"""The clients of cluster_rounds.py. Each sends a request to any service, repeats it at another one,
and asks another one for what it was told."""

import random
import threading
import time

from answers import asked_of
from expected import Expected, Writer, question
from service import Client, Gone

KEYED = 0.6  # share of POSTs that have an Idempotency-Key
IMPATIENT = 0.25  # share of these that are repeated while the first one runs
DROPPED = 0.15  # share of the others whose answer is dropped
INSIST = 0.7  # share of lost ones that are repeated until their lease is over, too
AGAIN = 0.6  # share of answered ones that are repeated
OTHER_BODY = 0.15  # share of answered ones that are sent with another body
UNSETTLED = 0.5  # share of patches and pins of any document, a job's, too
LOOK = 0.5  # share of changes after which another service is asked for the document
# After these a repetition would be another request, so the service forgets the key.
PASSES = (404, 409, 412, 429)
ENDED = ("ready", "failed")  # documents

# What cluster_rounds.py must have counted after some rounds: else a check is never made.
CHECKS = (
    "repetitions that got the first reply",
    "repetitions after a lost answer that were answered",
    "repetitions after a dropped answer that were answered",
    "repetitions while the first ran",
    "repetitions with another body refused",
    "repetitions after all was mended",
    "repetitions at a service started since",
    "documents found elsewhere once done",
    "documents found elsewhere once their job had ended",
    "documents told of elsewhere",
    "documents told of elsewhere with their job",
    "answers while servers failed",
    "contexts read from Redis",
    "contexts read from S3",
    "answers while servers failed, with KV of a shared tier",
    "answers of services without KV of their own, with KV of a shared tier",
)


class AnyClient:
    """Asks any service that runs; each writer has one."""

    def __init__(self, cluster, rng):
        self.cluster, self.rng = cluster, rng
        self.clients = {}
        self.asked = None  # number of the service that was asked last
        self.wrong_s = 0  # how wrong its clock is
        self.headers = {}  # of its reply
        self.under_way = None  # number of the service that has a request with a key

    def call(self, method, path, body=None, headers=None, other_than=None, at=None):
        """`other_than`: number of a service that is asked only if no other one runs. `at`: number
        of the service that is asked if it runs."""
        up = [(r, r.service.port) for r in self.cluster.replicas if r.is_up() and r.service.port]
        if not up:
            raise Gone("no service runs")
        if at is None:
            wanted = [u for u in up if u[0].number != other_than]
        else:
            wanted = [u for u in up if u[0].number == at]
        replica, port = self.rng.choice(wanted or up)
        # One that starts anew meanwhile with another clock has another port.
        self.asked, self.wrong_s = replica.number, replica.wrong_s
        if port not in self.clients:
            self.clients[port] = Client(port)
        self.under_way = replica.number if headers else None
        try:
            said = self.clients[port].call(method, path, body, headers)
        except Gone:
            del self.clients[port]
            raise
        finally:
            self.under_way = None
        self.headers = self.clients[port].headers
        return said


class KeyedRequest:
    """A POST with an Idempotency-Key. `replies`: status and body that are remembered."""

    def __init__(self, cluster, key, path, body, names):
        self.key, self.path, self.body = key, path, body
        self.names = names  # of the documents that it changes
        self.replies = []
        self.starts = {r.number: r.starts for r in cluster.replicas}
        self.began = time.time()
        self.clocks = set()  # how wrong those of the services are that were asked

    def send(self, client, body=None, **where):
        headers = {"Idempotency-Key": self.key}
        return client.call("POST", self.path, body or self.body, headers, **where)

    def is_first_reply(self, said, client):
        """Returns whether a repetition, which a client has sent, may get this reply."""
        return said in self.replies and self.replayed(client)

    @staticmethod
    def replayed(client):
        return client.headers.get("Idempotency-Replayed") == "true"

    def shown(self):
        return f"{self.key} to {self.path} about {self.names}, {self.began:.3f}"


def is_remembered(said):
    """Returns whether a reply, status and body, is what repetitions get."""
    return said is not None and said[0] < 500 and said[0] not in PASSES


def code_of(said):
    """Returns the code of an error that was replied, or None."""
    error = said[1].get("error") if said and isinstance(said[1], dict) else None
    return error.get("code") if isinstance(error, dict) else None


def is_told_of(document, name):
    """Returns whether a document that is not ready yet says which job works on it."""
    known = {"job_id", "progress"} <= set(document)
    return document["id"] == name and (known or document["status"] in ENDED)


class ClusterExpected(Expected):
    """`of_round`: id -> the values that its document had since the round began, the last ones
    perhaps not acknowledged."""

    def __init__(self):
        super().__init__()
        self.of_round = {}

    def begin_round(self):
        with self.mu:
            self.jobs = []
            self.of_round = {name: list(values) for name, values in self.allowed.items()}

    def begin(self, changes):
        with self.mu:
            for name, value in changes.items():
                self.of_round.setdefault(name, []).append(value)
        super().begin(changes)

    def refuse(self, kind, changes):
        super().refuse(kind, changes)
        with self.mu:
            for name, value in changes.items():
                self.of_round[name] = [v for v in self.of_round[name] if v is not value]

    def values_of_round(self, name):
        with self.mu:
            return list(self.of_round.get(name, ()))

    def problem(self, text):
        # A job that was taken without an answer may be at work on the document.
        if "document_not_ready" not in text:
            super().problem(text)


class ClusterWriter(Writer):
    kinds = Writer.kinds | {"query": 4}

    def __init__(self, cluster, number, seed, until):
        super().__init__(cluster.expected, number, seed, 0, until)
        self.cluster, self.seed = cluster, seed
        self.client = AnyClient(cluster, self.rng)
        self.second = AnyClient(cluster, random.Random(f"{seed}/second"))  # for a thread
        self.history, self.taken, self.wrong_s = cluster.history, cluster.taken, cluster.wrong_s
        self.lease_s = cluster.lease_ms / 1000
        self.number_of_keys = 0
        self.request = None  # the one with a key that is sent
        self.again = None  # one that was not answered, to be sent once more
        self.said = None  # status and body of the answer to a request without a key
        self.any_document = False  # also one of a job is patched or pinned
        self.insists = False  # every request is repeated for longer than a lease
        self.unanswered = []  # such with their kinds, changes, and numbers of the last change
        self.clocks = set()  # how wrong those of the services are that were asked for a change
        self.last = {}  # document -> number of its last change
        self.changes = 0
        self.changed = []  # documents of the last change
        self.later = []  # job, values, number of the change

    def options(self):
        options, expires = super().options()
        if expires:  # by the clock of the service that stores it
            expires = (expires[0] - self.wrong_s, expires[1] + self.wrong_s)
        return options, expires

    def settled(self):
        if not self.any_document:
            return super().settled()
        name = self.rng.choice(self.ids)
        values = self.expected.values(name)
        if len(values) != 1 or values[0] is None or values[0].expires:
            return None, None
        return name, values[0]

    def of_any_document(self, change):
        """Changes a document that a job may still work on. Where it does, that is refused; else the
        change must stay, whichever service has the job."""
        self.any_document = self.rng.random() < UNSETTLED
        try:
            change()
        finally:
            self.any_document = False

    def do_patch(self):
        self.of_any_document(super().do_patch)

    def do_pin(self):
        self.of_any_document(super().do_pin)

    def step(self):
        if self.later and self.rng.random() < 0.15:
            self.look_after_job()
        else:
            super().step()

    def run(self):
        while time.monotonic() < self.until:
            try:
                self.step()
            except Gone:  # whether the change was made is not known
                time.sleep(0.05)

    def do_query(self):
        name = self.rng.choice(self.ids)
        self.note_answer(name, *self.timed(question([name])))

    def timed(self, body, **where):
        """Asks a question. Returns status, reply, and how long it took."""
        began = time.monotonic()
        status, reply = self.client.call("POST", "/v1/query", body, **where)
        return status, reply, time.monotonic() - began

    def note_answer(self, name, status, reply, seconds):
        values = [asked_of(v) for v in self.expected.values_of_round(name) if v]
        client = self.client
        self.cluster.answers.note(
            client.asked, name, values, status, reply, client.headers, seconds)  # fmt: skip

    # ---- changes ----

    def ask(self, kind, method, path, body, changes, good=(200, 201)):
        said = {n: v and v.shown() for n, v in changes.items()}
        began, reply, self.said = time.time(), "no answer", None
        self.change(changes)
        try:
            reply = super().ask(kind, method, path, body, changes, good)
        finally:
            if self.request and not self.request.replies:
                self.unanswered.append((self.request, kind, changes, good, self.changes))
            told = "refused" if reply is None else reply
            if isinstance(reply, dict):
                told = "acknowledged " + reply.get("job_id", "")
                first = self.request.began if self.request else began
                self.note_job(reply.get("job_id"), first)
            if self.request:
                told += f", key {self.request.key}"
            self.history.append((began, time.time(), self.client.asked, kind, said, told))
        if reply is None and code_of(self.said) == "document_not_ready":
            self.expected.refuse(kind, changes)
            self.cluster.count("changes refused while a job works on the document")
        if reply and self.rng.random() < LOOK:
            done = reply.get("status") not in ("queued", "running")
            self.look(changes, "once done" if done else None)
        if reply and reply.get("status") in ("queued", "running"):
            self.later.append((reply["job_id"], changes, self.changes))
        return reply

    def change(self, names):
        """Notes that a change of documents begins."""
        self.changes += 1
        self.changed = list(names)
        self.last.update(dict.fromkeys(names, self.changes))

    def note_job(self, job, began):
        if not job:
            return
        if job in self.taken:
            self.expected.problem(
                f"service {self.client.asked} gives a job the id {job} of an earlier one"
            )
        self.taken[job] = (began, time.time(), set(self.clocks))

    def do_delete_some(self):
        names = self.rng.sample(self.ids, 2)
        self.change(names)
        self.expected.begin({n: None for n in names})
        status, reply = self.send("POST", "/v1/documents/delete", {"ids": names})
        # One that is not found may be at work at another service.
        deleted = reply["deleted"] if status == 200 else []
        self.expected.acknowledge("delete some", {n: None for n in deleted})
        self.waits -= set(deleted)
        for name in names:
            said = "deleted" if name in deleted else reply
            self.history.append((time.time(), 0, self.client.asked, "delete", {name: None}, said))

    # ---- requests that are repeated ----

    def send(self, method, path, body):
        """Sends a change, and where it is a POST, perhaps several times with one key. Returns the
        one answer that counts."""
        self.request = None
        if method != "POST" or not (self.again or self.rng.random() < KEYED):
            self.said = said = self.client.call(method, path, body)
            self.clocks = {self.client.wrong_s}
            return said
        if not self.again:
            self.number_of_keys += 1
            key = f"{self.seed}/{self.number_of_keys}"
            self.again = KeyedRequest(self.cluster, key, path, body, self.changed)
            self.cluster.count("requests with a key")
        request = self.request = self.again
        self.again, self.clocks = None, request.clocks
        said = self.answer_to(request)
        first = self.client.asked
        if is_remembered(said):
            self.note_reply(request, said)
            self.send_again(request, first)
            self.send_other_body(request)
            self.client.asked = first
        if said is None:
            raise Gone("a request was not answered")
        return said

    def answer_to(self, request):
        """Sends a request until it is answered, or for a while. Returns what is said at last."""
        if self.insists:
            return self.send_until_answered(request, "no answer in a round")
        if self.rng.random() < IMPATIENT:
            said = self.send_twice(request)
        else:
            said = self.send_once(request, self.client)
            if is_remembered(said) and self.rng.random() < DROPPED:
                self.note_reply(request, said)
                self.cluster.count("answers dropped")
                said = self.send_until_answered(request, "a dropped answer")
                if is_remembered(said) and not request.is_first_reply(said, self.client):
                    self.expected.problem(
                        f"service {self.client.asked} carried out {request.shown()} again: {said}"
                    )
                return said
        if said is None:
            return self.send_until_answered(request, "a lost answer")
        if said[0] == 503 or code_of(said) == "idempotency_in_progress":
            return self.send_until_answered(request, "a refusal")
        return said

    def send_once(self, request, client, **where):
        """Returns what a service says; None: the answer was lost."""
        try:
            said = request.send(client, **where)
        except Gone:
            said = None
        request.clocks.add(client.wrong_s)
        return said

    def send_twice(self, request):
        """Sends a request while it is still under way at another service."""
        first = []

        def send():
            first.append(self.send_once(request, self.second))

        thread = threading.Thread(target=send)
        began = time.monotonic()
        thread.start()
        thread.join(self.rng.choice((0, 0.01, 0.1, 1, self.lease_s)))
        if not thread.is_alive():
            self.client.asked = self.second.asked
            return first[0]
        second = self.send_once(request, self.client, other_than=self.second.asked)
        thread.join()
        took = time.monotonic() - began
        self.cluster.count("repetitions while the first ran")
        replayed = request.replayed(self.client) or request.replayed(self.second)
        both = is_remembered(first[0]) and is_remembered(second)
        if both and (first[0] != second or not replayed):
            self.expected.problem(
                f"services {self.second.asked} and {self.client.asked} both carried out "
                f"{request.shown()} within {took:.1f} s: {first[0]} and {second}"
            )
            for said in first[0], second:
                self.note_reply(request, said)
        if is_remembered(second):
            return second
        self.client.asked = self.second.asked
        return first[0]

    def note_reply(self, request, said):
        """Notes what a request was told: the only reply that it may get from now on."""
        if not request.replies:
            request.replies.append(said)
            self.cluster.answered.append(request)
        elif said not in request.replies:
            self.expected.problem(
                f"service {self.client.asked} says to {request.shown()} {said}, and before it was "
                f"told {request.replies}"
            )

    def send_until_answered(self, request, after):
        """Repeats a request whose first answer is not known. Returns what is said at last."""
        insist = self.lease_s + 3 if self.insists or self.rng.random() < INSIST else 0.3
        end = min(self.until + 1, time.monotonic() + insist)
        # One that is not the first must not depend on what that does.
        at = self.rng.choice([r.number for r in self.cluster.replicas])
        while True:
            where = {"at": at} if self.insists else {"other_than": self.client.asked}
            said = self.send_once(request, self.client, **where)
            waits = said is None or said[0] == 503 or code_of(said) == "idempotency_in_progress"
            if not waits or time.monotonic() > end:
                break
            time.sleep(0.1)
        answered = is_remembered(said)
        self.cluster.count(
            f"repetitions after {after} that were {'' if answered else 'not '}answered"
        )
        # That it is in progress says nothing of the change.
        return None if code_of(said) == "idempotency_in_progress" else said

    def send_again(self, request, first):
        """Repeats a request that was answered, at another service."""
        if self.rng.random() >= AGAIN:
            return
        said = self.send_once(request, self.client, other_than=first)
        if is_remembered(said):
            if not request.is_first_reply(said, self.client):
                self.expected.problem(
                    f"service {self.client.asked} says to a repetition of {request.shown()} "
                    f"{said}, and service {first} said {request.replies}"
                )
            if self.client.asked != first:
                self.cluster.count("repetitions that got the first reply")
            replica = self.cluster.replicas[self.client.asked]
            if replica.starts > request.starts[replica.number]:
                self.cluster.count("repetitions at a service started since")
        elif said and said[0] != 503 and code_of(said) != "idempotency_in_progress":
            self.expected.problem(f"a repetition of {request.shown()}: {said}")
        else:
            self.cluster.count("repetitions that were put off")

    def send_other_body(self, request):
        if self.rng.random() >= OTHER_BODY or isinstance(request.body, bytes):  # a pack
            return
        # Were it carried out, it would change nothing.
        try:
            said = request.send(self.client, {**request.body, "no_such_member": 1})
        except Gone:
            return
        if said[0] == 422 and code_of(said) == "idempotency_mismatch":
            self.cluster.count("repetitions with another body refused")
        elif said[0] != 503:
            self.expected.problem(f"{request.shown()} with another body: {said}")

    def finish(self):
        """Repeats requests that were not answered, after all was mended: each must be answered."""
        unanswered, self.unanswered, self.insists = self.unanswered, [], True
        for request, kind, changes, good, number in unanswered:
            if any(self.last[name] != number for name in changes):
                continue  # it would undo a later change
            self.until = time.monotonic() + self.lease_s + 10
            self.again, reply = request, None
            try:
                reply = self.ask(kind, "POST", request.path, request.body, changes, good)
            except Gone:
                pass
            if not request.replies:
                self.expected.problem(f"{request.shown()} is not answered after all was mended")
            if reply and reply.get("status") in ("queued", "running"):
                self.expected.jobs.append(reply["job_id"])

    # ---- documents at other services ----

    def look(self, changes, done, number=None):
        """Asks another service for a document of a change that was acknowledged. `done`: how it is
        counted; None: a job still has to read the document."""
        number = number or self.changes
        names = [n for n, v in changes.items() if v and self.last[n] == number]
        if not names:
            return
        name = self.rng.choice(names)
        asked, path = self.client.asked, f"/v1/documents/{name}"
        kind = self.rng.choice(("document", "document", "content", "query")) if done else "document"
        what = {
            "document": ("GET", path),
            "content": ("GET", path + "/content"),
        }
        try:
            if kind == "query":
                status, reply, seconds = self.timed(question([name]), other_than=asked)
                self.note_answer(name, status, reply, seconds)
            else:
                status, reply = self.client.call(*what[kind], other_than=asked)
        except Gone:
            self.client.asked = asked
            return
        if self.client.asked == asked:  # no other one runs
            return
        expires = changes[name].expires
        runs_out = expires and time.time() + self.wrong_s >= expires[0]
        if status == 200 and kind == "document" and not is_told_of(reply, name):
            self.expected.problem(f"service {self.client.asked} tells of {name}: {reply}")
        elif status == 404 and runs_out:
            self.cluster.count("documents not found elsewhere, with a reason")
        elif status == 200:
            told = f"found elsewhere {done}" if done else "told of elsewhere"
            self.cluster.count("documents " + told)
            if not done and reply["status"] not in ENDED:
                self.cluster.count("documents told of elsewhere with their job")
        elif status != 503 and code_of((status, reply)) != "document_not_ready":
            self.expected.problem(
                f"service {self.client.asked} says {status} to the {kind} of {name}, which service "
                f"{asked} acknowledged {done or 'with a job'}: {reply}"
            )
        look = (time.time(), 0, self.client.asked, "look", {name: kind}, status)
        self.history.append(look)
        self.client.asked = asked

    def look_after_job(self):
        job, changes, number = self.later.pop(self.rng.randrange(len(self.later)))
        status, found = self.client.call("GET", "/v1/jobs/" + job)
        if status == 200 and found["status"] == "succeeded":
            self.look(changes, "once their job had ended", number)
        elif status == 200 and found["status"] in ("queued", "running"):
            self.later.append((job, changes, number))
