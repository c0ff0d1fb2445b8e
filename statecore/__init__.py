"""Statecore: compare-and-set state for fleets of agents, on the Celery, Redis and Postgres you already run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statecore.agents.transitions import EventRule, Lifecycle, TaskEffect
    from statecore.core import Statecore
    from statecore.settings import Settings

__all__ = ["EventRule", "Lifecycle", "Settings", "Statecore", "TaskEffect"]

# Resolved on first use: a process that only claims from a file must not pay for database and broker clients.
_HOMES = {
    "EventRule": "statecore.agents.transitions",
    "Lifecycle": "statecore.agents.transitions",
    "Settings": "statecore.settings",
    "Statecore": "statecore.core",
    "TaskEffect": "statecore.agents.transitions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
