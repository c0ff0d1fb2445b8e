"""The ground under the scripts: lost answers, sick servers, forgotten scripts, forks."""

from __future__ import annotations

import multiprocessing
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import redis

from statecore import Settings, Statecore
from statecore.agents.model import EventRequest
from statecore.agents.redis_store import RedisAgentStore
from statecore.backends.embedded import ServerUrls
from statecore.backends.embedded_redis import EmbeddedRedis
from statecore.backends.redis_server import RedisServer
from statecore.claims.redis_store import RedisClaimStore
from statecore.errors import (
    EvictionPolicyError,
    InvalidInputError,
    StoreTimeoutError,
    StoreUnavailableError,
    StreamGapError,
    UnknownOutcomeError,
)
from statecore.ids import new_op_id
from tests.conftest import MakeSpace
from tests.proxy import Proxy
from tests.servers import await_until, free_ports


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    """A Redis of the test's own, on a port."""
    with tempfile.TemporaryDirectory(prefix="sct-") as folder:
        server = EmbeddedRedis(Path(folder), port=free_ports(1)[0])
        server.start()
        yield server
        server.stop()


def admin(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True, encoding_errors="surrogateescape")


def test_a_lost_answer_is_unknown_and_the_repeat_learns_what_happened(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str
) -> None:
    assert server.port is not None
    with Proxy(server.port) as proxy:
        store = RedisAgentStore(make_space(f"redis://127.0.0.1:{proxy.port}", namespace))
        store.register("a1", (), "{}", new_op_id())
        proxy.lose_answers = True
        op_id = new_op_id()
        with pytest.raises(UnknownOutcomeError) as caught:
            store.compare_and_set("a1", "idle", "assigned", op_id)
        assert caught.value.op_id == op_id
        proxy.lose_answers = False
        record = store.compare_and_set("a1", "idle", "assigned", caught.value.op_id).record
        assert (record.state, record.version) == ("assigned", 2), "the winner is told that it won, once"
        assert store.get("a1").version == 2


def test_a_lost_answer_to_a_read_is_only_unavailable(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str
) -> None:
    assert server.port is not None
    with Proxy(server.port) as proxy:
        store = RedisAgentStore(make_space(f"redis://127.0.0.1:{proxy.port}", namespace))
        store.register("a1", (), "{}", new_op_id())
        proxy.lose_answers = True
        with pytest.raises(StoreUnavailableError):
            store.get("a1")


def test_a_connection_that_died_idle_costs_nothing(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str
) -> None:
    assert server.port is not None
    with Proxy(server.port) as proxy:
        store = RedisAgentStore(make_space(f"redis://127.0.0.1:{proxy.port}", namespace))
        store.register("a1", (), "{}", new_op_id())
        proxy.cut()
        await_until(
            lambda: store.compare_and_set("a1", "idle", "idle", new_op_id()).record.version >= 2, "a new connection"
        )


def test_a_server_that_is_not_there_is_unavailable_and_its_password_is_not_shown(
    make_space: MakeSpace, namespace: str
) -> None:
    store = RedisAgentStore(make_space(f"redis://:s3cret@127.0.0.1:{free_ports(1)[0]}", namespace))
    with pytest.raises(StoreUnavailableError) as caught:
        store.compare_and_set("a1", "idle", "assigned", new_op_id())
    assert "s3cret" not in str(caught.value)


def test_a_server_that_hangs_times_out_a_read_and_leaves_a_write_unknown(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str
) -> None:
    space = make_space(server.url, namespace)
    space.server = RedisServer(server.url, timeout_s=0.3)
    store = RedisAgentStore(space)
    store.register("a1", (), "{}", new_op_id())
    server.signal_leader(signal.SIGSTOP)
    op_id = new_op_id()
    try:
        with pytest.raises(StoreTimeoutError):
            store.get("a1")
        with pytest.raises((UnknownOutcomeError, StoreUnavailableError)):
            store.compare_and_set("a1", "idle", "assigned", op_id)
    finally:
        server.signal_leader(signal.SIGCONT)
    await_until(lambda: store.compare_and_set("a1", "idle", "assigned", op_id).record.version == 2, "the first answer")
    space.server.close()


def test_flushed_scripts_are_loaded_again_unnoticed(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str
) -> None:
    store = RedisAgentStore(make_space(server.url, namespace))
    store.register("a1", (), "{}", new_op_id())
    with admin(server) as client:
        for _ in range(3):
            client.script_flush()
            store.apply_event(EventRequest("a1", "agent_failed", new_op_id()))
    assert store.get("a1").version == 4


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_may_drop_keys_is_refused(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str, policy: str
) -> None:
    with admin(server) as client:
        client.config_set("maxmemory-policy", policy)
        store = RedisAgentStore(make_space(server.url, namespace))
        with pytest.raises(EvictionPolicyError, match="noeviction"):
            store.register("a1", (), "{}", new_op_id())
        assert client.dbsize() == 0
        client.config_set("maxmemory-policy", "noeviction")
        assert store.register("a1", (), "{}", new_op_id()).record.state == "idle"


def test_a_full_server_refuses_and_nothing_is_half_written(
    server: EmbeddedRedis, make_space: MakeSpace, namespace: str
) -> None:
    space = make_space(server.url, namespace)
    store, claims = RedisAgentStore(space), RedisClaimStore(space)
    store.register("a1", (), "{}", new_op_id())
    claims.enqueue("t1", 0, (), 3, new_op_id())
    with admin(server) as client:
        before = {key: client.dump(key) for key in client.scan_iter()}
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreUnavailableError, match="maxmemory"):
            store.apply_event(EventRequest("a1", "task_assigned", new_op_id(), task_id="t1"))
        with pytest.raises(StoreUnavailableError, match="maxmemory"):
            claims.claim_next("c1", (), 60, new_op_id())
        client.config_set("maxmemory", 0)
        assert {key: client.dump(key) for key in client.scan_iter()} == before
    assert claims.claim_next("c1", (), 60, new_op_id()) is not None


