"""What an agent is, what may be asked of it, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from statecore.errors import (
    AgentNotFoundError,
    ConflictError,
    EarlyEventError,
    InvalidTransitionError,
    LeaseLostError,
    StateConflictError,
    StatecoreError,
    TaskExistsError,
    TaskTakenError,
)

MAX_BATCH = 256


class AgentState(StrEnum):
    IDLE = "idle"
    ASSIGNED = "assigned"
    WORKING = "working"
    REPORTING = "reporting"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"


class AgentEvent(StrEnum):
    TASK_ASSIGNED = "task_assigned"
    WORK_STARTED = "work_started"
    OUTPUT_READY = "output_ready"
    OUTPUT_DELIVERED = "output_delivered"
    AGENT_FAILED = "agent_failed"
    DRAIN_REQUESTED = "drain_requested"
    HEARTBEAT_LOST = "heartbeat_lost"
    AGENT_RETURNED = "agent_returned"


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent at one moment. `version` counts its changes; `epoch` is its lease's fence."""

    agent_id: str
    state: str
    version: int
    epoch: int
    current_task_id: str | None
    current_task_priority: int
    capabilities: tuple[str, ...]
    metadata: dict[str, Any]
    registered_at: datetime
    heartbeat_at: datetime | None


@dataclass(frozen=True, slots=True)
class EventRequest:
    """One event for one agent, checked and ready for a store. `data` is JSON text that no store looks into."""

    agent_id: str
    event: str
    op_id: str
    task_id: str | None = None
    priority: int | None = None
    expected_version: int | None = None
    expected_state: str | None = None
    epoch: int | None = None
    data: str = "null"


class OutcomeCode(StrEnum):
    APPLIED = "APPLIED"
    CONFLICT = "CONFLICT"
    EARLY = "EARLY"
    LEASE_LOST = "LEASE_LOST"
    INVALID = "INVALID"
    NOT_FOUND = "NOT_FOUND"
    TASK_TAKEN = "TASK_TAKEN"
    TASK_ENDED = "TASK_ENDED"


@dataclass(frozen=True, slots=True)
class AgentView:
    """The fields of an agent that a transition may change."""

    state: str
    version: int
    epoch: int
    task_id: str | None = None
    task_priority: int = 0


@dataclass(frozen=True, slots=True)
class EventOutcome:
    """What a store did with one request. `wanted` and `found` explain a refusal; `repeated` marks a known op_id."""

    request: EventRequest
    code: OutcomeCode
    view: AgentView | None = None
    wanted: str = ""
    found: str = ""
    repeated: bool = field(default=False, compare=False)

    def error(self) -> StatecoreError | None:
        """The typed error of a refusal, None for an applied event."""
        subject, request = f"agent {self.request.agent_id}", self.request
        match self.code:
            case OutcomeCode.APPLIED:
                return None
            case OutcomeCode.NOT_FOUND:
                return AgentNotFoundError(request.agent_id)
            case OutcomeCode.CONFLICT:
                return StateConflictError(subject, _number(self.wanted), _number(self.found))
            case OutcomeCode.EARLY:
                return EarlyEventError(subject, int(self.wanted), int(self.found))
            case OutcomeCode.LEASE_LOST:
                return LeaseLostError(subject, self.wanted, self.found)
            case OutcomeCode.INVALID:
                return InvalidTransitionError(subject, self.found, request.event)
            case OutcomeCode.TASK_TAKEN:
                return TaskTakenError(self.wanted, self.found)
            case OutcomeCode.TASK_ENDED:
                return TaskExistsError(self.wanted, self.found)

    def answer(self) -> dict[str, Any]:
        """The outcome as the JSON that a Celery task answers with."""
        error = self.error()
        answer: dict[str, Any] = {
            "agent_id": self.request.agent_id,
            "event": self.request.event,
            "op_id": self.request.op_id,
            "outcome": "applied" if error is None else "conflict" if isinstance(error, ConflictError) else "rejected",
            "state": self.view.state if self.view else None,
            "version": self.view.version if self.view else None,
            "epoch": self.view.epoch if self.view else None,
        }
        if error is not None:
            answer |= {"error": type(error).__name__, "message": str(error)}
        return answer


def _number(text: str) -> str | int:
    return int(text) if text.lstrip("-").isdigit() else text
