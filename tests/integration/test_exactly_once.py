"""The promise of the whole: workers die, messages vanish, and every event is applied once and in its order."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pytest_celery import CeleryTestSetup

from statecore import Settings, Statecore
from statecore.agents.model import AgentRecord, AgentView, EventRequest
from statecore.agents.transitions import AGENT_LIFECYCLE, advance, refuse
from statecore.events import Event
from tests.integration.nodes import ProcessContainer, RedisContainer, await_until

AGENTS = 50
ROUNDS = 25
PRODUCERS = 20
HALF = 60
ROUND = ("task_assigned", "work_started", "output_ready", "output_delivered")
# How agents' scripts end after their rounds, and the state in which that leaves them.
ENDINGS: dict[str, tuple[str, ...]] = {
    "idle": (),
    "working": ("task_assigned", "work_started"),
    "draining": ("task_assigned", "drain_requested"),
    "reporting": ("agent_failed", "task_assigned", "work_started", "output_ready"),
    "stopped": ("task_assigned", "work_started", "drain_requested", "output_delivered"),
}
FINISH_S = 60.0

Scripts = dict[str, list[EventRequest]]


@pytest.fixture(scope="class")
def worker_names() -> Sequence[str]:
    return ("w1", "w2")


@pytest.fixture(scope="class")
def worker_env() -> dict[str, str]:
    """Nobody sends heartbeats here, so nobody is lost for want of them."""
    return {"STATECORE_HEARTBEAT_LOST_AFTER_S": "3600"}


def final_state(number: int) -> str:
    return list(ENDINGS)[number % len(ENDINGS)]


def script(number: int) -> list[EventRequest]:
    """All events of one agent, with task ids that no other agent uses."""
    agent_id, requests, task = f"agent-{number:02}", [], 0
    for place, event in enumerate(ROUND * ROUNDS + ENDINGS[final_state(number)]):
        takes = event == "task_assigned"
        task += takes
        requests.append(
            EventRequest(
                agent_id,
                event,
                op_id=f"{agent_id}.{place}",
                task_id=f"{agent_id}.task-{task}" if takes else None,
                priority=task % 3 if takes else None,
            )
        )
    return requests


class Fleet:
    """Producers at work, and how far the agents have come."""

    def __init__(self, plane: Statecore, scripts: Scripts) -> None:
        self.total = sum(map(len, scripts.values()))
        self._plane = plane
        self._scripts = scripts
        self._sent = 0
        self._lock = threading.Lock()
        self.second_half = threading.Event()

    def produce(self, settings: Settings, agent_ids: Sequence[str]) -> None:
        """Send the scripts of these agents, each back to back, over connections of its own.

        Half way it waits for the chaos, which is slower: a worker needs seconds to start again.
        """
        with Statecore.connect(settings=settings) as sc:
            for place in range(max(len(self._scripts[agent_id]) for agent_id in agent_ids)):
                if place == HALF:
                    self.second_half.wait(FINISH_S)
                for agent_id in agent_ids:
                    for request in self._scripts[agent_id][place : place + 1]:
                        sc.agents.send_events([request])
                        with self._lock:
                            self._sent += 1

    def records(self) -> dict[str, AgentRecord]:
        return {record.agent_id: record for record in self._plane.agents.list(limit=AGENTS)}

    def applied(self) -> int:
        """How many events have been applied: registration made every agent's version 1."""
        return sum(record.version - 1 for record in self.records().values())

    def in_flight_after(self, applied: int) -> Callable[[], bool]:
        """True when that many are applied and more wait in the inboxes at this moment."""

        def reached() -> bool:
            sent = self._sent
            return applied <= self.applied() < sent

        return reached


def test_every_event_is_applied_once_and_in_order_though_workers_die_and_the_broker_forgets(
    plane: Statecore, celery_setup: CeleryTestSetup, beat: ProcessContainer
) -> None:
    scripts = {requests[0].agent_id: requests for requests in map(script, range(AGENTS))}
    for agent_id in scripts:
        plane.agents.register(agent_id)
    fleet = Fleet(plane, scripts)
    assert fleet.total >= 5000

    run_through_chaos(fleet, list(scripts), plane.settings, celery_setup)

    records = fleet.records()
    for number, (agent_id, requests) in enumerate(scripts.items()):
        reached = (records[agent_id].state, records[agent_id].version)
        assert reached == (final_state(number), 1 + len(requests)), f"{agent_id} is where its script leads"
    trail = [event for event in plane.events.read() if event.kind.startswith("agent:")]
    for agent_id, requests in scripts.items():
        registered, *changes = [event for event in trail if event.subject == agent_id]
        assert [event.op_id for event in changes] == [request.op_id for request in requests], (
            f"the audit shows every event of {agent_id} once, in the order sent, and nothing else"
        )
        assert replay(registered, changes, requests) == view_of(records[agent_id]), (
            f"the trail of {agent_id}, replayed through the table, gives its live state"
        )


def run_through_chaos(fleet: Fleet, agent_ids: list[str], settings: Settings, setup: CeleryTestSetup) -> None:
    """All producers send; one worker after the other is killed and started again, and the broker flushed once."""
    w1, w2 = setup.worker_cluster
    broker = setup.broker.container
    assert isinstance(broker, RedisContainer)
    with ThreadPoolExecutor(PRODUCERS) as pool:
        lanes = [pool.submit(fleet.produce, settings, agent_ids[lane::PRODUCERS]) for lane in range(PRODUCERS)]
        try:
            await_until(fleet.in_flight_after(500), FINISH_S, "events are in flight for the first kill")
            w1.kill()
            await_until(fleet.in_flight_after(1500), FINISH_S, "events are in flight for the flush")
            broker.flush()
            w1.restart()
            fleet.second_half.set()
            await_until(fleet.in_flight_after(3500), FINISH_S, "events are in flight for the second kill")
            w2.kill()
            w2.restart()
        finally:
            fleet.second_half.set()
        for lane in lanes:
            lane.result(FINISH_S)
    await_until(
        lambda: fleet.applied() >= fleet.total,
        FINISH_S,
        lambda: f"all {fleet.total} events are applied, so far {fleet.applied()}",
    )


def replay(registered: Event, changes: Sequence[Event], requests: Sequence[EventRequest]) -> AgentView:
    """Where the pure table leads from the registration; every step must be the one that the trail shows."""
    assert registered.kind == "agent:registered"
    assert registered.after is not None
    view = AgentView(**registered.after)
    for event, request in zip(changes, requests, strict=True):
        assert event.kind == f"agent:{request.event}"
        assert event.before == as_fields(view), f"{event} begins where the event before it ended"
        rule = AGENT_LIFECYCLE.rule(request.event)
        assert refuse(view, request, rule, namespace_epoch=0) is None, f"the table allows {event}"
        view = advance(view, request, rule, namespace_epoch=0, task_priority=request.priority or 0)
        assert event.after == as_fields(view), f"{event} ends where the table leads"
    return view


def as_fields(view: AgentView) -> dict[str, Any]:
    """The agent as events show it."""
    return dataclasses.asdict(view)


def view_of(record: AgentRecord) -> AgentView:
    return AgentView(record.state, record.version, record.epoch, record.current_task_id, record.current_task_priority)
