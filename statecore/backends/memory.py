"""A namespace in this process: what the memory stores share so that each of their methods is one atom."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from statecore.claims.ledger import Ledger
from statecore.clock import Clock, as_datetime
from statecore.events import Event, EventDraft
from statecore.fences import rise


class MemorySpace:
    """One lock, one clock, one queue of tasks, one list of events. It lives as long as the process."""

    def __init__(self, clock: Clock, *, actor: str = "memory", queue_limit: int = 100_000) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.epoch = 1
        self.ledger = Ledger(limit=queue_limit)
        self.events: list[Event] = []
        self._actor = actor
        self._last_fence = 0

    def next_fence(self) -> int:
        """A fence above all fences so far."""
        self._last_fence = rise(self._last_fence, self.epoch)
        return self._last_fence

    def keep_fences_above(self, fence: int) -> None:
        """Every fence from now on is above this one."""
        self._last_fence = max(self._last_fence, fence)

    def append(self, draft: EventDraft, now_ms: int) -> None:
        """Append the event with an id that sorts behind all others."""
        event = Event(
            id=f"{now_ms}-{len(self.events)}",
            at=as_datetime(now_ms),
            kind=draft.kind,
            subject=draft.subject,
            actor=self._actor,
            op_id=draft.op_id,
            before=draft.before,
            after=draft.after,
            data=draft.data,
        )
        self.events.append(event)


class MemoryEventLog:
    """See `EventLog`; it has nothing to wait for, so it does not follow."""

    def __init__(self, space: MemorySpace) -> None:
        self._space = space

    def read(
        self,
        after: str = "0",
        kinds: Sequence[str] | None = None,
        subject: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Event]:
        with self._space.lock:
            events = list(self._space.events)
        ids = [event.id for event in events]
        start = ids.index(after) + 1 if after in ids else 0
        wanted = (event for event in events[start:] if event.matches(kinds, subject))
        return itertools.islice(wanted, limit)

    def record(self, kind: str, subject: str, op_id: str, data: Any) -> str:
        with self._space.lock:
            draft = EventDraft(kind, subject, op_id, None, None, json.loads(json.dumps(data)))
            self._space.append(draft, self._space.clock.now_ms())
            return self._space.events[-1].id
