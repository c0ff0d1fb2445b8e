"""The ground in Postgres: schema, epochs, registrations, and what a broken connection means."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

import statecore.runs.tables  # noqa: F401  (registers its tables)
from statecore import Settings, Statecore
from statecore.backends.database import Database, newest_revision
from statecore.backends.embedded import ServerUrls
from statecore.backends.postgres_ground import PostgresEpochLedger, PostgresRegistrations
from statecore.backends.tables import metadata
from statecore.errors import (
    SchemaOutdatedError,
    SchemaUnknownError,
    StoreError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from statecore.testing.agents import race
from tests.servers import free_ports


@pytest.fixture
def fresh_url(urls: ServerUrls, database: Database, namespace: str) -> Iterator[str]:
    """A database without any table."""
    name = f"fresh_{abs(hash(namespace))}"
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield urls.database_url.replace("/postgres?", f"/{name}?")
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def test_an_older_schema_is_refused_at_start_with_the_command_that_helps(fresh_url: str, settings: Settings) -> None:
    with pytest.raises(SchemaOutdatedError, match="run: statecore migrate"):
        Statecore.connect(settings=settings.model_copy(update={"database_url": fresh_url}))


def test_a_schema_of_a_newer_version_is_refused_by_start_and_by_migrate(fresh_url: str) -> None:
    database = Database(fresh_url)
    database.migrate()
    with database.transaction("a newer version") as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for attempt in (database.check_schema, database.migrate):
        with pytest.raises(SchemaUnknownError, match="upgrade statecore"):
            attempt()
    database.close()


def test_many_migrations_at_once_wait_for_each_other(fresh_url: str) -> None:
    databases = [Database(fresh_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(Database.migrate, databases)) == {newest_revision()}
    databases[0].check_schema()
    for database in databases:
        database.close()


def test_the_tables_are_what_the_models_say(database: Database) -> None:
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_of_many_who_raise_the_same_epoch_one_wins(database: Database, namespace: str) -> None:
    ledger = PostgresEpochLedger(database)
    assert ledger.raise_from(namespace, 0) == 1
    answers = []
    race(8, lambda _: answers.append(ledger.raise_from(namespace, 1)))
    assert sorted(answers, key=str) == [2, *[None] * 7]
    assert ledger.current(namespace) == 2


def test_the_table_itself_refuses_an_epoch_below_one(database: Database, namespace: str) -> None:
    with pytest.raises(IntegrityError), database.engine.begin() as connection:
        connection.execute(text("INSERT INTO namespaces (name, epoch) VALUES (:name, 0)"), {"name": namespace})


def test_registrations_outlive_the_live_state(sc: Statecore, database: Database) -> None:
    sc.agents.register("a2", ["gpu"], {"host": "h1"})
    sc.agents.register("a1")
    sc.agents.register("a2", ["gpu", "python"])
    registrations = PostgresRegistrations(database, sc.namespace)
    assert registrations.ids() == ["a1", "a2"]
    sc.agents.deregister("a1")
    assert registrations.ids() == ["a2"]


def test_a_server_that_is_not_there_is_unavailable_and_its_password_is_not_shown() -> None:
    database = Database(f"postgresql+psycopg://user:s3cret@127.0.0.1:{free_ports(1)[0]}/db")
    with pytest.raises(StoreUnavailableError) as caught:
        database.revision()
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("op_id", "expected"), [("op-1", UnknownOutcomeError), (None, StoreUnavailableError)])
def test_a_connection_that_breaks_in_the_middle_leaves_a_write_unknown(
    database: Database, op_id: str | None, expected: type[StoreError]
) -> None:
    def write_and_be_cut() -> None:
        with database.transaction("a write", op_id) as connection:
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
            with database.transaction("an operator's hand") as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            connection.execute(text("SELECT 1"))

    with pytest.raises(expected):
        write_and_be_cut()


def test_a_wrong_statement_is_a_store_error_and_not_a_lost_answer(database: Database) -> None:
    with pytest.raises(StoreError, match="failed inside Postgres"), database.transaction("it", "op-1") as connection:
        connection.execute(text("SELECT 1/0"))
