"""The doorbell over kombu: Celery's message protocol 2, without Celery."""

from __future__ import annotations

import logging
import os
import socket
import weakref
from typing import Any

from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.pools import ProducerPool

from statecore.backends.redis_namespace import RedisNamespace
from statecore.doorbell import Ring
from statecore.errors import StoreError
from statecore.ids import new_op_id
from statecore.settings import hide_password

_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 4
# A broker that is down must not hold up a producer: its event is safe already, and the sweep rings later.
_TRANSPORT_OPTIONS = {
    "socket_timeout": _CONNECT_TIMEOUT_S,
    "socket_connect_timeout": _CONNECT_TIMEOUT_S,
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}
# After this long a message counts as lost, and the next one is sent.
_PENDING_MS = 2000

_producers: weakref.WeakSet[Broker] = weakref.WeakSet()


def _forget_connections_after_fork() -> None:
    for broker in list(_producers):
        broker.forget_connections()


os.register_at_fork(after_in_child=_forget_connections_after_fork)


class Broker:
    """A pool of producers for one broker."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._origin = f"{os.getpid()}@{socket.gethostname()}"
        self._pool: ProducerPool | None = None
        _producers.add(self)

    def publish(self, *rings: Ring) -> None:
        """Send the messages; kombu's own errors."""
        with self._producers().acquire(block=True, timeout=_CONNECT_TIMEOUT_S) as producer:
            for ring in rings:
                headers, body = task_message(ring, self._origin)
                producer.publish(
                    body,
                    exchange="",
                    routing_key=ring.queue,
                    serializer="json",
                    headers=headers,
                    correlation_id=headers["id"],
                    delivery_mode=2,
                    retry=False,
                )

    def close(self) -> None:
        """Close every pooled connection."""
        if self._pool is not None:
            self._pool.force_close_all()
            self._pool.connections.force_close_all()
            self._pool = None

    def forget_connections(self) -> None:
        """Drop the pool without touching its sockets: after a fork they belong to the parent."""
        self._pool = None

    def _producers(self) -> ProducerPool:
        if self._pool is None:
            connection = Connection(
                self.url,
                connect_timeout=_CONNECT_TIMEOUT_S,
                transport_options=_TRANSPORT_OPTIONS,
            )
            self._pool = ProducerPool(connections=connection.Pool(limit=10), limit=10)
        return self._pool


class KombuDoorbell:
    """See `Doorbell`; what is on its way is noted in the namespace, so every process sees it."""

    def __init__(self, broker: Broker, space: RedisNamespace) -> None:
        self._broker = broker
        self._space = space

    def ring(self, *rings: Ring) -> bool:
        try:
            self._broker.publish(*rings)
        except (OperationalError, OSError, TimeoutError) as error:
            names = ", ".join(sorted({ring.task for ring in rings}))
            _log.warning("broker %s did not take %s: %s", hide_password(self._broker.url), names, error)
            return False
        return True

    def ring_once(self, key: str, ring: Ring) -> bool:
        try:
            fresh = self._space.ask("SET", self._pending(key), "1", "NX", "PX", _PENDING_MS)
        except StoreError as error:
            _log.warning("can't tell whether %s is on its way, so it is sent: %s", ring.task, error)
            fresh = "OK"
        return fresh is not None and self.ring(ring)

    def answered(self, key: str) -> None:
        self._space.ask("DEL", self._pending(key))

    def close(self) -> None:
        self._broker.close()

    def _pending(self, key: str) -> str:
        return self._space.key("rung", key)


def task_message(ring: Ring, origin: str) -> tuple[dict[str, Any], list[Any]]:
    """Headers and body as Celery's workers read them."""
    task_id = ring.task_id or new_op_id()
    headers: dict[str, Any] = {
        "lang": "py",
        "task": ring.task,
        "id": task_id,
        "root_id": task_id,
        "parent_id": None,
        "group": None,
        "group_index": None,
        "shadow": None,
        "eta": None,
        "expires": None,
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": "()",
        "kwargsrepr": repr(dict(ring.kwargs)),
        "origin": origin,
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return headers, [[], dict(ring.kwargs), embed]
