"""The demo as its viewers meet it, and its verdict, which must fail when something went wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from statecore.agents.memory_agents import MemoryAgents
from statecore.agents.memory_store import MemoryAgentStore
from statecore.agents.model import EventRequest
from statecore.backends.memory import MemorySpace
from statecore.cli.verdict import Evidence, Verdict, judge
from statecore.clock import ManualClock
from statecore.errors import LeaseLostError
from statecore.events import Event

ROOT = Path(__file__).parents[2]
CYCLE = ("task_assigned", "work_started", "output_ready", "output_delivered")


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the demo makes its temporary folder; not tmp_path, whose names are too long for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="sct-"))
    yield folder
    shutil.rmtree(folder)


def start_demo(place: Path, *arguments: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STATECORE_")}
    return subprocess.Popen(
        [sys.executable, "-m", "statecore.cli.main", "demo", *arguments],
        env=kept | {"PYTHONPATH": str(ROOT), "TMPDIR": str(place)},
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_in(place: Path) -> list[str]:
    """Every living process that works in this folder or names it."""
    found = []
    for process in psutil.process_iter():
        try:
            here = [process.cwd(), *process.cmdline()]
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if any(str(place) in text for text in here):
            found.append(f"{process.pid} {here}")
    return found


def test_the_demo_holds_and_leaves_nothing_behind(place: Path) -> None:
    demo = start_demo(place, "--json", "--agents", "4", "--events", "120", "--seed", "7")
    out, progress = demo.communicate(timeout=120)
    assert demo.returncode == 0, progress
    verdict = json.loads(out)
    assert verdict["holds"] is True
    assert verdict["submitted"] == verdict["applied"] == 120
    assert [verdict[name] for name in ("lost", "refused", "doubled", "out_of_order")] == [0, 0, 0, 0]
    assert verdict["fenced"] == verdict["late_writes"] == 1
    assert verdict["replay_equals_live"] is True
    assert verdict["problems"] == []
    facts = verdict["facts"]
    assert facts["killed_worker"] in ("worker-1", "worker-2")
    assert facts["in_flight_at_kill"] >= 1
    assert not psutil.pid_exists(facts["killed_pid"])
    assert {facts["silent_agent"], facts["successor"]} == {"agent-3", "agent-4"}
    assert "not the current lease" in facts["refusal"]
    assert "kill -9" in progress
    assert processes_in(place) == []
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "A Redis and a Postgres start"),
        (signal.SIGINT, "Two Celery workers"),
        (signal.SIGINT, "kill -9"),
        (signal.SIGTERM, "Workers and beat stop"),
    ],
)
def test_a_signal_at_any_moment_leaves_nothing_behind(place: Path, number: signal.Signals, moment: str) -> None:
    demo = start_demo(place, "--json", "--events", "60")
    assert demo.stderr is not None
    line = next((line for line in demo.stderr if moment in line), None)
    assert line is not None, f"the demo ended before it said {moment!r}"
    demo.send_signal(number)
    out, rest = demo.communicate(timeout=60)
    assert demo.returncode == 130, rest
    assert out == ""
    assert "Traceback" not in rest
    assert processes_in(place) == []
    assert list(place.iterdir()) == []


@pytest.fixture
def evidence() -> Evidence:
    """A small fleet's true history: two cycles of one agent, another lost, and its late write refused."""
    space = MemorySpace(ManualClock())
    agents = MemoryAgents(space)
    store = MemoryAgentStore(agents)
    submitted: dict[str, list[str]] = {"a1": []}
    first, second = (store.register(name, (), "{}", f"r-{name}").record for name in ("a1", "a2"))
    for number in range(8):
        op_id, event = f"e{number}", CYCLE[number % 4]
        task_id = f"t{number // 4}"
        store.apply_event(EventRequest("a1", event, op_id, task_id=task_id, epoch=first.epoch))
        submitted["a1"].append(op_id)
    store.apply_event(EventRequest("a2", "heartbeat_lost", "lost"))
    with pytest.raises(LeaseLostError):
        store.apply_event(EventRequest("a2", "output_ready", "late", epoch=second.epoch))
    tasks = [space.ledger.get(task_id, space.clock.now_ms()) for task_id in ("t0", "t1")]
    return Evidence(submitted, frozenset({"late"}), list(space.events), store.list("", 10), tasks)


def without(events: Sequence[Event], op_id: str) -> list[Event]:
    return [event for event in events if event.op_id != op_id]


def swapped(events: Sequence[Event], one: str, other: str) -> list[Event]:
    names = {one: other, other: one}
    return [replace(event, op_id=names.get(event.op_id, event.op_id)) for event in events]


def test_the_verdict_holds_for_a_true_history(evidence: Evidence) -> None:
    verdict = judge(evidence)
    assert verdict.holds, verdict
    assert (verdict.submitted, verdict.applied, verdict.fenced) == (8, 8, 1)


def test_a_lost_event_fails_the_verdict(evidence: Evidence) -> None:
    verdict = judge(replace(evidence, events=without(evidence.events, "e7")))
    assert not verdict.holds
    assert verdict.lost == 1
    assert not verdict.replay_equals_live


def test_an_event_that_was_never_applied_is_lost(evidence: Evidence) -> None:
    verdict = judge(replace(evidence, submitted={"a1": [*evidence.submitted["a1"], "e8"]}))
    assert (verdict.holds, verdict.lost) == (False, 1)


def test_a_doubled_event_fails_the_verdict(evidence: Evidence) -> None:
    again = [event for event in evidence.events if event.op_id == "e6"]
    verdict = judge(replace(evidence, events=[*evidence.events, *again]))
    assert (verdict.holds, verdict.doubled) == (False, 1)


def test_two_events_out_of_order_fail_the_verdict(evidence: Evidence) -> None:
    verdict = judge(replace(evidence, events=swapped(evidence.events, "e1", "e2")))
    assert (verdict.holds, verdict.out_of_order) == (False, 1)


def test_a_late_write_that_nobody_refused_fails_the_verdict(evidence: Evidence) -> None:
    verdict = judge(replace(evidence, events=without(evidence.events, "late")))
    assert (verdict.holds, verdict.fenced) == (False, 0)


def test_a_submitted_event_that_was_refused_fails_the_verdict(evidence: Evidence) -> None:
    verdict = judge(replace(evidence, submitted={**evidence.submitted, "a2": ["late"]}))
    assert (verdict.holds, verdict.refused, verdict.lost) == (False, 1, 0)


def test_a_live_record_that_the_audit_does_not_explain_fails_the_verdict(evidence: Evidence) -> None:
    changed = [replace(record, version=record.version + 1) for record in evidence.agents]
    verdict = judge(replace(evidence, agents=changed))
    assert (verdict.holds, verdict.replay_equals_live) == (False, False)
    assert "a1" in verdict.problems[0]
    missing = judge(replace(evidence, tasks=evidence.tasks[:1]))
    assert (missing.holds, missing.replay_equals_live) == (False, False)


def test_a_promise_seen_broken_fails_the_verdict(evidence: Evidence) -> None:
    verdict: Verdict = judge(evidence, broken=["after 20 s it is not true that agent-1 starts to work"])
    assert not verdict.holds
    assert verdict.as_json()["problems"] == ["after 20 s it is not true that agent-1 starts to work"]
