"""Errors: each in its branch, each with a text, each surviving a process border."""

from __future__ import annotations

import inspect
import pickle

import pytest

from statecore import errors
from statecore.errors import ConflictError, RejectedError, SettingsError, StatecoreError, StoreError

CONCRETE = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, StatecoreError) and cls is not StatecoreError
]


def example(cls: type[StatecoreError]) -> StatecoreError:
    if cls.__init__ is Exception.__init__:
        return cls("what went wrong")
    _, *parameters = inspect.signature(cls.__init__).parameters.values()
    return cls(*(3 if parameter.annotation == "int" else "x" for parameter in parameters))


@pytest.mark.parametrize("cls", CONCRETE)
def test_an_error_has_one_branch_a_text_and_survives_pickling(cls: type[StatecoreError]) -> None:
    branches = [
        branch for branch in (ConflictError, RejectedError, StoreError, SettingsError) if issubclass(cls, branch)
    ]
    assert len(branches) == 1, "a caller must know what to do next"
    error = example(cls)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error) != ""
    assert vars(again) == vars(error)
