"""What a program asks of runs: input is checked here, once, before anything is written."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

from statecore.doorbell import Doorbell, Ring
from statecore.errors import InvalidInputError, LimitExceededError, UnknownStateError
from statecore.ids import check_id, check_int, check_op_id, encode_json, new_op_id
from statecore.runs.model import Outcome, Run, RunEvent, RunStatus, Submission
from statecore.runs.store import Lease, RunStore, Swept
from statecore.runs.transitions import TERMINAL
from statecore.settings import Settings

PAYLOAD_LIMIT_BYTES = 65_536
RESULT_LIMIT_BYTES = 262_144
MAX_LABELS = 32
_LONGEST_S = 30 * 86_400
_SWEEP = 1000
_LONGEST_POLL_S = 0.5


class RunOptions(TypedDict, total=False):
    """How a run is to be run; `op_id` makes a repeat of the submission the same submission."""

    queue: str
    priority: int
    labels: Iterable[str]
    queue_timeout_s: float | None
    run_timeout_s: float | None
    lease_s: float
    max_attempts: int
    start_at: datetime | None
    idempotency_key: str | None
    op_id: str | None


class Claim:
    """A run in this executor's hands, until it is finished, given back, or the lease runs out."""

    def __init__(self, store: RunStore, run: Run) -> None:
        assert run.executor is not None
        self.run = run
        self._store = store
        self._lease = Lease(run.attempt, run.executor)

    @property
    def attempt(self) -> int:
        """The fence of this claim; show it to whatever the run changes outside."""
        return self._lease.attempt

    def renew(self) -> RunStatus | None:
        """The lease lasts anew; `cancelling` asks to stop, None says that the lease is somebody else's."""
        return self._store.renew([(self.run.run_id, self._lease)]).get(self.run.run_id)

    def succeed(self, result: Any = None, *, op_id: str | None = None) -> Outcome:
        """The run has succeeded, if the lease still stands."""
        text = encode_json("result", result, RESULT_LIMIT_BYTES)
        return self._store.succeed(self.run.run_id, self._lease, text, check_op_id(op_id))

    def fail(self, error: Any, *, op_id: str | None = None) -> Outcome:
        """The run has failed for good, if the lease still stands."""
        text = encode_json("error", error, RESULT_LIMIT_BYTES)
        return self._store.fail(self.run.run_id, self._lease, text, check_op_id(op_id))

    def retry(self, error: Any, delay_s: float = 0.0, *, op_id: str | None = None) -> Outcome:
        """The attempt has failed and the next one is due after the delay; the run fails if none is left."""
        text = encode_json("error", error, RESULT_LIMIT_BYTES)
        delay_s = _seconds("delay_s", delay_s, at_least=0.0)
        return self._store.retry(self.run.run_id, self._lease, text, delay_s, check_op_id(op_id))

    def give_back(self, *, op_id: str | None = None) -> Outcome:
        """Another executor takes the run up, and this attempt does not count."""
        return self._store.give_back(self.run.run_id, self._lease, check_op_id(op_id))

    def confirm_canceled(self, *, op_id: str | None = None) -> Outcome:
        """The work has ended because it was asked to."""
        return self._store.confirm_canceled(self.run.run_id, self._lease, check_op_id(op_id))


