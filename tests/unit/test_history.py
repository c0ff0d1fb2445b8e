"""The recorder of histories."""

from __future__ import annotations

from pathlib import Path

import pytest

from statecore.errors import StateConflictError, StoreUnavailableError, UnknownOutcomeError
from statecore.testing.history import History, Phase, load_history, pair_up


def test_an_answer_is_ok_a_refusal_fails_and_a_lost_answer_stays_open() -> None:
    history = History()
    with history.operation("p1", "cas", "a1", ["idle", "assigned"]) as call:
        call.answer = "assigned"
    for error in (StateConflictError("agent a1", "idle", "working"), StoreUnavailableError("down")):
        with pytest.raises(type(error)), history.operation("p1", "cas", "a1"):
            raise error
    with pytest.raises(UnknownOutcomeError), history.operation("p1", "cas", "a1"):
        raise UnknownOutcomeError("cas", "op", "reset")
    pairs = pair_up(history.entries())
    assert [end and end.phase for _, end in pairs] == [Phase.OK, Phase.FAIL, Phase.FAIL, None]
    assert pairs[0][1] is not None
    assert (pairs[0][0].value, pairs[0][1].value) == (["idle", "assigned"], "assigned")


def test_overlapping_operations_keep_their_real_order() -> None:
    history = History()
    with history.operation("p1", "read", "k"), history.operation("p2", "read", "k"):
        pass
    assert [(entry.process, entry.phase) for entry in history.entries()] == [
        ("p1", "invoke"),
        ("p2", "invoke"),
        ("p2", "ok"),
        ("p1", "ok"),
    ]


def test_a_saved_history_is_read_back_as_it_was(tmp_path: Path) -> None:
    history = History()
    with history.operation("p1", "write", "k", {"n": 1}) as call:
        call.answer = [1, 2]
    history.save(tmp_path / "history.jsonl")
    assert load_history(tmp_path / "history.jsonl") == history.entries()
