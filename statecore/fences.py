"""A fence is (namespace epoch, counter) as one integer that only rises.

Decimal on purpose: 3000000017 reads as the 17th grant of epoch 3. Lua's numbers hold it exactly up to epoch 9,000,000.
"""

from __future__ import annotations

FENCE_BASE = 1_000_000_000


def is_current(fence: int, namespace_epoch: int) -> bool:
    """False for every fence of an older namespace epoch: the store may have forgotten who came after it."""
    return fence > namespace_epoch * FENCE_BASE


def rise(current: int, namespace_epoch: int) -> int:
    """The next fence: above the current one, and above every fence of an older namespace epoch."""
    return max(current, namespace_epoch * FENCE_BASE) + 1
