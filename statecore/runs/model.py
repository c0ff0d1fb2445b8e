"""What a run is, and what came of an attempt to change it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMED_OUT = "timedOut"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Submission:
    """A run before it is one, checked and ready for a store. `payload` is JSON text that no store looks into."""

    run_id: str
    name: str
    payload: str
    op_id: str
    queue: str = "runs"
    priority: int = 0
    labels: tuple[str, ...] = ()
    max_attempts: int = 3
    lease_s: float = 60.0
    queue_timeout_s: float | None = None
    run_timeout_s: float | None = None
    start_at: datetime | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A run at one moment. `attempt` is its fence: 0 before the first claim, and it only rises."""

    run_id: str
    name: str
    status: RunStatus
    payload: Any
    queue: str
    priority: int
    labels: tuple[str, ...]
    attempt: int
    max_attempts: int
    lease_s: float
    run_timeout_s: float | None
    executor: str | None
    lease_expires_at: datetime | None
    available_at: datetime
    queue_deadline: datetime | None
    run_deadline: datetime | None
    cancel_deadline: datetime | None
    cancel_reason: str | None
    idempotency_key: str | None
    result: Any
    error: Any
    attempt_errors: tuple[Any, ...]
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class OutcomeKind(StrEnum):
    APPLIED = "applied"
    NOOP = "noop"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A race as a value. `lost_to` is the status that was faster; `fenced`: the lease is somebody else's now."""

    kind: OutcomeKind
    run: Run
    lost_to: RunStatus | None = None
    fenced: bool = False
    repeated: bool = field(default=False, compare=False)

    @property
    def applied(self) -> bool:
        """True if this change, or an earlier one under its op_id, is what happened."""
        return self.kind is OutcomeKind.APPLIED


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One line of a run's story, written in the transaction of its change."""

    id: int
    run_id: str
    at: datetime
    kind: str
    actor: str
    op_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    data: Any
