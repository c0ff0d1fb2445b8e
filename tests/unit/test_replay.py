"""The replay is a checker, so it is checked itself: good streams pass, every planted defect is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from statecore.agents.memory_agents import MemoryAgents
from statecore.agents.memory_store import MemoryAgentStore
from statecore.agents.model import AgentView, EventRequest
from statecore.agents.transitions import AGENT_LIFECYCLE, EventRule, Lifecycle, TaskEffect
from statecore.backends.memory import MemoryEventLog, MemorySpace
from statecore.clock import ManualClock, as_datetime
from statecore.events import Event
from statecore.supervisor.memory_store import MemoryAssignStore
from statecore.testing.replay import ProblemKind, Replay, TaskView, replay

EPOCH = 1_000_000_001
Fields = dict[str, Any] | None


def agent(state: str, version: int, epoch: int = EPOCH, task: str | None = None, priority: int = 0) -> Fields:
    return {"state": state, "version": version, "epoch": epoch, "task_id": task, "task_priority": priority}


def task(status: str, fence: int | None = None, by: str | None = None) -> Fields:
    return {"status": status, "fence": fence, "claimed_by": by}


def stream(*rows: tuple[str, str, Fields, Fields]) -> list[Event]:
    return [
        Event(f"{number}-0", as_datetime(number), kind, subject, "test", f"op{number}", before, after, None)
        for number, (kind, subject, before, after) in enumerate(rows, start=1)
    ]


IDLE = agent("idle", 1)
ASSIGNED = agent("assigned", 2, task="t1", priority=5)
WORKING = agent("working", 3, task="t1", priority=5)
REPORTING = agent("reporting", 4, task="t1", priority=5)
DONE = agent("idle", 5)

GOOD = stream(
    ("task:queued", "t1", None, task("queued")),
    ("agent:registered", "a1", None, IDLE),
    ("task:claimed", "t1", task("queued"), task("claimed", 7, "a1")),
    ("agent:task_assigned", "a1", IDLE, ASSIGNED),
    ("agent:work_started", "a1", ASSIGNED, WORKING),
    ("agent:output_ready", "a1", WORKING, REPORTING),
    ("task:completed", "t1", task("claimed", 7, "a1"), task("completed", 7, "a1")),
    ("agent:output_delivered", "a1", REPORTING, DONE),
)
CLAIM, ASSIGN, START, READY, COMPLETE, DELIVER = range(2, 8)


def kinds(found: Replay) -> set[ProblemKind]:
    return {problem.kind for problem in found.problems}


def planted(place: int, **changes: Any) -> list[Event]:
    """The good stream with one event changed."""
    return [replace(event, **changes) if number == place else event for number, event in enumerate(GOOD)]


def test_a_good_stream_ends_where_its_last_events_say() -> None:
    found = replay(GOOD)
    assert found.problems == []
    assert found.agents == {"a1": AgentView("idle", 5, EPOCH)}
    assert found.tasks == {"t1": TaskView("completed", 7, "a1")}
    assert found.applied == {"a1": ["op2", "op4", "op5", "op6", "op8"]}
    assert found.counts["agent:work_started"] == 1


def test_an_empty_stream_has_nothing_and_no_problem() -> None:
    found = replay([])
    assert (found.agents, found.tasks, found.problems) == ({}, {}, [])


def test_refusals_suspicions_and_foreign_events_change_nothing() -> None:
    extra = stream(
        ("agent:refused", "a1", None, None),
        ("agent:suspect", "a1", None, None),
        ("agent:recovered", "a1", None, None),
        ("task:refused", "t1", None, None),
        ("message:rejected", "a1", None, None),
    )
    found = replay([*GOOD, *extra])
    assert found.problems == []
    assert found.agents == replay(GOOD).agents


def test_loss_return_set_and_clear_replay_by_the_table() -> None:
    lost, returned = agent("lost", 3, EPOCH + 1), agent("idle", 4, EPOCH + 2)
    found = replay(
        stream(
            ("agent:registered", "a1", None, IDLE),
            ("task:claimed", "t1", None, task("claimed", 7, "a1")),
            ("agent:task_assigned", "a1", IDLE, ASSIGNED),
            ("task:reclaimed", "t1", task("claimed", 7, "a1"), task("queued")),
            ("agent:heartbeat_lost", "a1", ASSIGNED, lost),
            ("agent:agent_returned", "a1", lost, returned),
            ("agent:state_set", "a1", returned, agent("working", 5, EPOCH + 2)),
            ("agent:task_cleared", "a1", agent("working", 5, EPOCH + 2), agent("working", 6, EPOCH + 2)),
            ("agent:deregistered", "a1", agent("working", 6, EPOCH + 2), None),
            ("agent:registered", "a1", None, agent("idle", 1, EPOCH + 3)),
            ("task:claimed", "t1", task("queued"), task("claimed", 8, "w")),
            ("task:released", "t1", task("claimed", 8, "w"), task("queued")),
            ("task:claimed", "t1", task("queued"), task("claimed", 9, "w")),
            ("task:failed", "t1", task("claimed", 9, "w"), task("failed")),
            ("task:queued", "t1", None, task("queued")),
        )
    )
    assert found.problems == []
    assert found.agents == {"a1": AgentView("idle", 1, EPOCH + 3)}
    assert found.tasks == {"t1": TaskView("queued", None, None)}


def test_a_declared_lifecycle_is_replayed_by_its_own_table() -> None:
    table = Lifecycle(
        {
            **AGENT_LIFECYCLE.rules,
            "paused": EventRule({"working": "resting"}, task=TaskEffect.KEEP),
            "resumed": EventRule({"resting": "working"}),
        }
    )
    resting = agent("resting", 4, task="t1", priority=5)
    events = [*GOOD[:5], *stream(("agent:paused", "a1", WORKING, resting))]
    assert [problem for problem in replay(events, table).problems if problem.kind is ProblemKind.NOT_ALLOWED] == []
    assert kinds(replay(events)) >= {ProblemKind.NOT_ALLOWED}


BAD = {
    "an event is missing": ([event for number, event in enumerate(GOOD) if number != START], ProblemKind.OTHER_BEFORE),
    "the registration is missing": (GOOD[2:], ProblemKind.OTHER_BEFORE),
    "an event stands in the stream twice": ([*GOOD[:5], GOOD[START], *GOOD[5:]], ProblemKind.DOUBLED),
    "an op_id is applied under another event": (planted(READY, op_id="op5"), ProblemKind.DOUBLED),
    "two events changed places": (
        [*GOOD[:START], GOOD[READY], GOOD[START], *GOOD[COMPLETE:]],
        ProblemKind.OTHER_BEFORE,
    ),
    "a state that the table does not lead to": (
        planted(START, after=agent("reporting", 3, task="t1", priority=5)),
        ProblemKind.NOT_ALLOWED,
    ),
    "an event that the table does not know": (planted(START, kind="agent:promoted"), ProblemKind.NOT_ALLOWED),
    "a registration in another state": (planted(1, after=agent("working", 1)), ProblemKind.NOT_ALLOWED),
    "an agent vanishes without being deregistered": (planted(DELIVER, after=None), ProblemKind.NOT_ALLOWED),
    "a version is skipped": (planted(DELIVER, after=agent("idle", 6)), ProblemKind.VERSION),
    "a version stands still": (planted(DELIVER, after=agent("idle", 4)), ProblemKind.VERSION),
    "an epoch falls": (planted(DELIVER, after=agent("idle", 5, EPOCH - 1)), ProblemKind.EPOCH),
    "an epoch rises without a reason": (planted(DELIVER, after=agent("idle", 5, EPOCH + 1)), ProblemKind.EPOCH),
    "a loss that does not raise the epoch": (
        [*GOOD, *stream(("agent:heartbeat_lost", "a1", DONE, agent("lost", 6)))],
        ProblemKind.EPOCH,
    ),
    "a new life under an old epoch": (
        [*GOOD, *stream(("agent:deregistered", "a1", DONE, None), ("agent:registered", "a1", None, IDLE))],
        ProblemKind.EPOCH,
    ),
    "a delivered task stays in the agent's hands": (
        planted(DELIVER, after=agent("idle", 5, task="t1", priority=5)),
        ProblemKind.HELD_TASK,
    ),
    "an assignment without a task": (planted(ASSIGN, after=agent("assigned", 2)), ProblemKind.HELD_TASK),
    "a task changes under the agent's hands": (
        planted(START, after=agent("working", 3, task="t2", priority=5)),
        ProblemKind.HELD_TASK,
    ),
    "fields are missing": (planted(START, after={"state": "working"}), ProblemKind.MALFORMED),
    "a task is completed twice": (
        [*GOOD, *stream(("task:completed", "t1", task("claimed", 7, "a1"), task("completed", 7, "a1")))],
        ProblemKind.COMPLETED_TWICE,
    ),
    "a fence falls": (
        [
            *GOOD[:3],
            *stream(
                ("task:released", "t1", task("claimed", 7, "a1"), task("queued")),
                ("task:claimed", "t1", task("queued"), task("claimed", 6, "a2")),
            ),
        ],
        ProblemKind.FENCE,
    ),
    "two hold one task": (
        [*GOOD[:3], *stream(("task:claimed", "t1", task("queued"), task("claimed", 8, "a2")))],
        ProblemKind.OTHER_BEFORE,
    ),
    "a claim without a fence": (planted(CLAIM, after=task("claimed", None, "a1")), ProblemKind.FENCE),
    "a completion under another fence": (planted(COMPLETE, after=task("completed", 6, "a1")), ProblemKind.FENCE),
    "a waiting task is completed": (
        stream(
            ("task:queued", "t1", None, task("queued")), ("task:completed", "t1", task("queued"), task("completed"))
        ),
        ProblemKind.NOT_ALLOWED,
    ),
    "a task event that the queue does not know": (planted(CLAIM, kind="task:stolen"), ProblemKind.NOT_ALLOWED),
}


@pytest.mark.parametrize("name", BAD)
def test_a_planted_defect_is_named(name: str) -> None:
    events, expected = BAD[name]
    found = replay(events)
    assert expected in kinds(found), f"{name}: {[str(problem) for problem in found.problems]}"


def test_one_bad_event_is_one_problem_not_one_for_each_event_behind_it() -> None:
    found = replay(planted(START, after=agent("assigned", 3, task="t1", priority=5)))
    assert [problem.kind for problem in found.problems] == [
        ProblemKind.NOT_ALLOWED,
        ProblemKind.OTHER_BEFORE,
    ]
    assert "a1" in str(found.problems[0])
    assert "event 5-0" in str(found.problems[0])


def test_what_the_memory_store_audits_replays_to_what_it_holds() -> None:
    space = MemorySpace(ManualClock())
    agents = MemoryAgents(space)
    store, supervisor = MemoryAgentStore(agents), MemoryAssignStore(agents)
    store.register("a1", (), "{}", "r1")
    store.apply_event(EventRequest("a1", "task_assigned", "e1", task_id="t1", priority=5))
    store.apply_event(EventRequest("a1", "agent_failed", "e2"))
    supervisor.assign_next("s1")
    store.apply_event(EventRequest("a1", "work_started", "e3"))
    store.register("a1", (), "{}", "r2")
    store.compare_and_set("a1", "idle", "working", "c1")
    store.clear_current_task("a1", "k1")
    found = replay(MemoryEventLog(space).read())
    live = store.get("a1")
    assert found.problems == []
    assert found.agents == {"a1": AgentView(live.state, live.version, live.epoch)}
    assert found.tasks["t1"].status == "queued"
