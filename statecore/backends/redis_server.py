"""One Redis server or cluster: pooled connections, typed errors, no retries of its own.

A client that retries makes the winner of a compare-and-set see a conflict, so nothing is ever sent twice from here.
A connection is taken and checked first; only what fails after the request was sent has an unknown outcome.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from statecore.backends.scripts import Script
from statecore.errors import (
    EvictionPolicyError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from statecore.settings import hide_password

# The server says "not now" and has done nothing.
_REFUSED = (BusyLoadingError, ReadOnlyError, OutOfMemoryError, AskError, TryAgainError, ClusterDownError)
_REFUSED_PREFIXES = ("MISCONF", "NOREPLICAS", "MASTERDOWN", "NOAUTH", "NOPERM", "UNKILLABLE", "BUSY")


class SlotMovedError(StoreUnavailableError):
    """Another node of the cluster holds the slot now; nothing was done."""


_servers: weakref.WeakSet[RedisServer] = weakref.WeakSet()


def _forget_connections_after_fork() -> None:
    for server in list(_servers):
        server.forget_connections()


os.register_at_fork(after_in_child=_forget_connections_after_fork)


class Connection:
    """A connection in use, tied to one run of one server."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.run_id: str = raw.statecore_run_id

    def ask(self, *command: Any) -> Any:
        """The server's reply; redis-py's own errors."""
        try:
            self._raw.send_command(*command)
            return self._raw.read_response()
        except ResponseError:
            raise
        except BaseException:
            # A reply may still be on its way; the next user must not read it as its own.
            self._raw.disconnect()
            raise

    def run(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        """The script's reply, sending its text only if the server does not know it."""
        try:
            return self.ask("EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            return self.ask("EVAL", script.body, len(keys), *keys, *args)


class RedisServer:
    """Where connections come from. `redis+cluster://` spreads namespaces over a cluster's shards."""

    def __init__(self, url: str, timeout_s: float = 5.0) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._client: redis.Redis | RedisCluster | None = None
        self._policy_seen: set[str] = set()
        _servers.add(self)

    @contextmanager
    def connection(self, key: str) -> Iterator[Connection]:
        """A checked connection to the server that holds the key; StoreUnavailableError if there is none."""
        try:
            pool = self._pool(key)
            raw = pool.get_connection()
        except (redis.RedisError, RedisClusterException, OSError) as error:
            raise StoreUnavailableError(f"Redis at {hide_password(self.url)} can't be reached: {error}") from error
        try:
            connection = Connection(raw)
            self._check_policy(connection)
            yield connection
        except MovedError as error:
            self._follow_move()
            raise SlotMovedError(f"the cluster moved the slot of {key}: {error}") from error
        finally:
            pool.release(raw)

    @contextmanager
    def blocking_client(self, wait_s: float) -> Iterator[redis.Redis]:
        """A client of its own for calls that wait on the server up to `wait_s`; closed afterwards."""
        client = self._make_client(self._timeout_s + wait_s)
        try:
            yield cast(redis.Redis, client)
        finally:
            client.close()

    def close(self) -> None:
        """Close every pooled connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def forget_connections(self) -> None:
        """Drop the pool without touching its sockets: after a fork they belong to the parent."""
        self._client = None

    def _pool(self, key: str) -> Any:
        if self._client is None:
            self._client = self._make_client(self._timeout_s)
        if isinstance(self._client, RedisCluster):
            node = self._client.get_node_from_key(key)  # type: ignore[no-untyped-call]
            if node is None:
                raise ClusterError(f"no node holds {key}")
            return self._client.get_redis_connection(node).connection_pool
        return self._client.connection_pool

    def _make_client(self, socket_timeout_s: float) -> redis.Redis | RedisCluster:
        options: dict[str, Any] = {
            "decode_responses": True,
            "socket_timeout": socket_timeout_s,
            "socket_connect_timeout": self._timeout_s,
            "retry": Retry(NoBackoff(), 0),
            "redis_connect_func": _log_in_and_identify,
            "protocol": 2,
        }
        parts = urlsplit(self.url)
        if parts.scheme.endswith("+cluster"):
            plain = urlunsplit(parts._replace(scheme=parts.scheme.removesuffix("+cluster")))
            return RedisCluster.from_url(plain, **(options | {"redis_connect_func": _identify}))
        if parts.scheme == "unix":
            options.pop("socket_connect_timeout")
        return redis.Redis.from_url(self.url, **options)

    def _check_policy(self, connection: Connection) -> None:
        if connection.run_id in self._policy_seen:
            return
        with typed_errors("INFO", None):
            policy = _info_field(connection.ask("INFO", "memory"), "maxmemory_policy")
        if policy != "noeviction":
            raise EvictionPolicyError(policy)
        self._policy_seen.add(connection.run_id)

    def _follow_move(self) -> None:
        if isinstance(self._client, RedisCluster):
            self._client.nodes_manager.initialize()


@contextmanager
def typed_errors(operation: str, op_id: str | None) -> Iterator[None]:
    """Turns redis-py's errors into ours; with an op_id the operation is a write, and a lost answer is unknown."""
    try:
        yield
    except MovedError:
        raise
    except _REFUSED as error:
        raise StoreUnavailableError(f"Redis refused {operation}: {error}") from error
    except ResponseError as error:
        if str(error).startswith(_REFUSED_PREFIXES):
            raise StoreUnavailableError(f"Redis refused {operation}: {error}") from error
        raise StoreError(f"{operation} failed inside Redis: {error}") from error
    except (redis.RedisError, OSError) as error:
        if op_id is not None:
            raise UnknownOutcomeError(operation, op_id, str(error) or type(error).__name__) from error
        if isinstance(error, redis.TimeoutError):
            raise StoreTimeoutError(f"Redis did not answer {operation} in time") from error
        raise StoreUnavailableError(f"Redis did not answer {operation}: {error}") from error


def _log_in_and_identify(raw: Any) -> None:
    raw.on_connect()
    _identify(raw)


def _identify(raw: Any) -> None:
    """Note on a new connection which run of which server it leads to."""
    raw.send_command("INFO", "server")
    raw.statecore_run_id = _info_field(raw.read_response(), "run_id")


def _info_field(info: Any, name: str) -> str:
    text = info.decode() if isinstance(info, bytes) else str(info)
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value
    raise redis.ConnectionError(f"INFO has no {name}")
