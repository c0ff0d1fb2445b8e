"""The demo's scenario: a fleet at work, a worker killed, an agent lost, its late write refused, and the verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from statecore.agents.model import AgentEvent, AgentRecord, AgentState
from statecore.claims.model import TaskStatus
from statecore.cli.crew import Crew
from statecore.cli.interrupts import Interrupts
from statecore.cli.processes import CeleryProcess, CeleryProcesses
from statecore.cli.screen import Scene, Screen
from statecore.cli.traffic import Drive, Traffic
from statecore.cli.verdict import Evidence, Verdict, judge
from statecore.cli.watcher import Watcher
from statecore.core import Statecore
from statecore.errors import LeaseLostError, StatecoreError
from statecore.ids import new_op_id

REVIEW = "review-1"
REVIEWERS = 2
# Of the events asked for, so many tell the review's story; the other agents share the rest.
REVIEW_EVENTS = 4
DRIVE_S = 7.0
WORKER_CHILDREN = 2
_DRIVERS = 4
_PILE_UP = 3
_PILE_UP_S = 2.0
# Beat looks every five seconds, and a tick may be in the killed worker's hands.
_PROMPT_S = 20.0
_SLICE_S = 0.2


class PromiseBrokenError(StatecoreError):
    """Something that must happen did not happen in time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How large the demo is."""

    agents: int
    events: int
    seed: int


@dataclass(slots=True)
class Facts:
    """What happened beside the count of events; None or empty where the story did not get that far."""

    killed_worker: str | None = None
    killed_pid: int | None = None
    in_flight_at_kill: int | None = None
    replacement_pid: int | None = None
    silent_agent: str | None = None
    lost_after_s: float | None = None
    successor: str | None = None
    refusal: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The facts as one JSON object."""
        return asdict(self)


