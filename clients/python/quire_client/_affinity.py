"""What load balancers route by. The service has the same rule (server/support/affinity.cc)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

HEADER = "X-Quire-Affinity"
_DIGITS = 16


def affinity(document_ids: Iterable[str], namespace: str = "default") -> str:
    """The value of the header X-Quire-Affinity for a question about these documents.

    It depends on the set of documents and the namespace, not on their order. It is empty without
    documents. The clients send it by themselves; other programs, such as the openai package, can
    add it (`extra_headers`)."""
    ids = sorted({document_id.encode() for document_id in document_ids})
    if not ids:
        return ""
    return hashlib.sha256(b"\0".join([namespace.encode(), *ids])).hexdigest()[:_DIGITS]
