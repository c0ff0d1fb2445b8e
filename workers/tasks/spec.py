"""A task before it belongs to an app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import Task

from workers.runtime import Runtime


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A name of the wire contract, its queue and its function; `ignore_result` where nobody reads the answer."""

    name: str
    queue: str
    function: Callable[..., Any]
    ignore_result: bool = False


def runtime_of(task: Task) -> Runtime:
    """The runtime of the app that the task belongs to."""
    runtime: Runtime = task.app.statecore_runtime
    return runtime
