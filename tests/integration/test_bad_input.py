"""Messages that nobody should send: refused once and clearly, nothing written, and the worker lives on."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from kombu import Connection
from pytest_celery import CeleryTestSetup

from statecore import Settings, Statecore
from statecore.errors import LimitExceededError
from statecore.ids import new_op_id
from tests.integration.conftest import Producer, audited
from tests.integration.nodes import PATIENCE_S, await_until

APPLY = "statecore.agents.apply_event"
APPLY_MANY = "statecore.agents.apply_events"
DRAIN = "statecore.agents.drain_inbox"
HEARTBEAT = "statecore.agents.heartbeat"
GOOD = {"agent_id": "a1", "event": "task_assigned", "task_id": "t1", "expected_version": 1}
TOO_LONG = "x" * 70_000

BAD_EVENTS: dict[str, tuple[dict[str, Any], str]] = {
    "an empty agent id": ({"agent_id": ""}, "InvalidAgentIdError"),
    "an agent id with a space": ({"agent_id": "a 1"}, "InvalidAgentIdError"),
    "an agent id that leaves its hash tag": ({"agent_id": "a}:x"}, "InvalidAgentIdError"),
    "an agent id with a line break": ({"agent_id": "a1\n"}, "InvalidAgentIdError"),
    "an agent id with the inbox separator": ({"agent_id": "a\x1fb"}, "InvalidAgentIdError"),
    "an agent id of 129 letters": ({"agent_id": "a" * 129}, "InvalidAgentIdError"),
    "a number as agent id": ({"agent_id": 7}, "InvalidAgentIdError"),
    "an object as agent id": ({"agent_id": {"id": "a1"}}, "InvalidAgentIdError"),
    "no agent id": ({"agent_id": None}, "InvalidAgentIdError"),
    "an unknown agent": ({"agent_id": "nobody"}, "AgentNotFoundError"),
    "an unknown event": ({"event": "explode"}, "UnknownEventError"),
    "a list as event": ({"event": ["task_assigned"]}, "UnknownEventError"),
    "no event": ({"event": None}, "UnknownEventError"),
    "an event that the state does not allow": ({"event": "output_ready", "task_id": None}, "InvalidTransitionError"),
    "an unknown state": ({"expected_state": "asleep"}, "UnknownStateError"),
    "an event without a guard": ({"expected_version": None}, "UnguardedEventError"),
    "an epoch without its task": (
        {"expected_version": None, "event": "agent_failed", "epoch": 1, "task_id": None},
        "UnguardedEventError",
    ),
    "an assignment without a task": ({"task_id": None}, "InvalidInputError"),
    "a task id that is none": ({"task_id": "t 1"}, "InvalidIdError"),
    "an op_id that is none": ({"op_id": "op|1"}, "InvalidIdError"),
    "an object as op_id": ({"op_id": {"a": 1}}, "InvalidIdError"),
    "text as version": ({"expected_version": "1"}, "InvalidInputError"),
    "a boolean as version": ({"expected_version": True}, "InvalidInputError"),
    "a negative version": ({"expected_version": -1}, "InvalidInputError"),
    "a fraction as epoch": ({"epoch": 1.5}, "InvalidInputError"),
    "a version that no number holds": ({"expected_version": 10**30}, "InvalidInputError"),
    "a priority beyond all others": ({"priority": 10**9}, "InvalidInputError"),
    "too much data": ({"data": TOO_LONG}, "LimitExceededError"),
    "data with a NUL": ({"data": "a\x00b"}, "InvalidInputError"),
    "a namespace that is none": ({"namespace": "no space"}, "InvalidIdError"),
    "a namespace of another slot": ({"namespace": "x}:{y"}, "InvalidIdError"),
    "a number as namespace": ({"namespace": 7}, "InvalidIdError"),
    "a list as namespace": ({"namespace": ["x"]}, "InvalidIdError"),
}

BAD_BATCHES: dict[str, tuple[Any, str]] = {
    "no list": ("a1", "InvalidInputError"),
    "an object": ({"agent_id": "a1"}, "InvalidInputError"),
    "nothing": (None, "InvalidInputError"),
    "an event that is a number": ([GOOD, 7], "InvalidInputError"),
    "an event with an unknown field": ([GOOD, {**GOOD, "colour": "red"}], "InvalidInputError"),
    "an event without an agent": ([GOOD, {"event": "work_started", "expected_version": 2}], "InvalidInputError"),
    "an event without a guard": ([GOOD, {"agent_id": "a1", "event": "work_started"}], "UnguardedEventError"),
    "an unknown event": ([GOOD, {**GOOD, "event": "explode"}], "UnknownEventError"),
    "257 events": ([GOOD] * 257, "LimitExceededError"),
}

OTHER_MESSAGES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "a drain for no agent id": (DRAIN, "agents", {"agent_id": "a 1"}, "InvalidAgentIdError"),
    "a heartbeat of an unknown agent": (HEARTBEAT, "agents", {"agent_id": "nobody", "epoch": 1}, "AgentNotFoundError"),
    "a heartbeat without a number": (HEARTBEAT, "agents", {"agent_id": "a1", "epoch": "1"}, "InvalidInputError"),
    "an assignment in no namespace": ("statecore.supervisor.assign", "control", {"namespace": "a b"}, "InvalidIdError"),
    "a sweep in no namespace": (
        "statecore.maintenance.ring_inboxes",
        "control",
        {"namespace": "a b"},
        "InvalidIdError",
    ),
}

WRONG_ARGUMENTS: dict[str, dict[str, Any]] = {
    "an unknown argument": {**GOOD, "colour": "red"},
    "a missing argument": {"agent_id": "a1"},
}


TASK_HEADERS = {"lang": "py", "task": APPLY, "retries": 0, "timelimit": [None, None], "argsrepr": "", "kwargsrepr": ""}
BODY = json.dumps([[], GOOD, {}]).encode()
REFUSED = "Refusing to deserialize"
# What reaches a worker and is no task message: content type, body, headers, and what the worker says of it.
GARBAGE: dict[str, tuple[str, bytes, dict[str, Any], str]] = {
    "broken JSON": ("application/json", b'[[], {"agent_id": "a1", ', TASK_HEADERS, "Can't decode message body"),
    "JSON that is no UTF-8": (
        "application/json",
        b'[[], {"a": "\xff"}, {}]',
        TASK_HEADERS,
        "Can't decode message body",
    ),
    "a pickle": ("application/x-python-serialize", pickle.dumps([[], GOOD, {}]), TASK_HEADERS, REFUSED),
    "a YAML": ("application/x-yaml", b"- []\n- {agent_id: a1}\n- {}\n", TASK_HEADERS, REFUSED),
    "no task name": ("application/json", BODY, {}, "Received and deleted unknown message"),
    "an unknown task": (
        "application/json",
        BODY,
        {**TASK_HEADERS, "task": "statecore.agents.explode"},
        "Received unregistered task of type 'statecore.agents.explode'",
    ),
    "a time that is none": ("application/json", BODY, {**TASK_HEADERS, "eta": "soon"}, "Received invalid task message"),
    "an object for a body": ("application/json", b'{"agent_id": "a1"}', TASK_HEADERS, "Received invalid task message"),
    "a number for a body": ("application/json", b"7", TASK_HEADERS, "Received invalid task message"),
    "nothing for a body": ("application/json", b"null", TASK_HEADERS, "Received invalid task message"),
    "a body with one part": ("application/json", b"[[]]", TASK_HEADERS, "Received invalid task message"),
    "a number for arguments": ("application/json", b"[7, 7, 7]", TASK_HEADERS, "Received invalid task message"),
    "a list for named arguments": ("application/json", b"[[], [], {}]", TASK_HEADERS, "Received invalid task message"),
}


class TestBadInput:
    """One worker for all of it: what one message broke, the next would notice."""

    @pytest.fixture
    def own_namespace(self, fleet_settings: Settings) -> Iterator[Statecore]:
        """The workers' own namespace, where a message is audited that names none."""
        with Statecore.connect(settings=fleet_settings) as own_namespace:
            yield own_namespace

    @pytest.fixture(autouse=True)
    def _harmless(
        self, plane: Statecore, own_namespace: Statecore, producer: Producer, celery_setup: CeleryTestSetup
    ) -> Iterator[None]:
        """Agent a1 and all keys of the store are after the test as before; then a good event is applied."""
        own_namespace.events.record("test:began", "test", new_op_id(), None)
        plane.agents.register("a1")
        before = written(plane)
        yield
        assert written(plane) == before, "a refused message writes nothing but its audit"
        assert_alive(celery_setup)
        answer = producer.apply_event(**GOOD)
        assert answer["outcome"] == "applied", f"the worker lives and takes the next message: {answer}"

    @pytest.fixture
    def rejects(
        self, producer: Producer, plane: Statecore, own_namespace: Statecore, celery_setup: CeleryTestSetup
    ) -> Callable[..., None]:
        """Sends a message and sees to it that it is refused with this error, once."""

        def send(task: str, error: str, *, queue: str = "agents", **kwargs: Any) -> None:
            message = producer.send(task, queue=queue, **kwargs)
            at = plane if kwargs.get("namespace", plane.namespace) == plane.namespace else own_namespace
            rejected = await_until(
                lambda: [event for event in audited(at, "message:rejected") if event.op_id == message.id],
                PATIENCE_S,
                lambda: f"the rejection is audited; the worker says:\n{said_of(celery_setup, message.id)}",
            )
            assert [(event.data["task"], event.data["error"]) for event in rejected] == [(task, error)]
            assert rejected[0].data["message"], "the audit says what was wrong"
            assert "retry: Retry" not in said_of(celery_setup, message.id), "a rejected message is never retried"

        return send

    @pytest.mark.parametrize(("change", "error"), BAD_EVENTS.values(), ids=BAD_EVENTS)
    def test_a_bad_event_is_rejected(
        self, producer: Producer, rejects: Callable[..., None], change: dict[str, Any], error: str
    ) -> None:
        rejects(APPLY, error, **{**GOOD, **change})
        answer = producer.ask(APPLY, **{**GOOD, **change})
        assert (answer["outcome"], answer["error"]) == ("rejected", error), answer
        assert answer["message"], "the producer is told what was wrong"

    @pytest.mark.parametrize(("events", "error"), BAD_BATCHES.values(), ids=BAD_BATCHES)
    def test_a_batch_with_one_bad_event_is_rejected_as_a_whole(
        self, rejects: Callable[..., None], events: Any, error: str
    ) -> None:
        rejects(APPLY_MANY, error, events=events)

    @pytest.mark.parametrize(("task", "queue", "kwargs", "error"), OTHER_MESSAGES.values(), ids=OTHER_MESSAGES)
    def test_the_other_tasks_reject_what_makes_no_sense(
        self, rejects: Callable[..., None], task: str, queue: str, kwargs: dict[str, Any], error: str
    ) -> None:
        rejects(task, error, queue=queue, **kwargs)

    @pytest.mark.parametrize("kwargs", WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
    def test_arguments_that_the_task_does_not_have_are_rejected(
        self, producer: Producer, rejects: Callable[..., None], kwargs: dict[str, Any]
    ) -> None:
        rejects(APPLY, "InvalidInputError", **kwargs)
        assert "argument" in producer.ask(APPLY, **kwargs)["message"]

    @pytest.mark.parametrize(("content_type", "body", "headers", "says"), GARBAGE.values(), ids=GARBAGE)
    def test_what_is_no_task_message_is_dropped(
        self,
        celery_setup: CeleryTestSetup,
        fleet_settings: Settings,
        content_type: str,
        body: bytes,
        headers: dict[str, Any],
        says: str,
    ) -> None:
        worker = celery_setup.worker
        assert worker is not None
        seen = len(worker.logs())
        publish(fleet_settings.require("broker_url"), content_type, body, headers)

        def said() -> bool:
            assert_alive(celery_setup)
            return says in worker.logs()[seen:]

        await_until(said, PATIENCE_S, lambda: f"the worker says {says!r}; it said:\n{worker.logs()[seen:]}")
        await_until(
            lambda: unsettled(celery_setup) == 0, PATIENCE_S, "the message is gone, so it can't poison another worker"
        )

    def test_metadata_beyond_the_limit_is_refused_before_anything_is_written(self, plane: Statecore) -> None:
        with pytest.raises(LimitExceededError, match="metadata"):
            plane.agents.register("a2", metadata={"text": "x" * 5000})

    def test_a_sent_event_beyond_the_limit_never_reaches_the_inbox(self, plane: Statecore) -> None:
        with pytest.raises(LimitExceededError, match="data"):
            plane.agents.send_event("a1", "task_assigned", task_id="t1", data=TOO_LONG)


def written(plane: Statecore) -> tuple[list[Any], dict[str, Any]]:
    """The agents, and every key of the store but audit trails; an agent's memory of operations is no state."""
    client = redis.Redis.from_url(plane.settings.require("redis_url"), decode_responses=True)
    with client:
        keys = {key: None for key in client.scan_iter("sc:*") if not key.endswith(":events")}
        for key in keys:
            if key.startswith(f"sc:{{{plane.namespace}}}:agent:"):
                fields = client.hgetall(key)
                keys[key] = {name: value for name, value in fields.items() if not name.startswith("op")}
    return plane.agents.list(), keys


def assert_alive(setup: CeleryTestSetup) -> None:
    assert setup.worker is not None
    assert setup.worker.container.status == "running", f"the worker died:\n{setup.worker.logs()[-2000:]}"


def said_of(setup: CeleryTestSetup, message_id: str) -> str:
    """The lines of the worker's log that are about one message."""
    assert setup.worker is not None
    return "\n".join(line for line in setup.worker.logs().splitlines() if message_id in line)


def publish(url: str, content_type: str, body: bytes, headers: dict[str, Any]) -> None:
    """Put raw bytes into the agents' queue."""
    message_id = new_op_id()
    named = {**headers, "id": message_id, "root_id": message_id} if headers else {}
    with Connection(url) as connection, connection.Producer() as producer:
        producer.publish(
            body,
            exchange="",
            routing_key="agents",
            content_type=content_type,
            content_encoding="utf-8" if content_type == "application/json" else "binary",
            headers=named,
            correlation_id=message_id,
        )


def unsettled(setup: CeleryTestSetup) -> int:
    """Messages that wait in the broker or that a worker has not acknowledged."""
    assert setup.broker is not None
    with setup.broker.container.client as client:
        return int(client.llen("agents")) + int(client.hlen("unacked"))
