"""Agents in Redis: each method is one script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from statecore.agents.model import AgentRecord, EventOutcome, EventRequest
from statecore.agents.redis_codec import (
    decode_outcome,
    decode_record,
    encode_lifecycle,
    encode_request,
    join_capabilities,
    pack_request,
)
from statecore.agents.store import Applied, Drained, HeartbeatCheck, Written
from statecore.agents.transitions import AGENT_LIFECYCLE, Lifecycle
from statecore.backends.redis_namespace import RedisNamespace
from statecore.errors import AgentNotFoundError, LimitExceededError


class RedisAgentStore:
    """See `AgentStore`."""

    def __init__(self, space: RedisNamespace, lifecycle: Lifecycle = AGENT_LIFECYCLE) -> None:
        self._space = space
        self._lifecycle = lifecycle
        self._no_rules = encode_lifecycle(lifecycle, ())

    def register(self, agent_id: str, capabilities: Sequence[str], metadata: str, op_id: str) -> Written:
        table = self._lifecycle
        joined = join_capabilities(capabilities)
        data = f'{{"capabilities":{json.dumps(joined.split(",") if joined else [])},"metadata":{metadata}}}'
        args = [
            *encode_lifecycle(table, (table.lost_event, table.return_event)),
            *(agent_id, op_id, joined, metadata, data, table.initial, table.lost_event, table.return_event),
        ]
        return self._written("agents/register", EventRequest(agent_id, "register", op_id), args)

    def deregister(self, agent_id: str, op_id: str) -> bool:
        code, wake = self._space.run("agents/deregister", [*self._no_rules, agent_id, op_id], op_id)
        if code == "NOT_FOUND":
            raise AgentNotFoundError(agent_id)
        return bool(wake == "1")

    def get(self, agent_id: str) -> AgentRecord:
        _, row = self._space.run("agents/get", [*self._no_rules, agent_id])
        if not row:
            raise AgentNotFoundError(agent_id)
        return decode_record(row)

    def list(self, after: str, limit: int) -> list[AgentRecord]:
        _, rows = self._space.run("agents/list", [*self._no_rules, after, limit])
        return [decode_record(row) for row in rows if row]

    def compare_and_set(self, agent_id: str, expected: str, next_state: str, op_id: str) -> Written:
        request = EventRequest(agent_id, "state_set", op_id)
        args = [*self._no_rules, agent_id, op_id, expected, next_state]
        return self._written("agents/compare_and_set", request, args)

    def apply_event(self, request: EventRequest) -> Written:
        args = [*encode_lifecycle(self._lifecycle, (request.event,)), *encode_request(request)]
        return self._written("agents/apply_event", request, args)

    def apply_events(self, requests: Sequence[EventRequest]) -> Applied:
        if not requests:
            return Applied((), wake=False)
        args = encode_lifecycle(self._lifecycle, (request.event for request in requests))
        for request in requests:
            args += encode_request(request)
        _, (wake, *rows) = self._space.run("agents/apply_events", args, requests[0].op_id)
        return Applied(tuple(map(decode_outcome, requests, rows)), wake == "1")

    def clear_current_task(self, agent_id: str, op_id: str) -> Written:
        request = EventRequest(agent_id, "task_cleared", op_id)
        return self._written("agents/clear_task", request, [*self._no_rules, agent_id, op_id])

    def _written(self, script: str, request: EventRequest, args: Sequence[Any]) -> Written:
        _, (wake, row, record_row) = self._space.run(script, args, request.op_id)
        outcome = decode_outcome(request, row)
        error = outcome.error()
        if error is not None:
            raise error
        record = decode_record(record_row)
        if outcome.view is not None and outcome.repeated:
            view = outcome.view
            record = replace(
                record,
                state=view.state,
                version=view.version,
                epoch=view.epoch,
                current_task_id=view.task_id,
                current_task_priority=view.task_priority,
            )
        return Written(record, wake == "1")


class RedisInboxStore:
    """See `InboxStore`."""

    def __init__(
        self,
        space: RedisNamespace,
        lifecycle: Lifecycle = AGENT_LIFECYCLE,
        *,
        limit: int,
        early_wait_s: float,
    ) -> None:
        self._space = space
        self._limit = limit
        self._early_wait_ms = round(early_wait_s * 1000)
        self._no_rules = encode_lifecycle(lifecycle, ())
        self._all_rules = encode_lifecycle(lifecycle, lifecycle.rules)

    def append(self, requests: Sequence[EventRequest]) -> list[str]:
        args: list[Any] = [*self._no_rules, self._limit]
        for request in requests:
            args += [request.agent_id, request.op_id, pack_request(request)]
        code, payload = self._space.run("agents/send_events", args, requests[0].op_id)
        if code == "NOT_FOUND":
            raise AgentNotFoundError(payload)
        if code == "FULL":
            agent_id, length = payload
            raise LimitExceededError(
                f"the inbox of agent {agent_id}",
                int(length),
                self._limit,
                "wait until workers have drained it",
            )
        return list(payload)

    def drain(self, agent_id: str, limit: int) -> Drained:
        # Every event in the inbox has its own op_id, so a drain whose answer is lost is simply repeated.
        args = [*self._all_rules, agent_id, limit, self._early_wait_ms]
        _, (wake, waiting, *rows) = self._space.run("agents/drain_inbox", args)
        outcomes = tuple(decode_outcome(EventRequest(agent_id, event, op_id), answer) for op_id, event, *answer in rows)
        return Drained(outcomes, int(waiting), wake == "1")

    def due(self, older_than_s: float, limit: int) -> list[str]:
        _, ids = self._space.run("agents/due_inboxes", [round(older_than_s * 1000), limit])
        return list(ids)


class RedisHeartbeatStore:
    """See `HeartbeatStore`."""

    def __init__(self, space: RedisNamespace, lifecycle: Lifecycle = AGENT_LIFECYCLE) -> None:
        self._space = space
        self._lifecycle = lifecycle
        self._no_rules = encode_lifecycle(lifecycle, ())

    def beat(self, beats: Sequence[tuple[str, int]]) -> list[EventOutcome]:
        args = [*self._no_rules, *(field for beat in beats for field in beat)]
        _, rows = self._space.run("agents/heartbeat", args)
        return [decode_outcome(EventRequest(agent_id, "heartbeat", ""), answer) for agent_id, *answer in rows]

    def check(self, lost_after_s: float, limit: int) -> HeartbeatCheck:
        lost_event = self._lifecycle.lost_event
        args = [
            *encode_lifecycle(self._lifecycle, (lost_event,)),
            round(lost_after_s * 1000),
            limit,
            lost_event,
        ]
        _, (wake, suspected, lost) = self._space.run("agents/check_heartbeats", args)
        return HeartbeatCheck(tuple(suspected), tuple(lost), wake == "1")
