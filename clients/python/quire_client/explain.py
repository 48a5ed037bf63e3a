"""What the cache did for a query: the fate of every block, and where the time went; shown as text
and, in notebooks, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from ._decode import Model
from .models import CacheUse, QueryDocument, Usage

__all__ = ["ACTIONS", "ExplainedBlock", "Explanation", "QueryPlan", "Span"]

#: Fates in the order they are shown, each with its mark in text and its colour in HTML.
ACTIONS = {
    "reused": ("█", "#2e9e5b"),
    "recomputed": ("▓", "#e0a526"),
    "computed": ("▒", "#3f7fd0"),
    "dropped": ("·", "#c4c9d0"),
}
_UNKNOWN = ("?", "#b05cc6")
_BAR = 30


@dataclass
class ExplainedBlock(Model):
    """One block of the prompt.
    `action`: reused, recomputed (at least one token was), computed or dropped."""

    index: int = 0
    block_id: str = ""
    document_id: str | None = None
    chunk: int = 0
    tokens: tuple[int, int] | None = None
    chars: tuple[int, int] | None = None
    action: str = ""
    tier: str | None = None
    score: float = 0.0
    kept_layers: int = 0
    recomputed_tokens: int = 0
    load_ms: float = 0.0
    text: str | None = None
    """Only when asked for, and while the document is unchanged."""


@dataclass
class Span(Model):
    """A part of the work, in milliseconds from the start."""

    name: str = ""
    start_ms: float = 0.0
    ms: float = 0.0


@dataclass(repr=False)
class _BlockMap(Model):
    """What explanations and plans share."""

    id: str = ""
    block_tokens: int = 0
    layers: int = 0
    policy: dict[str, Any] = field(default_factory=dict)
    blocks: list[ExplainedBlock] = field(default_factory=list)
    documents: list[QueryDocument] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Blocks by fate."""
        out = dict.fromkeys(ACTIONS, 0)
        for block in self.blocks:
            out[block.action] = out.get(block.action, 0) + 1
        return out

    def by_document(self) -> list[tuple[str, list[ExplainedBlock]]]:
        """The blocks of each document in prompt order; inline documents are named so."""
        groups: list[tuple[str, list[ExplainedBlock]]] = []
        for block in self.blocks:
            name = block.document_id or "(inline)"
            if not groups or groups[-1][0] != name:
                groups.append((name, []))
            groups[-1][1].append(block)
        return groups

    def _headline(self) -> str:
        strategy = str(self.policy.get("strategy") or "?")
        total = len(self.blocks)
        parts = [f"{n} {action} ({n / total:.0%})" for action, n in self.counts.items() if n]
        return f"{self.id}: strategy {strategy}, {total} blocks" + (
            ": " + ", ".join(parts) if parts else ""
        )

    def _notes(self) -> list[str]:
        return [str(self.policy[k]) for k in ("fallback", "reason") if self.policy.get(k)]

    def _bars(self) -> Sequence[Span]:
        return ()

    def __repr__(self) -> str:
        lines = [
            f"<{type(self).__name__} {self._headline()}",
            *(f"  {note}" for note in self._notes()),
        ]
        groups = self.by_document()
        width = min(max((len(name) for name, _ in groups), default=0), 32)
        for name, blocks in groups:
            lines.append(
                f"  {_shorten(name, width):<{width}}  "
                + "".join(ACTIONS.get(b.action, _UNKNOWN)[0] for b in blocks)
            )
        if groups:
            lines.append(
                "  " + "  ".join(f"{mark} {action}" for action, (mark, _) in ACTIONS.items())
            )
        bars = self._bars()
        width = max((len(s.name) for s in bars), default=0)
        total = _total_ms(bars)
        for span in bars:
            begin = round(_BAR * span.start_ms / total)
            length = max(1, round(_BAR * span.ms / total))
            bar = (" " * min(begin, _BAR - 1) + "━" * length)[:_BAR]
            lines.append(f"  {span.name:<{width}}  {bar:<{_BAR}}  {span.ms:.2f} ms")
        return "\n".join(lines) + ">"

    def _repr_html_(self) -> str:
        parts = [
            '<div style="font:13px/1.5 system-ui,sans-serif"><div>'
            f"<b>{escape(self._headline())}</b></div>"
        ]
        parts += [f'<div style="color:#6b7280">{escape(note)}</div>' for note in self._notes()]
        parts.append('<div style="margin:4px 0">' + " ".join(_legend()) + "</div>")
        parts.append('<table style="border-collapse:collapse">')
        for name, blocks in self.by_document():
            cells = "".join(_cell(b) for b in blocks)
            parts.append(
                f'<tr><td style="text-align:left;padding:1px 8px 1px 0">{escape(name)}</td>'
                f'<td style="text-align:left;line-height:0">{cells}</td></tr>'
            )
        parts.append("</table>")
        bars = self._bars()
        if bars:
            parts.append(_waterfall(bars))
        return "".join(parts) + "</div>"


