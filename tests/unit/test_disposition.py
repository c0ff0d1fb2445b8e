"""What becomes of a message, by the branch of the error that it met."""

from __future__ import annotations

import inspect
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statecore import errors
from statecore.errors import (
    ConflictError,
    EarlyEventError,
    RejectedError,
    SettingsError,
    StatecoreError,
    StoreError,
)
from statecore.supervisor.backoff import full_jitter
from workers.disposition import Disposition, answer, classify

EVERY_ERROR = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, StatecoreError)]

BRANCHES = {
    "StatecoreError": Disposition.REJECT,
    "SettingsError": Disposition.REJECT,
    "EvictionPolicyError": Disposition.REJECT,
    "RunNotFoundError": Disposition.REJECT,
    "IdempotencyError": Disposition.REJECT,
    "SchemaOutdatedError": Disposition.REJECT,
    "SchemaUnknownError": Disposition.REJECT,
    "ConflictError": Disposition.ANSWER,
    "StateConflictError": Disposition.ANSWER,
    "SequenceConflictError": Disposition.ANSWER,
    "LeaseLostError": Disposition.ANSWER,
    "TaskTakenError": Disposition.ANSWER,
    "ConflictRetriesExhausted": Disposition.ANSWER,
    "EarlyEventError": Disposition.RETRY_SOON,
    "RejectedError": Disposition.REJECT,
    "InvalidTransitionError": Disposition.REJECT,
    "UnknownEventError": Disposition.REJECT,
    "UnknownStateError": Disposition.REJECT,
    "LifecycleError": Disposition.REJECT,
    "AgentNotFoundError": Disposition.REJECT,
    "TaskNotFoundError": Disposition.REJECT,
    "TaskExistsError": Disposition.REJECT,
    "InvalidIdError": Disposition.REJECT,
    "InvalidAgentIdError": Disposition.REJECT,
    "InvalidInputError": Disposition.REJECT,
    "UnguardedEventError": Disposition.REJECT,
    "LimitExceededError": Disposition.REJECT,
    "CorruptDocumentError": Disposition.REJECT,
    "StreamGapError": Disposition.REJECT,
    "StoreError": Disposition.RETRY_LATER,
    "StoreUnavailableError": Disposition.RETRY_LATER,
    "StoreTimeoutError": Disposition.RETRY_LATER,
    "UnknownOutcomeError": Disposition.RETRY_LATER,
    "EventBacklogError": Disposition.RETRY_LATER,
}


def make(kind: type[StatecoreError]) -> StatecoreError:
    """An error of that class, with a number for each number it wants and a word for the rest."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return kind("a detail")
    return kind(*(3 if parameter.annotation == "int" else "word" for parameter in parameters))


def names(kinds: list[type[StatecoreError]]) -> list[str]:
    return [kind.__name__ for kind in kinds]


def test_the_table_of_this_test_names_every_error() -> None:
    assert set(names(EVERY_ERROR)) == set(BRANCHES), "a new error needs a line that says what its message meets"


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=names(EVERY_ERROR))
def test_every_error_has_its_disposition(kind: type[StatecoreError]) -> None:
    assert classify(make(kind)) is BRANCHES[kind.__name__]


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=names(EVERY_ERROR))
def test_the_branch_alone_decides(kind: type[StatecoreError]) -> None:
    """A conflict never backs off, a rejected request is never retried, a store failure always is."""
    disposition = classify(make(kind))
    if issubclass(kind, RejectedError | SettingsError):
        assert disposition is Disposition.REJECT
    elif issubclass(kind, StoreError):
        assert disposition is Disposition.RETRY_LATER
    elif issubclass(kind, ConflictError):
        assert disposition is (Disposition.RETRY_SOON if kind is EarlyEventError else Disposition.ANSWER)


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=names(EVERY_ERROR))
def test_a_refusal_is_answered_with_its_error_and_a_text(kind: type[StatecoreError]) -> None:
    told = answer("rejected", make(kind))
    assert told["error"] == kind.__name__
    assert told["message"], "the text says what to do"
    assert "{" not in told["message"], "every field of the text is filled in"
    assert (told["state"], told["version"]) == (None, None)


SECONDS = st.floats(min_value=0.001, max_value=1_000)
FAILURES = st.integers(min_value=1, max_value=10_000)


@given(failures=FAILURES, base_s=SECONDS, cap_s=SECONDS, seed=st.integers())
def test_a_delay_is_never_negative_and_never_above_the_cap(
    failures: int, base_s: float, cap_s: float, seed: int
) -> None:
    delay_s = full_jitter(failures, base_s, cap_s, random.Random(seed).uniform)
    assert 0.0 <= delay_s <= cap_s


@given(failures=FAILURES, base_s=SECONDS, cap_s=SECONDS)
def test_the_ceiling_doubles_with_each_failure_until_the_cap(failures: int, base_s: float, cap_s: float) -> None:
    def ceiling_s(failures: int) -> float:
        return full_jitter(failures, base_s, cap_s, lambda _, high: high)

    assert ceiling_s(1) == min(base_s, cap_s), "the first delay is drawn from the base"
    assert ceiling_s(failures + 1) == min(cap_s, 2 * ceiling_s(failures))


@given(failures=FAILURES, base_s=SECONDS, cap_s=SECONDS)
def test_jitter_is_full(failures: int, base_s: float, cap_s: float) -> None:
    """A herd that failed together must be able to come back at once and one by one."""
    assert full_jitter(failures, base_s, cap_s, lambda low, _: low) == 0.0


@pytest.mark.parametrize("failures", [12, 100, 10_000])
def test_after_many_failures_the_cap_holds(failures: int) -> None:
    assert full_jitter(failures, 0.2, 30.0, lambda _, high: high) == 30.0
