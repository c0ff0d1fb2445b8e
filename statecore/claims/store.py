"""The port: claim the next task, at most once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from statecore.claims.model import Task


class ClaimStore(Protocol):
    """A queue of tasks, highest priority first and oldest first among equals.

    Arguments are checked by the service; a store may rely on them. Every write takes an `op_id`: a repeat gets the
    first answer.
    """

    def enqueue(self, task_id: str, priority: int, capabilities: Sequence[str], max_attempts: int, op_id: str) -> Task:
        """Queue a task; an equal one that is queued or claimed is returned as it is.

        TaskExistsError if the id has ended or has other properties, LimitExceededError if the queue is full.
        """
        ...

    def claim_next(self, claimer: str, capabilities: Sequence[str], lease_s: float, op_id: str) -> Task | None:
        """The best task that the claimer is able to do, now held by it alone under a new fence; None if none waits."""
        ...

    def renew(self, task_id: str, fence: int, lease_s: float, op_id: str) -> Task:
        """Hold the task for `lease_s` from now; LeaseLostError if the fence is an old one, TaskNotFoundError."""
        ...

    def complete(self, task_id: str, fence: int, op_id: str) -> Task:
        """End the task; LeaseLostError if the fence is not the current one, TaskNotFoundError."""
        ...

    def release(self, task_id: str, fence: int, op_id: str) -> Task:
        """Give the task back to its original place without counting the attempt; LeaseLostError, TaskNotFoundError."""
        ...

    def reclaim_stale(self, limit: int) -> list[Task]:
        """Return tasks whose lease ran out to their place, or fail those that used up their attempts."""
        ...

    def get(self, task_id: str) -> Task:
        """The task as it stands; TaskNotFoundError."""
        ...

    def depth(self) -> int:
        """How many tasks wait."""
        ...
