"""Every store of runs passes the one suite; then what Postgres itself refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from statecore.backends.database import Database
from statecore.clock import ManualClock
from statecore.errors import UnknownOutcomeError
from statecore.ids import new_op_id
from statecore.runs.memory_store import MemoryRunStore
from statecore.runs.model import RunStatus
from statecore.runs.postgres_store import PostgresRunStore
from statecore.runs.store import Lease, RunStore
from statecore.runs.transitions import TERMINAL
from statecore.testing.runs import MakeStore, RunStoreSuite, submission


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class TestMemoryRuns(RunStoreSuite):
    @pytest.fixture
    def make_store(self, clock: ManualClock) -> MakeStore:
        store = MemoryRunStore(clock)
        return lambda: store

    @pytest.fixture
    def advance(self, clock: ManualClock) -> Callable[[float], None]:
        return clock.advance


class TestPostgresRuns(RunStoreSuite):
    @pytest.fixture
    def make_store(self, database: Database, namespace: str, clock: ManualClock) -> MakeStore:
        return lambda: PostgresRunStore(database, namespace, actor="test", clock=clock)

    @pytest.fixture
    def advance(self, clock: ManualClock) -> Callable[[float], None]:
        return clock.advance

    @pytest.mark.parametrize("status", sorted(TERMINAL))
    def test_the_table_itself_keeps_a_terminal_run(
        self, store: RunStore, database: Database, status: RunStatus
    ) -> None:
        (run,) = store.submit([submission()], None)
        with database.engine.begin() as connection:
            connection.execute(
                text("UPDATE runs SET status = :to WHERE run_id = :id"), {"to": status, "id": run.run_id}
            )
        for change in ("status = 'running'", "result = '1'", "status = status"):
            with (
                pytest.raises(IntegrityError, match="it can not change any more"),
                database.engine.begin() as connection,
            ):
                connection.execute(text(f"UPDATE runs SET {change} WHERE run_id = :id"), {"id": run.run_id})

    def test_the_table_knows_the_statuses_of_the_model(self, database: Database) -> None:
        query = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'runs_status_known'"
        with database.engine.begin() as connection:
            constraint = str(connection.execute(text(query)).scalar())
        assert all(f"'{status}'" in constraint for status in RunStatus)
        assert constraint.count("::text") - constraint.count("(status") <= len(RunStatus) + 1

    def test_a_change_and_its_event_are_there_together_or_not_at_all(
        self, store: RunStore, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (run,) = store.submit([submission()], None)
        op_id, commit = new_op_id(), database.engine.dialect.do_commit

        def cut(connection: object) -> None:
            with database.engine.connect() as other:
                pid = connection.dbapi_connection.info.backend_pid  # type: ignore[attr-defined]
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            commit(connection)  # type: ignore[arg-type]

        monkeypatch.setattr(database.engine.dialect, "do_commit", cut)
        with pytest.raises(UnknownOutcomeError) as caught:
            store.claim(run.run_id, "w1", op_id)
        monkeypatch.undo()
        assert caught.value.op_id == op_id
        assert (store.get(run.run_id).status, len(store.events(run.run_id))) == (RunStatus.QUEUED, 1)
        assert store.claim(run.run_id, "w1", op_id).applied, "the repeat settles it"
        assert store.succeed(run.run_id, Lease(1, "w1"), "null", new_op_id()).applied
