"""Every error, typed by what its caller does next.

`ConflictError`: somebody else was first; look again, no backoff. `RejectedError`: the request is wrong and stays
wrong; never repeat it. `StoreError`: a server failed; repeat later with the same `op_id`.

All constructor arguments reach `Exception.__init__`, so an error survives pickling and Celery's JSON result backend.
"""

from __future__ import annotations

from typing import Any, ClassVar


class StatecoreError(Exception):
    """Base of everything Statecore raises on purpose."""

    text: ClassVar[str] = ""

    def __str__(self) -> str:
        return self.text.format(*self.args) if self.text else super().__str__()


class SettingsError(StatecoreError):
    """The configuration can't be used; the text says which value and what to write instead."""


class ConflictError(StatecoreError):
    """Healthy concurrency: another writer was first."""


class RejectedError(StatecoreError):
    """The request can't succeed however often it is repeated."""


class StoreError(StatecoreError):
    """A server did not do its part; repeat later with the same op_id."""


class StateConflictError(ConflictError):
    """The subject is not as the caller expected: `expected` and `actual` are states, or versions as integers."""

    text = "{0}: expected {1!r}, found {2!r}; read it again before deciding"

    def __init__(self, subject: str, expected: str | int, actual: str | int) -> None:
        super().__init__(subject, expected, actual)
        self.subject, self.expected, self.actual = subject, expected, actual


class SequenceConflictError(ConflictError):
    """A document moved on since it was read."""

    text = "{0}: expected sequence {1}, found {2}; read it again before deciding"

    def __init__(self, subject: str, expected: int, actual: int) -> None:
        super().__init__(subject, expected, actual)
        self.subject, self.expected, self.actual = subject, expected, actual


class EarlyEventError(ConflictError):
    """The event names a version that the subject has not reached yet; what comes before it is still on its way."""

    text = "{0}: the event expects version {1}, but the agent is at {2}; repeat it shortly"

    def __init__(self, subject: str, expected: int, actual: int) -> None:
        super().__init__(subject, expected, actual)
        self.subject, self.expected, self.actual = subject, expected, actual


class LeaseLostError(ConflictError):
    """The writer's lease is over: its epoch, task id or fence is not the current one. Stop working on it."""

    text = "{0}: {1} is not the current lease ({2}); stop this work, another holder may be on it"

    def __init__(self, subject: str, presented: str, current: str) -> None:
        super().__init__(subject, presented, current)
        self.subject, self.presented, self.current = subject, presented, current


class TaskTakenError(ConflictError):
    """The task is held by another agent or claimer."""

    text = "task {0} is held by {1}; assign another task"

    def __init__(self, task_id: str, holder: str) -> None:
        super().__init__(task_id, holder)
        self.task_id, self.holder = task_id, holder


class ConflictRetriesExhausted(ConflictError):
    """Every retry met another writer; `changes` holds what was to be written."""

    text = "{0}: gave up after {1} conflicts; the local changes are kept in .changes, submit them again"

    def __init__(self, subject: str, attempts: int, changes: Any = None) -> None:
        super().__init__(subject, attempts, changes)
        self.subject, self.attempts, self.changes = subject, attempts, changes


class InvalidTransitionError(RejectedError):
    """The transition table has no edge for this event from this state."""

    text = "{0}: event {2!r} is not allowed in state {1!r}; see the transition table"

    def __init__(self, subject: str, state: str, event: str) -> None:
        super().__init__(subject, state, event)
        self.subject, self.state, self.event = subject, state, event


class UnknownEventError(RejectedError):
    """The lifecycle declares no such event."""

    text = "unknown event {0!r}; this lifecycle knows {1}"

    def __init__(self, event: str, known: str) -> None:
        super().__init__(event, known)
        self.event, self.known = event, known


class UnknownStateError(RejectedError):
    """The lifecycle declares no such state."""

    text = "unknown state {0!r}; this lifecycle knows {1}"

    def __init__(self, state: str, known: str) -> None:
        super().__init__(state, known)
        self.state, self.known = state, known


class LifecycleError(RejectedError):
    """A declared lifecycle contradicts itself; the text says where."""


class AgentNotFoundError(RejectedError):
    """No agent of this id is registered in the namespace."""

    text = "agent {0!r} is not registered; register it first"

    def __init__(self, agent_id: str) -> None:
        super().__init__(agent_id)
        self.agent_id = agent_id


