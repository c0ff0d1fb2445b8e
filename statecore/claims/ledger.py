"""The queue of tasks as a pure model: no I/O, no clock, no locks.

The memory and file stores run it; the Redis scripts are held to it by the conformance suite. An operation
returns its answer with the events to append in the same atom. The refusal of an old fence is an answer too
(a LeaseLostError as a value), because it is audited and remembered: the store raises it once both are kept.
Every other error is raised at once, and then nothing has changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from statecore.claims.index import Answer, Entry, TaskIndex
from statecore.claims.model import DEFAULT_MAX_ATTEMPTS, FINISHED_KEPT_S, Task, TaskStatus
from statecore.clock import as_datetime
from statecore.errors import (
    LeaseLostError,
    LimitExceededError,
    TaskExistsError,
    TaskNotFoundError,
    TaskTakenError,
)
from statecore.events import EventDraft

DEFAULT_QUEUE_LIMIT = 100_000
OPERATIONS_KEPT = 32

NextFence = Callable[[], int]
Answered = tuple[Answer, list[EventDraft]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a claim was answered with, for its repeats."""

    claimer: str
    op_id: str
    at_ms: int
    task: Task


class Ledger:
    """Tasks, each in exactly one status with at most one holder, under a fence that `next_fence` drew."""

    def __init__(
        self,
        limit: int = DEFAULT_QUEUE_LIMIT,
        places: int = 0,
        entries: Iterable[Entry] = (),
        grants: Iterable[Grant] = (),
    ) -> None:
        self._limit = limit
        self._places = places
        self._entries = {entry.task.task_id: entry for entry in entries}
        self._grants: OrderedDict[str, dict[str, Grant]] = OrderedDict()
        for grant in grants:
            self._grants.setdefault(grant.claimer, {})[grant.op_id] = grant
        self._index = TaskIndex()
        for entry in sorted(self._entries.values(), key=lambda entry: entry.ended_ms or 0):
            self._index.add(entry)

    @property
    def places(self) -> int:
        """How many places were given out so far."""
        return self._places

    @property
    def entries(self) -> list[Entry]:
        """Every task that is not forgotten."""
        return list(self._entries.values())

    @property
    def grants(self) -> list[Grant]:
        """The last claims of every claimer, the longest idle claimer first."""
        return [grant for granted in self._grants.values() for grant in granted.values()]

    def enqueue(
        self,
        task_id: str,
        priority: int,
        capabilities: Sequence[str],
        max_attempts: int,
        op_id: str,
        now_ms: int,
    ) -> Answered:
        """Queue a task behind its equals; an equal one that has not ended is returned as it is."""
        self._forget(now_ms)
        wanted = tuple(sorted(set(capabilities)))
        entry = self._entries.get(task_id)
        if entry is None:
            if self.depth() >= self._limit:
                what, advice = "the number of waiting tasks", "enqueue again once some were claimed"
                raise LimitExceededError(what, self.depth() + 1, self._limit, advice)
            task = self._create(task_id, priority, wanted, max_attempts)
            data = {"priority": priority, "capabilities": list(wanted), "max_attempts": max_attempts}
            queued = EventDraft("task:queued", task_id, op_id, None, _lease(task), data)
            return self._answer(op_id, task, queued)
        if op_id in entry.operations:
            return entry.operations[op_id], []
        task = entry.task
        equal = (task.priority, task.capabilities, task.max_attempts) == (priority, wanted, max_attempts)
        if not equal or entry.ended_ms is not None:
            raise TaskExistsError(task_id, task.status)
        return self._answer(op_id, task)

    def claim_next(
        self,
        claimer: str,
        capabilities: Sequence[str],
        lease_s: float,
        op_id: str,
        now_ms: int,
        next_fence: NextFence,
    ) -> tuple[Task | None, list[EventDraft]]:
        """The best waiting task that the claimer is able to do, held by it for the lease; None if none."""
        self._forget(now_ms)
        granted = self._grants.get(claimer, {})
        if op_id in granted:
            return granted[op_id].task, []
        task_id = self._index.best(frozenset(capabilities))
        if task_id is None:
            return None, []
        task, event = self._hold(task_id, claimer, _after(now_ms, lease_s), op_id, now_ms, next_fence)
        self._grants[claimer] = _remember(granted, op_id, Grant(claimer, op_id, now_ms, task))
        self._grants.move_to_end(claimer)
        return task, [event]

    def renew(self, task_id: str, fence: int, lease_s: float, op_id: str, now_ms: int) -> Answered:
        """Move the lease's end; a task held without one (by an agent) stays so. Not audited."""
        entry, settled = self._check(task_id, fence, op_id, "renew", now_ms)
        if settled is not None:
            return settled
        if entry.deadline_ms is not None:
            self._put(replace(entry, deadline_ms=_after(now_ms, lease_s)))
        return self._answer(op_id, entry.task)

    def complete(self, task_id: str, fence: int, op_id: str, now_ms: int) -> Answered:
        """End the task; it keeps showing who completed it under which fence."""
        _, settled = self._check(task_id, fence, op_id, "complete", now_ms)
        return settled or self._answer(op_id, *self._complete(task_id, op_id, now_ms))

    def release(self, task_id: str, fence: int, op_id: str, now_ms: int) -> Answered:
        """Give the task back to its place, the attempt not counted."""
        _, settled = self._check(task_id, fence, op_id, "release", now_ms)
        return settled or self._answer(op_id, *self._put_back(task_id, False, op_id, now_ms))

    def reclaim_stale(self, limit: int, op_id: str, now_ms: int) -> tuple[list[Task], list[EventDraft]]:
        """Put back, or fail, up to `limit` tasks whose lease ran out, the longest overdue first."""
        self._forget(now_ms)
        due = self._index.overdue(now_ms, limit)
        moved = [self._put_back(task_id, True, op_id, now_ms) for task_id in due]
        return [task for task, _ in moved], [event for _, event in moved]

    def get(self, task_id: str, now_ms: int) -> Task:
        """The task as it stands; TaskNotFoundError."""
        return self._known(task_id, now_ms).task

    def depth(self) -> int:
        """How many tasks wait."""
        return self._index.depth

    def waiting(self) -> Iterator[Task]:
        """The tasks that wait, best first; change nothing while going through them."""
        return (self._entries[task_id].task for task_id in self._index.waiting())

    def take(
        self, task_id: str, agent_id: str, priority: int, op_id: str, now_ms: int, next_fence: NextFence
    ) -> tuple[Task, list[EventDraft]]:
        """The task, queued or new, is held by the agent for as long as the agent lives.

        TaskTakenError if another one holds it, TaskExistsError if it has ended.
        """
        self._forget(now_ms)
        entry = self._entries.get(task_id)
        if entry is None:
            self._create(task_id, priority, (), DEFAULT_MAX_ATTEMPTS)
            task, event = self._hold(task_id, agent_id, None, op_id, now_ms, next_fence)
            return task, [replace(event, before=None)]
        if entry.ended_ms is not None:
            raise TaskExistsError(task_id, entry.task.status)
        holder = entry.task.claimed_by
        if holder == agent_id:
            return entry.task, []
        if holder is not None:
            raise TaskTakenError(task_id, holder)
        task, event = self._hold(task_id, agent_id, None, op_id, now_ms, next_fence)
        return task, [event]

    def finish(self, task_id: str, agent_id: str, op_id: str, now_ms: int) -> tuple[Task | None, list[EventDraft]]:
        """The task, completed if the agent holds it and else as it is; None if it is unknown."""
        self._forget(now_ms)
        if not self._is_held_by(task_id, agent_id):
            return self._found(task_id), []
        task, event = self._complete(task_id, op_id, now_ms)
        return task, [event]

    def put_back(
        self, task_id: str, agent_id: str, count_attempt: bool, op_id: str, now_ms: int
    ) -> tuple[Task | None, list[EventDraft]]:
        """The task, in its place again (or failed: no attempt left) if the agent holds it; else as it is."""
        self._forget(now_ms)
        if not self._is_held_by(task_id, agent_id):
            return self._found(task_id), []
        task, event = self._put_back(task_id, count_attempt, op_id, now_ms)
        return task, [event]

    def _forget(self, now_ms: int) -> None:
        until_ms = now_ms - FINISHED_KEPT_S * 1000
        for task_id in self._index.pop_ended(until_ms):
            del self._entries[task_id]
        while self._grants and _last_ms(next(iter(self._grants.values()))) <= until_ms:
            self._grants.popitem(last=False)

    def _found(self, task_id: str) -> Task | None:
        return self._entries[task_id].task if task_id in self._entries else None

    def _known(self, task_id: str, now_ms: int) -> Entry:
        self._forget(now_ms)
        if task_id not in self._entries:
            raise TaskNotFoundError(task_id)
        return self._entries[task_id]

    def _is_held_by(self, task_id: str, agent_id: str) -> bool:
        task = self._found(task_id)
        return task is not None and task.status is TaskStatus.CLAIMED and task.claimed_by == agent_id

    def _check(
        self, task_id: str, fence: int, op_id: str, operation: str, now_ms: int
    ) -> tuple[Entry, Answered | None]:
        """The entry, and the answer where it is settled: the op_id's first one, or an old fence's refusal."""
        entry = self._known(task_id, now_ms)
        if op_id in entry.operations:
            return entry, (entry.operations[op_id], [])
        task = entry.task
        held = task.status is TaskStatus.CLAIMED
        if held and task.fence == fence:
            return entry, None
        current = str(task.fence) if held else task.status.value
        data = {"operation": operation, "presented": str(fence), "current": current}
        lost = LeaseLostError(f"task {task_id}", str(fence), current)
        self._put(replace(entry, operations=_remember(entry.operations, op_id, lost)))
        return entry, (lost, [EventDraft("task:refused", task_id, op_id, None, None, data)])

    def _answer(self, op_id: str, task: Task, *events: EventDraft) -> Answered:
        entry = self._entries[task.task_id]
        self._put(replace(entry, operations=_remember(entry.operations, op_id, task)))
        return task, list(events)

    def _create(self, task_id: str, priority: int, wanted: tuple[str, ...], max_attempts: int) -> Task:
        self._places += 1
        task = Task(
            task_id=task_id,
            priority=priority,
            place=self._places,
            capabilities=wanted,
            status=TaskStatus.QUEUED,
            attempts=0,
            max_attempts=max_attempts,
            claimed_by=None,
            claimed_at=None,
            fence=None,
        )
        self._put(Entry(task))
        return task

    def _hold(
        self,
        task_id: str,
        holder: str,
        deadline_ms: int | None,
        op_id: str,
        now_ms: int,
        next_fence: NextFence,
    ) -> tuple[Task, EventDraft]:
        task = self._entries[task_id].task
        held = replace(
            task,
            status=TaskStatus.CLAIMED,
            attempts=task.attempts + 1,
            claimed_by=holder,
            claimed_at=as_datetime(now_ms),
            fence=next_fence(),
        )
        return self._move("task:claimed", held, op_id, deadline_ms=deadline_ms)

    def _complete(self, task_id: str, op_id: str, now_ms: int) -> tuple[Task, EventDraft]:
        completed = replace(self._entries[task_id].task, status=TaskStatus.COMPLETED)
        return self._move("task:completed", completed, op_id, ended_ms=now_ms)

    def _put_back(self, task_id: str, count_attempt: bool, op_id: str, now_ms: int) -> tuple[Task, EventDraft]:
        task = self._entries[task_id].task
        free = replace(task, status=TaskStatus.QUEUED, claimed_by=None, claimed_at=None, fence=None)
        if not count_attempt:
            return self._move("task:released", replace(free, attempts=task.attempts - 1), op_id)
        if task.attempts < task.max_attempts:
            return self._move("task:reclaimed", free, op_id)
        return self._move("task:failed", replace(free, status=TaskStatus.FAILED), op_id, ended_ms=now_ms)

    def _move(
        self, kind: str, task: Task, op_id: str, deadline_ms: int | None = None, ended_ms: int | None = None
    ) -> tuple[Task, EventDraft]:
        entry = self._entries[task.task_id]
        self._put(replace(entry, task=task, deadline_ms=deadline_ms, ended_ms=ended_ms))
        data = {"attempts": task.attempts}
        return task, EventDraft(kind, task.task_id, op_id, _lease(entry.task), _lease(task), data)

    def _put(self, entry: Entry) -> None:
        self._index.replace(self._entries.get(entry.task.task_id), entry)
        self._entries[entry.task.task_id] = entry


def _lease(task: Task) -> dict[str, Any]:
    return {"status": task.status.value, "fence": task.fence, "claimed_by": task.claimed_by}


def _after(now_ms: int, seconds: float) -> int:
    return now_ms + round(seconds * 1000)


def _last_ms(granted: dict[str, Grant]) -> int:
    return granted[next(reversed(granted))].at_ms


def _remember(memory: Mapping[str, T], op_id: str, answer: T) -> dict[str, T]:
    kept = {**memory, op_id: answer}
    if len(kept) > OPERATIONS_KEPT:
        del kept[next(iter(kept))]
    return kept
