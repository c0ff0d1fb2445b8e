"""Namespaces on real servers, made from URLs alone, so that another process can make them too."""

from __future__ import annotations

import weakref

from statecore.backends.database import Database
from statecore.backends.epoch import EpochKeeper
from statecore.backends.postgres_ground import PostgresEpochLedger
from statecore.backends.redis_namespace import RedisNamespace
from statecore.backends.redis_server import RedisServer
from statecore.claims.redis_store import RedisClaimStore


def redis_claims(redis_url: str, database_url: str, namespace: str) -> RedisClaimStore:
    """A claim store with connections of its own."""
    database, server = Database(database_url), RedisServer(redis_url)
    epochs = EpochKeeper(PostgresEpochLedger(database))
    store = RedisClaimStore(RedisNamespace(server, epochs, namespace, actor="test", stream_limit=100_000))
    weakref.finalize(store, database.close)
    weakref.finalize(store, server.close)
    return store
