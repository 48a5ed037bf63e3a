"""What the service says of itself and of its cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ._decode import Model


@dataclass
class Info(Model):
    """What this service and its model can do."""

    version: str = ""
    namespace: str = ""
    model: dict[str, Any] = field(default_factory=dict)
    strategies: list[str] = field(default_factory=list)
    limits: dict[str, Any] = field(default_factory=dict)


@dataclass
class Tier(Model):
    """One tier of the cache."""

    name: str = ""
    state: str = ""
    bytes: int = 0
    capacity_bytes: int = 0
    pinned_bytes: int = 0
    blocks: int = 0
    evictions: int = 0
    errors: int = 0


@dataclass
class CacheStats(Model):
    """The state of the cache; `raw` has what this version does not name."""

    uptime_seconds: float = 0.0
    documents: dict[str, int] = field(default_factory=dict)
    tiers: list[Tier] = field(default_factory=list)
    fingerprint: str = ""
    dedup_ratio: float = 0.0
    saved: dict[str, float] = field(default_factory=dict)
    """`prefill_tokens` and `prefill_seconds_estimate` that the cache spared."""


@dataclass
class Evicted(Model):
    """What an eviction freed, or with `dry_run` would free; `kept_*`: contexts that were spared."""

    blocks: int = 0
    bytes: int = 0
    contexts: int = 0
    kept_pinned: int = 0
    kept_in_use: int = 0


@dataclass
class PinReport(Model):
    """Bytes that are pinned now."""

    pinned_bytes: int = 0


@dataclass
class VerifyReport(Model):
    """What was read again, what of it failed its checksum, and what was repaired."""

    checked: int = 0
    bad: int = 0
    repaired: int = 0
    complete: bool = True
    problems: list[str] = field(default_factory=list)


@dataclass
class ImportReport(Model):
    """What came out of a pack. `stale`: of another model, so that only the text is of use."""

    documents: int = 0
    blocks: int = 0
    skipped: int = 0
    stale: int = 0
    rejected: list[Any] = field(default_factory=list)


@dataclass
class RunningRequest(Model):
    """A query that runs or waits. `state`: waiting, prefilling, decoding or preempted."""

    id: str = ""
    namespace: str = ""
    state: str = ""
    strategy: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    age_ms: float = 0.0
    queue_position: int | None = None
