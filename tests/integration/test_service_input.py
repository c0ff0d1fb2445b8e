"""Bad input at the library's border: a clear error, and not a byte written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from statecore import Statecore
from statecore.backends.embedded import ServerUrls
from statecore.errors import (
    InvalidAgentIdError,
    InvalidIdError,
    InvalidInputError,
    LimitExceededError,
    RejectedError,
    UnknownEventError,
    UnknownStateError,
)

Call = Callable[[Statecore], Any]
FAILED = {"agent_id": "a1", "event": "agent_failed"}

WRONG: list[tuple[str, Call, type[RejectedError]]] = [
    ("an agent id with a slash", lambda sc: sc.agents.register("a/1"), InvalidAgentIdError),
    ("an agent id that is no text", lambda sc: sc.agents.get(7), InvalidAgentIdError),
    ("metadata over 4 KB", lambda sc: sc.agents.register("x", metadata={"k": "v" * 4096}), LimitExceededError),
    ("metadata that is a list", lambda sc: sc.agents.register("x", metadata=["v"]), InvalidInputError),
    ("metadata that is not JSON", lambda sc: sc.agents.register("x", metadata={"k": {1}}), InvalidInputError),
    ("a capability with a comma", lambda sc: sc.agents.register("x", ["a,b"]), InvalidIdError),
    ("an unknown event", lambda sc: sc.agents.apply_event("a1", "explode"), UnknownEventError),
    ("an event that is no text", lambda sc: sc.agents.apply_event("a1", ["x"]), UnknownEventError),
    ("an assignment of nothing", lambda sc: sc.agents.apply_event("a1", "task_assigned"), InvalidInputError),
    ("a priority out of range", lambda sc: sc.claims.enqueue("t", priority=1001), InvalidInputError),
    ("a version as text", lambda sc: sc.agents.request("a1", "agent_failed", expected_version="3"), InvalidInputError),
    ("data over 64 KB", lambda sc: sc.agents.send_event("a1", "agent_failed", data="x" * 65_535), LimitExceededError),
    ("an op_id with a bar", lambda sc: sc.agents.apply_event("a1", "agent_failed", op_id="a|b"), InvalidIdError),
    ("an unknown state", lambda sc: sc.agents.compare_and_set_agent_state("a1", "idle", "tired"), UnknownStateError),
    ("a batch of 257", lambda sc: sc.agents.apply_events([FAILED] * 257), LimitExceededError),
    ("a namespace with a space", lambda sc: sc.in_namespace("a b"), InvalidIdError),
    ("a negative lease", lambda sc: sc.claims.claim_next("c", lease_s=-1), InvalidInputError),
    ("a fence that is no number", lambda sc: sc.claims.complete("t", "7"), InvalidInputError),
    ("a task id with a brace", lambda sc: sc.claims.enqueue("{t}"), InvalidIdError),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error"), [pair[1:] for pair in WRONG], ids=[pair[0] for pair in WRONG])
def test_bad_input_is_refused_before_anything_is_written(
    sc: Statecore, urls: ServerUrls, call: Call, error: type[RejectedError]
) -> None:
    sc.agents.register("a1")
    with redis.Redis.from_url(urls.redis_url) as client:
        before = {key: client.dump(key) for key in client.keys(f"sc:{{{sc.namespace}}}:*")}
        with pytest.raises(error):
            call(sc)
        assert {key: client.dump(key) for key in client.keys(f"sc:{{{sc.namespace}}}:*")} == before


def test_data_at_its_limit_travels_and_comes_back_as_it_was(sc: Statecore) -> None:
    sc.agents.register("a1", metadata={"k": "v" * 4088})
    data = {"list": [], "big": 2**70, "text": "é\u2028\"'\\ \x1f|", "pad": ""}
    data["pad"] = "x" * (65_536 - len(str(data).encode()) - 30)
    sc.agents.send_event("a1", "agent_failed", data=data)
    sc.agents.drain_inbox("a1")
    (event,) = sc.events.read(kinds=["agent:agent_failed"])
    assert event.data == data


def test_events_of_two_namespaces_never_meet(sc: Statecore) -> None:
    other = sc.in_namespace(f"{sc.namespace[:60]}.other")
    sc.agents.register("a1")
    other.agents.register("a2")
    assert [agent.agent_id for agent in sc.agents.list()] == ["a1"]
    assert [event.subject for event in other.events.read()] == ["a2"]
    assert {sc.namespace, other.namespace} <= set(sc.namespaces())


def test_listing_filters_by_state_over_pages(sc: Statecore) -> None:
    for number in range(230):
        sc.agents.register(f"a{number:03}")
    sc.agents.apply_event("a210", "task_assigned", task_id="t1")
    assert [agent.agent_id for agent in sc.agents.list("assigned")] == ["a210"]
    assert [agent.agent_id for agent in sc.agents.list("idle", after="a208", limit=2)] == ["a209", "a211"]
