"""The demo's verdict, computed: what was submitted, what the audit stream says, and where the live records stand."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from statecore.agents.model import AgentRecord, AgentView, OutcomeCode
from statecore.agents.transitions import AGENT_LIFECYCLE, Lifecycle
from statecore.claims.model import Task
from statecore.events import Event
from statecore.testing.replay import Replay, TaskView, replay


@dataclass(frozen=True, slots=True)
class Verdict:
    """`lost`: submitted, yet neither applied nor refused. `fenced`: late writes refused. `problems` in words."""

    submitted: int
    applied: int
    refused: int
    lost: int
    doubled: int
    out_of_order: int
    late_writes: int
    fenced: int
    replay_equals_live: bool
    audit_events: int
    tasks: dict[str, int]
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Everything submitted was applied once and in order, late writes were refused, the audit explains it all."""
        wrong = self.lost or self.refused or self.doubled or self.out_of_order or self.problems
        return not wrong and self.fenced >= 1 and self.fenced == self.late_writes and self.replay_equals_live

    def as_json(self) -> dict[str, Any]:
        """The verdict as one JSON object."""
        return {"holds": self.holds, **asdict(self), "problems": list(self.problems)}


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the verdict is computed from. `submitted`: op_ids per agent in their order; `late`: those of late writes."""

    submitted: Mapping[str, Sequence[str]]
    late: frozenset[str]
    events: Sequence[Event]
    agents: Sequence[AgentRecord]
    tasks: Sequence[Task]


def judge(evidence: Evidence, lifecycle: Lifecycle = AGENT_LIFECYCLE, broken: Iterable[str] = ()) -> Verdict:
    """The verdict; `broken` are promises that were seen broken while it happened."""
    found = replay(evidence.events, lifecycle)
    ours = {op_id for op_ids in evidence.submitted.values() for op_id in op_ids}
    times_applied = Counter((agent_id, op_id) for agent_id, op_ids in found.applied.items() for op_id in op_ids)
    applied = {op_id for _, op_id in times_applied} & ours
    refusals = [event for event in evidence.events if event.kind == "agent:refused"]
    refused = {event.op_id for event in refusals} & ours - applied
    differences = _differences(found, evidence)
    return Verdict(
        submitted=len(ours),
        applied=len(applied),
        refused=len(refused),
        lost=len(ours - applied - refused),
        doubled=sum(times - 1 for times in times_applied.values()),
        out_of_order=sum(
            _out_of_order(op_ids, found.applied.get(agent_id, ())) for agent_id, op_ids in evidence.submitted.items()
        ),
        late_writes=len(evidence.late),
        fenced=len({event.op_id for event in refusals if _is_fenced(event)} & evidence.late),
        replay_equals_live=not differences,
        audit_events=len(evidence.events),
        tasks=dict(Counter(str(task.status) for task in evidence.tasks)),
        problems=(*broken, *map(str, found.problems), *differences),
    )


def _is_fenced(event: Event) -> bool:
    return isinstance(event.data, dict) and event.data.get("code") == OutcomeCode.LEASE_LOST


def _out_of_order(submitted: Sequence[str], applied: Sequence[str]) -> int:
    """How many were applied directly after one that was submitted later."""
    place = {op_id: number for number, op_id in enumerate(submitted)}
    places = [place[op_id] for op_id in applied if op_id in place]
    return sum(later < earlier for earlier, later in itertools.pairwise(places))


def _differences(found: Replay, evidence: Evidence) -> list[str]:
    live_agents = {
        record.agent_id: AgentView(
            record.state, record.version, record.epoch, record.current_task_id, record.current_task_priority
        )
        for record in evidence.agents
    }
    live_tasks = {task.task_id: TaskView(task.status, task.fence, task.claimed_by) for task in evidence.tasks}
    return [*_unequal("agent", found.agents, live_agents), *_unequal("task", found.tasks, live_tasks)]


def _unequal(what: str, replayed: Mapping[str, object], live: Mapping[str, object]) -> list[str]:
    return [
        f"{what} {name}: the replay ends at {replayed.get(name)}, the live record is {live.get(name)}"
        for name in sorted(replayed.keys() | live.keys())
        if replayed.get(name) != live.get(name)
    ]
