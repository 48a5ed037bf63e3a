"""What became of documents whose store was damaged: each must be as it was acknowledged, or what
happened to it must be said."""

import glob
import os
import re
import time

from expected import CLOCK_S, Expected, expiry_of, time_of

NAMED = re.compile(r"^(?:lost|text only): (\S+) (.*?): ", re.MULTILINE)
# What /healthz says: "3 acknowledged writes, from ...", or "4 writes: 3 acknowledged ones, from
# ..., and 1 in the torn end of the log", of which the torn one was not acknowledged.
LOST = re.compile(r"(\d+) acknowledged (?:writes|ones), from (\S+) to (\S+?)(?:,|$)")
IN_REPORT = re.compile(r"^damage: (?:at least )?(\d+) acknowledged writes are not in", re.MULTILINE)
SLACK_S = 1.0  # between the clocks of a client and of the log


class Remembered(Expected):
    """Also knows every value that a document ever had."""

    def __init__(self, failing=False):
        super().__init__(failing)
        self.past = {}
        self.times = {}  # id -> of each change: when it was asked for and, or None, acknowledged

    def begin(self, changes):
        super().begin(changes)
        now = time.time()
        with self.mu:
            for name, value in changes.items():
                self.past.setdefault(name, []).append(value)
                self.times.setdefault(name, []).append([now, None])

    def refuse(self, kind, changes):
        super().refuse(kind, changes)
        with self.mu:
            for name in changes:
                self.past[name].pop()
                self.times[name].pop()

    def acknowledge(self, kind, changes):
        super().acknowledge(kind, changes)
        if kind.endswith("later"):  # a job writes them after that
            return
        now = time.time()
        with self.mu:
            for name in changes:
                self.times[name][-1][1] = now

    def changed_between(self, name, first, last):
        """Returns whether a change of a document may have been written between two times, Unix
        s."""
        times = self.times.get(name, [])
        return any(a <= last + SLACK_S and (b is None or b >= first - SLACK_S) for a, b in times)


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


def untold(missing, general, expected):
    """Returns those of the missing documents, pairs of an id and "gone" or "older", that nothing
    covers that was said in general. A summary that there may be more lost ones covers such as are
    gone, and one that some may be back covers such as are older. A number of lost writes covers as
    many documents, which were changed in the time that is said; in a report it is without one."""
    texts = "\n".join(general.values())
    covered = {"gone": "there may be more" in texts, "older": "some may be back" in texts}
    left = [(name, end) for name, end in missing if not covered[end]]
    number, first, last = lost_writes(general.get("lost_writes", ""))
    in_time = [m for m in left if first is None or expected.changed_between(m[0], first, last)]
    told = in_time[: number if number is not None else len(in_time)]
    left = [m for m in left if m not in told]
    reported = IN_REPORT.findall(general.get("report", "") + "\n")
    return left[sum(map(int, reported)) :]


def lost_writes(text):
    """Returns how many acknowledged writes /healthz says to be lost, None for any number, and of
    when they are, Unix s; None: of any time."""
    if "LOST_WRITES" in text:  # what counted them is damaged
        return None, None, None
    found = LOST.search(text)
    if not found:
        return 0, None, None
    first, last = map(time_of, found.group(2, 3))
    if text.startswith("at least"):  # earlier ones are not known
        return None, 0, last
    return int(found[1]), first, last
