"""One place that turns an error's branch into what Celery does with the message.

Conflict: answered and acknowledged, no backoff, a counter. Early: tried again shortly, then rejected. Rejected:
answered, acknowledged and audited, never retried. Store error: retried with exponential backoff, full jitter and a cap.
"""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Any

from celery import Task

from statecore.core import Statecore
from statecore.errors import ConflictError, EarlyEventError, RejectedError, StatecoreError, StoreError
from statecore.supervisor.backoff import full_jitter
from workers.runtime import Runtime

EARLY_RETRY_S = 0.2
_SHOWN = 512


class Disposition(StrEnum):
    ANSWER = "answer"
    RETRY_SOON = "retry_soon"
    RETRY_LATER = "retry_later"
    REJECT = "reject"


def classify(error: StatecoreError) -> Disposition:
    """What becomes of a message that met this error."""
    match error:
        case EarlyEventError():
            return Disposition.RETRY_SOON
        case ConflictError():
            return Disposition.ANSWER
        case StoreError():
            return Disposition.RETRY_LATER
        case _:
            return Disposition.REJECT


def dispose(
    task: Task, runtime: Runtime, error: StatecoreError, *, namespace: str | None = None, subject: str = ""
) -> dict[str, Any]:
    """The answer to a refused message; raises Celery's Retry where the message must come again."""
    runtime.counters[type(error).__name__] += 1
    settings = runtime.settings
    match classify(error):
        case Disposition.ANSWER:
            return answer("conflict", error)
        case Disposition.RETRY_LATER:
            delay_s = full_jitter(task.request.retries + 1, settings.retry_base_s, settings.retry_cap_s, random.uniform)
            raise task.retry(exc=error, countdown=delay_s, max_retries=settings.retry_limit)
        case Disposition.REJECT | Disposition.RETRY_SOON:
            # An early event comes here only once `wait_for_predecessors` has let it wait long enough.
            audit_rejection(task, _home_of(runtime, namespace), error, subject)
            return answer("rejected", error)


def wait_for_predecessors(task: Task, runtime: Runtime, error: EarlyEventError) -> None:
    """Let the message come again shortly; returns once it has waited long enough."""
    if task.request.retries * EARLY_RETRY_S < runtime.settings.early_event_wait_s:
        runtime.counters[type(error).__name__] += 1
        raise task.retry(exc=error, countdown=EARLY_RETRY_S, max_retries=None)


def answer(outcome: str, error: StatecoreError) -> dict[str, Any]:
    """The JSON by which a producer learns that its message was not applied."""
    return {
        "outcome": outcome,
        "error": type(error).__name__,
        "message": str(error),
        "state": None,
        "version": None,
    }


def audit_rejection(task: Task, sc: Statecore, error: StatecoreError, subject: str) -> None:
    """Write down a message that nobody will try again; if even that fails, the message is retried for it."""
    data = {"task": task.name, "error": type(error).__name__, "message": str(error)[:_SHOWN]}
    try:
        sc.events.record("message:rejected", str(subject)[:128], str(task.request.id), data)
    except StoreError as store_error:
        raise task.retry(exc=store_error, countdown=1.0, max_retries=sc.settings.retry_limit) from store_error


def _home_of(runtime: Runtime, namespace: str | None) -> Statecore:
    """Where the rejection is audited: the message's namespace, or the worker's own if that is no namespace at all."""
    try:
        return runtime.statecore(namespace)
    except RejectedError:
        return runtime.statecore()
