"""The epoch rule: a Redis that may have forgotten something never hands out an old fence again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from statecore.agents.model import EventRequest
from statecore.agents.redis_store import RedisAgentStore, RedisHeartbeatStore
from statecore.backends.database import Database
from statecore.backends.embedded_redis import EmbeddedRedis
from statecore.backends.postgres_ground import PostgresEpochLedger
from statecore.claims.redis_store import RedisClaimStore
from statecore.errors import AgentNotFoundError, LeaseLostError, StoreError
from statecore.fences import FENCE_BASE
from statecore.ids import new_op_id
from tests.conftest import MakeSpace
from tests.proxy import Proxy
from tests.servers import await_until, free_ports, redis_cluster


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sct-") as folder:
        yield Path(folder)


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis(folder / "primary", port=free_ports(1)[0])
    server.start()
    yield server
    server.stop()


@pytest.fixture
def ledger(database: Database) -> PostgresEpochLedger:
    return PostgresEpochLedger(database)


def _answers(store: RedisAgentStore) -> bool:
    try:
        store.list("", 1)
    except StoreError:
        return False
    return True


def test_a_namespace_is_made_by_its_first_use(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str, ledger: PostgresEpochLedger
) -> None:
    assert ledger.current(namespace) == 0
    epoch = RedisAgentStore(make_space(server.url, namespace)).register("a1", (), "{}", new_op_id()).record.epoch
    assert ledger.current(namespace) == epoch // FENCE_BASE == 1


def test_new_clients_of_the_same_server_leave_the_epoch_alone(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str, ledger: PostgresEpochLedger
) -> None:
    for number in range(3):
        RedisAgentStore(make_space(server.url, namespace)).register(f"a{number}", (), "{}", new_op_id())
    assert ledger.current(namespace) == 1


def test_many_first_clients_at_once_agree(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str, ledger: PostgresEpochLedger
) -> None:
    stores = [RedisAgentStore(make_space(server.url, namespace)) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        records = pool.map(
            lambda pair: pair[1].register(f"a{pair[0]}", (), "{}", new_op_id()).record, enumerate(stores)
        )
    epochs = [record.epoch for record in records]
    assert len(set(epochs)) == 8
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        copy = client.hget(f"sc:{{{namespace}}}:epoch", "epoch")
    assert int(str(copy)) == ledger.current(namespace)


def test_after_a_restart_the_epoch_is_higher_the_data_is_there_and_old_leases_are_over(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str, ledger: PostgresEpochLedger
) -> None:
    space = make_space(server.url, namespace)
    store, claims = RedisAgentStore(space), RedisClaimStore(space)
    old = store.register("a1", (), "{}", new_op_id()).record
    claims.enqueue("t1", 0, (), 3, new_op_id())
    held = claims.claim_next("c1", (), 60, new_op_id())
    assert held is not None
    assert held.fence is not None
    server.stop()
    server.start()
    await_until(lambda: _answers(store), "the server to be back")
    assert ledger.current(namespace) == 2
    assert store.get("a1").state == "idle", "the append-only file kept it"
    with pytest.raises(LeaseLostError):
        store.apply_event(EventRequest("a1", "agent_failed", new_op_id(), epoch=old.epoch))
    assert RedisHeartbeatStore(space).beat([("a1", old.epoch)])[0].code == "LEASE_LOST"
    with pytest.raises(LeaseLostError):
        claims.complete("t1", held.fence, new_op_id())
    again = store.register("a1", (), "{}", new_op_id()).record
    assert again.epoch > 2 * FENCE_BASE > old.epoch


def test_a_lost_agent_of_an_older_epoch_is_still_swept(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str
) -> None:
    space = make_space(server.url, namespace)
    store = RedisAgentStore(space)
    store.register("a1", (), "{}", new_op_id())
    server.stop()
    server.start()
    await_until(lambda: _answers(store), "the server to be back")
    await_until(lambda: RedisHeartbeatStore(space).check(0.05, 10).lost == ("a1",), "the sweep to lose the agent")
    assert store.get("a1").state == "lost"


def test_an_emptied_server_grants_nothing_before_the_epoch_is_raised(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str, ledger: PostgresEpochLedger
) -> None:
    store = RedisAgentStore(make_space(server.url, namespace))
    old = store.register("a1", (), "{}", new_op_id()).record
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    with pytest.raises(AgentNotFoundError):
        store.apply_event(EventRequest("a1", "agent_failed", new_op_id(), epoch=old.epoch))
    assert ledger.current(namespace) == 2
    assert store.register("a1", (), "{}", new_op_id()).record.epoch > 2 * FENCE_BASE > old.epoch


def test_a_promoted_replica_that_missed_writes_refuses_every_old_lease(
    server: EmbeddedRedis, folder: Path, make_space: MakeSpace, namespace: str, ledger: PostgresEpochLedger
) -> None:
    assert server.port is not None
    replica = EmbeddedRedis(
        folder / "replica", port=free_ports(1)[0], extra_config=[f"replicaof 127.0.0.1 {server.port}"]
    )
    replica.start()
    try:
        with Proxy(server.port) as proxy, redis.Redis.from_url(replica.url, decode_responses=True) as promoted:
            store = RedisAgentStore(make_space(f"redis://127.0.0.1:{proxy.port}", namespace))
            first = store.register("a1", (), "{}", new_op_id()).record
            key = f"sc:{{{namespace}}}:agent:a1"
            await_until(lambda: promoted.hget(key, "epoch") == str(first.epoch), "the replica to follow")
            promoted.replicaof("NO", "ONE")
            second = store.register("a1", (), "{}", new_op_id()).record
            assert promoted.hget(key, "epoch") == str(first.epoch), "the promoted replica missed the second lease"
            assert replica.port is not None
            proxy.target = replica.port
            proxy.cut()
            await_until(lambda: _answers(store), "the client to reach the promoted replica")
            for lease in (first.epoch, second.epoch):
                with pytest.raises(LeaseLostError):
                    store.apply_event(EventRequest("a1", "agent_failed", new_op_id(), epoch=lease))
            third = store.register("a1", (), "{}", new_op_id()).record
            assert third.epoch > second.epoch > first.epoch
            assert ledger.current(namespace) == 2
    finally:
        replica.stop()


def test_a_counter_that_runs_full_starts_a_new_epoch(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str, ledger: PostgresEpochLedger
) -> None:
    store = RedisAgentStore(make_space(server.url, namespace))
    store.register("a1", (), "{}", new_op_id())
    with redis.Redis.from_url(server.url) as client:
        client.hset(f"sc:{{{namespace}}}:epoch", "counter", FENCE_BASE - 1)
    assert store.register("a2", (), "{}", new_op_id()).record.epoch == 2 * FENCE_BASE + 1
    assert ledger.current(namespace) == 2


def _move_slot(ports: list[int], slot: int) -> None:
    """Give the slot with all its keys to another node of the cluster, as a reshard does."""
    nodes = [redis.Redis(port=port, decode_responses=True) for port in ports]
    ids = [str(node.execute_command("CLUSTER MYID")) for node in nodes]
    owners = [node for node in nodes if node.execute_command("CLUSTER COUNTKEYSINSLOT", slot)]
    source = nodes.index(owners[0])
    target = (source + 1) % len(nodes)
    nodes[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
    nodes[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
    keys = nodes[source].execute_command("CLUSTER GETKEYSINSLOT", slot, 1000)
    nodes[source].execute_command("MIGRATE", "127.0.0.1", ports[target], "", 0, 5000, "KEYS", *keys)
    for node in (nodes[target], nodes[source]):
        node.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])
    for node in nodes:
        node.close()


def test_a_slot_that_moves_to_another_node_is_followed_and_raises_the_epoch(
    folder: Path, make_space: MakeSpace, namespace: str, ledger: PostgresEpochLedger
) -> None:
    with redis_cluster(folder) as url:
        ports = [int(path.name) for path in folder.iterdir()]
        store = RedisAgentStore(make_space(url, namespace))
        old = store.register("a1", (), "{}", new_op_id()).record
        _move_slot(ports, key_slot(f"{{{namespace}}}".encode()))
        assert store.apply_event(EventRequest("a1", "agent_failed", new_op_id())).record.version == 2
        assert ledger.current(namespace) == 2
        with pytest.raises(LeaseLostError):
            store.apply_event(EventRequest("a1", "agent_failed", new_op_id(), epoch=old.epoch))
