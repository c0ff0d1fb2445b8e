"""The port of runs: every change is one atom with its event, and losing a race is a value.

Arguments are checked by the service; a store may rely on them. A repeat of an `op_id` gets the first answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from statecore.runs.model import Outcome, Run, RunEvent, RunStatus, Submission


@dataclass(frozen=True, slots=True)
class Lease:
    """What an executor shows to change a run that it holds: the fence and its own name."""

    attempt: int
    executor: str


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep over what is due did."""

    reclaimed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    timed_out: tuple[str, ...] = ()
    canceled: tuple[str, ...] = ()


class RunStore(Protocol):
    """Runs of one namespace."""

    def submit(self, submissions: Sequence[Submission], queue_limit: int | None) -> list[Run]:
        """The runs exist, in the order given; `rejected` where their queue is full.

        A known idempotency key gives the run it stands for; IdempotencyError if that has another payload.
        """
        ...

    def claim(self, run_id: str, executor: str, op_id: str) -> Outcome:
        """The run is the executor's for its lease, if it is due and nobody else's. RunNotFoundError."""
        ...

    def renew(self, leases: Sequence[tuple[str, Lease]]) -> dict[str, RunStatus]:
        """These leases last anew, in one statement; the status of those that still stood."""
        ...

    def succeed(self, run_id: str, lease: Lease, result: str, op_id: str) -> Outcome:
        """The run has succeeded with this JSON. RunNotFoundError."""
        ...

    def fail(self, run_id: str, lease: Lease, error: str, op_id: str) -> Outcome:
        """The run has failed for good with this JSON. RunNotFoundError."""
        ...

    def retry(self, run_id: str, lease: Lease, error: str, delay_s: float, op_id: str) -> Outcome:
        """The attempt has failed, the next one is due after the delay; or failed if there is none left."""
        ...

    def give_back(self, run_id: str, lease: Lease, op_id: str) -> Outcome:
        """The run waits for another executor; the attempt does not count. RunNotFoundError."""
        ...

    def cancel(self, run_id: str, reason: str, grace_s: float, op_id: str) -> Outcome:
        """A queued run is canceled; a running one is asked to end within the grace. RunNotFoundError."""
        ...

    def confirm_canceled(self, run_id: str, lease: Lease, op_id: str) -> Outcome:
        """The executor has ended a run that was asked to. RunNotFoundError."""
        ...

    def sweep(self, limit: int) -> Swept:
        """Deal with deadlines, leases and graces that have passed, each once, in one statement per kind."""
        ...

    def due_for_ring(self, first_delay_s: float, limit: int) -> list[Run]:
        """Runs that wait for an executor whose last ring is long ago; the next ring is due twice as long after."""
        ...

    def get(self, run_id: str) -> Run:
        """The run as it stands; RunNotFoundError."""
        ...

    def list(self, status: RunStatus | None, label: str | None, before: datetime | None, limit: int) -> list[Run]:
        """The newest runs first, those submitted before a time."""
        ...

    def events(self, run_id: str) -> Sequence[RunEvent]:
        """The run's story, oldest first."""
        ...
