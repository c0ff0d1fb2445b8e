"""The ports of the agents' state: every method is one atom, and every change appends its event in it.

Arguments are checked by the service; a store may rely on them. A repeat of an `op_id` gets the first answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from statecore.agents.model import AgentRecord, EventOutcome, EventRequest


@dataclass(frozen=True, slots=True)
class Applied:
    """Outcomes in the order of their requests; `wake` says that a task and an idle agent wait for each other."""

    outcomes: tuple[EventOutcome, ...]
    wake: bool


@dataclass(frozen=True, slots=True)
class Written:
    """An agent after a change of one agent, and whether a supervisor has something to do now."""

    record: AgentRecord
    wake: bool


@dataclass(frozen=True, slots=True)
class Drained:
    """What one look into an inbox did; `waiting` events are still in it."""

    outcomes: tuple[EventOutcome, ...]
    waiting: int
    wake: bool


@dataclass(frozen=True, slots=True)
class HeartbeatCheck:
    """Agents that one sweep began to suspect, and those that it gave up."""

    suspected: tuple[str, ...]
    lost: tuple[str, ...]
    wake: bool


class AgentStore(Protocol):
    """Agents' state."""

    def register(self, agent_id: str, capabilities: Sequence[str], metadata: str, op_id: str) -> Written:
        """The agent is idle under a new epoch; if it was there before, its task is queued again."""
        ...

    def deregister(self, agent_id: str, op_id: str) -> bool:
        """The agent is gone and its task queued again; True if a supervisor can act. AgentNotFoundError."""
        ...

    def get(self, agent_id: str) -> AgentRecord:
        """The agent as it stands; AgentNotFoundError."""
        ...

    def list(self, after: str, limit: int) -> list[AgentRecord]:
        """Up to `limit` agents with ids above `after`, in the order of their ids."""
        ...

    def compare_and_set(self, agent_id: str, expected: str, next_state: str, op_id: str) -> Written:
        """The state is `next_state` if it was `expected`; StateConflictError, AgentNotFoundError."""
        ...

    def apply_event(self, request: EventRequest) -> Written:
        """The event is applied; the outcome's error is raised if it was refused."""
        ...

    def apply_events(self, requests: Sequence[EventRequest]) -> Applied:
        """The events are applied in their order, with an outcome each."""
        ...

    def clear_current_task(self, agent_id: str, op_id: str) -> Written:
        """The agent has no task, and the task waits at its place again; AgentNotFoundError."""
        ...


class InboxStore(Protocol):
    """Events that wait for their agent, in the order in which they were sent."""

    def append(self, requests: Sequence[EventRequest]) -> list[str]:
        """All of them wait now, or none; the agents that must be rung for. AgentNotFoundError, LimitExceededError."""
        ...

    def drain(self, agent_id: str, limit: int) -> Drained:
        """Up to `limit` waiting events are applied in order and gone from the inbox."""
        ...

    def due(self, older_than_s: float, limit: int) -> list[str]:
        """Agents whose inbox has waited that long, each named once per that time."""
        ...


class HeartbeatStore(Protocol):
    """Who lives."""

    def beat(self, beats: Sequence[tuple[str, int]]) -> list[EventOutcome]:
        """Note that these (agent, epoch) live; outcomes of those that were refused."""
        ...

    def check(self, lost_after_s: float, limit: int) -> HeartbeatCheck:
        """Suspect agents silent for half that time, lose those silent for all of it, once each."""
        ...


class Registrations(Protocol):
    """The durable list of who was registered; it outlives the live state."""

    def save(self, agent_id: str, capabilities: Sequence[str], metadata: str) -> None:
        """The registration is on record."""
        ...

    def forget(self, agent_id: str) -> None:
        """The registration is off the record; fine if there was none."""
        ...

    def ids(self) -> list[str]:
        """Every registered agent, in the order of the ids."""
        ...
