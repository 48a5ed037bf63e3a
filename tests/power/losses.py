"""What became of documents whose store was damaged: each must be as it was acknowledged, or what
happened to it must be said."""

import glob
import os
import re
import time

from expected import CLOCK_S, Expected, expiry_of

NAMED = re.compile(r"^(?:lost|text only): (\S+) (.*?): ", re.MULTILINE)


class Remembered(Expected):
    """Also knows every value that a document ever had."""

    def __init__(self, failing=False):
        super().__init__(failing)
        self.past = {}

    def begin(self, changes):
        super().begin(changes)
        with self.mu:
            for name, value in changes.items():
                self.past.setdefault(name, []).append(value)


def said(store, health):
    """Returns the ids that a repair of the store named, and what was said of documents in general,
    name -> text: "report", and members of the checks of /healthz."""
    named, general = set(), {}
    for report in glob.glob(os.path.join(store, "damaged-*", "report.txt")):
        with open(report, encoding="utf-8") as file:
            general["report"] = file.read()
        named |= {name for ns, name in NAMED.findall(general["report"])}
    for name in ("lost_writes", "repaired"):
        if name in health["checks"]:
            general[name] = health["checks"][name]
    return named, general


def look_at(expected, client, name):
    """Returns what became of a document ("as it was", "gone", "older", "unreadable" or "wrong"; on
    a failing disk also "failed", which it says itself), the value that it has now, or None, and for
    "wrong" what is there."""
    allowed = expected.values(name)
    status, found = client.call("GET", "/v1/documents/" + name)
    if status >= 500:
        return "unreadable", None, None
    if status == 404:
        now = time.time()
        due = any(d is None or (d.expires and now >= d.expires[0]) for d in allowed)
        return ("as it was" if due else "gone"), None, None
    if expected.failing and found["status"] == "failed":
        return "failed", None, None
    status, text = client.call("GET", f"/v1/documents/{name}/content")
    if status >= 500:
        return "unreadable", None, None
    if status == 404 and client.call("GET", "/v1/documents/" + name)[0] == 404:
        return "as it was", None, None  # it expired between the two
    if status == 404:
        return "wrong", None, "it is there, and its text is not found"
    text = text.decode() if isinstance(text, bytes) else str(text)
    for end, values in (("as it was", allowed), ("older", expected.past.get(name, []))):
        for value in reversed(values):
            if value is not None and not differs(value, found, text):
                return end, value, None
    shown = [d.shown() if d else None for d in allowed]
    return "wrong", None, f"{found} {text[:60]!r}; expected {shown}"


def differs(value, found, text):
    """As Document.differs(), but a time of expiry may be the one that it had."""
    out = [d for d in value.differs(found, text) if d != "expires_at"]
    when = expiry_of(found)
    if (when is None) != (value.expires is None):
        out.append("expires_at")
    elif when is not None and not value.expires[0] - CLOCK_S <= when <= value.expires[1]:
        out.append("expires_at")
    return out
