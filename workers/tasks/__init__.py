"""The tasks of the wire contract. They are plain functions with a name; `register` binds them to an app."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from celery import Celery, Task

from statecore.errors import InvalidInputError
from workers.disposition import dispose
from workers.tasks import agents, maintenance, supervisor
from workers.tasks.spec import TaskSpec, runtime_of

SPECS: tuple[TaskSpec, ...] = (*agents.SPECS, *supervisor.SPECS, *maintenance.SPECS)


def _with_checked_arguments(spec: TaskSpec) -> Callable[..., Any]:
    """The function, with a message whose arguments do not fit answered and audited like any other bad input."""
    signature = inspect.signature(spec.function)

    @functools.wraps(spec.function)
    def run(self: Task, *args: Any, **kwargs: Any) -> Any:
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            misfit = InvalidInputError(f"{spec.name}: {error}")
            namespace, subject = kwargs.get("namespace"), str(kwargs.get("agent_id", ""))
            return dispose(self, runtime_of(self), misfit, namespace=namespace, subject=subject)
        return spec.function(self, *args, **kwargs)

    return run


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
        )(_with_checked_arguments(spec))
