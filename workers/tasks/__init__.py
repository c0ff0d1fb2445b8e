"""The tasks of the wire contract. They are plain functions with a name; `register` binds them to an app."""

from __future__ import annotations

from celery import Celery

from workers.tasks import agents, maintenance, supervisor
from workers.tasks.spec import TaskSpec

SPECS: tuple[TaskSpec, ...] = (*agents.SPECS, *supervisor.SPECS, *maintenance.SPECS)


def register(app: Celery) -> None:
    """Bind every task to the app."""
    for spec in SPECS:
        app.task(
            bind=True,
            name=spec.name,
            queue=spec.queue,
            acks_late=True,
            reject_on_worker_lost=True,
            max_retries=None,
            ignore_result=spec.ignore_result,
            serializer="json",
            Strategy="workers.strategy:checked",
        )(spec.function)
