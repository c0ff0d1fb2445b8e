"""Redis servers beyond the session's one: clusters and replicas on free ports of this host."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import redis

from statecore.backends.embedded_redis import EmbeddedRedis


def await_until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Return once the condition holds; fail with what was awaited."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {timeout_s} s waiting for {what}"
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens to, nor on their cluster bus beside them."""
    ports: list[int] = []
    while len(ports) < count:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port < 55_000 and port not in ports:
            ports.append(port)
    return ports


def _formed(client: redis.Redis) -> bool:
    info: Any = client.execute_command("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok")


@contextmanager
def redis_cluster(folder: Path, nodes: int = 3) -> Iterator[str]:
    """A cluster of primaries; its URL."""
    ports = free_ports(nodes)
    config = ["cluster-enabled yes", "cluster-node-timeout 2000"]
    servers = [EmbeddedRedis(folder / str(port), port=port, extra_config=config) for port in ports]
    try:
        for server in servers:
            server.start()
        clients = [redis.Redis(port=port, decode_responses=True) for port in ports]
        bounds = [16384 * number // nodes for number in range(nodes + 1)]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER MEET", "127.0.0.1", ports[0])
        for client in clients:
            await_until(partial(_formed, client), "the cluster to form")
            client.close()
        yield f"redis+cluster://127.0.0.1:{ports[0]}"
    finally:
        for server in servers:
            server.stop()
