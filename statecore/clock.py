"""Time as an argument. Servers keep their own; only stores without a server ask a clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where a memory or file store takes its time from."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, never going back."""
        ...


class SystemClock:
    """This host's clock, for stores that live on this host alone."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that only moves when it is told to."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1000)


def as_datetime(ms: int) -> datetime:
    """A store's milliseconds as an aware UTC datetime."""
    return datetime.fromtimestamp(ms / 1000, UTC)
