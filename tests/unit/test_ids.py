"""The border: what may be an id, an integer, a JSON body."""

from __future__ import annotations

from typing import Any

import pytest

from statecore.errors import InvalidAgentIdError, InvalidIdError, InvalidInputError, LimitExceededError
from statecore.ids import check_agent_id, check_capabilities, check_id, check_int, encode_json

GOOD = ["a", "A1", "0", "a.b_c-d", "x" * 128]
BAD: list[Any] = ["", " ", "-a", ".a", "_a", "a b", "a/b", "a{b}", "a\n", "a|b", "ä", "x" * 129, None, 7, b"a", ["a"]]


@pytest.mark.parametrize("value", GOOD)
def test_good_ids_pass(value: str) -> None:
    assert check_id("task id", value) == check_agent_id(value) == value


@pytest.mark.parametrize("value", BAD)
def test_bad_ids_are_refused_with_what_is_allowed(value: Any) -> None:
    with pytest.raises(InvalidIdError, match=r"is not an id; use 1 to 128 of A-Z a-z 0-9 \. _ -"):
        check_id("task id", value)
    with pytest.raises(InvalidAgentIdError):
        check_agent_id(value)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 11, -1])
def test_integers_have_a_type_and_a_range(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="priority is"):
        check_int("priority", value, 0, 10)


def test_json_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert encode_json("data", "x" * 8, 10) == '"xxxxxxxx"'
    with pytest.raises(LimitExceededError, match="data in bytes is 11, the limit is 10"):
        encode_json("data", "x" * 9, 10)
    with pytest.raises(LimitExceededError):
        encode_json("data", "ä" * 5, 10)


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), b"x", {"a": object()}, "\ud800", "a\x00b", {("t",): 1}])
def test_what_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError):
        encode_json("data", value, 1000)


def test_a_backslash_before_u0000_is_text_like_any_other() -> None:
    assert encode_json("data", "\\u0000", 100) == '"\\\\u0000"'


def test_capabilities_are_a_bounded_set_of_ids() -> None:
    assert check_capabilities(["b", "a", "b"]) == ("a", "b")
    for wrong in ("python", 7, None):
        with pytest.raises(InvalidInputError):
            check_capabilities(wrong)  # type: ignore[arg-type]
    with pytest.raises(LimitExceededError):
        check_capabilities([f"c{number}" for number in range(33)])
