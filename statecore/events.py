"""The audit trail: one envelope for every change, appended in the same atom as the change itself."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to one subject. `before` and `after` are the fields the change touched, or None."""

    id: str
    at: datetime
    kind: str
    subject: str
    actor: str
    op_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    data: Any

    def matches(self, kinds: Sequence[str] | None, subject: str | None) -> bool:
        """True if the kind fits one of the patterns (`agent:*`) and the subject is the wanted one."""
        if subject is not None and self.subject != subject:
            return False
        return kinds is None or any(fnmatch.fnmatchcase(self.kind, kind) for kind in kinds)


@dataclass(frozen=True, slots=True)
class EventDraft:
    """An event without id and time, which the store adds when it appends it."""

    kind: str
    subject: str
    op_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    data: Any


class EventLog(Protocol):
    """A namespace's events in the order in which they happened."""

    def read(
        self,
        after: str = "0",
        kinds: Sequence[str] | None = None,
        subject: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Event]:
        """Events later than `after`, oldest first; StreamGapError if some of them were trimmed."""
        ...

    def follow(
        self,
        after: str = "$",
        kinds: Sequence[str] | None = None,
        subject: str | None = None,
        idle_s: float | None = None,
    ) -> Iterator[Event]:
        """Events as they happen, from `after` ("$": from now); ends after `idle_s` without one, or never."""
        ...

    def record(self, kind: str, subject: str, op_id: str, data: Any) -> str:
        """Append an event that goes with no change of state, such as a refused message; its id."""
        ...
