"""A task in the queue, and what a claimer sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

MAX_PRIORITY = 1000
DEFAULT_LEASE_S = 300.0
DEFAULT_MAX_ATTEMPTS = 3
FINISHED_KEPT_S = 3600


class TaskStatus(StrEnum):
    QUEUED = "queued"
    CLAIMED = "claimed"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work. `place` orders tasks of equal priority and never changes; `fence` rises with every claim."""

    task_id: str
    priority: int
    place: int
    capabilities: tuple[str, ...]
    status: TaskStatus
    attempts: int
    max_attempts: int
    claimed_by: str | None
    claimed_at: datetime | None
    fence: int | None
