"""The demo's producers and executors: who sends events and heartbeats, and an account of what was submitted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

from statecore.agents.model import AgentEvent
from statecore.agents.service import AgentService
from statecore.ids import new_op_id

_BEAT_EVERY_S = 0.4
_CYCLE = (AgentEvent.TASK_ASSIGNED, AgentEvent.WORK_STARTED, AgentEvent.OUTPUT_READY, AgentEvent.OUTPUT_DELIVERED)


class Traffic:
    """Submits events through the agents' inboxes and remembers, per agent, their op_ids in order."""

    def __init__(self, agents: AgentService) -> None:
        self.submitted: dict[str, list[str]] = {}
        self._agents = agents
        self._op_ids: dict[str, float] = {}
        self._alive: dict[str, int] = {}

    def op_ids(self, min_age_s: float = 0.0) -> frozenset[str]:
        """Of everything submitted so far and at least that long ago."""
        latest = time.monotonic() - min_age_s
        return frozenset(op_id for op_id, at in list(self._op_ids.items()) if at <= latest)

    def is_ours(self, op_id: str) -> bool:
        """Whether this account has the op_id."""
        return op_id in self._op_ids

    def submit(self, agent_id: str, event: str, **fields: Any) -> None:
        """The event waits in the agent's inbox; only one thread submits for an agent, so their order is known."""
        op_id = new_op_id()
        # Noted first: the worker may have applied it before send_event has returned.
        self._op_ids[op_id] = time.monotonic()
        self.submitted.setdefault(agent_id, []).append(op_id)
        self._agents.send_event(agent_id, event, op_id=op_id, **fields)

    def keep_alive(self, agent_id: str, epoch: int) -> None:
        """Send heartbeats for the agent from now on."""
        self._alive = self._alive | {agent_id: epoch}

    def fall_silent(self, agent_id: str) -> None:
        """Send no heartbeat for the agent any more."""
        self._alive = {other: epoch for other, epoch in self._alive.items() if other != agent_id}

    def beat(self, stopping: threading.Event) -> None:
        """Send heartbeats for all living agents until told to stop."""
        while not stopping.is_set():
            self._agents.heartbeats(list(self._alive.items()))
            stopping.wait(_BEAT_EVERY_S)


class Drive:
    """One thread's agents, going through their cycle event by event."""

    def __init__(
        self, traffic: Traffic, budgets: Sequence[tuple[str, int]], seconds: float, rng: random.Random
    ) -> None:
        self._traffic = traffic
        self._budgets = budgets
        self._pause_s = seconds / max(budget for _, budget in budgets)
        self._rng = rng
        self.is_done = False

    def run(self, stopping: threading.Event) -> None:
        """Submit everything, or stop when told to."""
        for number in range(max(budget for _, budget in self._budgets)):
            for agent_id, budget in self._budgets:
                if number < budget:
                    self._submit(agent_id, number)
            if stopping.wait(self._pause_s * self._rng.uniform(0.5, 1.5)):
                return
        self.is_done = True

    def _submit(self, agent_id: str, number: int) -> None:
        cycle, step = divmod(number, len(_CYCLE))
        task: dict[str, Any] = {}
        if _CYCLE[step] is AgentEvent.TASK_ASSIGNED:
            task = {"task_id": f"{agent_id}-task-{cycle + 1}", "priority": self._rng.randint(0, 9)}
        self._traffic.submit(agent_id, _CYCLE[step], **task)
