"""The queue in this process: for tests, simulations and asyncio programs of one process."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from statecore.claims.ledger import Answered, Ledger, NextFence
from statecore.claims.model import Task
from statecore.claims.store import ClaimStore
from statecore.clock import Clock
from statecore.errors import LeaseLostError
from statecore.events import EventDraft
from statecore.ids import new_op_id

EVENTS_KEPT = 1000


class MemoryClaimStore:
    """A ledger under a lock. An agents' store may share ledger, lock, fences and event sink: one atom."""

    def __init__(
        self,
        clock: Clock,
        ledger: Ledger | None = None,
        lock: threading.RLock | None = None,
        append_event: Callable[[EventDraft, int], None] | None = None,
        next_fence: NextFence | None = None,
    ) -> None:
        self._clock = clock
        self._ledger = ledger or Ledger()
        self._lock = lock or threading.RLock()
        self._append_event = append_event or self._keep_event
        self._next_fence = next_fence or itertools.count(1).__next__
        self._events: deque[tuple[EventDraft, int]] = deque(maxlen=EVENTS_KEPT)

    def enqueue(self, task_id: str, priority: int, capabilities: Sequence[str], max_attempts: int, op_id: str) -> Task:
        with self._lock:
            now_ms = self._clock.now_ms()
            answered = self._ledger.enqueue(task_id, priority, capabilities, max_attempts, op_id, now_ms)
            return self._settle(answered, now_ms)

    def claim_next(self, claimer: str, capabilities: Sequence[str], lease_s: float, op_id: str) -> Task | None:
        with self._lock:
            now_ms = self._clock.now_ms()
            task, events = self._ledger.claim_next(claimer, capabilities, lease_s, op_id, now_ms, self._next_fence)
            self._append(events, now_ms)
            return task

    def renew(self, task_id: str, fence: int, lease_s: float, op_id: str) -> Task:
        with self._lock:
            now_ms = self._clock.now_ms()
            return self._settle(self._ledger.renew(task_id, fence, lease_s, op_id, now_ms), now_ms)

    def complete(self, task_id: str, fence: int, op_id: str) -> Task:
        with self._lock:
            now_ms = self._clock.now_ms()
            return self._settle(self._ledger.complete(task_id, fence, op_id, now_ms), now_ms)

    def release(self, task_id: str, fence: int, op_id: str) -> Task:
        with self._lock:
            now_ms = self._clock.now_ms()
            return self._settle(self._ledger.release(task_id, fence, op_id, now_ms), now_ms)

    def reclaim_stale(self, limit: int) -> list[Task]:
        with self._lock:
            now_ms = self._clock.now_ms()
            tasks, events = self._ledger.reclaim_stale(limit, new_op_id(), now_ms)
            self._append(events, now_ms)
            return tasks

    def get(self, task_id: str) -> Task:
        with self._lock:
            return self._ledger.get(task_id, self._clock.now_ms())

    def depth(self) -> int:
        with self._lock:
            return self._ledger.depth()

    def events(self) -> list[tuple[EventDraft, int]]:
        """The last events with their time in milliseconds, oldest first; none if a sink was given."""
        with self._lock:
            return list(self._events)

    def _settle(self, answered: Answered, now_ms: int) -> Task:
        answer, events = answered
        self._append(events, now_ms)
        if isinstance(answer, LeaseLostError):
            # The remembered error is raised as a copy: a traceback would grow on it with every repeat.
            raise LeaseLostError(answer.subject, answer.presented, answer.current)
        return answer

    def _append(self, events: Iterable[EventDraft], now_ms: int) -> None:
        for event in events:
            self._append_event(event, now_ms)

    def _keep_event(self, event: EventDraft, now_ms: int) -> None:
        self._events.append((event, now_ms))


class AsyncClaimStore:
    """A claim store for coroutines: an asyncio.Lock serialises them, and the event loop stays free."""

    def __init__(self, store: ClaimStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()

    async def enqueue(
        self, task_id: str, priority: int, capabilities: Sequence[str], max_attempts: int, op_id: str
    ) -> Task:
        async with self._lock:
            return await asyncio.to_thread(self._store.enqueue, task_id, priority, capabilities, max_attempts, op_id)

    async def claim_next(self, claimer: str, capabilities: Sequence[str], lease_s: float, op_id: str) -> Task | None:
        async with self._lock:
            return await asyncio.to_thread(self._store.claim_next, claimer, capabilities, lease_s, op_id)

    async def renew(self, task_id: str, fence: int, lease_s: float, op_id: str) -> Task:
        async with self._lock:
            return await asyncio.to_thread(self._store.renew, task_id, fence, lease_s, op_id)

    async def complete(self, task_id: str, fence: int, op_id: str) -> Task:
        async with self._lock:
            return await asyncio.to_thread(self._store.complete, task_id, fence, op_id)

    async def release(self, task_id: str, fence: int, op_id: str) -> Task:
        async with self._lock:
            return await asyncio.to_thread(self._store.release, task_id, fence, op_id)

    async def reclaim_stale(self, limit: int) -> list[Task]:
        async with self._lock:
            return await asyncio.to_thread(self._store.reclaim_stale, limit)

    async def get(self, task_id: str) -> Task:
        async with self._lock:
            return await asyncio.to_thread(self._store.get, task_id)

    async def depth(self) -> int:
        async with self._lock:
            return await asyncio.to_thread(self._store.depth)
