"""The agents' rules, once: a pure table and the pure functions that apply it.

The Redis scripts get their event's row as an argument, the memory store calls `refuse` and `advance`, the docs'
diagram is drawn from the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from statecore.agents.model import AgentEvent, AgentState, AgentView, EventOutcome, EventRequest, OutcomeCode
from statecore.errors import InvalidTransitionError, LifecycleError, UnknownEventError, UnknownStateError
from statecore.fences import is_current, rise

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class TaskEffect(StrEnum):
    """What an event does to the agent's task."""

    KEEP = "keep"
    TAKE = "take"
    FINISH = "finish"
    PUT_BACK = "put_back"


@dataclass(frozen=True, slots=True)
class EventRule:
    """One row of the table: where the event leads from each state, and what it does besides."""

    edges: Mapping[str, str]
    task: TaskEffect = TaskEffect.KEEP
    raises_epoch: bool = False


@dataclass(frozen=True)
class Lifecycle:
    """A whole table, checked when it is built: LifecycleError names what contradicts itself."""

    rules: Mapping[str, EventRule]
    initial: str = AgentState.IDLE
    assign_event: str = AgentEvent.TASK_ASSIGNED
    lost_event: str = AgentEvent.HEARTBEAT_LOST
    return_event: str = AgentEvent.AGENT_RETURNED
    states: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", MappingProxyType(dict(self.rules)))
        edges = [edge for rule in self.rules.values() for edge in rule.edges.items()]
        object.__setattr__(self, "states", frozenset(state for edge in edges for state in edge) | {self.initial})
        for problem in self._problems():
            raise LifecycleError(problem)

    def _problems(self) -> Iterator[str]:
        for name in (*self.states, *self.rules):
            if not _NAME.fullmatch(name):
                yield f"{name!r} is not a name; use lower case letters, digits and _"
        if not any(self.initial in rule.edges for rule in self.rules.values()):
            yield f"no event leaves the initial state {self.initial!r}"
        for role in (self.assign_event, self.lost_event, self.return_event):
            if role not in self.rules:
                yield f"the event {role!r} has a role of its own but no rule"
        if self.assign_event in self.rules and self.rules[self.assign_event].task is not TaskEffect.TAKE:
            yield f"{self.assign_event!r} must take the task"
        for role in (self.lost_event, self.return_event):
            if role in self.rules and not self.rules[role].raises_epoch:
                yield f"{role!r} must raise the epoch, or a late write would be accepted"
        unreachable = self.states - self._reachable()
        if unreachable:
            yield f"no path leads from {self.initial!r} to {', '.join(sorted(unreachable))}"

    def _reachable(self) -> set[str]:
        seen: set[str] = set()
        todo = [self.initial]
        while todo:
            state = todo.pop()
            if state not in seen:
                seen.add(state)
                todo.extend(rule.edges[state] for rule in self.rules.values() if state in rule.edges)
        return seen

    @property
    def assignable(self) -> frozenset[str]:
        """States in which an agent can be given a task."""
        return frozenset(self.rules[self.assign_event].edges)

    @property
    def watched(self) -> frozenset[str]:
        """States in which an agent must send heartbeats."""
        return frozenset(self.rules[self.lost_event].edges)

    def rule(self, event: str) -> EventRule:
        """The event's row; UnknownEventError if there is none."""
        try:
            return self.rules[event]
        except (KeyError, TypeError):
            raise UnknownEventError(str(event)[:128], ", ".join(self.rules)) from None

    def check_state(self, state: str) -> str:
        """The state itself if the table knows it, else UnknownStateError."""
        if not isinstance(state, str) or state not in self.states:
            raise UnknownStateError(str(state)[:128], ", ".join(sorted(self.states)))
        return state

    def valid_transition(self, state: str, event: str) -> str:
        """Where the event leads from this state; InvalidTransitionError if the table has no such edge."""
        target = self.rule(event).edges.get(state)
        if target is None:
            raise InvalidTransitionError("agent", state, event)
        return target

    def to_mermaid(self) -> str:
        """The table as a Mermaid state diagram."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial}: register"]
        for event, rule in self.rules.items():
            lines += [f"    {source} --> {target}: {event}" for source, target in rule.edges.items()]
        return "\n".join(lines)


def _to(target: AgentState, *sources: AgentState) -> dict[str, str]:
    return dict.fromkeys(sources, target)


_S = AgentState
AGENT_LIFECYCLE = Lifecycle(
    {
        AgentEvent.TASK_ASSIGNED: EventRule(_to(_S.ASSIGNED, _S.IDLE), task=TaskEffect.TAKE),
        AgentEvent.WORK_STARTED: EventRule(_to(_S.WORKING, _S.ASSIGNED)),
        AgentEvent.OUTPUT_READY: EventRule(_to(_S.REPORTING, _S.WORKING)),
        AgentEvent.OUTPUT_DELIVERED: EventRule(
            _to(_S.IDLE, _S.REPORTING) | _to(_S.STOPPED, _S.DRAINING), task=TaskEffect.FINISH
        ),
        AgentEvent.AGENT_FAILED: EventRule(
            _to(_S.IDLE, _S.ASSIGNED, _S.WORKING, _S.REPORTING, _S.IDLE) | _to(_S.STOPPED, _S.DRAINING),
            task=TaskEffect.PUT_BACK,
        ),
        AgentEvent.DRAIN_REQUESTED: EventRule(
            _to(_S.STOPPED, _S.IDLE) | _to(_S.DRAINING, _S.ASSIGNED, _S.WORKING, _S.REPORTING)
        ),
        AgentEvent.HEARTBEAT_LOST: EventRule(
            _to(_S.LOST, _S.ASSIGNED, _S.WORKING, _S.REPORTING, _S.IDLE, _S.DRAINING),
            task=TaskEffect.PUT_BACK,
            raises_epoch=True,
        ),
        AgentEvent.AGENT_RETURNED: EventRule(
            _to(_S.IDLE, _S.LOST, _S.STOPPED), task=TaskEffect.PUT_BACK, raises_epoch=True
        ),
    }
)


def refuse(view: AgentView, request: EventRequest, rule: EventRule, namespace_epoch: int) -> EventOutcome | None:
    """Why the request can't be applied to the agent as it stands, or None if it can."""

    def outcome(code: OutcomeCode, wanted: object, found: object) -> EventOutcome:
        return EventOutcome(request, code, view, str(wanted), str(found))

    lease_stands = request.epoch == view.epoch and is_current(view.epoch, namespace_epoch)
    if request.epoch is not None and not lease_stands:
        return outcome(OutcomeCode.LEASE_LOST, f"epoch {request.epoch}", f"epoch {view.epoch}")
    if request.task_id is not None and rule.task is not TaskEffect.TAKE and request.task_id != view.task_id:
        return outcome(OutcomeCode.LEASE_LOST, f"task {request.task_id}", f"task {view.task_id or 'none'}")
    if request.expected_version is not None and request.expected_version != view.version:
        code = OutcomeCode.EARLY if request.expected_version > view.version else OutcomeCode.CONFLICT
        return outcome(code, request.expected_version, view.version)
    if request.expected_state is not None and request.expected_state != view.state:
        return outcome(OutcomeCode.CONFLICT, request.expected_state, view.state)
    if view.state not in rule.edges:
        return outcome(OutcomeCode.INVALID, request.event, view.state)
    return None


def advance(
    view: AgentView, request: EventRequest, rule: EventRule, namespace_epoch: int, task_priority: int = 0
) -> AgentView:
    """The agent after an event that `refuse` let pass; `task_priority` is that of the task it takes."""
    keeps = rule.task is TaskEffect.KEEP
    takes = rule.task is TaskEffect.TAKE
    return AgentView(
        state=rule.edges[view.state],
        version=view.version + 1,
        epoch=rise(view.epoch, namespace_epoch) if rule.raises_epoch else view.epoch,
        task_id=request.task_id if takes else view.task_id if keeps else None,
        task_priority=task_priority if takes else view.task_priority if keeps else 0,
    )
