"""The port: bring a task and an idle agent together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task in an agent's hands. The agent's events carry `epoch` and `task_id`; the task's own fence is `fence`."""

    task_id: str
    agent_id: str
    epoch: int
    fence: int
    priority: int


class AssignStore(Protocol):
    """Queue and agents, seen together."""

    def assign_next(self, op_id: str) -> Assignment | None:
        """The best waiting task is the longest idle able agent's, in one atom; None if no such pair waits."""
        ...
