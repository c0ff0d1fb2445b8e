"""A namespace's audit stream, replayed through the pure tables: what must be true now, and what can't have happened.

State and audit are written in one atom, so a stream that replays without a problem and ends where the live records
stand shows that nothing was lost, doubled or written past the rules.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from statecore.agents.model import AgentView
from statecore.agents.transitions import AGENT_LIFECYCLE, Lifecycle, TaskEffect
from statecore.claims.model import TaskStatus
from statecore.events import Event

_CHANGELESS = frozenset({"agent:refused", "agent:suspect", "agent:recovered", "task:refused"})

# The queue's table: from which statuses (None: not there yet) each kind leads to which.
_TASK_EDGES: Mapping[str, tuple[frozenset[str | None], TaskStatus]] = {
    "task:queued": (frozenset({None}), TaskStatus.QUEUED),
    "task:claimed": (frozenset({None, TaskStatus.QUEUED}), TaskStatus.CLAIMED),
    "task:released": (frozenset({TaskStatus.CLAIMED}), TaskStatus.QUEUED),
    "task:reclaimed": (frozenset({TaskStatus.CLAIMED}), TaskStatus.QUEUED),
    "task:completed": (frozenset({TaskStatus.CLAIMED}), TaskStatus.COMPLETED),
    "task:failed": (frozenset({TaskStatus.CLAIMED}), TaskStatus.FAILED),
}
_ENDED = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED})


class ProblemKind(StrEnum):
    MALFORMED = "malformed"
    OTHER_BEFORE = "other_before"
    NOT_ALLOWED = "not_allowed"
    DOUBLED = "doubled"
    VERSION = "version"
    EPOCH = "epoch"
    HELD_TASK = "held_task"
    FENCE = "fence"
    COMPLETED_TWICE = "completed_twice"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing about one event that can't be if every change went through the rules."""

    event_id: str
    subject: str
    kind: ProblemKind
    text: str

    def __str__(self) -> str:
        return f"event {self.event_id}, {self.subject}: {self.text}"


@dataclass(frozen=True, slots=True)
class TaskView:
    """The fields of a task that the audit carries."""

    status: str
    fence: int | None
    claimed_by: str | None


@dataclass(slots=True)
class Replay:
    """Where the stream ends: each agent and task as it must stand, the op_ids applied to each agent in order."""

    agents: dict[str, AgentView] = field(default_factory=dict)
    tasks: dict[str, TaskView] = field(default_factory=dict)
    applied: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)


def replay(events: Iterable[Event], lifecycle: Lifecycle = AGENT_LIFECYCLE) -> Replay:
    """The whole stream from its first event, with every problem found on the way.

    After a problem the replay goes on from what the event says, so one bad event is not reported for all behind it.
    """
    replayer = Replayer(lifecycle)
    for event in events:
        replayer.take(event)
    return replayer.result


