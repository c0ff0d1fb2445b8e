"""The two-step form: read, validate, compare-and-set. It needs nothing of a store but its primitive."""

from __future__ import annotations

from typing import Protocol

from statecore.agents.model import AgentRecord
from statecore.agents.store import Written
from statecore.agents.transitions import AGENT_LIFECYCLE, Lifecycle
from statecore.errors import InvalidTransitionError
from statecore.ids import check_agent_id, new_op_id


class CasStore(Protocol):
    """What the machine needs of an agent store."""

    def get(self, agent_id: str) -> AgentRecord:
        """The agent as it stands; AgentNotFoundError."""
        ...

    def compare_and_set(self, agent_id: str, expected: str, next_state: str, op_id: str) -> Written:
        """The state is `next_state` if it was `expected`; StateConflictError, AgentNotFoundError."""
        ...


class Machine:
    """Applies events by optimistic locking: whoever changed the agent in between makes it a StateConflictError."""

    def __init__(self, store: CasStore, lifecycle: Lifecycle = AGENT_LIFECYCLE) -> None:
        self._store = store
        self._lifecycle = lifecycle

    def apply_event(self, agent_id: str, event: str, *, op_id: str | None = None) -> AgentRecord:
        """The agent's state follows the event; only the state, see `AgentService.apply_event` for the rest."""
        rule = self._lifecycle.rule(event)
        current = self._store.get(check_agent_id(agent_id)).state
        target = rule.edges.get(current)
        if target is None:
            raise InvalidTransitionError(f"agent {agent_id}", current, event)
        return self._store.compare_and_set(agent_id, current, target, op_id or new_op_id()).record
