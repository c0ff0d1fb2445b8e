"""Ids, operation ids and bounded JSON: what may cross the border, checked before anything is written."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from typing import Any

from statecore.errors import InvalidAgentIdError, InvalidIdError, InvalidInputError, LimitExceededError

LARGEST_INT = 2**53
MAX_CAPABILITIES = 32
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def new_op_id() -> str:
    """A fresh operation id; make it once per intent and keep it for every repeat."""
    return str(uuid.uuid4())


def check_op_id(value: str | None) -> str:
    """The operation id itself, or a fresh one for None."""
    return new_op_id() if value is None else check_id("op_id", value)


def check_id(kind: str, value: object) -> str:
    """The value itself if it is an id, else InvalidIdError."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidIdError(kind, _shown(value))
    return value


def check_agent_id(value: object) -> str:
    """The value itself if it may name an agent, else InvalidAgentIdError."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidAgentIdError("agent id", _shown(value))
    return value


def check_int(what: str, value: object, low: int, high: int) -> int:
    """The value itself if it is an integer within [low, high], else InvalidInputError."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInputError(f"{what} is {_shown(value)}; it must be an integer from {low} to {high}")
    return value


def check_capabilities(value: Iterable[str]) -> tuple[str, ...]:
    """The capabilities as sorted ids; InvalidInputError, InvalidIdError or LimitExceededError."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInputError("capabilities must be a list of ids")
    wanted = tuple(sorted({check_id("capability", capability) for capability in value}))
    if len(wanted) > MAX_CAPABILITIES:
        raise LimitExceededError("the number of capabilities", len(wanted), MAX_CAPABILITIES, "declare fewer")
    return wanted


def encode_json(what: str, value: Any, limit_bytes: int) -> str:
    """Compact JSON of the value; InvalidInputError if it is not JSON, LimitExceededError if it is too long."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{what} is not JSON: {error}") from None
    if "\\u0000" in text.replace("\\\\", ""):
        raise InvalidInputError(f"{what} has a NUL character, which Postgres does not keep; leave it out")
    if size > limit_bytes:
        raise LimitExceededError(f"{what} in bytes", size, limit_bytes, "store the body elsewhere and pass a reference")
    return text


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 160 else text[:157] + "..."
