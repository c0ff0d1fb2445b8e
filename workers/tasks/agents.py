"""Agents' events as messages: the form for foreign producers, and the doorbell of the inboxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Task

from statecore.agents.model import EventOutcome, EventRequest, OutcomeCode
from statecore.agents.service import DRAIN_TASK
from statecore.core import Statecore
from statecore.errors import (
    EarlyEventError,
    InvalidInputError,
    RejectedError,
    StatecoreError,
    UnguardedEventError,
)
from workers.disposition import audit_rejection, dispose, wait_for_predecessors
from workers.queues import AGENTS
from workers.tasks.spec import TaskSpec, runtime_of

_DRAIN_ROUNDS = 40


def apply_event(
    self: Task,
    agent_id: str,
    event: str,
    namespace: str | None = None,
    op_id: str | None = None,
    expected_version: int | None = None,
    epoch: int | None = None,
    task_id: str | None = None,
    data: Any = None,
    priority: int | None = None,
    expected_state: str | None = None,
) -> dict[str, Any]:
    """Apply one event; the answer says what came of it. The op_id is the message's id unless it is given."""
    runtime = runtime_of(self)
    try:
        sc = runtime.statecore(namespace)
        request = _guarded(
            sc,
            {
                "agent_id": agent_id,
                "event": event,
                "op_id": op_id or self.request.id,
                "expected_version": expected_version,
                "epoch": epoch,
                "task_id": task_id,
                "data": data,
                "priority": priority,
                "expected_state": expected_state,
            },
        )
        outcomes = sc.agents.apply_events([request])
    except StatecoreError as error:
        return dispose(self, runtime, error, namespace=namespace, subject=agent_id)
    return _settle(self, sc, outcomes)[0]


def apply_events(
    self: Task, events: list[dict[str, Any]], namespace: str | None = None
) -> list[dict[str, Any]] | dict[str, Any]:
    """Apply up to 256 events in one script; an answer each. An op_id defaults to the message id and the place."""
    runtime = runtime_of(self)
    try:
        sc = runtime.statecore(namespace)
        if not isinstance(events, list):
            raise InvalidInputError("events must be a list of objects")
        requests = [
            _guarded(sc, {"op_id": f"{self.request.id}.{place}", **_fields(fields)})
            for place, fields in enumerate(events)
        ]
        outcomes = sc.agents.apply_events(requests)
    except StatecoreError as error:
        return dispose(self, runtime, error, namespace=namespace, subject="batch")
    return _settle(self, sc, outcomes)


def drain_inbox(self: Task, agent_id: str, namespace: str | None = None) -> dict[str, Any]:
    """Apply what waits in the agent's inbox."""
    runtime = runtime_of(self)
    applied = refused = 0
    try:
        sc = runtime.statecore(namespace)
        for _ in range(_DRAIN_ROUNDS):
            drained = sc.agents.drain_inbox(agent_id)
            for outcome in drained.outcomes:
                done = outcome.code is OutcomeCode.APPLIED
                applied, refused = applied + done, refused + (not done)
                runtime.counters[outcome.code] += 1
            if not drained.waiting or not drained.outcomes:
                break
    except StatecoreError as error:
        return dispose(self, runtime, error, namespace=namespace, subject=agent_id)
    return {"outcome": "drained", "applied": applied, "refused": refused, "waiting": drained.waiting}


def heartbeat(self: Task, agent_id: str, epoch: int, namespace: str | None = None) -> dict[str, Any]:
    """Note that the agent lives."""
    runtime = runtime_of(self)
    try:
        runtime.statecore(namespace).agents.heartbeat(agent_id, epoch)
    except StatecoreError as error:
        return dispose(self, runtime, error, namespace=namespace, subject=agent_id)
    return {"outcome": "applied"}


def _guarded(sc: Statecore, fields: dict[str, Any]) -> EventRequest:
    """A checked request that refuses its own duplicate even when its op_id is long forgotten."""
    try:
        request = sc.agents.request(**fields)
    except TypeError as error:
        raise InvalidInputError(f"an event has the fields of agents.request: {error}") from None
    if request.expected_version is None and (request.epoch is None or request.task_id is None):
        raise UnguardedEventError(f"agent {request.agent_id}", request.event)
    return request


def _fields(event: Any) -> dict[str, Any]:
    if not isinstance(event, dict):
        raise InvalidInputError("each event must be an object with agent_id and event")
    return {name: value for name, value in event.items() if value is not None}


def _settle(task: Task, sc: Statecore, outcomes: Sequence[EventOutcome]) -> list[dict[str, Any]]:
    """The answers, once no event is early any more or has waited long enough to be rejected."""
    runtime = runtime_of(task)
    errors = [outcome.error() for outcome in outcomes]
    for error in errors:
        # The others are remembered by their op_ids: the repeat only moves what was early.
        if isinstance(error, EarlyEventError):
            wait_for_predecessors(task, runtime, error)
    answers = []
    for outcome, error in zip(outcomes, errors, strict=True):
        answer = outcome.answer()
        if error is not None:
            runtime.counters[type(error).__name__] += 1
        # A message that waited has met its own op_ids, but is settled, and so audited, only now.
        first_time = not outcome.repeated or task.request.retries > 0
        if isinstance(error, RejectedError | EarlyEventError) and first_time:
            audit_rejection(task, sc, error, outcome.request.agent_id)
            answer["outcome"] = "rejected"
        answers.append(answer)
    return answers


SPECS = (
    TaskSpec("statecore.agents.apply_event", AGENTS, apply_event),
    TaskSpec("statecore.agents.apply_events", AGENTS, apply_events),
    TaskSpec(DRAIN_TASK, AGENTS, drain_inbox, ignore_result=True),
    TaskSpec("statecore.agents.heartbeat", AGENTS, heartbeat),
)
