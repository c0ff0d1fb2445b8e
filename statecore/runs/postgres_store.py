"""Runs in Postgres: one statement per change; only a change without effect costs a second look."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from statecore.backends.database import Database
from statecore.clock import Clock, as_datetime
from statecore.errors import RunNotFoundError
from statecore.runs import statements
from statecore.runs.model import Outcome, OutcomeKind, Run, RunEvent, RunStatus, Submission
from statecore.runs.store import Lease, Swept
from statecore.runs.submissions import match_submissions
from statecore.runs.transitions import RULES, Verb, settled

_CHANGES = {verb: statements.change_one(verb) for verb in RULES}
_RUN_FIELDS = [field.name for field in fields(Run)]
_REFUSED = "run:refused"


class PostgresRunStore:
    """See `RunStore`."""

    def __init__(self, database: Database, namespace: str, *, actor: str, clock: Clock | None = None) -> None:
        self._database = database
        self._namespace = namespace
        self._actor = actor
        self._clock = clock

    def submit(self, submissions: Sequence[Submission], queue_limit: int | None) -> list[Run]:
        if not submissions:
            return []
        with self._database.transaction("runs.submit", submissions[0].op_id) as connection:
            return self.submit_in(connection, submissions, queue_limit)

    def submit_in(
        self, connection: Connection, submissions: Sequence[Submission], queue_limit: int | None
    ) -> list[Run]:
        """The runs exist if and only if the caller's own transaction commits."""
        rows = json.dumps([_row(submission) for submission in submissions])
        params = self._params(rows=rows, queue_limit=queue_limit)
        made = connection.execute(statements.SUBMIT, params).mappings().all()
        found = [_run(row) for row in made]
        if len(found) < len(submissions):
            keys = [submission.idempotency_key for submission in submissions if submission.idempotency_key]
            params = self._params(run_ids=[submission.run_id for submission in submissions], keys=keys)
            found = [_run(row) for row in connection.execute(statements.FIND, params).mappings()]
        return match_submissions(submissions, found)

    def claim(self, run_id: str, executor: str, op_id: str) -> Outcome:
        return self._change(Verb.CLAIM, run_id, op_id, executor=executor)

    def renew(self, leases: Sequence[tuple[str, Lease]]) -> dict[str, RunStatus]:
        params = {
            "run_ids": [run_id for run_id, _ in leases],
            "attempts": [lease.attempt for _, lease in leases],
            "executors": [lease.executor for _, lease in leases],
        }
        # Renewing twice is renewing once, so a lost answer needs no op_id.
        with self._database.transaction("runs.renew") as connection:
            rows = connection.execute(statements.RENEW, self._params(**params)).all()
        return {run_id: RunStatus(status) for run_id, status in rows}

    def succeed(self, run_id: str, lease: Lease, result: str, op_id: str) -> Outcome:
        return self._change(Verb.SUCCEED, run_id, op_id, lease, result=result)

    def fail(self, run_id: str, lease: Lease, error: str, op_id: str) -> Outcome:
        return self._change(Verb.FAIL, run_id, op_id, lease, error=error)

    def retry(self, run_id: str, lease: Lease, error: str, delay_s: float, op_id: str) -> Outcome:
        outcome = self._change(Verb.RETRY, run_id, op_id, lease, error=error, delay_s=delay_s)
        if outcome.kind is OutcomeKind.LOST and not outcome.fenced and outcome.lost_to is RunStatus.RUNNING:
            return self.fail(run_id, lease, error, op_id)
        return outcome

    def give_back(self, run_id: str, lease: Lease, op_id: str) -> Outcome:
        return self._change(Verb.GIVE_BACK, run_id, op_id, lease)

    def cancel(self, run_id: str, reason: str, grace_s: float, op_id: str) -> Outcome:
        return self._change(Verb.CANCEL, run_id, op_id, reason=reason, grace_s=grace_s)

    def confirm_canceled(self, run_id: str, lease: Lease, op_id: str) -> Outcome:
        return self._change(Verb.CONFIRM_CANCELED, run_id, op_id, lease)

    def sweep(self, limit: int) -> Swept:
        moved: dict[Verb, list[str]] = {}
        for what, (verb, statement) in statements.SWEEPS.items():
            with self._database.transaction(f"the sweep of the {what}") as connection:
                params = self._params(limit=limit, data=json.dumps({"because": what}))
                rows = connection.execute(statement, params).mappings().all()
            moved.setdefault(verb, []).extend(row["run_id"] for row in rows)
        return Swept(
            reclaimed=tuple(moved[Verb.RECLAIM]),
            failed=tuple(moved[Verb.GIVE_UP]),
            timed_out=tuple(moved[Verb.TIME_OUT]),
            canceled=tuple(moved[Verb.ABANDON]),
        )

    def due_for_ring(self, first_delay_s: float, limit: int) -> list[Run]:
        with self._database.transaction("runs.due_for_ring") as connection:
            params = self._params(first_delay_s=first_delay_s, limit=limit)
            return [_run(row) for row in connection.execute(statements.DUE_FOR_RING, params).mappings()]

    def get(self, run_id: str) -> Run:
        with self._database.transaction("runs.get") as connection:
            row = connection.execute(statements.EXPLAIN, self._params(run_id=run_id, op_id="")).mappings().first()
        if row is None:
            raise RunNotFoundError(run_id)
        return _run(row)

    def list(self, status: RunStatus | None, label: str | None, before: datetime | None, limit: int) -> list[Run]:
        params = self._params(status=status, label=label, before=before, limit=limit)
        with self._database.transaction("runs.list") as connection:
            return [_run(row) for row in connection.execute(statements.LIST, params).mappings()]

    def events(self, run_id: str) -> Sequence[RunEvent]:
        with self._database.transaction("runs.events") as connection:
            rows = connection.execute(statements.STORY, self._params(run_id=run_id)).mappings().all()
        return [RunEvent(**row) for row in rows]

    def _change(self, verb: Verb, run_id: str, op_id: str, lease: Lease | None = None, **values: Any) -> Outcome:
        held = {} if lease is None else {"attempt": lease.attempt, "executor": lease.executor}
        data = json.dumps({name: values[name] for name in ("reason", "delay_s") if name in values} or None)
        params = self._params(run_id=run_id, op_id=op_id, data=data, **held, **values)
        with self._database.transaction(f"runs.{verb}", op_id) as connection:
            try:
                with connection.begin_nested():
                    row = connection.execute(_CHANGES[verb], params).mappings().first()
            except IntegrityError:
                # The same op_id, at the same time, was faster by a moment: its line is in the story now.
                row = None
            if row is not None:
                return Outcome(OutcomeKind.APPLIED, _run(row))
            return self._explain(connection, verb, run_id, op_id, lease)

    def _explain(self, connection: Connection, verb: Verb, run_id: str, op_id: str, lease: Lease | None) -> Outcome:
        row = connection.execute(statements.EXPLAIN, self._params(run_id=run_id, op_id=op_id)).mappings().first()
        if row is None:
            raise RunNotFoundError(run_id)
        run = _run(row)
        if row["known_kind"] == _REFUSED:
            lost_to = RunStatus(row["known_data"]["found"])
            return Outcome(OutcomeKind.LOST, run, lost_to, fenced=True, repeated=True)
        if row["known_kind"] is not None:
            return Outcome(OutcomeKind.APPLIED, run, repeated=True)
        if settled(verb, run.status):
            return Outcome(OutcomeKind.NOOP, run)
        fenced = lease is not None and (lease.attempt != run.attempt or run.executor not in (None, lease.executor))
        if fenced:
            data = json.dumps({"verb": verb, "attempt": lease and lease.attempt, "found": run.status})
            connection.execute(statements.REFUSE, self._params(run_id=run_id, op_id=op_id, data=data))
        return Outcome(OutcomeKind.LOST, run, run.status, fenced=fenced)

    def _params(self, **values: Any) -> dict[str, Any]:
        now = None if self._clock is None else as_datetime(self._clock.now_ms())
        return {"namespace": self._namespace, "actor": self._actor, "now": now, **values}


def _row(submission: Submission) -> dict[str, Any]:
    names = ("run_id", "name", "queue", "priority", "max_attempts", "lease_s", "run_timeout_s", "queue_timeout_s")
    row = {name: getattr(submission, name) for name in (*names, "idempotency_key", "op_id")}
    row["payload"] = json.loads(submission.payload)
    row["labels"] = list(submission.labels)
    row["start_at"] = submission.start_at.isoformat() if submission.start_at else None
    return row


def _run(row: Any) -> Run:
    values = {name: row[name] for name in _RUN_FIELDS}
    values["status"] = RunStatus(values["status"])
    values["labels"] = tuple(values["labels"])
    values["attempt_errors"] = tuple(values["attempt_errors"])
    return Run(**values)
