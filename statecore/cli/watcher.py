"""What the audit stream has told so far, while it grows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from statecore.agents.model import AgentView
from statecore.agents.transitions import Lifecycle
from statecore.events import Event, EventLog
from statecore.testing.replay import Replayer, TaskView

_LOOK_UP_S = 0.25
_RECENT = 30


class Watcher:
    """Follows a namespace's events from the first one, replays them, and wakes those who wait for something."""

    def __init__(self, log: EventLog, lifecycle: Lifecycle, is_ours: Callable[[str], bool]) -> None:
        self._log = log
        self._is_ours = is_ours
        self._replayer = Replayer(lifecycle)
        self._recent: deque[Event] = deque(maxlen=_RECENT)
        self._applied: set[str] = set()
        self._changed = threading.Condition()

    def follow(self, stopping: threading.Event) -> None:
        """Take in events until told to stop."""
        after = "0"
        while not stopping.is_set():
            for event in self._log.follow(after, idle_s=_LOOK_UP_S):
                after = event.id
                self._take(event)
                if stopping.is_set():
                    return

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition came true in time; it is looked at after every event."""
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    def missing(self, op_ids: frozenset[str]) -> frozenset[str]:
        """Those of them that are not applied yet."""
        with self._changed:
            return op_ids - self._applied

    def agent(self, agent_id: str) -> AgentView | None:
        """The agent as the events so far left it."""
        return self._replayer.result.agents.get(agent_id)

    def task(self, task_id: str) -> TaskView | None:
        """The task as the events so far left it."""
        return self._replayer.result.tasks.get(task_id)

    def recent(self) -> list[Event]:
        """The last events, oldest first."""
        with self._changed:
            return list(self._recent)

    def _take(self, event: Event) -> None:
        with self._changed:
            self._replayer.take(event)
            self._recent.append(event)
            if event.after is not None and event.kind.startswith("agent:") and self._is_ours(event.op_id):
                self._applied.add(event.op_id)
            self._changed.notify_all()
