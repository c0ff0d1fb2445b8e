"""The agents' table, cell by cell, and what a table of one's own must fulfil."""

from __future__ import annotations

import pickle

import pytest

from statecore.agents.model import AgentEvent, AgentState, AgentView, EventRequest, OutcomeCode
from statecore.agents.transitions import AGENT_LIFECYCLE, EventRule, Lifecycle, TaskEffect, advance, refuse
from statecore.errors import InvalidTransitionError, LifecycleError, UnknownEventError, UnknownStateError

# Written by hand from the design, on purpose not derived from the table under test.
DESIGN: dict[tuple[str, str], str] = {
    ("idle", "task_assigned"): "assigned",
    ("assigned", "work_started"): "working",
    ("working", "output_ready"): "reporting",
    ("reporting", "output_delivered"): "idle",
    ("assigned", "agent_failed"): "idle",
    ("working", "agent_failed"): "idle",
    ("reporting", "agent_failed"): "idle",
    ("idle", "agent_failed"): "idle",
    ("idle", "drain_requested"): "stopped",
    ("assigned", "drain_requested"): "draining",
    ("working", "drain_requested"): "draining",
    ("reporting", "drain_requested"): "draining",
    ("draining", "output_delivered"): "stopped",
    ("draining", "agent_failed"): "stopped",
    ("assigned", "heartbeat_lost"): "lost",
    ("working", "heartbeat_lost"): "lost",
    ("reporting", "heartbeat_lost"): "lost",
    ("idle", "heartbeat_lost"): "lost",
    ("draining", "heartbeat_lost"): "lost",
    ("lost", "agent_returned"): "idle",
    ("stopped", "agent_returned"): "idle",
}


@pytest.mark.parametrize("state", AgentState)
@pytest.mark.parametrize("event", AgentEvent)
def test_every_state_and_event_does_what_the_design_says(state: str, event: str) -> None:
    view = AgentView(state, version=7, epoch=1_000_000_001, task_id="t1", task_priority=3)
    request = EventRequest("a1", event, "op", task_id="t2" if event == "task_assigned" else None)
    rule = AGENT_LIFECYCLE.rule(event)
    refused = refuse(view, request, rule, namespace_epoch=1)
    target = DESIGN.get((state, event))
    if target is None:
        assert refused is not None
        assert refused.code is OutcomeCode.INVALID
        with pytest.raises(InvalidTransitionError):
            AGENT_LIFECYCLE.valid_transition(state, event)
        return
    assert refused is None
    assert AGENT_LIFECYCLE.valid_transition(state, event) == target
    after = advance(view, request, rule, namespace_epoch=1, task_priority=9)
    assert (after.state, after.version) == (target, 8)
    assert (after.epoch > view.epoch) == (event in ("heartbeat_lost", "agent_returned"))
    task = {
        "task_assigned": ("t2", 9),
        "work_started": ("t1", 3),
        "output_ready": ("t1", 3),
        "drain_requested": ("t1", 3),
    }
    assert (after.task_id, after.task_priority) == task.get(event, (None, 0))


def test_an_epoch_of_a_newer_namespace_epoch_is_above_all_older_ones() -> None:
    view = AgentView("working", 1, 1_000_000_999)
    after = advance(view, EventRequest("a1", "heartbeat_lost", "op"), AGENT_LIFECYCLE.rule("heartbeat_lost"), 4)
    assert after.epoch == 4_000_000_001


def test_the_lease_is_checked_before_anything_else() -> None:
    view = AgentView("idle", version=7, epoch=5)
    request = EventRequest("a1", "work_started", "op", epoch=4, expected_version=99)
    refused = refuse(view, request, AGENT_LIFECYCLE.rule("work_started"), namespace_epoch=0)
    assert refused is not None
    assert refused.code is OutcomeCode.LEASE_LOST


def test_a_lease_of_an_older_namespace_epoch_is_over_even_if_the_record_still_shows_it() -> None:
    view = AgentView("assigned", version=7, epoch=1_000_000_005)
    request = EventRequest("a1", "work_started", "op", epoch=1_000_000_005)
    rule = AGENT_LIFECYCLE.rule("work_started")
    assert refuse(view, request, rule, namespace_epoch=1) is None
    refused = refuse(view, request, rule, namespace_epoch=2)
    assert refused is not None
    assert refused.code is OutcomeCode.LEASE_LOST


@pytest.mark.parametrize(("expected", "code"), [(6, OutcomeCode.CONFLICT), (8, OutcomeCode.EARLY)])
def test_a_version_behind_is_a_conflict_and_one_ahead_is_early(expected: int, code: OutcomeCode) -> None:
    request = EventRequest("a1", "task_assigned", "op", task_id="t", expected_version=expected)
    refused = refuse(AgentView("idle", 7, 5), request, AGENT_LIFECYCLE.rule("task_assigned"), namespace_epoch=0)
    assert refused is not None
    assert refused.code is code


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownEventError, match="task_assigned"):
        AGENT_LIFECYCLE.rule("party")
    with pytest.raises(UnknownStateError, match="idle"):
        AGENT_LIFECYCLE.check_state("tired")


def own_rules(**changes: EventRule) -> dict[str, EventRule]:
    rules = {
        "task_assigned": EventRule({"ready": "busy"}, task=TaskEffect.TAKE),
        "done": EventRule({"busy": "ready"}, task=TaskEffect.FINISH),
        "heartbeat_lost": EventRule({"ready": "gone", "busy": "gone"}, task=TaskEffect.PUT_BACK, raises_epoch=True),
        "agent_returned": EventRule({"gone": "ready"}, raises_epoch=True),
    }
    return rules | changes


def test_a_table_of_ones_own_is_accepted() -> None:
    table = Lifecycle(own_rules(), initial="ready")
    assert table.states == {"ready", "busy", "gone"}
    assert (table.assignable, table.watched) == ({"ready"}, {"ready", "busy"})


@pytest.mark.parametrize(
    ("rules", "initial", "complaint"),
    [
        (own_rules(), "nowhere", "no event leaves the initial state 'nowhere'"),
        (own_rules(odd=EventRule({"island": "ready"})), "ready", "no path leads from 'ready' to island"),
        (own_rules(Loud=EventRule({"ready": "busy"})), "ready", "'Loud' is not a name"),
        (own_rules(odd=EventRule({"ready": "b|d"})), "ready", "is not a name"),
        (own_rules(task_assigned=EventRule({"ready": "busy"})), "ready", "must take the task"),
        (own_rules(agent_returned=EventRule({"gone": "ready"})), "ready", "must raise the epoch"),
        ({"done": EventRule({"ready": "ready"})}, "ready", "has a role of its own but no rule"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(rules: dict[str, EventRule], initial: str, complaint: str) -> None:
    with pytest.raises(LifecycleError, match=complaint):
        Lifecycle(rules, initial=initial)


def test_the_diagram_draws_every_edge_and_no_other() -> None:
    lines = AGENT_LIFECYCLE.to_mermaid().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> idle: register"]
    assert {line.strip() for line in lines[2:]} == {f"{a} --> {b}: {event}" for (a, event), b in DESIGN.items()}


def test_errors_survive_pickling() -> None:
    error = InvalidTransitionError("agent a1", "idle", "work_started")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.state) == (str(error), "idle")
