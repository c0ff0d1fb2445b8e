"""A namespace's events in its Redis stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from statecore.backends.redis_namespace import RedisNamespace
from statecore.backends.redis_server import typed_errors
from statecore.clock import as_datetime
from statecore.errors import CorruptDocumentError, InvalidInputError, StreamGapError
from statecore.events import Event
from statecore.ids import encode_json

_ENTRY_ID = re.compile(r"\d{1,20}(-\d{1,20})?")
_PAGE = 1000
_BLOCK_S = 5.0
_DATA_LIMIT = 4096


class RedisEventLog:
    """See `EventLog`."""

    def __init__(self, space: RedisNamespace) -> None:
        self._space = space

    def read(
        self,
        after: str = "0",
        kinds: Sequence[str] | None = None,
        subject: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Event]:
        self._check_gap(after)
        given = 0
        while True:
            page = self._space.ask("XRANGE", self._space.key("events"), f"({after}", "+", "COUNT", _PAGE)
            for entry_id, fields in page:
                after = entry_id
                event = decode_event(entry_id, dict(zip(fields[::2], fields[1::2], strict=True)))
                if event.matches(kinds, subject):
                    yield event
                    given += 1
                    if given == limit:
                        return
            if len(page) < _PAGE:
                return

    def follow(
        self,
        after: str = "$",
        kinds: Sequence[str] | None = None,
        subject: str | None = None,
        idle_s: float | None = None,
    ) -> Iterator[Event]:
        if after == "$":
            after = self._last_id()
        else:
            self._check_gap(after)
        stream = self._space.key("events")
        quiet_s = 0.0
        with self._space.server.blocking_client(_BLOCK_S) as client:
            while idle_s is None or quiet_s < idle_s:
                block_s = _BLOCK_S if idle_s is None else min(_BLOCK_S, max(idle_s - quiet_s, 0.001))
                with typed_errors("XREAD", None):
                    reply: Any = client.xread({stream: after}, count=_PAGE, block=round(block_s * 1000) or 1)
                quiet_s = 0.0 if reply else quiet_s + block_s
                for entry_id, fields in reply[0][1] if reply else ():
                    after = entry_id
                    event = decode_event(entry_id, fields)
                    if event.matches(kinds, subject):
                        yield event

    def record(self, kind: str, subject: str, op_id: str, data: Any) -> str:
        text = encode_json("event data", data, _DATA_LIMIT)
        _, entry_id = self._space.run("backends/record_event", [kind, subject, op_id, text], op_id)
        return str(entry_id)

    def _last_id(self) -> str:
        newest = self._space.ask("XREVRANGE", self._space.key("events"), "+", "-", "COUNT", 1)
        return str(newest[0][0]) if newest else "0-0"

    def _check_gap(self, after: str) -> None:
        """A reader that was at `after` may go on only if that is still in the stream; 0 is "from the oldest"."""
        if not isinstance(after, str) or not _ENTRY_ID.fullmatch(after):
            raise InvalidInputError(f"{str(after)[:64]!r} is no event id; use 0, or the id of an event")
        if after in ("0", "0-0"):
            return
        stream = self._space.key("events")
        oldest = self._space.ask("XRANGE", stream, "-", "+", "COUNT", 1)
        if oldest and _order(after) < _order(oldest[0][0]):
            raise StreamGapError(after, str(oldest[0][0]))


def decode_event(entry_id: str, fields: dict[str, str]) -> Event:
    """An entry of the stream as an event; CorruptDocumentError if it is not one."""
    try:
        return Event(
            id=entry_id,
            at=as_datetime(int(fields["at"])),
            kind=fields["kind"],
            subject=fields["subject"],
            actor=fields["actor"],
            op_id=fields["op_id"],
            before=json.loads(fields["before"]),
            after=json.loads(fields["after"]),
            data=json.loads(fields["data"]),
        )
    except (KeyError, ValueError) as error:
        raise CorruptDocumentError(f"event {entry_id}", repr(error)) from error


def _order(entry_id: str) -> tuple[int, int]:
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)