class RunService:
    """Runs of one namespace."""

    def __init__(
        self,
        store: RunStore,
        doorbell: Doorbell,
        settings: Settings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._doorbell = doorbell
        self._settings = settings
        self._sleep, self._monotonic = sleep, monotonic

    def submit(self, name: str, payload: Any = None, **options: Unpack[RunOptions]) -> Run:
        """The run exists, and a worker is rung for it; `rejected` if its queue is full."""
        return self._submit([_submission(name, payload, options)])[0]

    def submit_many(self, runs: Iterable[Mapping[str, Any]]) -> builtins.list[Run]:
        """Many runs exist after one statement: mappings with the arguments of `submit`."""
        wanted = [dict(run) for run in runs]
        return self._submit([_submission(run.pop("name"), run.pop("payload", None), run) for run in wanted])

    def claim(self, run_id: str, executor: str, *, op_id: str | None = None) -> Claim | None:
        """The run is this executor's; None if it is not due, in other hands, or has ended."""
        outcome = self._store.claim(check_id("run id", run_id), check_executor(executor), check_op_id(op_id))
        held = outcome.applied and outcome.run.executor == executor
        return Claim(self._store, outcome.run) if held else None

    def cancel(self, run_id: str, reason: str = "", *, grace_s: float = 30.0, op_id: str | None = None) -> Outcome:
        """A queued run is canceled; a running one is asked to end within the grace, and then counts as canceled."""
        if not isinstance(reason, str) or len(reason) > 1000:
            raise InvalidInputError("reason must be text of at most 1000 characters")
        grace_s = _seconds("grace_s", grace_s, at_least=0.0)
        return self._store.cancel(check_id("run id", run_id), reason, grace_s, check_op_id(op_id))

    def get(self, run_id: str) -> Run:
        """The run as it stands."""
        return self._store.get(check_id("run id", run_id))

    def list(
        self,
        status: str | None = None,
        label: str | None = None,
        *,
        before: datetime | None = None,
        limit: int = 100,
    ) -> builtins.list[Run]:
        """The newest runs first; pass the last one's `submitted_at` as `before` to get the next page."""
        check_int("limit", limit, 1, 10_000)
        if label is not None:
            check_id("label", label)
        return self._store.list(None if status is None else _status(status), label, before, limit)

    def events(self, run_id: str) -> Sequence[RunEvent]:
        """The run's story, oldest first."""
        self.get(run_id)
        return self._store.events(run_id)

    def wait(self, run_id: str, timeout_s: float | None = None) -> Run:
        """The run once it has ended; TimeoutError if it has not within the time."""
        deadline = None if timeout_s is None else self._monotonic() + timeout_s
        poll_s = 0.01
        while (run := self.get(run_id)).status not in TERMINAL:
            if deadline is not None and self._monotonic() >= deadline:
                raise TimeoutError(f"run {run_id} is still {run.status} after {timeout_s} s")
            self._sleep(poll_s)
            poll_s = min(poll_s * 2, _LONGEST_POLL_S)
        return run

    def sweep(self) -> Swept:
        """Deal with what is due: deadlines, leases, graces; ring for what can go on."""
        swept = self._store.sweep(_SWEEP)
        if swept.reclaimed:
            self.ring_waiting()
        return swept

    def ring_waiting(self) -> int:
        """Ring for runs that wait for an executor and whose last ring is long ago; how many."""
        due = self._store.due_for_ring(self._settings.run_ring_after_s, _SWEEP)
        if due:
            self._doorbell.ring(*map(_ring, due))
        return len(due)

    def _submit(self, submissions: Sequence[Submission]) -> builtins.list[Run]:
        runs = self._store.submit(submissions, self._settings.run_queue_limit)
        pairs = zip(runs, submissions, strict=True)
        due = [run for run, wanted in pairs if run.status is RunStatus.QUEUED and wanted.start_at is None]
        if due:
            self._doorbell.ring(*map(_ring, due))
        return runs


def _ring(run: Run) -> Ring:
    return Ring(run.name, {"run_id": run.run_id}, run.queue, task_id=run.run_id)


def _submission(name: str, payload: Any, options: Mapping[str, Any]) -> Submission:
    unknown = set(options) - set(RunOptions.__annotations__)
    if unknown:
        known = ", ".join(RunOptions.__annotations__)
        raise InvalidInputError(f"unknown option {', '.join(sorted(unknown))}; a run has {known}")
    labels = options.get("labels", ())
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise InvalidInputError("labels must be a list of ids")
    labels = tuple(sorted({check_id("label", label) for label in labels}))
    if len(labels) > MAX_LABELS:
        raise LimitExceededError("the number of labels", len(labels), MAX_LABELS, "use fewer")
    start_at = options.get("start_at")
    if start_at is not None and (not isinstance(start_at, datetime) or start_at.tzinfo is None):
        raise InvalidInputError("start_at must be a datetime with a time zone")
    key = options.get("idempotency_key")
    return Submission(
        run_id=new_op_id(),
        name=check_id("run name", name),
        payload=encode_json("payload", payload, PAYLOAD_LIMIT_BYTES),
        op_id=check_op_id(options.get("op_id")),
        queue=check_id("queue", options.get("queue", "runs")),
        priority=check_int("priority", options.get("priority", 0), -1000, 1000),
        labels=labels,
        max_attempts=check_int("max_attempts", options.get("max_attempts", 3), 1, 1000),
        lease_s=_seconds("lease_s", options.get("lease_s", 60.0)),
        queue_timeout_s=_optional_seconds("queue_timeout_s", options),
        run_timeout_s=_optional_seconds("run_timeout_s", options),
        start_at=start_at,
        idempotency_key=None if key is None else check_id("idempotency key", key),
    )


def check_executor(value: object) -> str:
    """The value itself if it may name an executor, else InvalidInputError."""
    if not isinstance(value, str) or not value or len(value) > 256 or not value.isprintable():
        raise InvalidInputError("executor must be 1 to 256 printable characters, such as host/boot/pid")
    return value


def _status(value: str) -> RunStatus:
    try:
        return RunStatus(value)
    except ValueError:
        raise UnknownStateError(str(value)[:128], ", ".join(RunStatus)) from None


def _optional_seconds(what: str, options: Mapping[str, Any]) -> float | None:
    value = options.get(what)
    return None if value is None else _seconds(what, value)


def _seconds(what: str, value: Any, at_least: float = 0.001) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not at_least <= value <= _LONGEST_S:
        raise InvalidInputError(f"{what} must be a number of seconds from {at_least} to {_LONGEST_S}")
    return float(value)
