"""Answers of cluster_rounds.py: whether those that clients got while servers failed, and those
after all was mended, are what a service without faults says of the same documents."""

import threading

from expected import question, text_of
from replica import Failed
from service import Client

# How a question may be refused: no document, a job works on it, the catalog is away.
REFUSALS = (404, 409, 503)
SLOWEST = "slowest answer while servers failed, ms"
MOST_S = 20  # that an answer may take: a service may be paused, the database or a tier silent


def remote_blocks(reply):
    """Returns how many blocks of KV an answer has from the shared tiers."""
    return reply["cache"]["tiers"]["remote"]["blocks"]


def asked_of(value):
    """Returns text, title and question of a document of a writer."""
    return text_of(value.number), value.title, question(["d"])


class Answers:
    """note() may be called by several threads."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.mu = threading.Lock()
        self.noted = []  # service, document, what it may have been, answer
        self.known = {}  # text, title and query -> answer
        self.posted = None  # text and title that the reference has

    def note(self, service, name, values, status, reply, headers, seconds):
        """Notes what a service said to a question over a document. `values`: text, title and
        question of all that the document may have been, the last one last."""
        count, problem = self.cluster.count, self.cluster.expected.problem
        if status in REFUSALS:
            count("questions refused while servers failed")
            return
        if status != 200:
            problem(f"service {service} says {status} to a question over {name}: {reply}")
            return
        if seconds > MOST_S:
            problem(f"service {service} answered over {name} after {seconds:.1f} s")
        count("answers while servers failed")
        count("answers while servers failed, with KV of a shared tier", remote_blocks(reply) > 0)
        if headers.get("X-Quire-Catalog") == "away":
            count("answers while servers failed, of a copy of the catalog")
        with self.mu:
            self.noted.append((service, name, values, reply["answer"]))
            counts = self.cluster.counts
            counts[SLOWEST] = max(counts[SLOWEST], round(seconds * 1000))

    def check(self):
        """Fails unless each answer that was noted is one over what its document may have been."""
        # By document, so that the reference reads each only once.
        noted, self.noted = sorted(self.noted, key=lambda n: n[1]), []
        for service, name, values, said in noted:
            if not any(self.right(*v) == said for v in reversed(values)):
                rights = [(v[1], self.right(*v)) for v in values]
                self.cluster.show_history([name])
                raise Failed(
                    f"service {service} answered {said!r} over {name} while servers failed; right "
                    f"would be {rights}"
                )

    def right(self, text, title, asked):
        """Returns what a service without faults answers."""
        key = (text, title, asked["query"])
        if key not in self.known:
            client = Client(self.cluster.reference.port)
            if self.posted != (text, title):
                body = {"id": "d", "text": text, "title": title}
                status, reply = client.call("POST", "/v1/documents?wait=true", body)
                if status != 200:
                    raise Failed(f"reference: {reply}")
                self.posted = (text, title)
            status, reply = client.call("POST", "/v1/query", {**asked, "document_ids": ["d"]})
            if status != 200:
                raise Failed(f"reference: {reply}")
            self.known[key] = reply["answer"]
        return self.known[key]

    def check_after(self, rng):
        """Fails unless every service gives the right answers after all was mended."""
        expected = self.cluster.expected
        names = sorted(n for n, v in expected.allowed.items() if len(v) == 1 and v[0])
        for name in rng.sample(names, min(4, len(names))):
            value = expected.values(name)[0]
            if value is None or value.expires:
                continue
            for replica in self.cluster.replicas:
                client = Client(replica.service.port)
                status, reply = client.call("POST", "/v1/query", question([name]))
                right = self.right(*asked_of(value))
                if status != 200 or reply["answer"] != right:
                    raise Failed(f"service {replica.number} answers over {name}: {status} {reply}, "
                                 f"right would be {right!r}")  # fmt: skip
                self.cluster.count("answers")
