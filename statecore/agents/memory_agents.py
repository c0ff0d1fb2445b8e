"""Agents in this process, by the same pure rules: for tests, simulations and programs of one process."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from statecore.agents.model import AgentRecord, AgentView, EventOutcome, EventRequest, OutcomeCode
from statecore.agents.transitions import AGENT_LIFECYCLE, Lifecycle, TaskEffect, advance, refuse
from statecore.backends.memory import MemorySpace
from statecore.clock import as_datetime
from statecore.errors import AgentNotFoundError, TaskExistsError, TaskTakenError
from statecore.events import EventDraft

OPS_KEPT = 32


@dataclass
class MemoryAgent:
    """One agent with all that belongs to it."""

    agent_id: str
    view: AgentView
    capabilities: tuple[str, ...]
    metadata: str
    registered_ms: int
    beat_ms: int | None
    idle_since_ms: int
    suspected: bool = False
    operations: OrderedDict[str, EventOutcome] = field(default_factory=OrderedDict)
    inbox: list[tuple[int, EventRequest]] = field(default_factory=list)
    rung_ms: int = 0


class MemoryAgents:
    """The agents of a memory space, and the one way to apply an event to one of them."""

    def __init__(self, space: MemorySpace, lifecycle: Lifecycle = AGENT_LIFECYCLE) -> None:
        self.space = space
        self.lifecycle = lifecycle
        self.agents: dict[str, MemoryAgent] = {}
        self.gone: dict[str, str] = {}

    def find(self, agent_id: str) -> MemoryAgent:
        """The agent; AgentNotFoundError."""
        try:
            return self.agents[agent_id]
        except KeyError:
            raise AgentNotFoundError(agent_id) from None

    def record(self, agent: MemoryAgent, view: AgentView | None = None) -> AgentRecord:
        """The agent as a record, with the fields of a past answer if one is given."""
        view = view or agent.view
        return AgentRecord(
            agent_id=agent.agent_id,
            state=view.state,
            version=view.version,
            epoch=view.epoch,
            current_task_id=view.task_id,
            current_task_priority=view.task_priority,
            capabilities=agent.capabilities,
            metadata=json.loads(agent.metadata),
            registered_at=as_datetime(agent.registered_ms),
            heartbeat_at=None if agent.beat_ms is None else as_datetime(agent.beat_ms),
        )

    def apply(self, request: EventRequest) -> EventOutcome:
        """Apply one event by the table, its effect on the task and its audit event included."""
        agent = self.agents.get(request.agent_id)
        if agent is None:
            return EventOutcome(request, OutcomeCode.NOT_FOUND)
        known = self.answered(agent, request)
        if known is not None:
            return known
        rule = self.lifecycle.rule(request.event)
        refused = refuse(agent.view, request, rule, self.space.epoch)
        priority = 0
        if refused is None and rule.task is TaskEffect.TAKE:
            refused, priority = self._take(agent, request)
        if refused is not None:
            if refused.code is not OutcomeCode.EARLY:
                self.remember(agent, request.op_id, refused)
            if refused.code is OutcomeCode.LEASE_LOST:
                self.audit_refusal(refused)
            return refused
        if rule.task in (TaskEffect.FINISH, TaskEffect.PUT_BACK):
            self.drop_task(agent, rule.task, request.op_id)
        before = agent.view
        self.move(agent, advance(before, request, rule, self.space.epoch, priority))
        self.emit(f"agent:{request.event}", agent, request.op_id, before, json.loads(request.data))
        outcome = EventOutcome(request, OutcomeCode.APPLIED, agent.view)
        self.remember(agent, request.op_id, outcome)
        return outcome

    def answered(self, agent: MemoryAgent, request: EventRequest) -> EventOutcome | None:
        """The first answer to this operation, None if it is new."""
        known = agent.operations.get(request.op_id)
        return None if known is None else replace(known, request=request, repeated=True)

    def move(self, agent: MemoryAgent, view: AgentView) -> None:
        """Give the agent its new fields; heartbeat and idle time follow the state."""
        now_ms = self.space.clock.now_ms()
        if view.state not in self.lifecycle.watched:
            agent.beat_ms = None
        elif agent.beat_ms is None or view.epoch != agent.view.epoch:
            agent.beat_ms = now_ms
        if agent.beat_ms is None or view.epoch != agent.view.epoch:
            agent.suspected = False
        if view.state != agent.view.state:
            agent.idle_since_ms = now_ms
        agent.view = view

    def drop_task(self, agent: MemoryAgent, effect: TaskEffect, op_id: str, *, count_attempt: bool = True) -> None:
        """End or put back the agent's task in the queue; the agent's own fields are the caller's matter."""
        task_id, now_ms = agent.view.task_id, self.space.clock.now_ms()
        if task_id is None:
            return
        if effect is TaskEffect.FINISH:
            _, events = self.space.ledger.finish(task_id, agent.agent_id, op_id, now_ms)
        else:
            _, events = self.space.ledger.put_back(task_id, agent.agent_id, count_attempt, op_id, now_ms)
        self._append(events)

    def emit(self, kind: str, agent: MemoryAgent, op_id: str, before: AgentView | None, data: Any) -> None:
        """Audit a change that led to the agent's present fields."""
        draft = EventDraft(kind, agent.agent_id, op_id, view_fields(before), view_fields(agent.view), data)
        self._append([draft])

    def audit_refusal(self, outcome: EventOutcome) -> None:
        """Audit an event that was not applied."""
        request = outcome.request
        data = {
            "event": request.event,
            "code": outcome.code.value,
            "wanted": outcome.wanted,
            "found": outcome.found,
        }
        self._append([EventDraft("agent:refused", request.agent_id, request.op_id, None, None, data)])

    def remember(self, agent: MemoryAgent, op_id: str, outcome: EventOutcome) -> None:
        """Keep the answer to this operation among the last ones."""
        agent.operations[op_id] = outcome
        if len(agent.operations) > OPS_KEPT:
            agent.operations.popitem(last=False)

    def idle(self) -> list[MemoryAgent]:
        """Agents that can be given a task, the longest idle first."""
        idle = [agent for agent in self.agents.values() if agent.view.state in self.lifecycle.assignable]
        return sorted(idle, key=lambda agent: (agent.idle_since_ms, agent.agent_id))

    def wake(self) -> bool:
        """True if a task and an idle agent wait."""
        return self.space.ledger.depth() > 0 and bool(self.idle())

    def _take(self, agent: MemoryAgent, request: EventRequest) -> tuple[EventOutcome | None, int]:
        assert request.task_id is not None
        try:
            task, events = self.space.ledger.take(
                request.task_id,
                agent.agent_id,
                request.priority or 0,
                request.op_id,
                self.space.clock.now_ms(),
                self.space.next_fence,
            )
        except TaskTakenError as error:
            return EventOutcome(request, OutcomeCode.TASK_TAKEN, agent.view, error.task_id, error.holder), 0
        except TaskExistsError as error:
            return EventOutcome(request, OutcomeCode.TASK_ENDED, agent.view, error.task_id, error.status), 0
        self._append(events)
        return None, task.priority

    def _append(self, drafts: Sequence[EventDraft]) -> None:
        for draft in drafts:
            self.space.append(draft, self.space.clock.now_ms())


def view_fields(view: AgentView | None) -> dict[str, Any] | None:
    if view is None:
        return None
    return {
        "state": view.state,
        "version": view.version,
        "epoch": view.epoch,
        "task_id": view.task_id,
        "task_priority": view.task_priority,
    }
