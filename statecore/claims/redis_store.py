"""The queue in Redis: each method is one script, so a claim is at most once however many ask."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from statecore.backends.redis_namespace import RedisNamespace
from statecore.claims.model import Task, TaskStatus
from statecore.clock import as_datetime
from statecore.errors import LeaseLostError, LimitExceededError, TaskExistsError, TaskNotFoundError
from statecore.ids import new_op_id


class RedisClaimStore:
    """See `ClaimStore`."""

    def __init__(self, space: RedisNamespace, *, limit: int = 100_000) -> None:
        self._space = space
        self._limit = limit

    def enqueue(self, task_id: str, priority: int, capabilities: Sequence[str], max_attempts: int, op_id: str) -> Task:
        wanted = sorted(set(capabilities))
        data = json.dumps({"priority": priority, "capabilities": wanted, "max_attempts": max_attempts})
        args = [task_id, priority, ",".join(wanted), max_attempts, op_id, self._limit, data]
        code, payload = self._space.run("claims/enqueue", args, op_id)
        if code == "EXISTS":
            raise TaskExistsError(task_id, payload)
        if code == "FULL":
            what, advice = "the number of waiting tasks", "enqueue again once some were claimed"
            raise LimitExceededError(what, int(payload) + 1, self._limit, advice)
        return _task_or_refusal(task_id, code, payload)

    def claim_next(self, claimer: str, capabilities: Sequence[str], lease_s: float, op_id: str) -> Task | None:
        args = [claimer, ",".join(sorted(set(capabilities))), round(lease_s * 1000), op_id]
        code, payload = self._space.run("claims/claim_next", args, op_id)
        return decode_task(payload) if code == "OK" else None

    def renew(self, task_id: str, fence: int, lease_s: float, op_id: str) -> Task:
        return self._fenced("claims/renew", task_id, fence, op_id, round(lease_s * 1000))

    def complete(self, task_id: str, fence: int, op_id: str) -> Task:
        return self._fenced("claims/complete", task_id, fence, op_id)

    def release(self, task_id: str, fence: int, op_id: str) -> Task:
        return self._fenced("claims/release", task_id, fence, op_id)

    def reclaim_stale(self, limit: int) -> list[Task]:
        _, rows = self._space.run("claims/reclaim_stale", [limit, new_op_id()])
        return [decode_task(row) for row in rows]

    def get(self, task_id: str) -> Task:
        code, row = self._space.run("claims/get", [task_id])
        if code == "NOT_FOUND":
            raise TaskNotFoundError(task_id)
        return decode_task(row)

    def depth(self) -> int:
        _, waiting = self._space.run("claims/depth", [])
        return int(waiting)

    def _fenced(self, script: str, task_id: str, fence: int, op_id: str, *more: Any) -> Task:
        code, payload = self._space.run(script, [task_id, fence, op_id, *more], op_id)
        if code == "NOT_FOUND":
            raise TaskNotFoundError(task_id)
        return _task_or_refusal(task_id, code, payload)


def _task_or_refusal(task_id: str, code: str, payload: Sequence[str]) -> Task:
    if code == "LEASE_LOST":
        presented, current = payload
        raise LeaseLostError(f"task {task_id}", presented, current)
    return decode_task(payload)


def decode_task(row: Sequence[str]) -> Task:
    """A script's task row."""
    task_id, priority, place, capabilities, status, attempts, max_attempts, claimed_by, claimed_at, fence = row
    return Task(
        task_id=task_id,
        priority=int(priority),
        place=int(place),
        capabilities=tuple(capabilities.split(",")) if capabilities else (),
        status=TaskStatus(status),
        attempts=int(attempts),
        max_attempts=int(max_attempts),
        claimed_by=claimed_by or None,
        claimed_at=as_datetime(int(claimed_at)) if claimed_at else None,
        fence=int(fence) if fence else None,
    )
