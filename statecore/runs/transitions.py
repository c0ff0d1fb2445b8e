"""The runs' rules, once: a pure table from which SQL gets its WHERE and its new status.

Status only moves forward; a terminal status is no source of any row, so nothing leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from statecore.runs.model import RunStatus

_S = RunStatus

TERMINAL = frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELED, _S.TIMED_OUT, _S.REJECTED})
ENTRY = frozenset({_S.QUEUED, _S.REJECTED})


class Verb(StrEnum):
    """What may be done to a run."""

    CLAIM = "claim"
    SUCCEED = "succeed"
    FAIL = "fail"
    RETRY = "retry"
    CANCEL = "cancel"
    CONFIRM_CANCELED = "confirm_canceled"
    ABANDON = "abandon"
    TIME_OUT = "time_out"
    RECLAIM = "reclaim"
    GIVE_UP = "give_up"
    GIVE_BACK = "give_back"


@dataclass(frozen=True, slots=True)
class RunRule:
    """One row: where the verb leads, its event, and whether only the holder of the lease may do it."""

    edges: Mapping[RunStatus, RunStatus]
    event: str
    held: bool = False
    raises_attempt: bool = False

    @property
    def ends(self) -> bool:
        """True if the verb always leads to a terminal status."""
        return all(target in TERMINAL for target in self.edges.values())


RULES: Mapping[Verb, RunRule] = {
    # A running run is claimed again only when it has no executor: after a reclaim, a retry, or being given back.
    Verb.CLAIM: RunRule({_S.QUEUED: _S.RUNNING, _S.RUNNING: _S.RUNNING}, "run:claimed"),
    Verb.SUCCEED: RunRule({_S.RUNNING: _S.SUCCEEDED, _S.CANCELLING: _S.SUCCEEDED}, "run:succeeded", held=True),
    Verb.FAIL: RunRule({_S.RUNNING: _S.FAILED, _S.CANCELLING: _S.FAILED}, "run:failed", held=True),
    Verb.RETRY: RunRule({_S.RUNNING: _S.RUNNING}, "run:retried", held=True, raises_attempt=True),
    Verb.CANCEL: RunRule({_S.QUEUED: _S.CANCELED, _S.RUNNING: _S.CANCELLING}, "run:cancel_requested"),
    Verb.CONFIRM_CANCELED: RunRule({_S.CANCELLING: _S.CANCELED}, "run:canceled", held=True),
    Verb.ABANDON: RunRule({_S.CANCELLING: _S.CANCELED}, "run:canceled"),
    Verb.TIME_OUT: RunRule(
        {_S.QUEUED: _S.TIMED_OUT, _S.RUNNING: _S.TIMED_OUT, _S.CANCELLING: _S.TIMED_OUT}, "run:timed_out"
    ),
    Verb.RECLAIM: RunRule({_S.RUNNING: _S.RUNNING}, "run:reclaimed", raises_attempt=True),
    Verb.GIVE_UP: RunRule({_S.RUNNING: _S.FAILED}, "run:failed"),
    Verb.GIVE_BACK: RunRule({_S.RUNNING: _S.RUNNING}, "run:given_back", held=True),
}


def edges() -> set[tuple[RunStatus, RunStatus]]:
    """Every change of status that some verb makes."""
    return {edge for rule in RULES.values() for edge in rule.edges.items()}


def settled(verb: Verb, status: RunStatus) -> bool:
    """True if the verb's goal is reached already, so that doing it again is a no-op and not a lost race."""
    return verb is Verb.CANCEL and status in (_S.CANCELLING, _S.CANCELED)


def to_mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", *(f"    [*] --> {status}: submit" for status in sorted(ENTRY))]
    for verb, rule in RULES.items():
        lines += [f"    {source} --> {target}: {verb}" for source, target in rule.edges.items()]
    return "\n".join([*lines, *(f"    {status} --> [*]" for status in sorted(TERMINAL))])
