"""The file store's document: ledger, last fence and last events as one JSON text.

It is laid out with one row per line, so that a handle decodes and encodes only the rows that changed since it
last looked; to any other reader it is plain JSON.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any, Generic, TypeVar

from statecore.claims.index import Answer, Entry
from statecore.claims.ledger import Grant, Ledger
from statecore.claims.model import Task, TaskStatus
from statecore.clock import as_datetime
from statecore.errors import LeaseLostError
from statecore.events import Event, EventDraft

SCHEMA = 1
EVENTS_KEPT = 1000

V = TypeVar("V")


_SEPARATORS = (',"tasks":[\n', '\n],"grants":[\n', '\n],"events":[\n', "\n]}\n")


class Document:
    """One consistent state of the queue with its audit: the ledger, and the events as lines."""

    def __init__(self, ledger: Ledger, fence: int, last_event: int = 0, events: Iterable[str] = ()) -> None:
        self.ledger = ledger
        self.fence = fence
        self.last_event = last_event
        self.event_lines = deque(events, EVENTS_KEPT)

    def next_fence(self) -> int:
        """A fence above every earlier one."""
        self.fence += 1
        return self.fence

    def append(self, drafts: Iterable[EventDraft], now_ms: int) -> None:
        """Add events at the end; beyond the limit the oldest go."""
        for draft in drafts:
            self.last_event += 1
            stamp = {"id": self.last_event, "at_ms": now_ms, "actor": f"pid:{os.getpid()}"}
            self.event_lines.append(_compact(stamp | asdict(draft)))

    def events(self) -> list[Event]:
        """The events kept, oldest first."""
        return [_load_event(json.loads(line)) for line in self.event_lines]


class Layout:
    """Documents from text and to text; an unchanged document gives the text it came from."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tasks = Rows(_dump_entry, _load_entry)
        self._grants = Rows(_dump_grant, _load_grant)

    def load(self, text: str) -> Document:
        """The document in the text; ValueError, TypeError, AttributeError or LookupError if it is not one."""
        start, tasks, grants, events = _split(text)
        head = json.loads(start + "}")
        if head["schema"] != SCHEMA:
            raise ValueError(f"its schema is {head['schema']!r}, this version reads {SCHEMA}")
        ledger = Ledger(
            self._limit, int(head["places"]), self._tasks.load(_rows(tasks)), self._grants.load(_rows(grants))
        )
        return Document(ledger, int(head["fence"]), int(head["last_event"]), _rows(events))

    def dump(self, document: Document) -> str:
        """The whole document as text."""
        head = {
            "schema": SCHEMA,
            "fence": document.fence,
            "places": document.ledger.places,
            "last_event": document.last_event,
        }
        parts = (
            _compact(head)[:-1],
            ",\n".join(self._tasks.dump(document.ledger.entries)),
            ",\n".join(self._grants.dump(document.ledger.grants)),
            ",\n".join(document.event_lines),
        )
        return "".join(part + separator for part, separator in zip(parts, _SEPARATORS, strict=True))


class Rows(Generic[V]):
    """Lines and the immutable values they stand for, each decoded or encoded once while it stays in use."""

    def __init__(self, encode: Callable[[V], dict[str, Any]], decode: Callable[[dict[str, Any]], V]) -> None:
        self._encode, self._decode = encode, decode
        self._values: dict[str, V] = {}

    def load(self, lines: list[str]) -> list[V]:
        """The values of the lines."""
        known = self._values
        values = [known[line] if line in known else self._decode(json.loads(line)) for line in lines]
        self._values = dict(zip(lines, values, strict=True))
        return values

    def dump(self, values: list[V]) -> list[str]:
        """The lines of the values."""
        # By identity: a value is never changed, so the very object that a line gave still has that line.
        known = {id(value): line for line, value in self._values.items()}
        lines = [known.get(id(value)) or _compact(self._encode(value)) for value in values]
        self._values = dict(zip(lines, values, strict=True))
        return lines


def _compact(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _split(text: str) -> list[str]:
    # JSON keeps line ends out of its strings, so a separator can't be part of a value.
    parts = []
    for separator in _SEPARATORS:
        part, found, text = text.partition(separator)
        if not found:
            raise ValueError("it is cut off, or not written by Statecore")
        parts.append(part)
    return parts


def _rows(section: str) -> list[str]:
    return section.split(",\n") if section else []


def _dump_entry(entry: Entry) -> dict[str, Any]:
    operations = {op_id: _dump_answer(answer) for op_id, answer in entry.operations.items()}
    return _dump_task(entry.task) | {
        "deadline_ms": entry.deadline_ms,
        "ended_ms": entry.ended_ms,
        "operations": operations,
    }


def _load_entry(row: dict[str, Any]) -> Entry:
    operations = {op_id: _load_answer(answer) for op_id, answer in row["operations"].items()}
    return Entry(_load_task(row), row["deadline_ms"], row["ended_ms"], operations)


def _dump_grant(grant: Grant) -> dict[str, Any]:
    task = _dump_task(grant.task)
    return {"claimer": grant.claimer, "op_id": grant.op_id, "at_ms": grant.at_ms, "task": task}


def _load_grant(row: dict[str, Any]) -> Grant:
    return Grant(row["claimer"], row["op_id"], row["at_ms"], _load_task(row["task"]))


def _dump_answer(answer: Answer) -> dict[str, Any]:
    return _dump_task(answer) if isinstance(answer, Task) else {"lost": answer.args}


def _load_answer(row: dict[str, Any]) -> Answer:
    return LeaseLostError(*row["lost"]) if "lost" in row else _load_task(row)


def _dump_task(task: Task) -> dict[str, Any]:
    claimed_at = task.claimed_at
    return {
        "task_id": task.task_id,
        "priority": task.priority,
        "place": task.place,
        "capabilities": task.capabilities,
        "status": task.status,
        "attempts": task.attempts,
        "max_attempts": task.max_attempts,
        "claimed_by": task.claimed_by,
        "claimed_at": None if claimed_at is None else claimed_at.isoformat(),
        "fence": task.fence,
    }


def _load_task(row: dict[str, Any]) -> Task:
    claimed_at = row["claimed_at"]
    return Task(
        task_id=row["task_id"],
        priority=row["priority"],
        place=row["place"],
        capabilities=tuple(row["capabilities"]),
        status=TaskStatus(row["status"]),
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        claimed_by=row["claimed_by"],
        claimed_at=None if claimed_at is None else datetime.fromisoformat(claimed_at),
        fence=row["fence"],
    )


def _load_event(row: dict[str, Any]) -> Event:
    return Event(
        id=str(row["id"]),
        at=as_datetime(row["at_ms"]),
        kind=row["kind"],
        subject=row["subject"],
        actor=row["actor"],
        op_id=row["op_id"],
        before=row["before"],
        after=row["after"],
        data=row["data"],
    )
