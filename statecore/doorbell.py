"""The port by which a change makes itself heard. A message only says "look"; the truth is in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Ring:
    """One message: which task to run with which arguments, through which queue."""

    task: str
    kwargs: Mapping[str, Any]
    queue: str
    task_id: str | None = None


class Doorbell(Protocol):
    """Sends messages to workers."""

    def ring(self, *rings: Ring) -> bool:
        """Send the messages; False if the broker did not take them, which only makes things late."""
        ...

    def ring_once(self, key: str, ring: Ring) -> bool:
        """Send the message unless one under this key is on its way already; True if it was sent."""
        ...

    def answered(self, key: str) -> None:
        """The message under this key has arrived; the next `ring_once` sends again."""
        ...

    def close(self) -> None:
        """Close the connections to the broker."""
        ...
