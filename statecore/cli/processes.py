"""Celery's processes as children of a command: each in a session of its own, its output in a file, none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from statecore.errors import StatecoreError
from statecore.settings import Settings

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 8.0
_LOG_LINES_SHOWN = 15
_LOOK_EVERY_S = 0.05

# Celery takes these before the app's own configuration, so they would lead a worker to another broker or app.
_CELERY_VARIABLES = frozenset(
    {
        *("APP", "BROKER_URL", "RESULT_BACKEND", "LOADER", "CONFIG_MODULE"),
        *("CELERY_APP", "CELERY_LOADER", "CELERY_CONFIG_MODULE", "CELERY_RESULT_BACKEND"),
        *("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"),
    }
)


class CeleryStartError(StatecoreError):
    """A worker or beat did not come up."""

    text = "{0} {1}; its log {2} ends with:\n  {3}"

    def __init__(self, name: str, problem: str, log: str, lines: str) -> None:
        super().__init__(name, problem, log, lines)
        self.name, self.problem, self.log, self.lines = name, problem, log, lines


class CeleryProcess:
    """A worker with its pool, or beat."""

    def __init__(self, name: str, child: subprocess.Popen[bytes], log: Path, ready_mark: str) -> None:
        self.name = name
        self.pid = child.pid
        self.log = log
        self._child = child
        self._ready_mark = ready_mark
        self._gone = False

    @property
    def is_running(self) -> bool:
        """Whether its main process lives."""
        return self._child.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether it has said that it takes messages, or that it sends them."""
        return self._ready_mark in self.log.read_text(errors="replace")

    def freeze(self) -> None:
        """Halt it where it stands, pool included, until thaw or kill."""
        self._signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on after freeze."""
        self._signal_group(signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL, pool included, as a crash of its host would."""
        self._signal_group(signal.SIGKILL)
        self._child.wait()
        self._gone = True

    def ask_to_stop(self) -> None:
        """Ask its main process for a warm shutdown; it ends its pool itself."""
        if self.is_running:
            self._child.terminate()

    def end(self, deadline: float) -> None:
        """Return when it is gone: by itself until `deadline` (monotonic), else killed."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def not_up(self, problem: str) -> CeleryStartError:
        """The error that says so and shows the end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return CeleryStartError(self.name, problem, str(self.log), "\n  ".join(lines) or "(empty)")

    def _signal_group(self, number: signal.Signals) -> None:
        # The group outlives its leader while a child of the pool is left; once gone, its number may be a stranger's.
        if not self._gone:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


class CeleryProcesses:
    """All Celery processes that one command started; their working directory and logs are in `folder`."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.all: list[CeleryProcess] = []
        self._folder = folder
        # What a killed worker leaves among temporary files must go with the folder.
        self._environment = celery_environment(settings) | {"TMPDIR": str(folder)}

    def start_worker(self, name: str, concurrency: int) -> CeleryProcess:
        """A worker of all queues is on its way up; see wait_ready."""
        # It has nothing to learn from its neighbours, and asking them costs its first second.
        options = ("-n", f"{name}@%h", "-c", str(concurrency), "--without-mingle", "--without-gossip")
        return self._start(name, ("worker", *options), ready_mark=" ready.")

    def start_beat(self, name: str) -> CeleryProcess:
        """A beat is on its way up; see wait_ready."""
        options = ("-s", str(self._folder / f"{name}-schedule"), "--pidfile=")
        return self._start(name, ("beat", *options), ready_mark="beat: Starting...")

    def wait_ready(
        self, pause: Callable[[float], None], *processes: CeleryProcess, timeout_s: float = START_TIMEOUT_S
    ) -> None:
        """Return when all of them are up; CeleryStartError if one is not in time. `pause` waits and may raise."""
        deadline = time.monotonic() + timeout_s
        for process in processes:
            while not process.is_ready:
                if not process.is_running:
                    raise process.not_up("ended while it was starting")
                if time.monotonic() > deadline:
                    raise process.not_up(f"did not come up in {timeout_s:g} s")
                pause(_LOOK_EVERY_S)

    def stop(self) -> None:
        """Return when none of them is left: all are asked at once, who is late is killed."""
        for process in self.all:
            process.ask_to_stop()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self.all:
            process.end(deadline)

    def _start(self, name: str, arguments: Sequence[str], ready_mark: str) -> CeleryProcess:
        log = self._folder / f"{name}.log"
        with log.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "workers", *arguments, "-l", "info"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,
            )
        process = CeleryProcess(name, child, log, ready_mark)
        self.all.append(process)
        return process


def celery_environment(settings: Settings) -> dict[str, str]:
    """This process' environment, in which Celery finds exactly these settings and no others."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith("STATECORE_") and name not in _CELERY_VARIABLES
    }
    values = settings.model_dump(mode="json", exclude_none=True)
    return kept | {f"STATECORE_{name.upper()}": str(value) for name, value in values.items()}
