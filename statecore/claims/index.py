"""Which task is next, which lease is overdue, which ended task can be forgotten: answered without a scan."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from statecore.claims.model import Task, TaskStatus
from statecore.errors import LeaseLostError

Answer = Task | LeaseLostError


@dataclass(frozen=True, slots=True)
class Entry:
    """A task with what only the queue knows of it. Held without a deadline: as long as its agent lives."""

    task: Task
    deadline_ms: int | None = None
    ended_ms: int | None = None
    operations: Mapping[str, Answer] = field(default_factory=dict)


class TaskIndex:
    """Task ids by what they wait for."""

    def __init__(self) -> None:
        # The best task is last: claiming is a pop, and one that leaves from the middle is found by bisection.
        self._waiting: dict[tuple[str, ...], list[tuple[int, int, str]]] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._ended: deque[tuple[int, str]] = deque()
        self.depth = 0

    def add(self, entry: Entry) -> None:
        """File a new entry under what it waits for; ended ones must come in the order in which they ended."""
        task = entry.task
        if task.status is TaskStatus.QUEUED:
            insort(self._waiting.setdefault(task.capabilities, []), _rank(task))
            self.depth += 1
        elif entry.ended_ms is not None:
            self._ended.append((entry.ended_ms, task.task_id))
        elif entry.deadline_ms is not None:
            insort(self._deadlines, (entry.deadline_ms, task.task_id))

    def replace(self, old: Entry | None, new: Entry) -> None:
        """File the task under what it waits for now."""
        if old is not None:
            if _place(old) == _place(new):
                return
            self._remove(old)
        self.add(new)

    def best(self, able: frozenset[str]) -> str | None:
        """The first waiting task that asks for no more than these capabilities."""
        heads = (ranks[-1] for wanted, ranks in self._waiting.items() if able.issuperset(wanted))
        best = max(heads, default=None)
        return None if best is None else best[2]

    def waiting(self) -> Iterator[str]:
        """Every waiting task, best first."""
        ranked = heapq.merge(*map(reversed, self._waiting.values()), reverse=True)
        return (task_id for _, _, task_id in ranked)

    def overdue(self, now_ms: int, limit: int) -> list[str]:
        """Up to `limit` tasks whose deadline has come, the longest overdue first."""
        return [task_id for deadline_ms, task_id in self._deadlines[:limit] if deadline_ms <= now_ms]

    def pop_ended(self, until_ms: int) -> Iterator[str]:
        """Take out the tasks that ended at `until_ms` or before."""
        while self._ended and self._ended[0][0] <= until_ms:
            yield self._ended.popleft()[1]

    def _remove(self, entry: Entry) -> None:
        task = entry.task
        if task.status is TaskStatus.QUEUED:
            ranks = self._waiting[task.capabilities]
            del ranks[bisect_left(ranks, _rank(task))]
            if not ranks:
                del self._waiting[task.capabilities]
            self.depth -= 1
        elif entry.deadline_ms is not None:
            del self._deadlines[bisect_left(self._deadlines, (entry.deadline_ms, task.task_id))]


def _place(entry: Entry) -> tuple[TaskStatus, int | None, int | None]:
    return entry.task.status, entry.deadline_ms, entry.ended_ms


def _rank(task: Task) -> tuple[int, int, str]:
    return task.priority, -task.place, task.task_id
