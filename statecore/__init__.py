"""Statecore: compare-and-set state for fleets of agents, on the Celery, Redis and Postgres you already run."""

from statecore.agents.transitions import EventRule, Lifecycle, TaskEffect
from statecore.core import Statecore
from statecore.settings import Settings

__all__ = ["EventRule", "Lifecycle", "Settings", "Statecore", "TaskEffect"]
