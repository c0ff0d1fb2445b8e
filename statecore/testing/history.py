"""Histories: what clients asked and were told, in an order that a checker can judge later.

Each operation is invoked once and completes as `ok`, `fail` (it surely did not happen) or `info` (nobody knows). One
lock gives every entry its place, so "completed before the other was invoked" can be read off the indexes.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from statecore.errors import ConflictError, RejectedError, StoreUnavailableError


class Phase(StrEnum):
    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a history. `value` is the argument at the invocation and the answer, or the error, at its end."""

    index: int
    process: str
    phase: Phase
    operation: str
    key: str
    value: Any
    at_ns: int


@dataclass
class Call:
    """An operation under way; give it its answer."""

    answer: Any = None


class History:
    """A growing history, safe to write from many threads."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._lock = threading.Lock()

    @contextmanager
    def operation(self, process: str, operation: str, key: str, argument: Any = None) -> Iterator[Call]:
        """Record the body as one operation: its answer as ok, a refusal as fail, anything else as info."""
        self._add(process, Phase.INVOKE, operation, key, argument)
        call = Call()
        try:
            yield call
        except (ConflictError, RejectedError, StoreUnavailableError) as error:
            self._add(process, Phase.FAIL, operation, key, type(error).__name__)
            raise
        except BaseException as error:
            self._add(process, Phase.INFO, operation, key, type(error).__name__)
            raise
        self._add(process, Phase.OK, operation, key, call.answer)

    def entries(self) -> list[Entry]:
        """A copy of what was recorded so far."""
        with self._lock:
            return list(self._entries)

    def save(self, path: Path) -> None:
        """Write the history as JSON lines."""
        path.write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in self.entries()))

    def _add(self, process: str, phase: Phase, operation: str, key: str, value: Any) -> None:
        with self._lock:
            self._entries.append(Entry(len(self._entries), process, phase, operation, key, value, time.monotonic_ns()))


def load_history(path: Path) -> list[Entry]:
    """A history that `save` wrote."""
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return [Entry(**(row | {"phase": Phase(row["phase"])})) for row in rows]


def pair_up(entries: Iterable[Entry]) -> list[tuple[Entry, Entry | None]]:
    """Each invocation with its completion; None stays open for ever, as does one that ended in `info`."""
    open_calls: dict[str, int] = {}
    pairs: list[tuple[Entry, Entry | None]] = []
    for entry in entries:
        if entry.phase is Phase.INVOKE:
            open_calls[entry.process] = len(pairs)
            pairs.append((entry, None))
        else:
            place = open_calls.pop(entry.process)
            pairs[place] = (pairs[place][0], None if entry.phase is Phase.INFO else entry)
    return pairs
