"""The runs' table against the seed's and the design's rows, written by hand."""

from __future__ import annotations

import pytest

from statecore.runs.model import RunStatus
from statecore.runs.statements import SWEEPS, change_one
from statecore.runs.transitions import ENTRY, RULES, TERMINAL, Verb, edges, to_mermaid

# Seed: the first eight; design: a cancel and a finish may meet, and attempts follow each other.
DESIGN = {
    ("queued", "running"),
    ("queued", "canceled"),
    ("queued", "timedOut"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "cancelling"),
    ("running", "timedOut"),
    ("cancelling", "canceled"),
    ("cancelling", "succeeded"),
    ("cancelling", "failed"),
    ("cancelling", "timedOut"),
    ("running", "running"),
}


def test_the_table_has_these_edges_and_no_other() -> None:
    assert {(str(source), str(target)) for source, target in edges()} == DESIGN


def test_nothing_leaves_a_terminal_status_and_everything_else_can_end() -> None:
    assert {"succeeded", "failed", "canceled", "timedOut", "rejected"} == TERMINAL
    assert not TERMINAL & {source for source, _ in edges()}
    reached = set(TERMINAL)
    while more := {source for source, target in edges() if target in reached} - reached:
        reached |= more
    assert reached == set(RunStatus)


def test_status_only_moves_forward() -> None:
    order = {"queued": 0, "running": 1, "cancelling": 2}
    assert all(order[source] <= order.get(target, 3) for source, target in DESIGN)
    assert {"queued", "rejected"} == ENTRY


@pytest.mark.parametrize("verb", Verb)
def test_the_sql_of_a_verb_is_derived_from_its_row(verb: Verb) -> None:
    sql, rule = str(change_one(verb)), RULES[verb]
    sources = ", ".join(f"'{source}'" for source in rule.edges)
    assert f"status IN ({sources})" in sql
    for source, target in rule.edges.items():
        assert f"WHEN '{source}' THEN '{target}'" in sql
    assert ("attempt = :attempt AND executor = :executor" in sql) == rule.held
    assert rule.event in sql


def test_every_verb_without_a_holder_that_time_drives_has_its_sweep() -> None:
    assert {verb for verb, _ in SWEEPS.values()} == {Verb.TIME_OUT, Verb.ABANDON, Verb.GIVE_UP, Verb.RECLAIM}


def test_the_diagram_draws_every_edge() -> None:
    drawn = to_mermaid()
    assert all(f"    {source} --> {target}: " in drawn for source, target in DESIGN)
