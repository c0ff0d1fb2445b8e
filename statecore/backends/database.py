"""Postgres: one fork-safe engine per process, typed errors, and the schema check at start."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, TimeoutError

from statecore.errors import (
    SchemaOutdatedError,
    SchemaUnknownError,
    StoreError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from statecore.settings import hide_password

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 7_361_902_114

_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _forget_connections_after_fork() -> None:
    for database in list(_databases):
        database.forget_connections()


os.register_at_fork(after_in_child=_forget_connections_after_fork)


class Database:
    """A pool of connections to one Postgres database."""

    def __init__(self, url: str, pool_size: int = 5) -> None:
        self.url = url
        self.engine: Engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=10,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
            connect_args={"connect_timeout": 10},
        )
        _databases.add(self)

    @contextmanager
    def transaction(self, operation: str, op_id: str | None = None) -> Iterator[Connection]:
        """A transaction that commits at the end; with an op_id a lost commit answer is UnknownOutcomeError."""
        try:
            connection = self.engine.connect()
        except (OperationalError, InterfaceError, TimeoutError) as error:
            reason = _first_line(error)
            raise StoreUnavailableError(f"Postgres at {hide_password(self.url)} can't be reached: {reason}") from error
        try:
            with connection, connection.begin():
                yield connection
        except DBAPIError as error:
            if not error.connection_invalidated and not isinstance(error.orig, psycopg.OperationalError):
                raise StoreError(f"{operation} failed inside Postgres: {error.orig}") from error
            if op_id is not None:
                raise UnknownOutcomeError(operation, op_id, str(error.orig)) from error
            raise StoreUnavailableError(f"Postgres did not answer {operation}: {error.orig}") from error

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()

    def forget_connections(self) -> None:
        """Drop the pool without touching its sockets: after a fork they belong to the parent."""
        self.engine.dispose(close=False)

    def migrate(self) -> str:
        """Bring the schema to the newest revision; its name. Several callers at once wait for each other."""
        self._refuse_unknown_revision()
        with self.transaction("migrate") as connection:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        return newest_revision()

    def revision(self) -> str | None:
        """The schema's revision, None for an empty database."""
        with self.transaction("schema check") as connection:
            if connection.execute(text("SELECT to_regclass('alembic_version')")).scalar() is None:
                return None
            revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
            return revision

    def check_schema(self) -> None:
        """SchemaOutdatedError or SchemaUnknownError unless the schema is the one that this version needs."""
        found = self._refuse_unknown_revision()
        if found != newest_revision():
            raise SchemaOutdatedError(found or "nothing", newest_revision())

    def _refuse_unknown_revision(self) -> str | None:
        found = self.revision()
        if found is not None and found not in _known_revisions():
            raise SchemaUnknownError(found, newest_revision())
        return found


def newest_revision() -> str:
    """The revision that this version of the code needs."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def _known_revisions() -> set[str]:
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def _first_line(error: Exception) -> str:
    """The driver's own words, without the page of advice that SQLAlchemy adds."""
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
