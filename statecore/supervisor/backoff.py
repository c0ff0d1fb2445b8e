"""Exponential backoff after store failures: full jitter, a cap, and a reset by the first success."""

from __future__ import annotations

import random
import time
from collections.abc import Callable


def full_jitter(failures: int, base_s: float, cap_s: float, uniform: Callable[[float, float], float]) -> float:
    """How long to wait after that many failures in a row: anything from 0 to the doubled base, up to the cap."""
    ceiling_s = min(cap_s, base_s * 2.0 ** min(failures - 1, 60))
    return uniform(0.0, ceiling_s)


class Backoff:
    """How long this process leaves a failing store alone. Monotonic time of this process: it guards only itself."""

    def __init__(
        self,
        base_s: float,
        cap_s: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._base_s, self._cap_s = base_s, cap_s
        self._monotonic, self._uniform = monotonic, uniform
        self._failures = 0
        self._until = 0.0

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._failures

    def record_failure(self) -> float:
        """Note a failure; the seconds to wait from now."""
        self._failures += 1
        delay_s = full_jitter(self._failures, self._base_s, self._cap_s, self._uniform)
        self._until = self._monotonic() + delay_s
        return delay_s

    def record_success(self) -> None:
        """Forget the failures."""
        self._failures = 0
        self._until = 0.0

    def remaining_s(self) -> float:
        """Seconds still to wait, 0 if it may be tried."""
        return max(0.0, self._until - self._monotonic())
