"""Inboxes and heartbeats in memory."""

from __future__ import annotations

from collections.abc import Sequence

from statecore.agents.memory_agents import MemoryAgent, MemoryAgents
from statecore.agents.model import EventOutcome, EventRequest, OutcomeCode
from statecore.agents.store import Drained, HeartbeatCheck
from statecore.errors import LimitExceededError
from statecore.events import EventDraft
from statecore.fences import is_current


class MemoryInboxStore:
    """See `InboxStore`."""

    def __init__(self, agents: MemoryAgents, *, limit: int, early_wait_s: float) -> None:
        self._all = agents
        self._limit = limit
        self._early_wait_ms = round(early_wait_s * 1000)

    def append(self, requests: Sequence[EventRequest]) -> list[str]:
        with self._all.space.lock:
            fresh = [request for request in requests if not self._known(request)]
            for agent_id in {request.agent_id for request in fresh}:
                waiting = len(self._all.agents[agent_id].inbox)
                length = waiting + sum(request.agent_id == agent_id for request in fresh)
                if length > self._limit:
                    raise LimitExceededError(
                        f"the inbox of agent {agent_id}",
                        length,
                        self._limit,
                        "wait until workers have drained it",
                    )
            return [request.agent_id for request in fresh if self._push(request)]

    def drain(self, agent_id: str, limit: int) -> Drained:
        with self._all.space.lock:
            agent = self._all.agents.get(agent_id)
            if agent is None or not agent.inbox:
                return Drained((), 0, wake=False)
            now_ms = self._all.space.clock.now_ms()
            taken, agent.inbox = agent.inbox[:limit], agent.inbox[limit:]
            early: list[tuple[int, EventRequest]] = []
            outcomes: list[EventOutcome] = []
            for sent_ms, request in taken:
                outcome = self._all.apply(request)
                if outcome.code is OutcomeCode.EARLY and now_ms - sent_ms < self._early_wait_ms:
                    early.append((sent_ms, request))
                    continue
                if outcome.code not in (OutcomeCode.APPLIED, OutcomeCode.LEASE_LOST) and not outcome.repeated:
                    self._all.audit_refusal(outcome)
                outcomes.append(outcome)
            agent.inbox = early + agent.inbox
            agent.rung_ms = now_ms
            return Drained(tuple(outcomes), len(agent.inbox), self._all.wake())

    def due(self, older_than_s: float, limit: int) -> list[str]:
        with self._all.space.lock:
            now_ms = self._all.space.clock.now_ms()
            waiting = [agent for agent in self._all.agents.values() if agent.inbox]
            due = [agent for agent in waiting if agent.rung_ms <= now_ms - round(older_than_s * 1000)][:limit]
            for agent in due:
                agent.rung_ms = now_ms
            return [agent.agent_id for agent in due]

    def _known(self, request: EventRequest) -> bool:
        agent = self._all.find(request.agent_id)
        sent = any(waiting.op_id == request.op_id for _, waiting in agent.inbox)
        return sent or request.op_id in agent.operations

    def _push(self, request: EventRequest) -> bool:
        agent, now_ms = self._all.agents[request.agent_id], self._all.space.clock.now_ms()
        agent.inbox.append((now_ms, request))
        if len(agent.inbox) == 1:
            agent.rung_ms = now_ms
        return len(agent.inbox) == 1


class MemoryHeartbeatStore:
    """See `HeartbeatStore`."""

    def __init__(self, agents: MemoryAgents) -> None:
        self._all = agents

    def beat(self, beats: Sequence[tuple[str, int]]) -> list[EventOutcome]:
        with self._all.space.lock:
            return [refused for agent_id, epoch in beats if (refused := self._beat(agent_id, epoch)) is not None]

    def check(self, lost_after_s: float, limit: int) -> HeartbeatCheck:
        with self._all.space.lock:
            now_ms, threshold_ms = self._all.space.clock.now_ms(), round(lost_after_s * 1000)
            watched = [(agent, now_ms - agent.beat_ms) for agent in self._all.agents.values() if agent.beat_ms]
            suspected: list[str] = []
            lost: list[str] = []
            for agent, silent_ms in sorted(watched, key=lambda pair: -pair[1]):
                if silent_ms >= threshold_ms and len(lost) < limit:
                    view = agent.view
                    op_id = f"lost.{agent.agent_id}@{view.epoch}"
                    event = self._all.lifecycle.lost_event
                    self._all.apply(EventRequest(agent.agent_id, event, op_id))
                    lost.append(agent.agent_id)
                elif threshold_ms // 2 <= silent_ms < threshold_ms and not agent.suspected:
                    agent.suspected = True
                    suspected.append(agent.agent_id)
                    self._note("agent:suspect", agent)
                elif silent_ms < threshold_ms // 2 and agent.suspected:
                    agent.suspected = False
                    self._note("agent:recovered", agent)
            return HeartbeatCheck(tuple(suspected), tuple(lost), self._all.wake())

    def _beat(self, agent_id: str, epoch: int) -> EventOutcome | None:
        request = EventRequest(agent_id, "heartbeat", "")
        agent = self._all.agents.get(agent_id)
        if agent is None:
            return EventOutcome(request, OutcomeCode.NOT_FOUND)
        if agent.view.epoch != epoch or not is_current(epoch, self._all.space.epoch):
            wanted, found = f"epoch {epoch}", f"epoch {agent.view.epoch}"
            refused = EventOutcome(request, OutcomeCode.LEASE_LOST, agent.view, wanted, found)
            self._all.audit_refusal(refused)
            return refused
        if agent.beat_ms is None:
            return EventOutcome(request, OutcomeCode.INVALID, agent.view, "heartbeat", agent.view.state)
        agent.beat_ms = self._all.space.clock.now_ms()
        return None

    def _note(self, kind: str, agent: MemoryAgent) -> None:
        draft = EventDraft(kind, agent.agent_id, "", None, None, None)
        self._all.space.append(draft, self._all.space.clock.now_ms())
