"""What the demo's scenario stands on: its processes, threads and account of events, and the one way to wait."""

from __future__ import annotations

import time
from collections.abc import Callable

from statecore.agents.model import AgentView
from statecore.cli.crew import Crew
from statecore.cli.interrupts import Interrupts
from statecore.cli.processes import CeleryProcess, CeleryProcesses
from statecore.cli.screen import Scene, Screen
from statecore.cli.traffic import Traffic
from statecore.cli.verdict import Evidence
from statecore.cli.watcher import Watcher
from statecore.core import Statecore
from statecore.errors import StatecoreError

# Beat looks every five seconds, and a tick may be in the killed worker's hands.
PROMPT_S = 20.0
_SLICE_S = 0.2


class PromiseBrokenError(StatecoreError):
    """Something that must happen did not happen in time."""


class Stage:
    """Everything it starts is stopped by `stop`; every wait ends early with a signal or with a thread's error."""

    def __init__(self, sc: Statecore, processes: CeleryProcesses, screen: Screen, interrupts: Interrupts) -> None:
        self.sc = sc
        self.processes = processes
        self.crew = Crew()
        self.traffic = Traffic(sc.agents)
        self.watcher = Watcher(sc.events, sc.agents.lifecycle, self.traffic.is_ours)
        self.roles: dict[str, str] = {}
        self.late: set[str] = set()
        self._killed: set[int] = set()
        self._screen = screen
        self._interrupts = interrupts

    def open(self) -> None:
        """Begin to watch the audit stream and to show it."""
        self.crew.start("watcher", self.watcher.follow)
        self._screen.watch(self._scene)

    def stop(self) -> None:
        """Return when no thread and no process is left."""
        self.crew.stop()
        self.processes.stop()

    def note(self, text: str) -> None:
        """Tell the viewer."""
        self._screen.note(text)

    def kill(self, process: CeleryProcess) -> None:
        """End it with SIGKILL, pool included."""
        process.kill()
        self._killed.add(process.pid)

    def wait_ready(self, *processes: CeleryProcess) -> None:
        """Return when these processes are up; CeleryStartError."""
        self.processes.wait_ready(self._pause, *processes)

    def expect(self, condition: Callable[[], bool], promise: str, seconds: float = PROMPT_S) -> None:
        """Return when the condition is true; PromiseBrokenError if it is not in time."""
        if not self.wait(condition, seconds):
            raise PromiseBrokenError(f"after {seconds:g} s it is not true that {promise}")

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition came true in time."""
        deadline = time.monotonic() + seconds
        while not self.watcher.wait_for(condition, min(_SLICE_S, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                return False
            self._pause(0)
        return True

    def in_flight(self, min_age_s: float = 0.0) -> frozenset[str]:
        """The op_ids that were submitted, at least that long ago, and are not applied yet."""
        return self.watcher.missing(self.traffic.op_ids(min_age_s))

    def agent(self, agent_id: str) -> AgentView | None:
        """The agent as the audit stream tells."""
        return self.watcher.agent(agent_id)

    def evidence(self) -> Evidence:
        """All that the verdict is computed from; call it when nothing changes any more."""
        events = list(self.sc.events.read())
        tasks = sorted({event.subject for event in events if event.kind.startswith("task:")})
        return Evidence(
            submitted=self.traffic.submitted,
            late=frozenset(self.late),
            events=events,
            agents=self.sc.agents.list(limit=len(self.roles) + 1),
            tasks=[self.sc.claims.get(task_id) for task_id in tasks],
        )

    def _pause(self, seconds: float) -> None:
        self._interrupts.pause(seconds)
        self.crew.check()

    def _scene(self) -> Scene:
        op_ids = self.traffic.op_ids()
        return Scene(
            agents=[(agent_id, role, self.agent(agent_id)) for agent_id, role in list(self.roles.items())],
            processes=[(process.name, self._condition(process)) for process in self.processes.all],
            submitted=len(op_ids),
            applied=len(op_ids) - len(self.watcher.missing(op_ids)),
            recent=self.watcher.recent(),
        )

    def _condition(self, process: CeleryProcess) -> str:
        if process.pid in self._killed:
            return "killed"
        return "running" if process.is_running else "stopped"
