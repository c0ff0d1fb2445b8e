"""A Valkey and a PostgreSQL server in one folder, shared by every process that wants them.

Each user holds a shared lock on `users.lock`; starting and stopping are serialised by `start.lock`. The
kernel drops a dead process' locks, so a killed user neither keeps the servers alive for ever nor blocks
anyone: they outlive it, the next start() attaches to them, and the last release() stops them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import platformdirs

from statecore.backends.embedded_postgres import EmbeddedPostgres
from statecore.backends.embedded_process import Answer
from statecore.backends.embedded_redis import EmbeddedRedis
from statecore.errors import SettingsError


@dataclass(frozen=True, slots=True)
class ServerUrls:
    """Where the servers are: for redis-py, for kombu, and for SQLAlchemy with psycopg 3."""

    redis_url: str
    broker_url: str
    database_url: str


def default_home() -> Path:
    """The folder of the embedded servers: STATECORE_HOME, or the user's data folder."""
    configured = os.environ.get("STATECORE_HOME")
    return Path(configured).expanduser() if configured else platformdirs.user_data_path("statecore", appauthor=False)


class EmbeddedServers:
    """One user of the servers in `home`; any number of users, in any processes, share one pair."""

    def __init__(self, home: Path) -> None:
        self.home = home.expanduser().resolve()
        self.redis = EmbeddedRedis(self.home / "redis")
        self.postgres = EmbeddedPostgres(self.home / "postgres")
        self._membership: _Membership | None = None

    def start(self) -> ServerUrls:
        """Return when both servers answer and stay until release(); starts what does not run yet."""
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.home / "start.lock").touch(mode=0o600)
        except OSError as error:
            raise SettingsError(f"can't use {self.home} ({error}); set STATECORE_HOME to a folder you own") from error
        with self._one_at_a_time():
            joined = self._join()
            try:
                self.redis.start()
                self.postgres.start()
            except BaseException:
                if joined:
                    self._leave()
                raise
        return self._urls()

    def release(self) -> None:
        """End this use of the servers; the last user's release stops them."""
        if self._membership is not None:
            with self._one_at_a_time():
                self._leave()

    def stop(self) -> None:
        """Stop both servers, whoever uses them."""
        if self.home.exists():
            with self._one_at_a_time():
                self._stop_servers()

    def running(self) -> ServerUrls | None:
        """The URLs if both servers answer now; starts and changes nothing."""
        both = self.redis.answer() is Answer.READY and self.postgres.answer() is Answer.READY
        return self._urls() if both else None

    def __enter__(self) -> ServerUrls:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _urls(self) -> ServerUrls:
        return ServerUrls(self.redis.url, self.redis.broker_url, self.postgres.url)

    def _join(self) -> bool:
        if self._membership is not None and self._membership.is_ours():
            return False
        if self._membership is not None:
            self._membership.end()
        self._membership = _Membership(self.home / "users.lock")
        return True

    def _leave(self) -> None:
        if self._membership is not None:
            self._membership.end()
            self._membership = None
        if _nobody_holds(self.home / "users.lock"):
            self._stop_servers()

    def _stop_servers(self) -> None:
        try:
            self.redis.stop()
        finally:
            self.postgres.stop()

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        with (self.home / "start.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                # A child forked meanwhile shares the lock: closing our copy alone would leave it held.
                fcntl.flock(file, fcntl.LOCK_UN)


class _Membership:
    """A shared lock that lasts until end(), or until this process and the children it forked are gone."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._pid = os.getpid()
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def is_ours(self) -> bool:
        """False in a forked child, which has only a copy of its parent's membership."""
        return self._pid == os.getpid()

    def end(self) -> None:
        # Unlocking would end the parent's membership too.
        if self.is_ours():
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def _nobody_holds(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(file, fcntl.LOCK_UN)
    return True
