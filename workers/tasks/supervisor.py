"""Handing out work, when an agent became idle, when a task was queued, and by beat."""

from __future__ import annotations

from typing import Any

from celery import Task

from statecore.agents.service import ASSIGN_TASK
from statecore.errors import StatecoreError
from workers.disposition import dispose
from workers.queues import CONTROL
from workers.tasks.spec import TaskSpec, runtime_of

_ROUND_LIMIT = 1000


def assign(self: Task, namespace: str | None = None) -> dict[str, Any]:
    """Bring waiting tasks and idle agents together, in one namespace or in all."""
    runtime = runtime_of(self)
    assigned = 0
    try:
        for sc in runtime.each_namespace(namespace):
            sc.doorbell.answered("assign")
            for _ in range(_ROUND_LIMIT):
                if sc.supervisor.assign_next() is None:
                    break
                assigned += 1
    except StatecoreError as error:
        return dispose(self, runtime, error, namespace=namespace, subject="supervisor")
    return {"outcome": "assigned", "assigned": assigned}


SPECS = (TaskSpec(ASSIGN_TASK, CONTROL, assign, ignore_result=True),)
