"""The agents' state in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from statecore.agents.memory_agents import MemoryAgent, MemoryAgents, view_fields
from statecore.agents.model import AgentRecord, AgentView, EventOutcome, EventRequest, OutcomeCode
from statecore.agents.store import Applied, Written
from statecore.agents.transitions import TaskEffect
from statecore.events import EventDraft


class MemoryAgentStore:
    """See `AgentStore`."""

    def __init__(self, agents: MemoryAgents) -> None:
        self._all = agents
        self._lock = agents.space.lock

    def register(self, agent_id: str, capabilities: Sequence[str], metadata: str, op_id: str) -> Written:
        with self._lock:
            wanted = tuple(sorted(set(capabilities)))
            known = self._all.agents.get(agent_id)
            if known is not None:
                first = self._all.answered(known, EventRequest(agent_id, "register", op_id))
                if first is not None:
                    return self._written(first)
            data = {"capabilities": list(wanted), "metadata": json.loads(metadata)}
            if known is None:
                return self._written(self._register_new(agent_id, wanted, metadata, op_id, data))
            table, text = self._all.lifecycle, json.dumps(data)
            if known.view.state in table.watched:
                self._all.apply(EventRequest(agent_id, table.lost_event, f"{op_id}.lost", data=text))
            known.capabilities, known.metadata = wanted, metadata
            known.registered_ms = self._all.space.clock.now_ms()
            return self._written(self._all.apply(EventRequest(agent_id, table.return_event, op_id, data=text)))

    def deregister(self, agent_id: str, op_id: str) -> bool:
        with self._lock:
            if self._all.gone.get(agent_id) == op_id and agent_id not in self._all.agents:
                return False
            agent = self._all.find(agent_id)
            self._all.drop_task(agent, TaskEffect.PUT_BACK, op_id, count_attempt=False)
            del self._all.agents[agent_id]
            self._all.gone[agent_id] = op_id
            draft = EventDraft(
                "agent:deregistered",
                agent_id,
                op_id,
                view_fields(agent.view),
                None,
                {"inbox_dropped": len(agent.inbox)},
            )
            self._all.space.append(draft, self._all.space.clock.now_ms())
            self._all.space.keep_fences_above(agent.view.epoch)
            return self._all.wake()

    def get(self, agent_id: str) -> AgentRecord:
        with self._lock:
            return self._all.record(self._all.find(agent_id))

    def list(self, after: str, limit: int) -> list[AgentRecord]:
        with self._lock:
            ids = sorted(agent_id for agent_id in self._all.agents if agent_id > after)
            return [self._all.record(self._all.agents[agent_id]) for agent_id in ids[:limit]]

    def compare_and_set(self, agent_id: str, expected: str, next_state: str, op_id: str) -> Written:
        def change(agent: MemoryAgent, request: EventRequest) -> EventOutcome:
            before = agent.view
            if before.state != expected:
                return EventOutcome(request, OutcomeCode.CONFLICT, before, expected, before.state)
            self._all.move(agent, replace(before, state=next_state, version=before.version + 1))
            self._all.emit("agent:state_set", agent, op_id, before, None)
            return EventOutcome(request, OutcomeCode.APPLIED, agent.view)

        return self._change_one(EventRequest(agent_id, "state_set", op_id), change)

    def apply_event(self, request: EventRequest) -> Written:
        with self._lock:
            return self._written(self._all.apply(request))

    def apply_events(self, requests: Sequence[EventRequest]) -> Applied:
        with self._lock:
            return Applied(tuple(map(self._all.apply, requests)), self._all.wake())

    def clear_current_task(self, agent_id: str, op_id: str) -> Written:
        def change(agent: MemoryAgent, request: EventRequest) -> EventOutcome:
            before = agent.view
            self._all.drop_task(agent, TaskEffect.PUT_BACK, op_id, count_attempt=False)
            self._all.move(agent, replace(before, version=before.version + 1, task_id=None, task_priority=0))
            self._all.emit("agent:task_cleared", agent, op_id, before, None)
            return EventOutcome(request, OutcomeCode.APPLIED, agent.view)

        return self._change_one(EventRequest(agent_id, "task_cleared", op_id), change)

    def _register_new(
        self, agent_id: str, capabilities: tuple[str, ...], metadata: str, op_id: str, data: Any
    ) -> EventOutcome:
        now_ms = self._all.space.clock.now_ms()
        view = AgentView(self._all.lifecycle.initial, 1, self._all.space.next_fence())
        beat_ms = now_ms if view.state in self._all.lifecycle.watched else None
        agent = MemoryAgent(agent_id, view, capabilities, metadata, now_ms, beat_ms, now_ms)
        self._all.agents[agent_id] = agent
        self._all.emit("agent:registered", agent, op_id, None, data)
        outcome = EventOutcome(EventRequest(agent_id, "register", op_id), OutcomeCode.APPLIED, view)
        self._all.remember(agent, op_id, outcome)
        return outcome

    def _change_one(
        self, request: EventRequest, change: Callable[[MemoryAgent, EventRequest], EventOutcome]
    ) -> Written:
        with self._lock:
            agent = self._all.find(request.agent_id)
            first = self._all.answered(agent, request)
            if first is not None:
                return self._written(first)
            outcome = change(agent, request)
            self._all.remember(agent, request.op_id, outcome)
            return self._written(outcome)

    def _written(self, outcome: EventOutcome) -> Written:
        error = outcome.error()
        if error is not None:
            raise error
        return Written(self._all.record(self._all.find(outcome.request.agent_id), outcome.view), self._all.wake())


class MemoryRegistrations:
    """See `Registrations`."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def save(self, agent_id: str, capabilities: Sequence[str], metadata: str) -> None:  # noqa: ARG002
        self._ids.add(agent_id)

    def forget(self, agent_id: str) -> None:
        self._ids.discard(agent_id)

    def ids(self) -> list[str]:
        return sorted(self._ids)
