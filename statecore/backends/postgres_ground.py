"""What the ground keeps in Postgres: namespaces' epochs and agents' registrations, one statement each."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import text

from statecore.backends.database import Database

# Raise the epoch by one if nobody did since it was read; a namespace is made by its first use.
RAISE_EPOCH = text(
    """
    INSERT INTO namespaces AS n (name, epoch) VALUES (:name, 1)
    ON CONFLICT (name) DO UPDATE SET epoch = n.epoch + 1, raised_at = clock_timestamp() WHERE n.epoch = :seen
    RETURNING epoch
    """
)
LIST_NAMESPACES = text('SELECT name FROM namespaces ORDER BY name COLLATE "C"')
READ_EPOCH = text("SELECT epoch FROM namespaces WHERE name = :name")

SAVE_REGISTRATION = text(
    """
    INSERT INTO agents (namespace, agent_id, capabilities, metadata)
    VALUES (:namespace, :agent_id, CAST(:capabilities AS jsonb), CAST(:metadata AS jsonb))
    ON CONFLICT (namespace, agent_id) DO UPDATE
    SET capabilities = excluded.capabilities, metadata = excluded.metadata, registered_at = clock_timestamp()
    """
)
FORGET_REGISTRATION = text("DELETE FROM agents WHERE namespace = :namespace AND agent_id = :agent_id")
LIST_REGISTRATIONS = text('SELECT agent_id FROM agents WHERE namespace = :namespace ORDER BY agent_id COLLATE "C"')


class PostgresEpochLedger:
    """See `EpochLedger`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def current(self, namespace: str) -> int:
        with self._database.transaction("reading the epoch") as connection:
            return connection.execute(READ_EPOCH, {"name": namespace}).scalar() or 0

    def raise_from(self, namespace: str, seen: int) -> int | None:
        # A lost answer only means that the epoch may have risen; the next look sees it and raises again.
        with self._database.transaction("raising the epoch") as connection:
            return connection.execute(RAISE_EPOCH, {"name": namespace, "seen": seen}).scalar()


def namespaces(database: Database) -> list[str]:
    """Every namespace that was ever used."""
    with database.transaction("listing namespaces") as connection:
        return list(connection.execute(LIST_NAMESPACES).scalars())


class PostgresRegistrations:
    """See `Registrations`."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace

    def save(self, agent_id: str, capabilities: Sequence[str], metadata: str) -> None:
        values = {
            "namespace": self._namespace,
            "agent_id": agent_id,
            "capabilities": json.dumps(sorted(set(capabilities))),
            "metadata": metadata,
        }
        # Repeating an upsert is harmless, so a lost answer needs no op_id.
        with self._database.transaction("saving a registration") as connection:
            connection.execute(SAVE_REGISTRATION, values)

    def forget(self, agent_id: str) -> None:
        with self._database.transaction("forgetting a registration") as connection:
            connection.execute(FORGET_REGISTRATION, {"namespace": self._namespace, "agent_id": agent_id})

    def ids(self) -> list[str]:
        with self._database.transaction("listing registrations") as connection:
            return list(connection.execute(LIST_REGISTRATIONS, {"namespace": self._namespace}).scalars())
