"""What the embedded servers have in common: how one is found, started, stopped and where its socket is.

A server is recognised by what it is (its program, running in its own folder) and by whether it answers on its
socket, never by a pid file: after a crash or a reboot such a file names a stranger. What keeps a second
server from the same data is `server.lock`: every process of a server inherits it, so it is free only when the
last one is gone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import socket
import stat
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import IO, ClassVar

import psutil

from statecore.errors import SettingsError, StoreUnavailableError

# Long enough for a crash recovery or a large append-only file: giving up early would only begin it anew.
START_TIMEOUT_S = 120.0
STOP_STEP_TIMEOUT_S = 15.0
LEFTOVER_GRACE_S = 5.0
LOG_MAX_BYTES = 8 * 1024 * 1024
LOG_LINES_SHOWN = 15

OWN_SERVERS_ADVICE = "set STATECORE_REDIS_URL and STATECORE_DATABASE_URL to servers of your own"

# macOS allows 104 bytes with the closing zero, Linux 108.
_SOCKET_PATH_MAX = 103
# In all three URLs (and in libpq's comma-separated host) these characters mean only themselves.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/-]+")


class Answer(Enum):
    """What a server's socket says about it."""

    READY = auto()
    NOT_YET = auto()
    NOBODY = auto()


class ServerProcess(ABC):
    """One server with its data in `folder`; its callers see to it that start and stop do not overlap."""

    title: ClassVar[str]
    program: ClassVar[str]
    socket_name: ClassVar[str]
    stop_signals: ClassVar[tuple[signal.Signals, ...]]
    """What asks the main process for an orderly stop, the gentlest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().resolve()
        self.log = self.folder / "server.log"

    @property
    def data_folder(self) -> Path:
        """Where the server keeps its data, and its working directory."""
        return self.folder

    @property
    def socket(self) -> Path:
        """The path of the unix socket, whether the server runs or not."""
        return find_socket_folder(self.folder, self.socket_name) / self.socket_name

    @abstractmethod
    def answer(self) -> Answer:
        """Ask the server on its socket; changes nothing."""

    @abstractmethod
    def _prepare(self) -> None:
        """Make what the server needs on disk before it can be launched."""

    @abstractmethod
    def _launch(self, lock: int) -> None:
        """Start the program in a session of its own; it inherits the descriptor `lock`."""

    def start(self) -> None:
        """Return when the server answers: a running one is kept, what a crash left behind is cleared."""
        if self.answer() is Answer.READY:
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._prepare()
        with (self.folder / "server.lock").open("a") as lock:
            # A killed starter leaves a server on its way up, a killed server its children on their way out.
            wait_until(lambda: self.answer() is not Answer.NOBODY or _try_lock(lock), LEFTOVER_GRACE_S)
            if self.answer() is Answer.NOBODY:
                self.stop()
                if not wait_until(lambda: _try_lock(lock), LEFTOVER_GRACE_S):
                    raise self._unavailable(f"can't start while a process holds {lock.name}")
                self._roll_log()
                self._launch(lock.fileno())
        wait_until(lambda: self.answer() is Answer.READY or not self.processes(), START_TIMEOUT_S)
        if self.answer() is not Answer.READY:
            raise self._unavailable("runs but does not answer" if self.processes() else "did not start")

    def stop(self) -> None:
        """Return when no process of the server is left; everything it acknowledged is on disk."""
        for number in self.stop_signals:
            self.signal_leader(number)
            if wait_until(lambda: not self.processes(), STOP_STEP_TIMEOUT_S):
                return
        self.kill()

    def kill(self) -> None:
        """End every process of the server with SIGKILL, as a crash would; the next start() recovers."""
        # The leader first: Postgres' would take its children's end for a crash and start new ones.
        self.signal_leader(signal.SIGKILL)
        for process in self.processes():
            _send(process, signal.SIGKILL)
        if not wait_until(lambda: not self.processes(), STOP_STEP_TIMEOUT_S):
            raise self._unavailable("can't be ended, not even with SIGKILL")

    def process_id(self) -> int | None:
        """The pid of the server's main process, None if it does not run."""
        return next((process.pid for process in self._leaders()), None)

    def signal_leader(self, number: signal.Signals) -> None:
        """Send a signal to the main process only."""
        for process in self._leaders():
            _send(process, number)

    def processes(self) -> list[psutil.Process]:
        """Every living process of this server, children included."""
        found = []
        for pid in psutil.pids():
            try:
                # Not process_iter(): it keeps objects of earlier calls, which won't signal a reused pid.
                process = psutil.Process(pid)
                if process.name() == self.program and process.cwd() == str(self.data_folder):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def _unavailable(self, problem: str) -> StoreUnavailableError:
        """An error that says what is wrong and shows the end of the server's log."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        except OSError as error:
            lines = [f"(no log: {error})"]
        shown = "\n  ".join(lines) or "(empty)"
        return StoreUnavailableError(
            f"{self.title} in {self.folder} {problem}; its log {self.log} ends with:\n  {shown}"
        )

    def _roll_log(self) -> None:
        """Keep the log and one older one, each of bounded size at the time of a start."""
        if self.log.exists() and self.log.stat().st_size > LOG_MAX_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))

    def _leaders(self) -> list[psutil.Process]:
        processes = self.processes()
        pids = {process.pid for process in processes}
        return [process for process in processes if _parent_pid(process) not in pids]


def is_listening(path: Path) -> bool:
    """Whether a process accepts connections on this unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            # A full backlog, for one: a listener that is busy is still there.
            return True
    return True


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def find_socket_folder(folder: Path, socket_name: str) -> Path:
    """`folder` if a socket's path fits in it, else a short folder that every process derives alike."""
    if _fits(folder / socket_name):
        return folder
    name = "statecore-" + hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    # The link lets a process with another TMPDIR find the server too. In a copy of the folder the name does
    # not match, so the copy does not take the original's servers for its own.
    link = folder / "sockets"
    if link.is_symlink() and (target := link.readlink()).name == name and target.parent.is_dir():
        return target
    for base in (tempfile.gettempdir(), "/tmp"):
        if _fits(Path(base, name, socket_name)):
            return Path(base, name)
    raise SettingsError(f"no folder for the sockets of {folder} has a short path; set TMPDIR to a shorter one")


def make_socket_folder(folder: Path, socket_name: str, owner_uid: int) -> Path:
    """Create the folder for a server's socket, open to its owner only."""
    place = find_socket_folder(folder, socket_name)
    if place == folder:
        return place
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    # Anybody may create names in a temporary folder: a stranger's folder could hold a stranger's server.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), owner_uid):
        raise SettingsError(f"{place} belongs to somebody else; remove it, or set STATECORE_HOME to a shorter path")
    place.chmod(0o700)
    os.chown(place, owner_uid, -1)
    link = folder / "sockets"
    link.unlink(missing_ok=True)
    link.symlink_to(place)
    return place


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= _SOCKET_PATH_MAX and _PLAIN_PATH.fullmatch(str(path)) is not None


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _parent_pid(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None