class TaskNotFoundError(RejectedError):
    """The queue knows no task of this id (finished tasks are forgotten after a while)."""

    text = "task {0!r} is not in the queue; enqueue it first"

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self.task_id = task_id


class TaskExistsError(RejectedError):
    """The id is taken by a task with other properties, or by one that has ended."""

    text = "task {0!r} exists already ({1}); use another id"

    def __init__(self, task_id: str, status: str) -> None:
        super().__init__(task_id, status)
        self.task_id, self.status = task_id, status


class RunNotFoundError(RejectedError):
    """The namespace has no run of this id."""

    text = "run {0!r} does not exist in this namespace; check the id"

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


class IdempotencyError(RejectedError):
    """The idempotency key stands for a run of another name or payload."""

    text = "idempotency key {0!r} is taken by run {1} with another name or payload; use another key"

    def __init__(self, key: str, run_id: str) -> None:
        super().__init__(key, run_id)
        self.key, self.run_id = key, run_id


class InvalidIdError(RejectedError):
    """An id has characters or a length that ids must not have."""

    text = "{0} {1!r} is not an id; use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter or digit"

    def __init__(self, kind: str, value: str) -> None:
        super().__init__(kind, value)
        self.kind, self.value = kind, value


class InvalidAgentIdError(InvalidIdError):
    """An agent id has characters or a length that ids must not have."""


class InvalidInputError(RejectedError):
    """A value has the wrong type or range; the text says which and what is allowed."""


class UnguardedEventError(RejectedError):
    """A message's event could be applied twice: nothing in it would refuse its duplicate."""

    text = "event {1!r} for {0} carries neither expected_version nor epoch with task_id; add one, or use send_event"

    def __init__(self, subject: str, event: str) -> None:
        super().__init__(subject, event)
        self.subject, self.event = subject, event


class LimitExceededError(RejectedError):
    """Something is larger than its limit; nothing was written."""

    text = "{0} is {1}, the limit is {2}; {3}"

    def __init__(self, what: str, actual: int, limit: int, advice: str) -> None:
        super().__init__(what, actual, limit, advice)
        self.what, self.actual, self.limit, self.advice = what, actual, limit, advice


class CorruptDocumentError(RejectedError):
    """Stored bytes are not what Statecore writes; nothing is changed until they are recovered."""

    text = "{0} is corrupt: {1}; recover it before writing"

    def __init__(self, subject: str, detail: str) -> None:
        super().__init__(subject, detail)
        self.subject, self.detail = subject, detail


class StreamGapError(RejectedError):
    """The events after this position were trimmed, so a reader would miss some."""

    text = "events after {0} up to {1} are no longer in the stream; read on from {1} and treat the rest as lost"

    def __init__(self, after: str, first: str) -> None:
        super().__init__(after, first)
        self.after, self.first = after, first


class StoreUnavailableError(StoreError):
    """The server can't be reached, and nothing was sent to it."""


class StoreTimeoutError(StoreError):
    """The server did not answer a read in time."""


class UnknownOutcomeError(StoreError):
    """The request was sent but its answer was lost: it may or may not have happened. Repeat it with this op_id."""

    text = "the answer to {0} was lost ({2}); repeat it with op_id={1!r} to learn what happened"

    def __init__(self, operation: str, op_id: str, cause: str) -> None:
        super().__init__(operation, op_id, cause)
        self.operation, self.op_id, self.cause = operation, op_id, cause


class EventBacklogError(StoreError):
    """The event stream is full because its archive is behind; nothing was written."""


class EvictionPolicyError(SettingsError):
    """The Redis server may drop keys at will."""

    text = (
        "Redis runs maxmemory-policy {0!r} and could drop agents' state; "
        "set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
    )

    def __init__(self, policy: str) -> None:
        super().__init__(policy)
        self.policy = policy


class SchemaOutdatedError(SettingsError):
    """The database's schema is not the one this version needs."""

    text = "the database schema is at {0}, this version needs {1}; run: statecore migrate"

    def __init__(self, found: str, needed: str) -> None:
        super().__init__(found, needed)
        self.found, self.needed = found, needed


class SchemaUnknownError(SettingsError):
    """The database's schema was made by a newer version."""

    text = "the database schema is at {0}, which this version does not know (it needs {1}); upgrade statecore"

    def __init__(self, found: str, needed: str) -> None:
        super().__init__(found, needed)
        self.found, self.needed = found, needed
