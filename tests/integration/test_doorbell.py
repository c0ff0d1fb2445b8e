"""The doorbell: messages as Celery writes them, coalesced where one is enough, and never needed for the truth."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from statecore import Settings, Statecore
from statecore.backends.embedded_redis import EmbeddedRedis
from statecore.doorbell import Ring
from tests.servers import await_until


@pytest.fixture
def broker() -> Iterator[EmbeddedRedis]:
    """A broker of the test's own that nobody listens to."""
    with tempfile.TemporaryDirectory(prefix="sct-") as folder:
        server = EmbeddedRedis(Path(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture
def sc(settings: Settings, broker: EmbeddedRedis) -> Iterator[Statecore]:
    with Statecore.connect(settings=settings.model_copy(update={"broker_url": broker.broker_url})) as sc:
        yield sc


def messages(broker: EmbeddedRedis, queue: str) -> list[dict[str, Any]]:
    with redis.Redis.from_url(broker.url.replace("db=0", "db=1")) as client:
        return [json.loads(message) for message in client.lrange(queue, 0, -1)]


def test_a_message_has_all_that_celery_puts_into_one(sc: Statecore, broker: EmbeddedRedis) -> None:
    sc.doorbell.ring(Ring("some.task", {"n": 1}, "somewhere", task_id="id-1"))
    (message,) = messages(broker, "somewhere")
    theirs = Celery("theirs", set_as_current=False).amqp.as_task_v2("id-1", "some.task", (), {"n": 1})
    assert set(message["headers"]) == set(theirs.headers)
    differing = {name for name, value in theirs.headers.items() if message["headers"][name] != value}
    assert differing <= {"origin", "ignore_result"}
    assert message["properties"]["correlation_id"] == "id-1"
    assert (message["content-type"], message["content-encoding"]) == ("application/json", "utf-8")
    assert json.loads(base64.b64decode(message["body"])) == [[], {"n": 1}, theirs.body[2]]


def test_one_doorbell_carries_all_events_of_a_full_inbox(sc: Statecore, broker: EmbeddedRedis) -> None:
    sc.agents.register("a1")
    for _ in range(50):
        sc.agents.send_event("a1", "agent_failed")
    assert len(messages(broker, "agents")) == 1
    sc.agents.drain_inbox("a1")
    sc.agents.send_event("a1", "agent_failed")
    assert len(messages(broker, "agents")) == 2


def test_the_supervisor_is_rung_once_until_it_answers_or_the_message_counts_as_lost(
    sc: Statecore, broker: EmbeddedRedis
) -> None:
    for number in range(10):
        sc.claims.enqueue(f"t{number}")
    assert len(messages(broker, "control")) == 1
    sc.doorbell.answered("assign")
    sc.claims.enqueue("t10")
    assert len(messages(broker, "control")) == 2
    ring = Ring("statecore.supervisor.assign", {}, "control")
    await_until(lambda: sc.doorbell.ring_once("assign", ring), "the message to count as lost")


def test_without_a_broker_an_event_still_waits_safely(sc: Statecore, broker: EmbeddedRedis) -> None:
    sc.agents.register("a1")
    broker.stop()
    sent = sc.agents.send_event("a1", "agent_failed")
    assert not sent.rung
    assert sc.agents.drain_inbox("a1").outcomes[0].request.op_id == sent.op_ids[0]


def test_the_sweep_rings_for_an_inbox_whose_message_was_lost(settings: Settings, broker: EmbeddedRedis) -> None:
    hasty = settings.model_copy(update={"broker_url": broker.broker_url, "inbox_ring_after_s": 0.2})
    with Statecore.connect(settings=hasty) as sc:
        sc.agents.register("a1")
        sc.agents.send_event("a1", "agent_failed")
        with redis.Redis.from_url(broker.url) as client:
            client.flushall()
        await_until(lambda: sc.agents.ring_inboxes() == 1, "the inbox to be due")
        (message,) = messages(broker, "agents")
        assert message["headers"]["task"] == "statecore.agents.drain_inbox"