class Replayer:
    """A replay that is fed one event at a time; `result` stands where the last one left it."""

    def __init__(self, lifecycle: Lifecycle = AGENT_LIFECYCLE) -> None:
        self.result = Replay()
        self._lifecycle = lifecycle
        self._operations: defaultdict[str, set[str]] = defaultdict(set)
        self._epochs: dict[str, int] = {}
        self._fences: dict[str, int] = {}
        self._event: Event

    def take(self, event: Event) -> None:
        """Go on by one event and note what is wrong with it."""
        self._event = event
        self.result.counts[event.kind] += 1
        family, _, name = event.kind.partition(":")
        if event.kind in _CHANGELESS or family not in ("agent", "task"):
            return
        try:
            if family == "agent":
                self._take_agent(name, _agent(event.before), _agent(event.after))
            else:
                self._take_task(_task(event.before), _task(event.after))
        except (KeyError, TypeError) as error:
            self._problem(ProblemKind.MALFORMED, f"before or after lacks its fields ({error!r})")

    def _take_agent(self, name: str, before: AgentView | None, after: AgentView | None) -> None:
        subject, known = self._event.subject, self.result.agents.get(self._event.subject)
        if before != known:
            self._problem(ProblemKind.OTHER_BEFORE, f"{self._event.kind} found {before}, the replay had {known}")
        self._check_op_id()
        if after is None:
            if name != "deregistered" or before is None:
                self._problem(ProblemKind.NOT_ALLOWED, f"{self._event.kind} made the agent vanish")
            self.result.agents.pop(subject, None)
            return
        self._check_state(name, before, after)
        self._check_version(before, after)
        self._check_epoch(name, before, after)
        self._check_held_task(name, before, after)
        self.result.agents[subject] = after
        self._epochs[subject] = max(after.epoch, self._epochs.get(subject, 0))

    def _check_op_id(self) -> None:
        subject, op_id = self._event.subject, self._event.op_id
        if op_id in self._operations[subject]:
            self._problem(ProblemKind.DOUBLED, f"op_id {op_id} was applied before")
        self._operations[subject].add(op_id)
        self.result.applied.setdefault(subject, []).append(op_id)

    def _check_state(self, name: str, before: AgentView | None, after: AgentView) -> None:
        if before is None:
            allowed = name == "registered" and after.state == self._lifecycle.initial
        elif name == "state_set":
            allowed = after.state in self._lifecycle.states
        elif name == "task_cleared":
            allowed = after.state == before.state
        else:
            rule = self._lifecycle.rules.get(name)
            allowed = rule is not None and rule.edges.get(before.state) == after.state
        if not allowed:
            source = before.state if before else "nothing"
            self._problem(ProblemKind.NOT_ALLOWED, f"the table has no {self._event.kind}: {source} -> {after.state}")

    def _check_version(self, before: AgentView | None, after: AgentView) -> None:
        expected = before.version + 1 if before else 1
        if after.version != expected:
            self._problem(ProblemKind.VERSION, f"version {after.version} follows, {expected} must")

    def _check_epoch(self, name: str, before: AgentView | None, after: AgentView) -> None:
        """Epochs rise where the table says so, else stay; a new registration stands above all its former lives."""
        highest = self._epochs.get(self._event.subject, 0)
        rule = self._lifecycle.rules.get(name)
        if before is None or (rule is not None and rule.raises_epoch):
            right, wanted = after.epoch > highest, f"above {highest}"
        else:
            right, wanted = after.epoch == before.epoch, str(before.epoch)
        if not right:
            self._problem(ProblemKind.EPOCH, f"{self._event.kind} left epoch {after.epoch}, it must be {wanted}")

    def _check_held_task(self, name: str, before: AgentView | None, after: AgentView) -> None:
        rule = self._lifecycle.rules.get(name)
        effect = rule.task if rule else TaskEffect.PUT_BACK if name == "task_cleared" else TaskEffect.KEEP
        if effect is TaskEffect.TAKE:
            right = after.task_id is not None
        elif effect is TaskEffect.KEEP and before is not None:
            right = (after.task_id, after.task_priority) == (before.task_id, before.task_priority)
        else:
            right = after.task_id is None and after.task_priority == 0
        if not right:
            self._problem(ProblemKind.HELD_TASK, f"{self._event.kind} ({effect}) left the agent with {after.task_id}")

    def _take_task(self, before: TaskView | None, after: TaskView | None) -> None:
        subject, known = self._event.subject, self.result.tasks.get(self._event.subject)
        # An ended task is forgotten after a while; its id may then begin anew.
        began_anew = before is None and known is not None and known.status in _ENDED
        if before != known and not began_anew:
            self._problem(ProblemKind.OTHER_BEFORE, f"{self._event.kind} found {before}, the replay had {known}")
        sources, target = _TASK_EDGES.get(self._event.kind, (frozenset(), None))
        if after is None or (before.status if before else None) not in sources or after.status != target:
            self._problem(ProblemKind.NOT_ALLOWED, f"the queue has no {self._event.kind}: {before} -> {after}")
        if after is None:
            self.result.tasks.pop(subject, None)
            return
        if target is TaskStatus.COMPLETED and known is not None and known.status in _ENDED:
            self._problem(ProblemKind.COMPLETED_TWICE, f"the task had ended already ({known.status})")
        self._check_fence(before, after)
        self.result.tasks[subject] = after

    def _check_fence(self, before: TaskView | None, after: TaskView) -> None:
        """A claim's fence stands above all before it; the claim keeps it; a task in nobody's hands has none."""
        highest = self._fences.get(self._event.subject, 0)
        if after.status == TaskStatus.CLAIMED:
            right = after.fence is not None and after.fence > highest and after.claimed_by is not None
        elif after.status == TaskStatus.COMPLETED:
            right = before is not None and (after.fence, after.claimed_by) == (before.fence, before.claimed_by)
        else:
            right = after.fence is None and after.claimed_by is None
        if not right:
            self._problem(
                ProblemKind.FENCE, f"{self._event.kind} left {after}; the highest fence of this task is {highest}"
            )
        self._fences[self._event.subject] = max(highest, after.fence or 0)

    def _problem(self, kind: ProblemKind, text: str) -> None:
        self.result.problems.append(Problem(self._event.id, self._event.subject, kind, text))


def _agent(fields: Mapping[str, Any] | None) -> AgentView | None:
    if fields is None:
        return None
    return AgentView(
        fields["state"], fields["version"], fields["epoch"], fields["task_id"], int(fields["task_priority"])
    )


def _task(fields: Mapping[str, Any] | None) -> TaskView | None:
    return None if fields is None else TaskView(fields["status"], fields["fence"], fields["claimed_by"])
