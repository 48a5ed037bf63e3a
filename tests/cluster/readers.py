"""Documents of cluster_rounds.py whose KV is worth reading from a shared tier, and a client that
asks services for it that have none of their own. What the writers set is computed sooner than a
tier answers, so damaged values of it would hardly ever be read."""

import random
import threading
import time

from answers import remote_blocks
from service import Client, Gone

NAMESPACE = "long"  # its KV is under no quota, which would remove it
HEADERS = {"X-Namespace": NAMESPACE}
DOCUMENTS = 2
FACTS = 24  # of a document: some 800 tokens
RIVERS = "Shae Junbroa Patvia Morlen Tessin Orba".split()
GOODS = "salt marble wine pottery wool amber".split()


class LongDocument:
    """Tells of towns, each with a number that no other document has."""

    def __init__(self, name, seed):
        rng = random.Random(seed)
        self.name, self.title = name, "Towns"
        self.towns = [f"{a}{b}" for a in ("Gar", "Fom", "Zob", "Kel", "Dru", "Vab")
                      for b in ("ville", "mouth", "ton", "burg")]  # fmt: skip
        rng.shuffle(self.towns)
        del self.towns[FACTS:]
        self.text = " ".join(
            f"{town} stands on the river {rng.choice(RIVERS)}. It is famous for "
            f"{rng.choice(GOODS)}. The magic number of {town} is {rng.randrange(10**6, 10**7)}."
            for town in self.towns
        )

    def question(self, town):
        return {
            "query": f"What is the magic number of {town}?",
            "document_ids": [self.name],
            "max_tokens": 10,
            "temperature": 0,
            "cache": {"strategy": "reuse"},
        }


class Readers:
    """Has the long documents, new ones in each round."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.documents = []

    def begin_round(self, number, rng):
        """Gives documents to services, which all run, and returns whether they took them."""
        seed = f"{self.cluster.options.seed}/{number}/long"
        self.documents = [LongDocument(f"long-{i}", f"{seed}/{i}") for i in range(DOCUMENTS)]
        for document in self.documents:
            replica = rng.choice(self.cluster.replicas)
            status, reply = Client(replica.service.port).call(
                "PUT", f"/v1/documents/{document.name}?wait=true",
                {"text": document.text, "title": document.title}, HEADERS)  # fmt: skip
            if status not in (200, 201):
                self.cluster.expected.problem(f"{document.name} is not taken: {status} {reply}")

    def reader(self, seed, until):
        return Reader(self, random.Random(seed), until)

    def ask(self, client, service, rng, document):
        """Takes away the KV that a service has of a document, and asks it a question. Raises
        Gone."""
        for tier in ("dram", "disk"):
            body = {"document_ids": [document.name], "tier": tier, "force": True}
            client.call("POST", "/v1/admin/cache/evict", body, HEADERS)
        body = document.question(rng.choice(document.towns))
        began = time.monotonic()
        status, reply = client.call("POST", "/v1/query", body, HEADERS)
        seconds = time.monotonic() - began
        value = (document.text, document.title, body)
        self.cluster.answers.note(
            service, document.name, [value], status, reply, client.headers, seconds)  # fmt: skip
        return status, reply

    def check_after(self, rng):
        """Lets every service answer over every document after all was mended, from what the faults
        have left in the shared tiers."""
        for replica in self.cluster.replicas:
            client = Client(replica.service.port)
            for document in self.documents:
                status, reply = self.ask(client, replica.number, rng, document)
                if status != 200:
                    self.cluster.expected.problem(
                        f"service {replica.number} does not answer over {document.name}: "
                        f"{status} {reply}"
                    )
                    continue
                self.cluster.count("answers of services without KV of their own")
                self.cluster.count(
                    "answers of services without KV of their own, with KV of a shared tier",
                    remote_blocks(reply) > 0,
                )


class Reader(threading.Thread):
    def __init__(self, readers, rng, until):
        super().__init__()
        self.readers, self.rng, self.until = readers, rng, until

    def run(self):
        replicas = self.readers.cluster.replicas
        while time.monotonic() < self.until:
            replica = self.rng.choice(replicas)
            document = self.rng.choice(self.readers.documents)
            port = replica.service.port
            try:
                if not port:
                    raise Gone("it does not run")
                self.readers.ask(Client(port), replica.number, self.rng, document)
            except Gone:
                pass
            time.sleep(self.rng.uniform(0.05, 0.3))  # the writers need the machine, too
