"""The id that a file gets. The service's command line has the same rule
(ingest/document/document_id.cc)."""

from __future__ import annotations

import hashlib
import unicodedata

#: Longest id in bytes of UTF-8.
MAX_ID_BYTES = 200
_SUFFIX_BYTES = 9


def _begins_id(c: str) -> bool:
    category = unicodedata.category(c)
    return category[0] == "L" or category == "Nd"


def _stays(c: str) -> bool:
    return _begins_id(c) or unicodedata.category(c)[0] == "M" or c in "._-"


def document_id_of_path(path: str) -> str:
    """The id of the file at `path`: relative to the root, or the name of a file without one.
    '/' becomes ':'. Whatever else is changed, a part of the path's SHA-256 keeps the id unique.
    Bytes that are no UTF-8 are surrogates in `path`, as os.fsdecode() makes them."""
    raw = path.encode("utf-8", "surrogateescape")
    valid = not any("\ud800" <= c <= "\udfff" for c in path)
    text = unicodedata.normalize("NFC", path) if valid else path
    changed = text != path
    out: list[str] = []
    in_run = False
    for c in text:
        if c != "/" and not _stays(c):
            changed = True
            if not in_run and out:
                out.append("-")
            in_run = True
            continue
        in_run = False
        if not out and not _begins_id(c):
            changed = True
            continue
        out.append(":" if c == "/" else c)
    name = "".join(out)
    if not name:
        name, changed = "file", True
    encoded = name.encode()
    if not changed and len(encoded) <= MAX_ID_BYTES:
        return name
    cut = encoded[: MAX_ID_BYTES - _SUFFIX_BYTES].decode(errors="ignore")
    return f"{cut}~{hashlib.sha256(raw).hexdigest()[:8]}"


def _is_taken(name: str) -> bool:
    return (
        0 < len(name.encode(errors="surrogatepass")) <= MAX_ID_BYTES
        and _begins_id(name[0])
        and all(_stays(c) or c in ":~" for c in name)
    )


def taken_id(name: str) -> str:
    """The id of a document that another system calls `name`: the same where Quire takes it. Else
    what of it ids may have, and a part of its SHA-256 that keeps it apart from others."""
    if _is_taken(name):
        return name
    raw = name.encode(errors="surrogatepass")
    kept = "".join(c if _stays(c) or c in ":~" else "-" for c in name)
    while kept and not _begins_id(kept[0]):
        kept = kept[1:]
    cut = kept.encode()[: MAX_ID_BYTES - _SUFFIX_BYTES].decode(errors="ignore")
    return f"{cut or 'id'}~{hashlib.sha256(raw).hexdigest()[:8]}"