class Story:
    """Plays once. Everything it starts is stopped by `stop`, whatever happened."""

    def __init__(
        self, sc: Statecore, processes: CeleryProcesses, screen: Screen, interrupts: Interrupts, plan: Plan
    ) -> None:
        self.facts = Facts()
        self._sc = sc
        self._processes = processes
        self._screen = screen
        self._interrupts = interrupts
        self._plan = plan
        self._rng = random.Random(plan.seed)
        self._crew = Crew()
        self._traffic = Traffic(sc.agents)
        self._watcher = Watcher(sc.events, sc.agents.lifecycle, self._traffic.is_ours)
        self._roles: dict[str, str] = {}
        self._late: set[str] = set()

    def play(self) -> Verdict:
        """The verdict; KeyboardInterrupt if a signal came, StatecoreError if a server or a process fails."""
        broken: list[str] = []
        workers = self._start_processes()
        try:
            self._play(workers)
        except PromiseBrokenError as error:
            broken.append(str(error))
        self._screen.note("workers and beat stop; the audit stream is replayed through the pure table")
        self._processes.stop()
        return judge(self._evidence(), self._sc.agents.lifecycle, broken)

    def stop(self) -> None:
        """Return when no thread and no process of the story is left."""
        self._crew.stop()
        self._processes.stop()

    def _start_processes(self) -> list[CeleryProcess]:
        self._screen.watch(self._scene)
        self._screen.note(f"two Celery workers with {WORKER_CHILDREN} children each and beat start")
        workers = [self._start_worker(number) for number in (1, 2)]
        beat = self._processes.start_beat("beat")
        self._processes.wait_ready(self._pause, *workers, beat)
        return workers

    def _play(self, workers: list[CeleryProcess]) -> None:
        self._crew.start("watcher", self._watcher.follow)
        reviewers = self._register()
        self._crew.start("heartbeats", self._traffic.beat)
        drives = self._start_driving()
        silent, successor = self._hand_out_review(reviewers)
        fell_silent_at = self._fall_silent(silent)
        self._kill_one_of(workers)
        replacement = self._replace_worker()
        self._see_it_lost(silent, successor, fell_silent_at)
        self._write_late(silent)
        self._finish_review(successor)
        self._processes.wait_ready(self._pause, replacement)
        self._expect(
            lambda: all(drive.is_done for drive in drives) and self._in_flight() <= 0,
            "every submitted event is applied",
            DRIVE_S + _PROMPT_S,
        )

    def _register(self) -> list[AgentRecord]:
        driven = self._plan.agents - REVIEWERS
        records = []
        for number in range(1, self._plan.agents + 1):
            role, capability = ("events", "work") if number <= driven else ("reviews", "review")
            record = self._sc.agents.register(f"agent-{number}", capabilities=[capability])
            self._roles[record.agent_id] = role
            self._traffic.keep_alive(record.agent_id, record.epoch)
            records.append(record)
        self._screen.note(f"{driven} agents go through their events, {REVIEWERS} take reviews from the queue")
        return records[driven:]

    def _start_driving(self) -> list[Drive]:
        agents = [agent_id for agent_id, role in self._roles.items() if role == "events"]
        each, more = divmod(self._plan.events - REVIEW_EVENTS, len(agents))
        budgets = [(agent_id, each + (place < more)) for place, agent_id in enumerate(agents)]
        drives = []
        for first in range(min(_DRIVERS, len(budgets))):
            drive = Drive(self._traffic, budgets[first::_DRIVERS], DRIVE_S, random.Random(self._rng.random()))
            self._crew.start(f"driver-{first + 1}", drive.run)
            drives.append(drive)
        return drives

    def _hand_out_review(self, reviewers: list[AgentRecord]) -> tuple[AgentRecord, AgentRecord]:
        """The reviewer whom the supervisor gave the review, and the other one."""
        self._sc.claims.enqueue(REVIEW, priority=5, capabilities=["review"])
        self._expect(lambda: self._holder() is not None, "the supervisor hands out the review")
        first, second = reviewers
        return (first, second) if self._holder() == first.agent_id else (second, first)

    def _fall_silent(self, silent: AgentRecord) -> float:
        agent_id = self.facts.silent_agent = silent.agent_id
        self._traffic.submit(agent_id, AgentEvent.WORK_STARTED, epoch=silent.epoch, task_id=REVIEW)
        self._expect(lambda: self._state(agent_id) == AgentState.WORKING, f"{agent_id} starts to work")
        self._traffic.fall_silent(agent_id)
        limit_s = self._sc.settings.heartbeat_lost_after_s
        self._screen.note(f"{agent_id} works on {REVIEW} and falls silent; beat will miss it after {limit_s:g} s")
        return time.monotonic()

    def _kill_one_of(self, workers: list[CeleryProcess]) -> None:
        """Frozen first, so that messages it took and events behind them are in flight when it dies."""
        victim = self._rng.choice(workers)
        victim.freeze()
        self._wait(lambda: self._in_flight() >= _PILE_UP, _PILE_UP_S)
        victim.kill()
        self.facts.killed_worker, self.facts.killed_pid = victim.name, victim.pid
        self.facts.in_flight_at_kill = self._in_flight()
        self._screen.note(f"kill -9 {victim.name} (pid {victim.pid}): {self._in_flight()} events are in flight")

    def _replace_worker(self) -> CeleryProcess:
        replacement = self._start_worker(3)
        self.facts.replacement_pid = replacement.pid
        self._screen.note(f"{replacement.name} (pid {replacement.pid}) starts in its place")
        return replacement

    def _see_it_lost(self, silent: AgentRecord, successor: AgentRecord, fell_silent_at: float) -> None:
        patience_s = self._sc.settings.heartbeat_lost_after_s + _PROMPT_S
        self._expect(
            lambda: self._state(silent.agent_id) == AgentState.LOST,
            f"beat declares {silent.agent_id} lost",
            patience_s,
        )
        self.facts.lost_after_s = round(time.monotonic() - fell_silent_at, 1)
        self._screen.note(f"beat declares {silent.agent_id} lost: its epoch rises, {REVIEW} goes back to the queue")
        self._expect(lambda: self._holder() == successor.agent_id, f"{successor.agent_id} gets {REVIEW}")
        self.facts.successor = successor.agent_id
        self._screen.note(f"{successor.agent_id} gets {REVIEW}")

    def _write_late(self, silent: AgentRecord) -> None:
        op_id = new_op_id()
        self._late.add(op_id)
        try:
            self._sc.agents.apply_event(
                silent.agent_id, AgentEvent.OUTPUT_READY, epoch=silent.epoch, task_id=REVIEW, op_id=op_id
            )
        except LeaseLostError as error:
            self.facts.refusal = str(error)
            self._screen.note(f"{silent.agent_id} wakes up and reports its output: refused, LeaseLostError")
        else:
            raise PromiseBrokenError(f"the late write of {silent.agent_id} was accepted")
        returned = self._sc.agents.register(silent.agent_id, capabilities=["review"])
        self._traffic.keep_alive(returned.agent_id, returned.epoch)

    def _finish_review(self, successor: AgentRecord) -> None:
        for event in (AgentEvent.WORK_STARTED, AgentEvent.OUTPUT_READY, AgentEvent.OUTPUT_DELIVERED):
            self._traffic.submit(successor.agent_id, event, epoch=successor.epoch, task_id=REVIEW)
        self._expect(self._review_is_completed, f"{successor.agent_id} completes {REVIEW}")
        self._screen.note(f"{successor.agent_id} completes {REVIEW}; {self._in_flight()} events are in flight")

    def _start_worker(self, number: int) -> CeleryProcess:
        return self._processes.start_worker(f"worker-{number}", WORKER_CHILDREN)

    def _evidence(self) -> Evidence:
        events = list(self._sc.events.read())
        tasks = sorted({event.subject for event in events if event.kind.startswith("task:")})
        return Evidence(
            submitted=self._traffic.submitted,
            late=frozenset(self._late),
            events=events,
            agents=self._sc.agents.list(limit=self._plan.agents + 1),
            tasks=[self._sc.claims.get(task_id) for task_id in tasks],
        )

    def _expect(self, condition: Callable[[], bool], promise: str, seconds: float = _PROMPT_S) -> None:
        if not self._wait(condition, seconds):
            raise PromiseBrokenError(f"after {seconds:g} s it is not true that {promise}")

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._watcher.wait_for(condition, min(_SLICE_S, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                return False
            self._pause(0)
        return True

    def _pause(self, seconds: float) -> None:
        self._interrupts.pause(seconds)
        self._crew.check()

    def _in_flight(self) -> int:
        return self._traffic.count - self._watcher.applied

    def _state(self, agent_id: str) -> str | None:
        view = self._watcher.agent(agent_id)
        return view.state if view else None

    def _holder(self) -> str | None:
        task = self._watcher.task(REVIEW)
        return task.claimed_by if task else None

    def _review_is_completed(self) -> bool:
        task = self._watcher.task(REVIEW)
        return task is not None and task.status == TaskStatus.COMPLETED

    def _scene(self) -> Scene:
        return Scene(
            agents=[(agent_id, role, self._watcher.agent(agent_id)) for agent_id, role in self._roles.items()],
            processes=[
                (process.name, process.pid, _condition(process, self.facts.killed_pid))
                for process in self._processes.all
            ],
            submitted=self._traffic.count,
            applied=self._watcher.applied,
            recent=self._watcher.recent(),
        )


def _condition(process: CeleryProcess, killed_pid: int | None) -> str:
    if process.pid == killed_pid:
        return "killed"
    return "running" if process.is_running else "stopped"
