"""Assigning in memory, by the same rules."""

from __future__ import annotations

from collections import OrderedDict

from statecore.agents.memory_agents import OPS_KEPT, MemoryAgents
from statecore.agents.model import EventRequest
from statecore.supervisor.store import Assignment


class MemoryAssignStore:
    """See `AssignStore`."""

    def __init__(self, agents: MemoryAgents) -> None:
        self._all = agents
        self._operations: OrderedDict[str, Assignment] = OrderedDict()

    def assign_next(self, op_id: str) -> Assignment | None:
        with self._all.space.lock:
            if op_id in self._operations:
                return self._operations[op_id]
            ledger = self._all.space.ledger
            for task in ledger.waiting():
                for agent in self._all.idle():
                    if set(task.capabilities) <= set(agent.capabilities):
                        event = self._all.lifecycle.assign_event
                        self._all.apply(EventRequest(agent.agent_id, event, f"{op_id}.assign", task_id=task.task_id))
                        held = ledger.get(task.task_id, self._all.space.clock.now_ms())
                        assert held.fence is not None
                        return self._remember(
                            op_id,
                            Assignment(task.task_id, agent.agent_id, agent.view.epoch, held.fence, held.priority),
                        )
            return None

    def _remember(self, op_id: str, assignment: Assignment) -> Assignment:
        self._operations[op_id] = assignment
        if len(self._operations) > OPS_KEPT:
            self._operations.popitem(last=False)
        return assignment
