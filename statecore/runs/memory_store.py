"""Runs in this process, by the same pure table: for tests, simulations and programs of one process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from statecore.clock import Clock, as_datetime
from statecore.errors import RunNotFoundError
from statecore.runs.model import Outcome, OutcomeKind, Run, RunEvent, RunStatus, Submission
from statecore.runs.store import Lease, Swept
from statecore.runs.submissions import match_submissions
from statecore.runs.transitions import RULES, Verb, settled


@dataclass
class _Entry:
    run: Run
    ring_at: datetime
    rings: int = 0
    operations: dict[str, tuple[OutcomeKind, RunStatus]] = field(default_factory=dict)


class MemoryRunStore:
    """See `RunStore`."""

    def __init__(self, clock: Clock, *, actor: str = "memory") -> None:
        self._clock = clock
        self._actor = actor
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        self._events: list[RunEvent] = []

    def submit(self, submissions: Sequence[Submission], queue_limit: int | None) -> list[Run]:
        with self._lock:
            keys = {entry.run.idempotency_key for entry in self._entries.values()}
            fresh = [
                one
                for one in submissions
                if one.run_id not in self._entries and one.idempotency_key not in keys - {None}
            ]
            everything = [entry.run for entry in self._entries.values()]
            waiting = {one.queue: self._waiting(one.queue) for one in fresh}
            made = [_new_run(one, self._now(), waiting[one.queue], queue_limit) for one in fresh]
            matched = match_submissions(submissions, [*everything, *made])
            for submission, run in zip(fresh, made, strict=True):
                self._entries[run.run_id] = _Entry(run, run.available_at)
                self._tell(
                    run, f"run:{'submitted' if run.status is RunStatus.QUEUED else run.status}", submission.op_id, None
                )
            return matched

    def claim(self, run_id: str, executor: str, op_id: str) -> Outcome:
        def hold(run: Run, now: datetime) -> dict[str, Any]:
            timeout = None if run.run_timeout_s is None else now + timedelta(seconds=run.run_timeout_s)
            return {
                "executor": executor,
                "lease_expires_at": now + timedelta(seconds=run.lease_s),
                "attempt": max(run.attempt, 1),
                "started_at": run.started_at or now,
                "queue_deadline": None,
                "run_deadline": run.run_deadline or timeout,
            }

        return self._change(Verb.CLAIM, run_id, op_id, None, hold, lambda run, now: _claimable(run, now))

    def renew(self, leases: Sequence[tuple[str, Lease]]) -> dict[str, RunStatus]:
        with self._lock:
            standing = {}
            for run_id, lease in leases:
                entry = self._entries.get(run_id)
                if entry is not None and _holds(entry.run, lease):
                    expires = self._now() + timedelta(seconds=entry.run.lease_s)
                    entry.run = replace(entry.run, lease_expires_at=expires)
                    standing[run_id] = entry.run.status
            return standing

    def succeed(self, run_id: str, lease: Lease, result: str, op_id: str) -> Outcome:
        ended = {"result": json.loads(result)}
        return self._change(Verb.SUCCEED, run_id, op_id, lease, lambda _, now: ended | _ended(now))

    def fail(self, run_id: str, lease: Lease, error: str, op_id: str) -> Outcome:
        ended = {"error": json.loads(error)}
        return self._change(Verb.FAIL, run_id, op_id, lease, lambda _, now: ended | _ended(now))

    def retry(self, run_id: str, lease: Lease, error: str, delay_s: float, op_id: str) -> Outcome:
        def wait(run: Run, now: datetime) -> dict[str, Any]:
            errors = (*run.attempt_errors, json.loads(error))
            available = now + timedelta(seconds=delay_s)
            return {"attempt": run.attempt + 1, "attempt_errors": errors, "available_at": available, **_IDLE}

        with self._lock:
            outcome = self._change(
                Verb.RETRY, run_id, op_id, lease, wait, lambda run, _: run.attempt < run.max_attempts
            )
            if outcome.kind is OutcomeKind.LOST and not outcome.fenced and outcome.lost_to is RunStatus.RUNNING:
                return self.fail(run_id, lease, error, op_id)
            return outcome

    def give_back(self, run_id: str, lease: Lease, op_id: str) -> Outcome:
        return self._change(Verb.GIVE_BACK, run_id, op_id, lease, lambda _, __: dict(_IDLE))

    def cancel(self, run_id: str, reason: str, grace_s: float, op_id: str) -> Outcome:
        def ask(run: Run, now: datetime) -> dict[str, Any]:
            queued = run.status is RunStatus.QUEUED
            deadline = None if queued else now + timedelta(seconds=grace_s)
            return {"cancel_reason": reason, "finished_at": now if queued else None, "cancel_deadline": deadline}

        return self._change(Verb.CANCEL, run_id, op_id, None, ask)

    def confirm_canceled(self, run_id: str, lease: Lease, op_id: str) -> Outcome:
        return self._change(Verb.CONFIRM_CANCELED, run_id, op_id, lease, lambda _, now: _ended(now))

    def sweep(self, limit: int) -> Swept:
        with self._lock:
            return Swept(
                timed_out=(
                    *self._sweep(Verb.TIME_OUT, limit, lambda run: run.queue_deadline, RunStatus.QUEUED),
                    *self._sweep(
                        Verb.TIME_OUT, limit, lambda run: run.run_deadline, RunStatus.RUNNING, RunStatus.CANCELLING
                    ),
                ),
                canceled=self._sweep(Verb.ABANDON, limit, lambda run: run.cancel_deadline, RunStatus.CANCELLING),
                failed=self._sweep(Verb.GIVE_UP, limit, _last_lease, RunStatus.RUNNING),
                reclaimed=self._sweep(Verb.RECLAIM, limit, lambda run: run.lease_expires_at, RunStatus.RUNNING),
            )

    def due_for_ring(self, first_delay_s: float, limit: int) -> list[Run]:
        with self._lock:
            now = self._now()
            waiting = [entry for entry in self._entries.values() if _waits(entry.run) and entry.ring_at <= now]
            due = sorted(waiting, key=lambda entry: entry.ring_at)[:limit]
            for entry in due:
                entry.ring_at = now + timedelta(seconds=min(3600, first_delay_s * 2 ** min(entry.rings, 20)))
                entry.rings += 1
            return [entry.run for entry in due]

    def get(self, run_id: str) -> Run:
        with self._lock:
            return self._find(run_id).run

    def list(self, status: RunStatus | None, label: str | None, before: datetime | None, limit: int) -> list[Run]:
        with self._lock:
            runs = [
                entry.run
                for entry in self._entries.values()
                if (status is None or entry.run.status is status)
                and (label is None or label in entry.run.labels)
                and (before is None or entry.run.submitted_at < before)
            ]
        by_id = sorted(runs, key=lambda run: run.run_id)
        return sorted(by_id, key=lambda run: run.submitted_at, reverse=True)[:limit]

    def events(self, run_id: str) -> Sequence[RunEvent]:
        with self._lock:
            return [event for event in self._events if event.run_id == run_id]

    def _change(
        self,
        verb: Verb,
        run_id: str,
        op_id: str,
        lease: Lease | None,
        changes: Callable[[Run, datetime], dict[str, Any]],
        guard: Callable[[Run, datetime], bool] = lambda _, __: True,
    ) -> Outcome:
        with self._lock:
            entry, rule, now = self._find(run_id), RULES[verb], self._now()
            run = entry.run
            if op_id in entry.operations:
                kind, found = entry.operations[op_id]
                if kind is OutcomeKind.LOST:
                    return Outcome(kind, run, found, fenced=True, repeated=True)
                return Outcome(kind, run, repeated=True)
            held = not rule.held or (lease is not None and _holds(run, lease))
            if run.status in rule.edges and held and guard(run, now):
                self._move(entry, verb, op_id, changes(run, now))
                return Outcome(OutcomeKind.APPLIED, entry.run)
            if settled(verb, run.status):
                return Outcome(OutcomeKind.NOOP, run)
            fenced = lease is not None and (lease.attempt != run.attempt or run.executor not in (None, lease.executor))
            if fenced:
                entry.operations[op_id] = (OutcomeKind.LOST, run.status)
                self._tell(run, "run:refused", op_id, None)
            return Outcome(OutcomeKind.LOST, run, run.status, fenced=fenced)

    def _move(self, entry: _Entry, verb: Verb, op_id: str, changes: dict[str, Any]) -> None:
        before, rule = entry.run, RULES[verb]
        entry.run = replace(before, status=rule.edges[before.status], **changes)
        if _waits(entry.run):
            entry.ring_at, entry.rings = max(self._now(), entry.run.available_at), 0
        if op_id:
            entry.operations[op_id] = (OutcomeKind.APPLIED, entry.run.status)
        self._tell(entry.run, rule.event, op_id, before)

    def _sweep(
        self, verb: Verb, limit: int, due: Callable[[Run], datetime | None], *statuses: RunStatus
    ) -> tuple[str, ...]:
        now, moved = self._now(), list[str]()
        for entry in self._entries.values():
            deadline = due(entry.run) if entry.run.status in statuses else None
            if deadline is not None and deadline <= now and len(moved) < limit:
                changes = _ended(now) if RULES[verb].ends else {"attempt": entry.run.attempt + 1, **_IDLE}
                if verb is Verb.GIVE_UP:
                    changes["error"] = {"type": "WorkerLost", "message": "the last lease ran out"}
                self._move(entry, verb, "", changes)
                moved.append(entry.run.run_id)
        return tuple(moved)

    def _tell(self, run: Run, kind: str, op_id: str, before: Run | None) -> None:
        after = None if kind == "run:refused" else _story(run)
        self._events.append(
            RunEvent(
                len(self._events),
                run.run_id,
                self._now(),
                kind,
                self._actor,
                op_id,
                None if before is None else _story(before),
                after,
                None,
            )
        )

    def _find(self, run_id: str) -> _Entry:
        if run_id not in self._entries:
            raise RunNotFoundError(run_id)
        return self._entries[run_id]

    def _waiting(self, queue: str) -> int:
        return sum(e.run.queue == queue and e.run.status is RunStatus.QUEUED for e in self._entries.values())

    def _now(self) -> datetime:
        return as_datetime(self._clock.now_ms())


_IDLE: dict[str, Any] = {"executor": None, "lease_expires_at": None}


def _ended(now: datetime) -> dict[str, Any]:
    return {"finished_at": now, **_IDLE}


def _holds(run: Run, lease: Lease) -> bool:
    return run.executor == lease.executor and run.attempt == lease.attempt


def _waits(run: Run) -> bool:
    return run.executor is None and run.status in (RunStatus.QUEUED, RunStatus.RUNNING)


def _claimable(run: Run, now: datetime) -> bool:
    return run.executor is None and run.available_at <= now


def _last_lease(run: Run) -> datetime | None:
    return run.lease_expires_at if run.attempt >= run.max_attempts else None


def _story(run: Run) -> dict[str, Any]:
    return {"status": run.status.value, "attempt": run.attempt, "executor": run.executor}


def _new_run(one: Submission, now: datetime, waiting: int, queue_limit: int | None) -> Run:
    rejected = queue_limit is not None and waiting >= queue_limit
    available = one.start_at or now
    return Run(
        run_id=one.run_id,
        name=one.name,
        status=RunStatus.REJECTED if rejected else RunStatus.QUEUED,
        payload=json.loads(one.payload),
        queue=one.queue,
        priority=one.priority,
        labels=one.labels,
        attempt=0,
        max_attempts=one.max_attempts,
        lease_s=one.lease_s,
        run_timeout_s=one.run_timeout_s,
        executor=None,
        lease_expires_at=None,
        available_at=available,
        queue_deadline=None if one.queue_timeout_s is None else available + timedelta(seconds=one.queue_timeout_s),
        run_deadline=None,
        cancel_deadline=None,
        cancel_reason=None,
        idempotency_key=one.idempotency_key,
        result=None,
        error=None,
        attempt_errors=(),
        submitted_at=now,
        started_at=None,
        finished_at=now if rejected else None,
    )
