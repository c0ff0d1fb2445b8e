"""Beat's chores, one per function. Each is idempotent and safe beside itself; each covers all namespaces by default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from celery import Task

from statecore.core import Statecore
from statecore.errors import StatecoreError
from workers.disposition import dispose
from workers.queues import CONTROL
from workers.tasks.spec import TaskSpec, runtime_of


def check_heartbeats(self: Task, namespace: str | None = None) -> dict[str, Any]:
    """Suspect silent agents, lose those silent for too long, put their tasks back."""
    return _each(self, namespace, lambda sc: len(sc.agents.check_heartbeats().lost))


def reclaim_stale(self: Task, namespace: str | None = None) -> dict[str, Any]:
    """Put tasks back whose claimer let its lease run out."""
    return _each(self, namespace, lambda sc: len(sc.claims.reclaim_stale()))


def ring_inboxes(self: Task, namespace: str | None = None) -> dict[str, Any]:
    """Ring again for inboxes whose message was lost."""
    return _each(self, namespace, lambda sc: sc.agents.ring_inboxes())


def expire_runs(self: Task, namespace: str | None = None) -> dict[str, Any]:
    """End runs whose deadline or grace has passed, reclaim those whose lease ran out."""
    return _each(self, namespace, lambda sc: sum(map(len, astuple(sc.runs.sweep()))))


def redispatch_runs(self: Task, namespace: str | None = None) -> dict[str, Any]:
    """Ring again for runs whose message was lost, and for the first time for those whose time has come."""
    return _each(self, namespace, lambda sc: sc.runs.ring_waiting())


def _each(task: Task, namespace: str | None, chore: Callable[[Statecore], int]) -> dict[str, Any]:
    runtime = runtime_of(task)
    try:
        done = {sc.namespace: chore(sc) for sc in runtime.each_namespace(namespace)}
    except StatecoreError as error:
        return dispose(task, runtime, error, namespace=namespace, subject=task.name)
    return {"outcome": "done", "namespaces": done}


SPECS = (
    TaskSpec("statecore.maintenance.check_heartbeats", CONTROL, check_heartbeats, ignore_result=True),
    TaskSpec("statecore.maintenance.reclaim_stale", CONTROL, reclaim_stale, ignore_result=True),
    TaskSpec("statecore.maintenance.ring_inboxes", CONTROL, ring_inboxes, ignore_result=True),
    TaskSpec("statecore.maintenance.expire_runs", CONTROL, expire_runs, ignore_result=True),
    TaskSpec("statecore.maintenance.redispatch_runs", CONTROL, redispatch_runs, ignore_result=True),
)
