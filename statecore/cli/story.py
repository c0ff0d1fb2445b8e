"""The demo's scenario: a fleet at work, a worker killed, an agent lost, its late write refused, and the verdict."""

from __future__ import annotations

import random
import time
from dataclasses import asdict, dataclass
from typing import Any

from statecore.agents.model import AgentEvent, AgentRecord, AgentState
from statecore.claims.model import TaskStatus
from statecore.cli.processes import CeleryProcess
from statecore.cli.stage import PROMPT_S, PromiseBrokenError, Stage
from statecore.cli.traffic import Drive
from statecore.cli.verdict import Verdict, judge
from statecore.errors import LeaseLostError
from statecore.ids import new_op_id

REVIEW = "review-1"
REVIEWERS = 2
# Of the events asked for, so many tell the review's story; the other agents share the rest.
REVIEW_EVENTS = 4
DRIVE_S = 5.0
WORKER_CHILDREN = 2
_DRIVERS = 4
_FREEZES = 4
_STUCK_S = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """How large the demo is."""

    agents: int
    events: int
    seed: int


@dataclass(slots=True)
class Facts:
    """What happened beside the count of events; None where the story did not get that far."""

    killed_worker: str | None = None
    killed_pid: int | None = None
    in_flight_at_kill: int | None = None
    applied_after_kill_s: float | None = None
    replacement_pid: int | None = None
    silent_agent: str | None = None
    lost_after_s: float | None = None
    successor: str | None = None
    refusal: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The facts as one JSON object."""
        return asdict(self)


class Story:
    """Plays once on its stage; a promise that is seen broken ends it early, and the verdict says so."""

    def __init__(self, stage: Stage, plan: Plan) -> None:
        self.facts = Facts()
        self._stage = stage
        self._sc = stage.sc
        self._plan = plan
        self._rng = random.Random(plan.seed)

    def play(self) -> Verdict:
        """The verdict; KeyboardInterrupt if a signal came, StatecoreError if a server or a process fails."""
        broken: list[str] = []
        try:
            self._play()
        except PromiseBrokenError as error:
            broken.append(str(error))
        self._stage.note("Workers and beat stop; the audit is replayed through the pure table.")
        self._stage.processes.stop()
        return judge(self._stage.evidence(), self._sc.agents.lifecycle, broken)

    def _play(self) -> None:
        self._stage.open()
        workers = self._start_processes()
        reviewers = self._register()
        drives = self._start_driving()
        silent, successor = self._hand_out_review(reviewers)
        silent_since = self._fall_silent(silent)
        self._kill_one_of(workers)
        replacement = self._replace_worker()
        self._see_it_lost(silent, successor, silent_since)
        self._write_late(silent)
        self._finish_review(successor)
        self._stage.expect(
            lambda: all(drive.is_done for drive in drives) and not self._stage.in_flight(),
            "every submitted event is applied",
            DRIVE_S + PROMPT_S,
        )
        self._stage.wait_ready(replacement)

    def _start_processes(self) -> list[CeleryProcess]:
        self._stage.note(f"Two Celery workers with {WORKER_CHILDREN} children each and beat start.")
        workers = [self._start_worker(number) for number in (1, 2)]
        self._stage.wait_ready(*workers, self._stage.processes.start_beat("beat"))
        return workers

    def _start_worker(self, number: int) -> CeleryProcess:
        return self._stage.processes.start_worker(f"worker-{number}", WORKER_CHILDREN)

    def _register(self) -> list[AgentRecord]:
        """All agents are there and send heartbeats; those that will review."""
        driven = self._plan.agents - REVIEWERS
        records = []
        for number in range(1, self._plan.agents + 1):
            role, capability = ("events", "work") if number <= driven else ("reviews", "review")
            record = self._sc.agents.register(f"agent-{number}", capabilities=[capability])
            self._stage.roles[record.agent_id] = role
            self._stage.traffic.keep_alive(record.agent_id, record.epoch)
            records.append(record)
        self._stage.crew.start("heartbeats", self._stage.traffic.beat)
        self._stage.note(f"Events go to {driven} of {len(records)} agents; the other {REVIEWERS} wait for reviews.")
        return records[driven:]

    def _start_driving(self) -> list[Drive]:
        agents = [agent_id for agent_id, role in self._stage.roles.items() if role == "events"]
        each, more = divmod(self._plan.events - REVIEW_EVENTS, len(agents))
        budgets = [(agent_id, each + (place < more)) for place, agent_id in enumerate(agents)]
        drives = []
        for first in range(min(_DRIVERS, len(budgets))):
            rng = random.Random(self._rng.random())
            drives.append(Drive(self._stage.traffic, budgets[first::_DRIVERS], DRIVE_S, rng))
            self._stage.crew.start(f"driver-{first + 1}", drives[-1].run)
        return drives

    def _hand_out_review(self, reviewers: list[AgentRecord]) -> tuple[AgentRecord, AgentRecord]:
        """The reviewer to whom the supervisor gave the review, and the other one."""
        self._sc.claims.enqueue(REVIEW, priority=5, capabilities=["review"])
        self._stage.expect(lambda: self._holder() is not None, "the supervisor hands out the review")
        first, second = reviewers
        return (first, second) if self._holder() == first.agent_id else (second, first)

    def _fall_silent(self, silent: AgentRecord) -> float:
        agent_id = self.facts.silent_agent = silent.agent_id
        self._stage.traffic.submit(agent_id, AgentEvent.WORK_STARTED, epoch=silent.epoch, task_id=REVIEW)
        self._stage.expect(lambda: self._state(agent_id) == AgentState.WORKING, f"{agent_id} starts to work")
        self._stage.traffic.fall_silent(agent_id)
        limit_s = self._sc.settings.heartbeat_lost_after_s
        self._stage.note(f"{agent_id} works on {REVIEW} and falls silent; the limit is {limit_s:g} s.")
        return time.monotonic()

    def _kill_one_of(self, workers: list[CeleryProcess]) -> None:
        victim = self._rng.choice(workers)
        self._freeze_with_messages(victim)
        self._stage.kill(victim)
        killed_at, in_flight = time.monotonic(), self._stage.in_flight()
        self.facts.killed_worker, self.facts.killed_pid = victim.name, victim.pid
        self.facts.in_flight_at_kill = len(in_flight)
        self._stage.note(f"kill -9 {victim.name} (pid {victim.pid}) with {len(in_flight)} events in flight.")
        self._stage.expect(
            lambda: in_flight.isdisjoint(self._stage.in_flight()), "the events in flight at the kill are applied"
        )
        after_s = self.facts.applied_after_kill_s = round(time.monotonic() - killed_at, 1)
        self._stage.note(f"Those {len(in_flight)} events are applied {after_s} s later, by the worker that is left.")

    def _freeze_with_messages(self, victim: CeleryProcess) -> None:
        """Halt it at a moment when it has taken messages, so that the events behind them are in flight."""
        for _ in range(_FREEZES):
            victim.freeze()
            if self._stage.wait(lambda: bool(self._stage.in_flight(_STUCK_S)), 2 * _STUCK_S):
                return
            victim.thaw()

    def _replace_worker(self) -> CeleryProcess:
        replacement = self._start_worker(3)
        self.facts.replacement_pid = replacement.pid
        self._stage.note(f"{replacement.name} (pid {replacement.pid}) starts in place of the killed one.")
        return replacement

    def _see_it_lost(self, silent: AgentRecord, successor: AgentRecord, silent_since: float) -> None:
        agent_id, patience_s = silent.agent_id, self._sc.settings.heartbeat_lost_after_s + PROMPT_S
        self._stage.expect(
            lambda: self._state(agent_id) == AgentState.LOST, f"beat declares {agent_id} lost", patience_s
        )
        after_s = self.facts.lost_after_s = round(time.monotonic() - silent_since, 1)
        self._stage.note(f"{agent_id} is declared lost after {after_s} s; {REVIEW} is queued again.")
        self._stage.expect(lambda: self._holder() == successor.agent_id, f"{successor.agent_id} gets {REVIEW}")
        self.facts.successor = successor.agent_id
        self._stage.note(f"{successor.agent_id} gets {REVIEW}.")

    def _write_late(self, silent: AgentRecord) -> None:
        agent_id, op_id = silent.agent_id, new_op_id()
        self._stage.late.add(op_id)
        try:
            self._sc.agents.apply_event(
                agent_id, AgentEvent.OUTPUT_READY, epoch=silent.epoch, task_id=REVIEW, op_id=op_id
            )
        except LeaseLostError as error:
            self.facts.refusal = str(error)
        else:
            raise PromiseBrokenError(f"the late write of {agent_id} was accepted")
        self._stage.note(f"{agent_id} wakes up and reports its output: refused (LeaseLostError).")
        returned = self._sc.agents.register(agent_id, capabilities=["review"])
        self._stage.traffic.keep_alive(agent_id, returned.epoch)
        self._stage.note(f"{agent_id} registers again, under a new epoch.")

    def _finish_review(self, successor: AgentRecord) -> None:
        for event in (AgentEvent.WORK_STARTED, AgentEvent.OUTPUT_READY, AgentEvent.OUTPUT_DELIVERED):
            self._stage.traffic.submit(successor.agent_id, event, epoch=successor.epoch, task_id=REVIEW)
        self._stage.expect(self._review_is_completed, f"{successor.agent_id} completes {REVIEW}")
        self._stage.note(f"{successor.agent_id} completes {REVIEW}.")

    def _state(self, agent_id: str) -> str | None:
        view = self._stage.agent(agent_id)
        return view.state if view else None

    def _holder(self) -> str | None:
        task = self._stage.watcher.task(REVIEW)
        return task.claimed_by if task else None

    def _review_is_completed(self) -> bool:
        task = self._stage.watcher.task(REVIEW)
        return task is not None and task.status == TaskStatus.COMPLETED