@dataclass(repr=False)
class Explanation(_BlockMap):
    """The block map of an answered query and the waterfall of its timings."""

    spans: list[Span] = field(default_factory=list)
    prefix_tokens: int = 0
    suffix_tokens: int = 0

    def _bars(self) -> Sequence[Span]:
        return sorted(self.spans, key=lambda span: span.start_ms)


@dataclass(repr=False)
class QueryPlan(_BlockMap):
    """What a query would do, without generating:
    the block map, the cache it would use and the time it would take."""

    model: str = ""
    usage: Usage = field(default_factory=Usage)
    cache: CacheUse = field(default_factory=CacheUse)
    predicted: dict[str, float] = field(default_factory=dict)
    """`load_ms` and `prefill_ms`."""

    def _bars(self) -> Sequence[Span]:
        spans, start = [], 0.0
        for name, ms in self.predicted.items():
            spans.append(
                Span(name=f"{name.removesuffix('_ms')} (predicted)", start_ms=start, ms=ms)
            )
            start += ms
        return spans


def _shorten(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _total_ms(spans: Iterable[Span]) -> float:
    return max((s.start_ms + s.ms for s in spans), default=0.0) or 1.0


def _legend() -> Iterable[str]:
    for action, (_, colour) in ACTIONS.items():
        square = f"display:inline-block;width:10px;height:10px;background:{colour}"
        yield f'<span style="white-space:nowrap"><span style="{square}"></span> {action}</span>'


def _cell(block: ExplainedBlock) -> str:
    colour = ACTIONS.get(block.action, _UNKNOWN)[1]
    title = [f"block {block.index} ({block.block_id}): {block.action}"]
    if block.tier:
        title.append(f"tier {block.tier}")
    if block.tokens:
        title.append(f"tokens {block.tokens[0]} to {block.tokens[1]}")
    if block.recomputed_tokens:
        title.append(f"{block.recomputed_tokens} computed again")
    title.append(f"score {block.score:g}, kept in {block.kept_layers} layers")
    if block.text:
        title.append(block.text)
    tip = escape("\n".join(title), quote=True)
    square = f"display:inline-block;width:12px;height:12px;margin:1px;background:{colour}"
    return f'<span title="{tip}" style="{square}"></span>'


def _waterfall(spans: Sequence[Span]) -> str:
    total = _total_ms(spans)
    rows = ['<table style="border-collapse:collapse;margin-top:6px">']
    for span in spans:
        left, width = 100 * span.start_ms / total, max(0.5, 100 * span.ms / total)
        bar = (
            '<div style="position:relative;width:300px;height:10px;background:#f1f3f5">'
            f'<div style="position:absolute;left:{left:.2f}%;width:{min(width, 100 - left):.2f}%;'
            'height:10px;background:#5b6ee1"></div></div>'
        )
        rows.append(
            f'<tr><td style="text-align:left;padding:1px 8px 1px 0">{escape(span.name)}</td>'
            f"<td>{bar}</td>"
            f'<td style="text-align:right;padding-left:8px">{span.ms:.2f} ms</td></tr>'
        )
    return "".join(rows) + "</table>"
