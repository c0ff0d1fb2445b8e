"""Assigning in Redis: one script picks the pair and applies the event."""

from __future__ import annotations

from statecore.agents.redis_codec import encode_lifecycle
from statecore.agents.transitions import AGENT_LIFECYCLE, Lifecycle
from statecore.backends.redis_namespace import RedisNamespace
from statecore.supervisor.store import Assignment


class RedisAssignStore:
    """See `AssignStore`."""

    def __init__(self, space: RedisNamespace, lifecycle: Lifecycle = AGENT_LIFECYCLE) -> None:
        self._space = space
        self._event = lifecycle.assign_event
        self._rules = encode_lifecycle(lifecycle, (lifecycle.assign_event,))

    def assign_next(self, op_id: str) -> Assignment | None:
        code, payload = self._space.run("supervisor/assign_next", [*self._rules, op_id, self._event], op_id)
        if code == "NONE":
            return None
        task_id, agent_id, epoch, fence, priority = payload
        return Assignment(task_id, agent_id, int(epoch), int(fence), int(priority))
