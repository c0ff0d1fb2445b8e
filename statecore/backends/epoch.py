"""The namespace's epoch: why a Redis that forgot something can't hand out a fence twice.

Postgres holds the truth. Redis holds a copy beside the `run_id` of the server that it was made for. A server that has
no copy, or another `run_id` (restart, failover), may have lost its last writes, so the epoch goes up in Postgres
first and is copied then; every fence of the new epoch is above every fence of the old one.
"""

from __future__ import annotations

from typing import Protocol

from statecore.backends.redis_server import Connection
from statecore.backends.scripts import load_script

_VERIFIED_KEPT = 10_000


class EpochLedger(Protocol):
    """The durable truth about namespaces' epochs."""

    def current(self, namespace: str) -> int:
        """The namespace's epoch, 0 if it was never used."""
        ...

    def raise_from(self, namespace: str, seen: int) -> int | None:
        """Raise the epoch by one if it still is `seen`; the new epoch, or None if somebody else was first."""
        ...


class EpochKeeper:
    """Sees to it that a server serves a namespace only with an epoch of its own."""

    def __init__(self, ledger: EpochLedger) -> None:
        self._ledger = ledger
        self._verified: dict[str, str] = {}

    def verified(self, namespace: str, connection: Connection) -> bool:
        """True if this run of this server was checked already; costs no round trip."""
        return self._verified.get(namespace) == connection.run_id

    def verify(self, namespace: str, key: str, connection: Connection) -> None:
        """Compare the copy with the server, and raise and copy the epoch if they do not belong together."""
        while not self._copy_fits(key, connection):
            raised = self._ledger.raise_from(namespace, self._ledger.current(namespace))
            if raised is not None:
                connection.run(load_script("backends/copy_epoch"), [key], [raised, connection.run_id])
        if len(self._verified) >= _VERIFIED_KEPT:
            self._verified.clear()
        self._verified[namespace] = connection.run_id

    def distrust(self, namespace: str) -> None:
        """Check again before the next use: a script found no copy."""
        self._verified.pop(namespace, None)

    def _copy_fits(self, key: str, connection: Connection) -> bool:
        epoch, run_id = connection.ask("HMGET", key, "epoch", "run_id")
        return epoch is not None and run_id == connection.run_id