def test_a_replica_is_unavailable_for_writes(server: EmbeddedRedis, make_space: MakeSpace, namespace: str) -> None:
    store = RedisAgentStore(make_space(server.url, namespace))
    store.register("a1", (), "{}", new_op_id())
    with admin(server) as client:
        client.replicaof("127.0.0.1", free_ports(1)[0])
        with pytest.raises(StoreUnavailableError):
            store.compare_and_set("a1", "idle", "assigned", new_op_id())


def test_every_script_says_what_it_takes_and_returns_and_replies_with_a_code() -> None:
    scripts = [
        path
        for feature in ("agents", "claims", "supervisor", "backends")
        for path in resources.files("statecore").joinpath(feature, "lua").iterdir()
    ]
    operations = [text for path in scripts if re.search(r"^return ", text := path.read_text(), re.MULTILINE)]
    assert len(operations) > 20
    for text in operations:
        header = text[: re.search(r"^[^-]", text, re.MULTILINE).start()]  # type: ignore[union-attr]
        assert "KEYS" in header, text
        assert "RETURNS" in header, text
        assert "cjson" not in text, "bodies are opaque to Lua"


def test_following_waits_longer_than_the_socket_timeout_and_sees_the_next_event(
    settings: Settings,
) -> None:
    patient = settings.model_copy(update={"redis_timeout_s": 0.3})
    seen: Queue[str] = Queue()
    with Statecore.connect(settings=patient) as sc:
        sc.agents.register("a1")
        follower = threading.Thread(
            target=lambda: [seen.put(event.kind) for event in sc.events.follow("0", idle_s=2.0)]
        )
        started = time.monotonic()
        follower.start()
        assert seen.get(timeout=5) == "agent:registered"
        threading.Event().wait(1.0)
        sc.agents.apply_event("a1", "agent_failed")
        assert seen.get(timeout=5) == "agent:agent_failed"
        follower.join(10)
        assert time.monotonic() - started >= 2.9


def test_an_event_is_one_round_trip(server: EmbeddedRedis, make_space: MakeSpace, namespace: str) -> None:
    store = RedisAgentStore(make_space(server.url, namespace))
    store.register("a1", (), "{}", new_op_id())
    store.apply_event(EventRequest("a1", "agent_failed", new_op_id()))
    store.apply_events([EventRequest("a1", "agent_failed", new_op_id())])
    with admin(server) as client:
        client.config_resetstat()
        store.apply_event(EventRequest("a1", "agent_failed", new_op_id()))
        store.apply_events([EventRequest("a1", "agent_failed", new_op_id()) for _ in range(100)])
        calls = client.info("commandstats")
    assert calls["cmdstat_evalsha"]["calls"] == 2
    assert not {"cmdstat_eval", "cmdstat_info", "cmdstat_multi", "cmdstat_ping"} & set(calls)


@pytest.mark.parametrize("after", ["", "soon", "1-", "-1", "1-2-3", 7])
def test_a_place_that_is_no_event_id_is_refused(sc: Statecore, after: Any) -> None:
    with pytest.raises(InvalidInputError, match="is no event id"):
        list(sc.events.read(after=after))


def test_reading_pages_filters_and_limits(sc: Statecore) -> None:
    for number in range(5):
        sc.agents.register(f"a{number}")
        sc.agents.apply_event(f"a{number}", "agent_failed")
    assert [event.subject for event in sc.events.read(kinds=["agent:reg*"])] == [f"a{number}" for number in range(5)]
    mine = list(sc.events.read(subject="a3"))
    assert [event.kind for event in mine] == ["agent:registered", "agent:agent_failed"]
    assert [event.id for event in sc.events.read(after=mine[0].id, subject="a3")] == [mine[1].id]
    assert len(list(sc.events.read(limit=3))) == 3


def test_a_reader_whose_place_was_trimmed_is_told_so(sc: Statecore, urls: ServerUrls) -> None:
    for number in range(5):
        sc.agents.register(f"a{number}")
    first, *_, last = sc.events.read()
    with redis.Redis.from_url(urls.redis_url) as client:
        client.xtrim(f"sc:{{{sc.namespace}}}:events", maxlen=1, approximate=False)
    with pytest.raises(StreamGapError) as caught:
        list(sc.events.read(after=first.id))
    assert (caught.value.after, caught.value.first) == (first.id, last.id)


def _work_in_child(sc: Statecore, agent_id: str, wrong: multiprocessing.Queue[str]) -> None:
    for number in range(40):
        record = sc.agents.apply_event(agent_id, "agent_failed")
        if (record.agent_id, record.version) != (agent_id, number + 2):
            wrong.put(f"{agent_id}: {record}")
    sc.agents.register(f"{agent_id}-child")
    sc.close()


def test_forked_processes_never_read_each_others_answers(sc: Statecore) -> None:
    context = multiprocessing.get_context("fork")
    wrong: multiprocessing.Queue[str] = context.Queue()
    for number in range(5):
        sc.agents.register(f"a{number}")
    children = [context.Process(target=_work_in_child, args=(sc, f"a{number}", wrong)) for number in range(4)]
    for child in children:
        child.start()
    _work = [sc.agents.apply_event("a4", "agent_failed").agent_id for _ in range(40)]
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    assert set(_work) == {"a4"}
    assert wrong.empty(), wrong.get()
    assert len(sc.agents.list()) == 9
    wrong.close()
