"""How agents' requests, answers and tables travel to the scripts and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from statecore.agents.model import AgentRecord, AgentView, EventOutcome, EventRequest, OutcomeCode
from statecore.agents.transitions import Lifecycle
from statecore.clock import as_datetime
from statecore.errors import CorruptDocumentError

SEPARATOR = "\x1f"


def encode_lifecycle(lifecycle: Lifecycle, events: Iterable[str]) -> list[str]:
    """The script arguments that carry the table: states with a role, and the rows of these events."""
    args = [_bars(lifecycle.watched), _bars(lifecycle.assignable)]
    rows: list[str] = []
    names = dict.fromkeys(events)
    for name in names:
        rule = lifecycle.rules[name]
        edges = _bars(f"{source}={target}" for source, target in rule.edges.items())
        rows += [name, rule.task, "1" if rule.raises_epoch else "0", edges]
    return [*args, str(len(names)), *rows]


def encode_request(request: EventRequest) -> list[str]:
    """The nine fields of a request, '' for what it leaves open."""
    optional = (
        request.task_id,
        request.priority,
        request.expected_version,
        request.expected_state,
        request.epoch,
    )
    return [
        request.agent_id,
        request.event,
        request.op_id,
        *("" if value is None else str(value) for value in optional),
        request.data,
    ]


def pack_request(request: EventRequest) -> str:
    """A request as one inbox entry; ids and JSON text never contain the separator."""
    return SEPARATOR.join(encode_request(request))


def decode_outcome(request: EventRequest, row: Sequence[str]) -> EventOutcome:
    """A script's answer to the request."""
    repeated, code, *rest = row
    if not rest:
        return EventOutcome(request, OutcomeCode(code))
    wanted, found, state, version, epoch, task, priority = rest
    view = AgentView(state, int(version), int(epoch), task or None, int(priority))
    return EventOutcome(request, OutcomeCode(code), view, wanted, found, repeated == "1")


def decode_record(row: Sequence[Any]) -> AgentRecord:
    """A script's record row; CorruptDocumentError if its fields are not what we write."""
    agent_id, state, version, epoch, task, priority, capabilities, metadata, registered_at, beat_at = row
    try:
        return AgentRecord(
            agent_id=agent_id,
            state=state,
            version=int(version),
            epoch=int(epoch),
            current_task_id=task or None,
            current_task_priority=int(priority),
            capabilities=tuple(capabilities.split(",")) if capabilities else (),
            metadata=json.loads(metadata),
            registered_at=as_datetime(int(registered_at)),
            heartbeat_at=as_datetime(int(float(beat_at))) if beat_at else None,
        )
    except (TypeError, ValueError) as error:
        raise CorruptDocumentError(f"agent {agent_id}", str(error)) from error


def join_capabilities(capabilities: Iterable[str]) -> str:
    """Capabilities as one canonical text."""
    return ",".join(sorted(set(capabilities)))


def _bars(items: Iterable[str]) -> str:
    return "|" + "".join(f"{item}|" for item in items)
