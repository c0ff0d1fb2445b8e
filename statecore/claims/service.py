"""What a program asks of the queue: input is checked here, once, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from statecore.claims.model import DEFAULT_LEASE_S, DEFAULT_MAX_ATTEMPTS, MAX_PRIORITY, Task
from statecore.claims.store import ClaimStore
from statecore.errors import InvalidInputError
from statecore.ids import LARGEST_INT, check_capabilities, check_id, check_int, check_op_id

_SWEEP = 1000


class ClaimService:
    """The queue of one namespace."""

    def __init__(self, store: ClaimStore, ring_supervisor: Callable[[], None]) -> None:
        self._store = store
        self._ring_supervisor = ring_supervisor

    def enqueue(
        self,
        task_id: str,
        priority: int = 0,
        capabilities: Iterable[str] = (),
        *,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        op_id: str | None = None,
    ) -> Task:
        """The task waits for somebody with these capabilities; the higher its priority, the sooner."""
        check_id("task id", task_id)
        check_int("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
        check_int("max_attempts", max_attempts, 1, 1000)
        task = self._store.enqueue(
            task_id, priority, check_capabilities(capabilities), max_attempts, check_op_id(op_id)
        )
        self._ring_supervisor()
        return task

    def claim_next(
        self,
        claimer: str,
        capabilities: Iterable[str] = (),
        *,
        lease_s: float = DEFAULT_LEASE_S,
        op_id: str | None = None,
    ) -> Task | None:
        """The best waiting task, held by the claimer alone until its lease runs out; None if nothing fits."""
        check_id("claimer", claimer)
        wanted = check_capabilities(capabilities)
        return self._store.claim_next(claimer, wanted, _lease(lease_s), check_op_id(op_id))

    def renew(self, task_id: str, fence: int, *, lease_s: float = DEFAULT_LEASE_S, op_id: str | None = None) -> Task:
        """The claim holds for `lease_s` from now; LeaseLostError if it is over."""
        return self._store.renew(check_id("task id", task_id), _fence(fence), _lease(lease_s), check_op_id(op_id))

    def complete(self, task_id: str, fence: int, *, op_id: str | None = None) -> Task:
        """The task is done; LeaseLostError if the claim is over and somebody else may be on it."""
        return self._store.complete(check_id("task id", task_id), _fence(fence), check_op_id(op_id))

    def release(self, task_id: str, fence: int, *, op_id: str | None = None) -> Task:
        """The task waits at its original place again; LeaseLostError if the claim is over."""
        task = self._store.release(check_id("task id", task_id), _fence(fence), check_op_id(op_id))
        self._ring_supervisor()
        return task

    def get(self, task_id: str) -> Task:
        """The task as it stands."""
        return self._store.get(check_id("task id", task_id))

    def depth(self) -> int:
        """How many tasks wait."""
        return self._store.depth()

    def reclaim_stale(self) -> list[Task]:
        """Put tasks back whose claimer let its lease run out."""
        tasks = self._store.reclaim_stale(_SWEEP)
        if tasks:
            self._ring_supervisor()
        return tasks


def _fence(fence: int) -> int:
    return check_int("fence", fence, 0, LARGEST_INT)


def _lease(lease_s: float) -> float:
    if isinstance(lease_s, bool) or not isinstance(lease_s, int | float) or not 0 < lease_s <= 86_400:
        raise InvalidInputError("lease_s must be a number of seconds above 0, up to a day")
    return float(lease_s)
